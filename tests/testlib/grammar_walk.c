/* Random outputs of grammars, as lines of JSON for a script to judge.
 *
 *   grammar_walk TOKENIZER CASES SEED COUNT
 *
 * CASES is a JSON list of {"kind", "schema" | "regex" | "choice" | "tools"}.  Each output is drawn from
 * the masks: mostly any allowed token, sometimes one that ends soon.  Prints {"case", "text", "ended"}
 * for each, {"case", "refused"} where the grammar is; then times of masks in microseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/mem.h"
#include "frontend/constraint_grammar.h"
#include "frontend/grammar_cache.h"
#include "frontend/grammar_vocab.h"
#include "frontend/tokenizer.h"

enum {
    MAX_TOKENS = 400,
    END_ID = 1,
    MAX_TIMES = 4000000
};

struct walk {
    struct tokenizer *tokenizer;
    struct grammar_cache *cache;
    uint64_t random;
    uint32_t *words;
    uint32_t word_count;
    uint32_t *times_ns; /* owned, [MAX_TIMES] */
    uint32_t time_count;
};

static uint64_t next_random(struct walk *walk)
{
    uint64_t mixed = walk->random += 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
}

static bool has_bit(const struct walk *walk, uint32_t id)
{
    return (walk->words[id / 32] >> id % 32 & 1) != 0;
}

/* An allowed token: of those behind a random one, now and then a byte that closes something. */
static uint32_t draw(struct walk *walk)
{
    static const char closers[] = "\"]}";
    uint32_t vocab = walk->word_count * 32;
    if (has_bit(walk, END_ID) && next_random(walk) % 2 == 0) {
        return END_ID;
    }
    for (uint32_t i = 0; i < 3 && next_random(walk) % 3 == 0; i++) {
        char text[2] = {closers[next_random(walk) % 3], '\0'};
        uint32_t id = tok_find(walk->tokenizer, text);
        if (id != TOK_NONE && has_bit(walk, id)) {
            return id;
        }
    }
    uint32_t from = (uint32_t)(next_random(walk) % vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t id = (from + i) % vocab;
        if (has_bit(walk, id)) {
            return id;
        }
    }
    return TOK_NONE;
}

static void print_output(const struct walk *walk, size_t index, const uint32_t *output,
                         uint32_t count, bool has_ended)
{
    struct buf text;
    struct buf line;
    buf_init(&text);
    buf_init(&line);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t byte_count = 0;
        const char *bytes = tok_bytes(walk->tokenizer, output[i], &byte_count);
        buf_append(&text, bytes, byte_count);
    }
    json_put_text(&line, buf_text(&text), text.used_bytes);
    (void)printf("{\"case\": %zu, \"ended\": %s, \"text\": %s}\n", index,
                 has_ended ? "true" : "false", buf_text(&line));
    buf_fini(&text);
    buf_fini(&line);
}

static bool run_once(struct walk *walk, struct grammar *grammar, size_t index)
{
    uint32_t output[MAX_TOKENS];
    uint32_t count = 0;
    const uint32_t ends[] = {END_ID};
    struct constraint_grammar options = {.grammar = grammar,
                                         .end_ids = ends,
                                         .end_count = 1,
                                         .channel_open = TOK_NONE,
                                         .channel_close = TOK_NONE};
    struct constraint *constraint = constraint_grammar_create(&options);
    bool has_ended = false;
    bool is_fine = true;
    while (is_fine && !has_ended && count < MAX_TOKENS) {
        uint64_t start_ns = clock_now_ns();
        constraint->fill(constraint, output, count, walk->words, walk->word_count);
        if (walk->time_count < MAX_TIMES) {
            walk->times_ns[walk->time_count++] = (uint32_t)(clock_now_ns() - start_ns);
        }
        uint32_t id = draw(walk);
        if (id == TOK_NONE) {
            (void)printf("{\"case\": %zu, \"failed\": \"an empty mask\"}\n", index);
            is_fine = false;
            break;
        }
        has_ended = id == END_ID;
        if (!has_ended) {
            output[count++] = id;
        }
    }
    constraint_release(constraint);
    if (is_fine) {
        print_output(walk, index, output, count, has_ended);
    }
    return is_fine;
}

