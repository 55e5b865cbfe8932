#include "frontend/detok.h"

#include <string.h>

#include "common/utf8.h"

void detok_init(struct detok *detok, const struct tokenizer *tokenizer, bool skip_special)
{
    *detok = (struct detok){.tokenizer = tokenizer, .skip_special = skip_special};
}

static void drop_first(struct detok *detok, uint32_t byte_count)
{
    detok->pending_count -= byte_count;
    memmove(detok->pending, detok->pending + byte_count, detok->pending_count);
}

/* Gives out what is certain: a whole character, or a byte that can begin none. */
static void give_certain(struct detok *detok, struct buf *out)
{
    while (detok->pending_count > 0) {
        uint32_t code_point = 0;
        size_t byte_count = utf8_decode(detok->pending, detok->pending_count, &code_point);
        if (byte_count > 0) {
            buf_append(out, detok->pending, byte_count);
            drop_first(detok, (uint32_t)byte_count);
        } else if (utf8_complete_prefix(detok->pending, detok->pending_count) == 0) {
            return; /* more bytes could complete it */
        } else {
            buf_append_text(out, UTF8_REPLACEMENT);
            drop_first(detok, 1);
        }
    }
}

void detok_finish(struct detok *detok, struct buf *out)
{
    for (uint32_t i = 0; i < detok->pending_count; i++) {
        buf_append_text(out, UTF8_REPLACEMENT);
    }
    detok->pending_count = 0;
}

void detok_push(struct detok *detok, uint32_t token, struct buf *out)
{
    uint32_t byte_count = 0;
    const char *bytes = tok_bytes(detok->tokenizer, token, &byte_count);
    if (bytes != NULL && tok_is_byte(detok->tokenizer, token)) {
        detok->pending[detok->pending_count++] = bytes[0];
        give_certain(detok, out);
        return;
    }
    /* Any other token ends the run of bytes, even one without text. */
    detok_finish(detok, out);
    if (bytes == NULL) {
        buf_append_text(out, UTF8_REPLACEMENT);
    } else if (!detok->skip_special || !tok_is_special(detok->tokenizer, token)) {
        buf_append(out, bytes, byte_count);
    }
}
