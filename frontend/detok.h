/* Streaming detokenizer: tokens in, whole characters out.
 *
 * Never splits a character: bytes of an incomplete UTF-8 sequence are held back until it completes
 * or cannot any more, in which case each byte token becomes U+FFFD.  A whole character that comes
 * before a broken one in a run of bytes is kept: it was given out already.  One per output; any
 * thread. */
#ifndef FRONTEND_DETOK_H
#define FRONTEND_DETOK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/tokenizer.h"

struct detok {
    const struct tokenizer *tokenizer; /* borrowed */
    char pending[4];                   /* bytes of a run of <0xNN> not yet a whole character */
    uint32_t pending_count;
    bool skip_special; /* special tokens give no text */
};

void detok_init(struct detok *detok, const struct tokenizer *tokenizer, bool skip_special);

/* Appends the text that became certain; may be nothing. */
void detok_push(struct detok *detok, uint32_t token, struct buf *out);

/* Appends what was held back (U+FFFD per byte): the output has ended. */
void detok_finish(struct detok *detok, struct buf *out);

#endif
