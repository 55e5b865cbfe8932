/* Merging by windows of any length against the plain algorithm, and on long text against one window
 * of everything. */
#include "frontend/tokenizer_window.h"

#include <string.h>

#include "common/buf.h"
#include "common/mem.h"
#include "frontend/tokenizer_source.h"
#include "tests/testlib/plain_merge.h"
#include "tests/testlib/test.h"

static struct tokenizer *load(const char *path)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    test_ok(tok_load(path, NULL, &tokenizer, &err), &err);
    return tokenizer;
}

static void push_characters(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                            struct tok_ids *ids)
{
    for (size_t i = 0; i < byte_count; i++) {
        uint32_t id = text[i] == ' ' ? tok_find_text(tokenizer, "\u2581", 3)
                                     : tok_find_text(tokenizer, text + i, 1);
        if (id != TOK_NONE) {
            tok_ids_push(ids, id);
        }
    }
}

/* Symbols of text that merges in ever other ways: random letters of few or many kinds, a repeated
 * piece, runs, entries of the vocabulary without a border between them. */
static void random_symbols(const struct tokenizer *tokenizer, uint64_t *state, size_t count,
                           struct tok_ids *ids)
{
    static const char letters[] = "etaoinshrdlucmfwypvbgkjqxz  \n=-_.ABC0123";
    uint64_t kind = test_random(state) % 5;
    uint64_t letter_count = kind == 0 ? sizeof(letters) - 1 : 1 + test_random(state) % 6;
    uint64_t shift = test_random(state) % (sizeof(letters) - 7);
    char piece[24] = {0};
    uint64_t piece_bytes = 1 + test_random(state) % sizeof(piece);
    for (size_t i = 0; i < piece_bytes; i++) {
        piece[i] = letters[shift + test_random(state) % 6];
    }
    while (ids->count < count) {
        uint64_t pick = test_random(state);
        if (kind < 2) {
            push_characters(tokenizer,
                            &letters[kind == 0 ? pick % letter_count : shift + pick % letter_count],
                            1, ids);
        } else if (kind == 2) {
            push_characters(tokenizer, piece, piece_bytes, ids);
        } else if (kind == 3) {
            for (uint64_t run = pick % 90; run > 0; run--) {
                push_characters(tokenizer, &letters[shift + (pick >> 32) % letter_count], 1, ids);
            }
        } else {
            uint32_t byte_count = 0;
            const char *bytes =
                tok_bytes(tokenizer, (uint32_t)(pick % tok_vocab_count(tokenizer)), &byte_count);
            push_characters(tokenizer, bytes, byte_count, ids);
        }
    }
}

static void check_windows(struct tok_window *window, const struct tok_ids *symbols,
                          const struct tok_ids *want)
{
    const size_t lengths[] = {1, 2, 3, 7, 16, 50, 200, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct tok_ids got = {0};
        tok_window_merge(window, symbols->at, symbols->count, lengths[i], &got);
        test_eq_u64(got.count, want->count);
        test_true((got.at != NULL && want->at != NULL) || got.count == 0);
        for (size_t k = 0; k < got.count; k++) {
            test_eq_u64(got.at[k], want->at[k]);
        }
        tok_ids_fini(&got);
    }
}

static void check_against_plain(const char *path, uint64_t seed)
{
    struct tokenizer *tokenizer = load(path);
    struct tok_window *window = tok_window_create(tokenizer);
    uint64_t state = seed;
    for (int round = 0; round < 150; round++) {
        struct tok_ids symbols = {0};
        struct tok_ids want = {0};
        random_symbols(tokenizer, &state, 1 + test_random(&state) % (round % 20 == 0 ? 900 : 150),
                       &symbols);
        for (size_t i = 0; i < symbols.count; i++) {
            tok_ids_push(&want, symbols.at[i]);
        }
        merge_plain(tokenizer, &want);
        check_windows(window, &symbols, &want);
        tok_ids_fini(&want);
        tok_ids_fini(&symbols);
    }
    tok_window_destroy(window);
    tok_destroy(tokenizer);
}

static void test_equals_plain_merging(void)
{
    check_against_plain(TEST_DEMO_MODEL_DIR "/tokenizer.json", 41);
    check_against_plain(TEST_OFFICIAL_TOKENIZER, 42);
}

static void test_long_text_equals_one_window(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    struct tok_window *window = tok_window_create(tokenizer);
    uint64_t state = 43;
    for (int round = 0; round < 10; round++) {
        struct tok_ids symbols = {0};
        struct tok_ids want = {0};
        random_symbols(tokenizer, &state, 20000, &symbols);
        tok_window_merge(window, symbols.at, symbols.count, symbols.count, &want);
        check_windows(window, &symbols, &want);
        tok_ids_fini(&want);
        tok_ids_fini(&symbols);
    }
    tok_window_destroy(window);
    tok_destroy(tokenizer);
}

