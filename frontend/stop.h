/* Stop strings over streamed text.
 *
 * Text goes in piece by piece; what cannot be part of a stop string any more comes out.  The match
 * that ends first wins; among those that end together, the one that starts first. */
#ifndef FRONTEND_STOP_H
#define FRONTEND_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

#define STOP_MAX_STRINGS 16
#define STOP_MAX_BYTES   1024

struct stop {
    char *strings[STOP_MAX_STRINGS]; /* owned */
    size_t string_bytes[STOP_MAX_STRINGS];
    uint32_t string_count;
    bool include_match; /* the matched string is part of the output */
    struct buf held;
};

void stop_init(struct stop *stop, bool include_match);
void stop_fini(struct stop *stop);
/* Errors: ERR_LIMIT (too many, too long), ERR_ARGUMENT (empty). */
ERR_NODISCARD enum err_code stop_add(struct stop *stop, const char *text, size_t byte_count,
                                     struct err *err);

/* Appends certain text to out; true when a stop string has matched (*out_index says which): nothing
 * may be pushed after. */
bool stop_push(struct stop *stop, const char *text, size_t byte_count, struct buf *out,
               uint32_t *out_index);

/* Appends what was held back: the output has ended without a match. */
void stop_finish(struct stop *stop, struct buf *out);

#endif
