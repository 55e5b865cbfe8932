/* Any bytes as text, through the demo tokenizer and back: tokens give the bytes they came from, and
 * the streaming detokenizer gives the text where it was UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "frontend/detok.h"
#include "frontend/tokenizer.h"
#include "tests/fuzz/fuzz.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct tokenizer *tokenizer; /* loaded once, then only read */
    struct err err;
    if (tokenizer == NULL &&
        tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &tokenizer, &err) != ERR_OK) {
        abort();
    }
    check(tokenizer, (const char *)bytes, byte_count, TOK_SPECIAL_AS_TEXT);
    check(tokenizer, (const char *)bytes, byte_count, TOK_SPECIAL_PARSE);
    return 0;
}