static bool read_source(const struct json_t *item, struct grammar_source *out)
{
    static const char *const names[] = {"none", "object", "schema", "regex", "choice"};
    const struct json_t *kind = json_member(item, "kind");
    *out = (struct grammar_source){.tools = json_member(item, "tools")};
    for (uint32_t i = 0; kind != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(json_text(kind, NULL), names[i]) == 0) {
            out->kind = (enum grammar_kind)i;
            const struct json_t *value = json_member(item, names[i]);
            out->value = value;
            if (out->kind == GRAMMAR_REGEX) {
                out->regex = json_text(value, &out->regex_bytes);
                out->value = NULL;
            }
            return true;
        }
    }
    return false;
}

static bool run_case(struct walk *walk, const struct json_t *item, size_t index, uint32_t count)
{
    struct grammar_source source;
    struct grammar *grammar = NULL;
    struct err err;
    if (!read_source(item, &source)) {
        (void)fprintf(stderr, "case %zu has no kind\n", index);
        return false;
    }
    if (grammar_cache_get(walk->cache, &source, &grammar, &err)) {
        struct buf line;
        buf_init(&line);
        json_put_text(&line, err.message, strlen(err.message));
        (void)printf("{\"case\": %zu, \"refused\": %s}\n", index, buf_text(&line));
        buf_fini(&line);
        return true;
    }
    bool is_fine = true;
    for (uint32_t i = 0; is_fine && i < count; i++) {
        is_fine = run_once(walk, grammar, index);
    }
    grammar_release(grammar);
    return is_fine;
}

static int compare_times(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a;
    uint32_t right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void print_times(struct walk *walk)
{
    qsort(walk->times_ns, walk->time_count, sizeof(uint32_t), compare_times);
    if (walk->time_count > 0) {
        size_t half = walk->time_count / 2;
        size_t most = (size_t)walk->time_count * 99 / 100;
        (void)printf("{\"masks\": %u, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
                     walk->time_count, walk->times_ns[half] / 1e3, walk->times_ns[most] / 1e3,
                     walk->times_ns[walk->time_count - 1] / 1e3);
    }
}

int main(int argc, char **argv)
{
    struct err err;
    struct json_t *cases = NULL;
    struct walk walk = {0};
    if (argc != 5) {
        (void)fprintf(stderr, "usage: grammar_walk TOKENIZER CASES SEED COUNT\n");
        return 2;
    }
    if (tok_load(argv[1], NULL, &walk.tokenizer, &err) ||
        json_parse_file(argv[2], 64UL << 20, &cases, &err)) {
        (void)fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    struct grammar_markers markers = {.quote = tok_find(walk.tokenizer, "<|\"|>"),
                                      .call_open = tok_find(walk.tokenizer, "<|tool_call>"),
                                      .call_close = tok_find(walk.tokenizer, "<tool_call|>")};
    walk.cache = grammar_cache_create(walk.tokenizer, &markers, 256UL << 20);
    walk.random = strtoull(argv[3], NULL, 10);
    walk.word_count = (tok_vocab_count(walk.tokenizer) + 31) / 32;
    walk.words = mem_zalloc(walk.word_count, sizeof(uint32_t));
    walk.times_ns = mem_zalloc(MAX_TIMES, sizeof(uint32_t));
    bool is_fine = true;
    for (size_t i = 0; i < json_count(cases); i++) {
        is_fine =
            run_case(&walk, json_element(cases, i), i, (uint32_t)strtoul(argv[4], NULL, 10)) &&
            is_fine;
    }
    print_times(&walk);
    grammar_cache_destroy(walk.cache);
    tok_destroy(walk.tokenizer);
    json_release(cases);
    mem_free(walk.words);
    mem_free(walk.times_ns);
    return is_fine ? 0 : 1;
}
