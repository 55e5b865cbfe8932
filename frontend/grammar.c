#include "frontend/grammar.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "frontend/grammar_auto.h"
#include "frontend/grammar_calls.h"
#include "frontend/grammar_mask.h"
#include "frontend/grammar_regex.h"
#include "frontend/grammar_schema.h"
#include "frontend/grammar_vocab.h"
#include "frontend/tokenizer.h"

#define NO_MASK UINT32_MAX

enum {
    KEPT_MASKS = 128,
    MAX_CHOICES = 10000
};

/* A mask of a state, kept. */
struct kept {
    uint32_t state;
    bool is_used;
};

struct grammar {
    atomic_uint count;
    struct net net;
    const struct tokenizer *tokenizer; /* borrowed */
    const struct vocab *vocab;         /* borrowed */
    uint32_t marker_ids[NET_MARKERS];  /* by symbol less NET_MARKER; TOK_NONE: not used */

    pthread_mutex_t mutex; /* guards everything below */
    struct automaton automaton;
    uint64_t generation; /* places of an older one are stale */
    uint32_t *mask_of;   /* owned, [mask_of_cap], by state: index into kept, or NO_MASK */
    uint32_t mask_of_cap;
    struct kept kept[KEPT_MASKS]; /* a ring */
    uint32_t *kept_words;         /* owned, [KEPT_MASKS, vocab->words] */
    uint32_t kept_next;
    uint32_t *scratch; /* owned, [vocab->words] */
};

static void put_json(struct buf *out, const struct json_t *value)
{
    if (value != NULL) {
        json_put_value(out, value);
    }
    buf_append_char(out, '\n'); /* in no value */
}

void grammar_source_key(const struct grammar_source *source, struct buf *out)
{
    buf_printf(out, "%d %d %s\n", (int)source->kind, source->has_one_call,
               source->tool != NULL ? source->tool : "");
    put_json(out, source->value);
    put_json(out, source->tools);
    buf_append(out, source->regex, source->regex_bytes);
}

/* ---- compiling ---- */

static enum err_code put_json_value(struct net *net, const struct grammar_source *source,
                                    uint32_t from, uint32_t *out_to, struct err *err)
{
    struct schema *schema = schema_create(net, SCHEMA_STYLE_JSON);
    enum err_code code = source->kind == GRAMMAR_OBJECT
                             ? schema_put_object(schema, from, out_to, err)
                             : schema_put(schema, from, source->value, out_to, err);
    if (!code) {
        code = schema_finish(schema, err);
    }
    schema_destroy(schema);
    return code;
}

static enum err_code put_choices(struct net *net, const struct json_t *choices, uint32_t from,
                                 uint32_t *out_to, struct err *err)
{
    size_t count = json_kind(choices) == JSON_KIND_ARRAY ? json_count(choices) : 0;
    if (count == 0 || count > MAX_CHOICES) {
        return err_set(err, ERR_ARGUMENT, "choice must be a list of 1 to %d strings", MAX_CHOICES);
    }
    uint32_t begin = net_node(net);
    net_nothing(net, from, begin);
    *out_to = net_node(net);
    for (size_t i = 0; i < count; i++) {
        const struct json_t *choice = json_element(choices, i);
        size_t byte_count = 0;
        if (json_kind(choice) != JSON_KIND_TEXT) {
            return err_set(err, ERR_ARGUMENT, "choice must be a list of strings, not %s",
                           json_kind_text(json_kind(choice)));
        }
        const char *text = json_text(choice, &byte_count);
        if (byte_count == 0) {
            return err_set(err, ERR_ARGUMENT, "a choice must not be empty");
        }
        uint32_t at = begin;
        for (size_t b = 0; b < byte_count && !net->is_full; b++) {
            at = net_share(net, at, (unsigned char)text[b]);
        }
        net_nothing(net, at, *out_to);
    }
    return ERR_OK;
}

static enum err_code put_source(struct net *net, const struct grammar_source *source, uint32_t from,
                                uint32_t *out_to, struct err *err)
{
    struct regex_options whole = {.pattern = source->regex,
                                  .byte_count = source->regex_bytes,
                                  .text = REGEX_TEXT_RAW,
                                  .max_chars = BODY_ANY};
    switch (source->kind) {
    case GRAMMAR_NONE: *out_to = net_node(net); return ERR_OK;
    case GRAMMAR_OBJECT:
    case GRAMMAR_SCHEMA: return put_json_value(net, source, from, out_to, err);
    case GRAMMAR_REGEX: return regex_compile(net, from, &whole, out_to, err);
    case GRAMMAR_CHOICE: return put_choices(net, source->value, from, out_to, err);
    }
    return err_set(err, ERR_INTERNAL, "grammar of kind %d", (int)source->kind);
}

