#include "frontend/constraint_grammar.h"

#include <assert.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "frontend/grammar_vocab.h"

enum phase {
    PHASE_BEFORE,   /* the grammar, or a channel that opens */
    PHASE_THINKING, /* any text, until the channel closes */
    PHASE_GRAMMAR,
};

enum {
    MAX_TRIES = 3 /* an automaton that was emptied is filled again */
};

struct place {
    struct constraint base;  /* first: fill and release recover the rest from it */
    struct grammar *grammar; /* counted */
    uint32_t end_ids[CONSTRAINT_MAX_ENDS];
    uint32_t end_count;
    uint32_t channel_open;
    uint32_t channel_close;
    enum phase first_phase;

    enum phase phase;
    uint32_t taken_count;  /* of the output */
    uint32_t grammar_from; /* index of the first token of the grammar */
    struct grammar_place at;
};

static void set_bit(uint32_t *words, uint32_t word_count, uint32_t id)
{
    if (id / 32 < word_count) {
        words[id / 32] |= 1U << id % 32;
    }
}

static void rewind_place(struct place *place)
{
    place->phase = place->first_phase;
    place->taken_count = 0;
    place->grammar_from = 0;
    place->at = (struct grammar_place){0};
}

/* Tokens before the grammar begins. */
static void take_thoughts(struct place *place, const uint32_t *output, uint32_t count)
{
    while (place->taken_count < count && place->phase != PHASE_GRAMMAR) {
        uint32_t token = output[place->taken_count];
        if (place->phase == PHASE_BEFORE && token != place->channel_open) {
            place->phase = PHASE_GRAMMAR; /* which this token begins */
            break;
        }
        bool has_closed = place->phase == PHASE_THINKING && token == place->channel_close;
        place->phase = has_closed ? PHASE_GRAMMAR : PHASE_THINKING;
        place->taken_count++;
        place->grammar_from = place->taken_count;
    }
}

static enum grammar_answer take(struct place *place, const uint32_t *output, uint32_t count)
{
    take_thoughts(place, output, count);
    if (place->at.generation == 0) {
        place->at = grammar_begin(place->grammar);
    }
    uint32_t more = count - place->taken_count;
    const uint32_t *from =
        more > 0 ? output + place->taken_count : NULL; /* output null: none yet */
    enum grammar_answer answer = grammar_take(place->grammar, &place->at, from, more);
    place->taken_count = count;
    return answer;
}

/* Any text, and the end of the channel. */
static void fill_thoughts(const struct place *place, uint32_t *out_words, uint32_t word_count)
{
    const struct vocab *vocab = grammar_vocab(place->grammar);
    memcpy(out_words, vocab->text, vocab->words * sizeof(uint32_t));
    set_bit(out_words, word_count, place->channel_close);
}

static enum grammar_answer fill_place(struct place *place, uint32_t *out_words, uint32_t word_count)
{
    bool may_end = false;
    if (place->phase == PHASE_THINKING) {
        fill_thoughts(place, out_words, word_count);
        return GRAMMAR_FINE;
    }
    enum grammar_answer answer = grammar_mask(place->grammar, &place->at, out_words, &may_end);
    for (uint32_t i = 0; answer == GRAMMAR_FINE && may_end && i < place->end_count; i++) {
        set_bit(out_words, word_count, place->end_ids[i]);
    }
    if (answer == GRAMMAR_FINE && place->phase == PHASE_BEFORE) {
        set_bit(out_words, word_count, place->channel_open);
    }
    return answer;
}

/* The last answer, after an automaton that was emptied has been filled again. */
static enum grammar_answer answer(struct place *place, const uint32_t *output, uint32_t count,
                                  uint32_t *words, uint32_t word_count)
{
    enum grammar_answer last = GRAMMAR_STALE;
    for (uint32_t i = 0; i < MAX_TRIES && last == GRAMMAR_STALE; i++) {
        last = take(place, output, count);
        if (last == GRAMMAR_FINE) {
            last = fill_place(place, words, word_count);
        }
        if (last == GRAMMAR_STALE) {
            rewind_place(place);
        }
    }
    return last;
}

static void fill(struct constraint *constraint, const uint32_t *output, uint32_t count,
                 uint32_t *words, uint32_t word_count)
{
    struct place *place = (struct place *)constraint;
    uint32_t own_count = grammar_vocab(place->grammar)->words;
    enum grammar_answer last = GRAMMAR_DEAD;
    if (own_count <= word_count) {
        memset(words + own_count, 0, (word_count - own_count) * sizeof(*words));
        last = answer(place, output, count, words, word_count);
    }
    if (last != GRAMMAR_FINE) {
        memset(words, 0, word_count * sizeof(*words));
        log_error("constraint", "no_mask", "token=%u tokens=%u words=%u own_words=%u stale=%d",
                  count > 0 ? output[count - 1] : 0, count, word_count, own_count,
                  last == GRAMMAR_STALE);
    }
}

static void release(struct constraint *constraint)
{
    struct place *place = (struct place *)constraint;
    grammar_release(place->grammar);
    mem_free(place);
}

struct constraint *constraint_grammar_create(const struct constraint_grammar *options)
{
    assert(options->end_count > 0 && options->end_count <= CONSTRAINT_MAX_ENDS);
    struct place *place = mem_zalloc(1, sizeof(*place));
    place->base = (struct constraint){.fill = fill, .release = release};
    place->grammar = options->grammar;
    grammar_acquire(options->grammar);
    memcpy(place->end_ids, options->end_ids, options->end_count * sizeof(place->end_ids[0]));
    place->end_count = options->end_count;
    place->channel_open = options->channel_open;
    place->channel_close = options->channel_close;
    place->first_phase = options->may_think ? PHASE_BEFORE : PHASE_GRAMMAR;
    if (options->is_thinking) {
        place->first_phase = PHASE_THINKING;
    }
    place->phase = place->first_phase;
    return &place->base;
}