enum {
    ENTRY_COUNT = 40,
    ENTRY_CAP = 8,
};

/* Distinct strings of a and b, both letters first. */
static void random_entries(uint64_t *state, char entries[ENTRY_COUNT][ENTRY_CAP])
{
    memset(entries, 0, (size_t)ENTRY_COUNT * ENTRY_CAP);
    entries[0][0] = 'a';
    entries[1][0] = 'b';
    for (size_t count = 2; count < ENTRY_COUNT;) {
        uint64_t pick = test_random(state);
        size_t byte_count = 2 + pick % (ENTRY_CAP - 2);
        char entry[ENTRY_CAP] = {0};
        bool is_new = true;
        for (size_t i = 0; i < byte_count && i < ENTRY_CAP - 1; i++) {
            entry[i] = (char)('a' + ((pick >> (8 + i)) & 1));
        }
        for (size_t i = 0; i < count; i++) {
            is_new &= strcmp(entries[i], entry) != 0;
        }
        if (is_new) {
            memcpy(entries[count++], entry, ENTRY_CAP);
        }
    }
}

static bool is_entry(char entries[ENTRY_COUNT][ENTRY_CAP], const char *text, size_t byte_count)
{
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strlen(entries[i]) == byte_count && memcmp(entries[i], text, byte_count) == 0) {
            return true;
        }
    }
    return false;
}

/* Every merge of two entries into a third, in any order: the parts of an entry may rank behind what
 * is made of it, as some of the official file's do. */
static void put_merges(uint64_t *state, char entries[ENTRY_COUNT][ENTRY_CAP], struct buf *out)
{
    struct {
        const char *entry;
        size_t left_bytes;
    } merges[ENTRY_COUNT * ENTRY_CAP];
    size_t count = 0;
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        size_t byte_count = strlen(entries[i]);
        for (size_t at = 1; at < byte_count; at++) {
            if (is_entry(entries, entries[i], at) &&
                is_entry(entries, entries[i] + at, byte_count - at)) {
                merges[count].entry = entries[i];
                merges[count++].left_bytes = at;
            }
        }
    }
    for (size_t i = 0; count > 0; i++) {
        size_t pick = test_random(state) % count;
        buf_printf(out, "%s\"%.*s %s\"", i == 0 ? "" : ",", (int)merges[pick].left_bytes,
                   merges[pick].entry, merges[pick].entry + merges[pick].left_bytes);
        merges[pick] = merges[--count];
    }
}

static struct tokenizer *random_tokenizer(uint64_t *state)
{
    static const char head[] =
        "{\"added_tokens\":[],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
        "\"content\":\"\u2581\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
        "\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},{\"type\":"
        "\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
        "\"vocab\":{";
    const struct tok_source_key key = {0};
    char entries[ENTRY_COUNT][ENTRY_CAP];
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    struct buf text;
    buf_init(&text);
    buf_append_text(&text, head);
    for (int i = 0; i < 256; i++) {
        buf_printf(&text, "\"<0x%02X>\":%d,", i, i);
    }
    random_entries(state, entries);
    for (int i = 0; i < ENTRY_COUNT; i++) {
        buf_printf(&text, "%s\"%s\":%d", i == 0 ? "" : ",", entries[i], 256 + i);
    }
    buf_append_text(&text, "},\"merges\":[");
    put_merges(state, entries, &text);
    buf_append_text(&text, "]}}");
    test_ok(tok_source_compile(text.at, text.used_bytes, &key, &tokenizer, &err), &err);
    buf_fini(&text);
    return tokenizer;
}

static void test_random_vocabularies(void)
{
    uint64_t state = 44;
    for (int round = 0; round < 500; round++) {
        struct tokenizer *tokenizer = random_tokenizer(&state);
        struct tok_window *window = tok_window_create(tokenizer);
        for (int one = 0; one < 8; one++) {
            struct tok_ids symbols = {0};
            struct tok_ids want = {0};
            size_t count = 2 + test_random(&state) % 60;
            for (size_t i = 0; i < count; i++) {
                char letter = (char)('a' + test_random(&state) % 2);
                push_characters(tokenizer, &letter, 1, &symbols);
                push_characters(tokenizer, &letter, 1, &want);
            }
            merge_plain(tokenizer, &want);
            check_windows(window, &symbols, &want);
            tok_ids_fini(&want);
            tok_ids_fini(&symbols);
        }
        tok_window_destroy(window);
        tok_destroy(tokenizer);
    }
}

static const struct test_case cases[] = {
    TEST(test_random_vocabularies),
    TEST(test_equals_plain_merging),
    TEST(test_long_text_equals_one_window),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
