/* A tokenizer.json.  The first '%' of the input stands for the 256 byte tokens, which every accepted
 * vocabulary holds.  What is accepted must encode any text to ids that give it back, none of them
 * special where special strings are ordinary text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "frontend/tokenizer_source.h"
#include "tests/fuzz/fuzz.h"

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void expand(const uint8_t *bytes, size_t byte_count, struct buf *out)
{
    const uint8_t *mark = byte_count == 0 ? NULL : memchr(bytes, '%', byte_count);
    size_t before = mark == NULL ? byte_count : (size_t)(mark - bytes);
    buf_append(out, bytes, before);
    for (int i = 0; mark != NULL && i < 256; i++) {
        buf_printf(out, "\"<0x%02X>\":%d,", i, i);
    }
    if (mark != NULL) {
        buf_append(out, mark + 1, byte_count - before - 1);
    }
}

/* Text with U+2581 as the space that it decodes to. */
static void with_spaces(const char *text, size_t byte_count, struct buf *out)
{
    for (size_t i = 0; i < byte_count; i++) {
        bool is_mark = byte_count - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        buf_append_char(out, is_mark ? ' ' : text[i]);
        i += is_mark ? 2 : 0;
    }
}

static void check_text(const struct tokenizer *tokenizer, const char *text, size_t byte_count)
{
    for (int special = TOK_SPECIAL_AS_TEXT; special <= TOK_SPECIAL_PARSE; special++) {
        struct tok_ids ids = {0};
        struct buf decoded, back, want;
        buf_init(&decoded);
        buf_init(&back);
        buf_init(&want);
        tok_encode(tokenizer, text, byte_count, (enum tok_special)special, &ids);
        for (size_t i = 0; i < ids.count; i++) {
            uint32_t token_bytes = 0;
            const char *at = tok_bytes(tokenizer, ids.at[i], &token_bytes);
            require(at != NULL && token_bytes > 0);
            require(special == TOK_SPECIAL_PARSE || !tok_is_special(tokenizer, ids.at[i]));
            buf_append(&decoded, at, token_bytes);
        }
        /* A U+2581 may come back whole, as the bytes of tokens for bytes. */
        with_spaces(buf_text(&decoded), decoded.used_bytes, &back);
        with_spaces(text, byte_count, &want);
        require(back.used_bytes == want.used_bytes);
        require(memcmp(buf_text(&back), buf_text(&want), want.used_bytes) == 0);
        buf_fini(&want);
        buf_fini(&back);
        buf_fini(&decoded);
        tok_ids_fini(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    const struct tok_source_key key = {0};
    buf_init(&text);
    expand(bytes, byte_count, &text);
    if (tok_source_compile(buf_text(&text), text.used_bytes, &key, &tokenizer, &err) == ERR_OK) {
        check_text(tokenizer, text.at, text.used_bytes);
        check_text(tokenizer, (const char *)bytes, byte_count);
        for (uint32_t id = 0; id < tok_vocab_count(tokenizer); id++) {
            uint32_t start = tokenizer->text_start[id];
            uint32_t content_bytes = tokenizer->text_start[id + 1] - start;
            require(tok_find_text(tokenizer, tokenizer->text + start, content_bytes) == id);
            check_text(tokenizer, tokenizer->text + start, id < 256 ? 0 : content_bytes);
        }
        tok_destroy(tokenizer);
    } else {
        require(err.message[0] != '\0' && strchr(err.message, '\n') == NULL);
    }
    buf_fini(&text);
    return 0;
}
