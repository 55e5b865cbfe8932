/* Any bytes as text, through the demo tokenizer and back: tokens are those of the plain algorithm and
 * give the bytes they came from, and the streaming detokenizer gives the text where it was UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "frontend/detok.h"
#include "frontend/tokenizer_image.h"
#include "frontend/tokenizer_window.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testlib/plain_merge.h"

#define PLAIN_MAX_SYMBOLS 500 /* the plain algorithm is quadratic */

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Both sides with each U+2581 as the space that it decodes to. */
static void require_same(const struct buf *got, const char *want, size_t want_bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < want_bytes; i++) {
        bool is_mark = want_bytes - i >= 3 && memcmp(want + i, "\xe2\x96\x81", 3) == 0;
        require(at < got->used_bytes && got->at[at] == (is_mark ? ' ' : want[i]));
        at++;
        i += is_mark ? 2 : 0;
    }
    require(at == got->used_bytes);
}

static void check(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                  enum tok_special special)
{
    struct tok_ids ids = {0};
    struct detok detok;
    struct buf raw, streamed;
    buf_init(&raw);
    buf_init(&streamed);
    detok_init(&detok, tokenizer, false);
    tok_encode(tokenizer, text, byte_count, special, &ids);
    for (size_t i = 0; i < ids.count; i++) {
        uint32_t token_bytes = 0;
        const char *at = tok_bytes(tokenizer, ids.at[i], &token_bytes);
        require(at != NULL);
        require(special == TOK_SPECIAL_PARSE || !tok_is_special(tokenizer, ids.at[i]));
        buf_append(&raw, at, token_bytes);
        detok_push(&detok, ids.at[i], &streamed);
        require(utf8_is_valid(buf_text(&streamed), streamed.used_bytes));
    }
    detok_finish(&detok, &streamed);
    require(utf8_is_valid(buf_text(&streamed), streamed.used_bytes));
    require_same(&raw, text, byte_count);
    if (utf8_is_valid(text, byte_count)) {
        require_same(&streamed, text, byte_count);
    }
    tok_ids_fini(&ids);
    buf_fini(&streamed);
    buf_fini(&raw);
}

/* What the text begins with: characters, and the bytes of those that are no entries. */
static void push_symbols(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                         struct tok_ids *ids)
{
    for (size_t at = 0; at < byte_count;) {
        uint32_t code_point = 0;
        size_t one = utf8_decode(text + at, byte_count - at, &code_point);
        const char *spelled = text[at] == ' ' ? "\u2581" : text + at;
        size_t spelled_bytes = text[at] == ' ' ? 3 : one;
        uint32_t id = one == 0 ? TOK_NONE : tok_find_text(tokenizer, spelled, spelled_bytes);
        one = one == 0 ? 1 : one;
        spelled_bytes = spelled_bytes == 0 ? 1 : spelled_bytes;
        for (size_t i = 0; i < spelled_bytes && id == TOK_NONE; i++) {
            tok_ids_push(ids, tokenizer->byte_ids[(unsigned char)spelled[i]]);
        }
        if (id != TOK_NONE) {
            tok_ids_push(ids, id);
        }
        at += one;
    }
}

static void require_same_ids(const struct tok_ids *got, const struct tok_ids *want)
{
    require(got->count == want->count);
    require(got->count == 0 || memcmp(got->at, want->at, got->count * sizeof(*got->at)) == 0);
}

/* Segments and windows change nothing. */
static void check_plain(const struct tokenizer *tokenizer, const char *text, size_t byte_count)
{
    static const size_t window_symbols[] = {1, 5, 40};
    struct tok_ids symbols = {0};
    struct tok_ids want = {0};
    struct tok_ids got = {0};
    push_symbols(tokenizer, text, byte_count, &symbols);
    push_symbols(tokenizer, text, byte_count, &want);
    if (symbols.count <= PLAIN_MAX_SYMBOLS) {
        merge_plain(tokenizer, &want);
        tok_encode(tokenizer, text, byte_count, TOK_SPECIAL_AS_TEXT, &got);
        require_same_ids(&got, &want);
        struct tok_window *window = tok_window_create(tokenizer);
        for (size_t i = 0; i < sizeof(window_symbols) / sizeof(window_symbols[0]); i++) {
            got.count = 0;
            tok_window_merge(window, symbols.at, symbols.count, window_symbols[i], &got);
            require_same_ids(&got, &want);
        }
        tok_window_destroy(window);
    }
    tok_ids_fini(&got);
    tok_ids_fini(&want);
    tok_ids_fini(&symbols);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct tokenizer *tokenizer; /* loaded once, then only read */
    struct err err;
    if (tokenizer == NULL &&
        tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &tokenizer, &err) != ERR_OK) {
        abort();
    }
    check_plain(tokenizer, (const char *)bytes, byte_count);
    check(tokenizer, (const char *)bytes, byte_count, TOK_SPECIAL_AS_TEXT);
    check(tokenizer, (const char *)bytes, byte_count, TOK_SPECIAL_PARSE);
    return 0;
}