static enum err_code compile(struct net *net, const struct grammar_source *source, struct err *err)
{
    (void)net_node(net); /* node 0 is nobody's */
    uint32_t start = net_node(net);
    uint32_t end = net_node(net);
    uint32_t to = end;
    enum err_code code = put_source(net, source, start, &to, err);
    net_nothing(net, to, end);
    if (!code && source->tools != NULL) {
        code = grammar_put_calls(net, source, start, &to, err);
        net_nothing(net, to, end);
    }
    net_end(net, end);
    if (!code) {
        code = net_seal(net, start, err);
    }
    if (!code && net->nodes[start].height > AUTO_MAX_DEPTH) {
        code = err_set(err, ERR_LIMIT, "values must nest %u deep, at most %u",
                       net->nodes[start].height, AUTO_MAX_DEPTH);
    }
    return code;
}

static enum err_code take_markers(struct grammar *grammar, const struct grammar_source *source,
                                  const struct grammar_markers *markers, struct err *err)
{
    for (uint32_t i = 0; i < NET_MARKERS; i++) {
        grammar->marker_ids[i] = TOK_NONE;
    }
    if (source->tools == NULL) {
        return ERR_OK;
    }
    grammar->marker_ids[GRAMMAR_QUOTE - NET_MARKER] = markers->quote;
    grammar->marker_ids[GRAMMAR_CALL_OPEN - NET_MARKER] = markers->call_open;
    grammar->marker_ids[GRAMMAR_CALL_CLOSE - NET_MARKER] = markers->call_close;
    if (markers->quote == TOK_NONE || markers->call_open == TOK_NONE ||
        markers->call_close == TOK_NONE) {
        return err_set(err, ERR_UNSUPPORTED,
                       "tools: this checkpoint's tokenizer has no tokens for tool calls");
    }
    return ERR_OK;
}

enum err_code grammar_create(const struct grammar_source *source,
                             const struct grammar_markers *markers,
                             const struct tokenizer *tokenizer, const struct vocab *vocab,
                             struct grammar **out_grammar, struct err *err)
{
    struct grammar *grammar = mem_zalloc(1, sizeof(*grammar));
    atomic_init(&grammar->count, 1);
    net_init(&grammar->net);
    grammar->tokenizer = tokenizer;
    grammar->vocab = vocab;
    enum err_code code = take_markers(grammar, source, markers, err);
    if (!code) {
        code = compile(&grammar->net, source, err);
    }
    if (code) {
        net_fini(&grammar->net);
        mem_free(grammar);
        return code;
    }
    (void)pthread_mutex_init(&grammar->mutex, NULL); /* cannot fail on Linux */
    auto_init(&grammar->automaton, &grammar->net);
    grammar->generation = 1;
    grammar->kept_words = mem_zalloc((size_t)KEPT_MASKS * vocab->words, sizeof(uint32_t));
    grammar->scratch = mem_zalloc(vocab->words, sizeof(uint32_t));
    *out_grammar = grammar;
    return ERR_OK;
}

void grammar_acquire(struct grammar *grammar)
{
    (void)atomic_fetch_add_explicit(&grammar->count, 1, memory_order_relaxed);
}

void grammar_release(struct grammar *grammar)
{
    /* release: what this holder did; acquire: what all did, before the last one frees */
    if (grammar == NULL ||
        atomic_fetch_sub_explicit(&grammar->count, 1, memory_order_acq_rel) != 1) {
        return;
    }
    auto_fini(&grammar->automaton);
    net_fini(&grammar->net);
    mem_free(grammar->mask_of);
    mem_free(grammar->kept_words);
    mem_free(grammar->scratch);
    (void)pthread_mutex_destroy(&grammar->mutex);
    mem_free(grammar);
}

size_t grammar_bytes(struct grammar *grammar)
{
    (void)pthread_mutex_lock(&grammar->mutex);
    size_t bytes = sizeof(*grammar) + net_bytes(&grammar->net) + auto_bytes(&grammar->automaton) +
                   grammar->mask_of_cap * sizeof(uint32_t) +
                   grammar->vocab->words * sizeof(uint32_t); /* scratch */
    for (uint32_t i = 0; i < KEPT_MASKS; i++) {
        bytes += grammar->kept[i].is_used ? grammar->vocab->words * sizeof(uint32_t) : 0;
    }
    (void)pthread_mutex_unlock(&grammar->mutex);
    return bytes;
}

const struct vocab *grammar_vocab(const struct grammar *grammar)
{
    return grammar->vocab;
}

/* ---- running; the mutex is held ---- */

static void forget_masks(struct grammar *grammar)
{
    for (uint32_t i = 0; i < KEPT_MASKS; i++) {
        grammar->kept[i].is_used = false;
    }
    mem_free(grammar->mask_of);
    grammar->mask_of = NULL;
    grammar->mask_of_cap = 0;
}

static void renew(struct grammar *grammar)
{
    auto_reset(&grammar->automaton);
    grammar->generation++;
    forget_masks(grammar);
}

