/* Schemas and expressions from outside.  The first byte chooses: an expression, or JSON that is a schema
 * or a list of choices.  What compiles must be able to go on at once and after a few tokens drawn from
 * its masks, each of which must be taken; what does not has a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "frontend/chat_parse.h"
#include "frontend/constraint_grammar.h"
#include "frontend/grammar_cache.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testlib/test.h"

enum {
    STEPS = 12,
    MAX_WORDS = 1024
};

struct fixture {
    struct tokenizer *tokenizer;
    struct grammar_cache *cache;
    uint32_t word_count;
};

static struct fixture *open_fixture(void)
{
    char path[4200];
    struct err err;
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    (void)snprintf(path, sizeof(path), "%s/../../deploy/demo-model/tokenizer.json",
                   test_golden_dir());
    if (fixture == NULL || tok_load(path, NULL, &fixture->tokenizer, &err) != ERR_OK) {
        abort();
    }
    struct chat_markers found;
    chat_markers_find(fixture->tokenizer, &found);
    struct grammar_markers markers = {found.quote, found.call_open, found.call_close};
    fixture->cache = grammar_cache_create(fixture->tokenizer, &markers, 8UL << 20);
    fixture->word_count = (tok_vocab_count(fixture->tokenizer) + 31) / 32;
    return fixture;
}

/* An allowed token at or behind `from`; none is a bug. */
static uint32_t pick(const uint32_t *words, uint32_t word_count, uint32_t from)
{
    uint32_t count = word_count * 32;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = (from + i) % count;
        if ((words[id / 32] >> id % 32 & 1) != 0) {
            return id;
        }
    }
    abort();
}

static void walk(const struct fixture *fixture, struct grammar *grammar, uint32_t seed)
{
    static const uint32_t end = 1;
    uint32_t words[MAX_WORDS];
    uint32_t output[STEPS];
    struct constraint_grammar options = {
        .grammar = grammar, .end_ids = &end, .end_count = 1, .channel_open = TOK_NONE};
    struct constraint *constraint = constraint_grammar_create(&options);
    for (uint32_t i = 0; i < STEPS; i++) {
        constraint->fill(constraint, output, i, words, fixture->word_count);
        seed = seed * 1664525U + 1013904223U;
        output[i] = pick(words, fixture->word_count, seed >> 8);
        if (output[i] == end) {
            break;
        }
    }
    constraint_release(constraint);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct fixture *fixture;
    struct grammar *grammar = NULL;
    struct json_t *value = NULL;
    struct err err = {0};
    if (fixture == NULL) {
        fixture = open_fixture();
    }
    if (byte_count < 2) {
        return 0;
    }
    const char *text = (const char *)bytes + 1;
    struct grammar_source source = {.kind = GRAMMAR_REGEX};
    if (bytes[0] % 2 == 0) {
        source.regex = text;
        source.regex_bytes = byte_count - 1;
    } else {
        if (json_parse(text, byte_count - 1, 128, &value, &err) != ERR_OK) {
            return 0;
        }
        source.kind = json_kind(value) == JSON_KIND_ARRAY ? GRAMMAR_CHOICE : GRAMMAR_SCHEMA;
        source.value = value;
    }
    if (grammar_cache_get(fixture->cache, &source, &grammar, &err) == ERR_OK) {
        walk(fixture, grammar, (uint32_t)byte_count);
    } else if (err.message[0] == '\0') {
        abort();
    }
    grammar_release(grammar);
    json_release(value);
    return 0;
}