/* Where a state's mask is kept, NO_MASK where it is not. */
static uint32_t *mask_slot(struct grammar *grammar, uint32_t state)
{
    if (state >= grammar->mask_of_cap) {
        uint32_t cap = grammar->automaton.state_cap;
        grammar->mask_of = mem_realloc(grammar->mask_of, cap, sizeof(uint32_t));
        memset(grammar->mask_of + grammar->mask_of_cap, 0xff,
               (cap - grammar->mask_of_cap) * sizeof(uint32_t));
        grammar->mask_of_cap = cap;
    }
    return &grammar->mask_of[state];
}

static void add_markers(struct grammar *grammar, uint32_t state, uint32_t *words)
{
    for (uint32_t i = 0; i < NET_MARKERS; i++) {
        uint32_t id = grammar->marker_ids[i];
        if (id != TOK_NONE && id < grammar->vocab->token_count &&
            auto_next(&grammar->automaton, state, NET_MARKER + i) != AUTO_DEAD) {
            words[id / 32] |= 1U << id % 32;
        }
    }
}

/* A place in the ring for the mask of a state. */
static uint32_t *keep_mask(struct grammar *grammar, uint32_t state)
{
    uint32_t at = grammar->kept_next;
    grammar->kept_next = (at + 1) % KEPT_MASKS;
    if (grammar->kept[at].is_used) {
        *mask_slot(grammar, grammar->kept[at].state) = NO_MASK;
    }
    grammar->kept[at] = (struct kept){.state = state, .is_used = true};
    *mask_slot(grammar, state) = at;
    return grammar->kept_words + (size_t)at * grammar->vocab->words;
}

static const uint32_t *find_mask(struct grammar *grammar, uint32_t state)
{
    uint32_t kept = *mask_slot(grammar, state);
    if (kept != NO_MASK) {
        return grammar->kept_words + (size_t)kept * grammar->vocab->words;
    }
    uint32_t *words = keep_mask(grammar, state);
    grammar_mask_fill(&grammar->automaton, grammar->vocab, state, words, grammar->scratch);
    add_markers(grammar, state, words);
    return words;
}

static uint32_t take_token(struct grammar *grammar, uint32_t state, uint32_t token)
{
    uint32_t byte_count = 0;
    for (uint32_t i = 0; i < NET_MARKERS; i++) {
        if (grammar->marker_ids[i] == token) {
            return auto_next(&grammar->automaton, state, NET_MARKER + i);
        }
    }
    const char *bytes = tok_bytes(grammar->tokenizer, token, &byte_count);
    if (bytes == NULL || byte_count == 0 || tok_is_special(grammar->tokenizer, token)) {
        return AUTO_DEAD;
    }
    for (uint32_t i = 0; i < byte_count && state != AUTO_DEAD; i++) {
        state = auto_next(&grammar->automaton, state, (unsigned char)bytes[i]);
    }
    return state;
}

/* ---- any thread ---- */

struct grammar_place grammar_begin(struct grammar *grammar)
{
    (void)pthread_mutex_lock(&grammar->mutex);
    struct grammar_place place = {grammar->generation, grammar->automaton.start};
    (void)pthread_mutex_unlock(&grammar->mutex);
    return place;
}

enum grammar_answer grammar_take(struct grammar *grammar, struct grammar_place *place,
                                 const uint32_t *tokens, uint32_t count)
{
    enum grammar_answer answer = GRAMMAR_FINE;
    (void)pthread_mutex_lock(&grammar->mutex);
    if (place->generation != grammar->generation) {
        answer = GRAMMAR_STALE;
    }
    uint32_t state = place->state;
    for (uint32_t i = 0; answer == GRAMMAR_FINE && i < count; i++) {
        state = take_token(grammar, state, tokens[i]);
        if (state == AUTO_DEAD) {
            answer = grammar->automaton.has_overrun ? GRAMMAR_STALE : GRAMMAR_DEAD;
        }
    }
    if (grammar->automaton.has_overrun && answer == GRAMMAR_STALE) {
        renew(grammar);
    }
    if (answer == GRAMMAR_FINE) {
        place->state = state;
    }
    (void)pthread_mutex_unlock(&grammar->mutex);
    return answer;
}

enum grammar_answer grammar_mask(struct grammar *grammar, const struct grammar_place *place,
                                 uint32_t *out_words, bool *out_may_end)
{
    (void)pthread_mutex_lock(&grammar->mutex);
    bool is_stale = place->generation != grammar->generation;
    if (!is_stale) {
        memcpy(out_words, find_mask(grammar, place->state),
               grammar->vocab->words * sizeof(uint32_t));
        *out_may_end = grammar->automaton.states[place->state].accepts;
        if (auto_is_full(&grammar->automaton)) {
            renew(grammar); /* this answer holds; the next one begins anew */
        }
    }
    (void)pthread_mutex_unlock(&grammar->mutex);
    return is_stale ? GRAMMAR_STALE : GRAMMAR_FINE;
}
