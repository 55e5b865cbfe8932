/* An answer, or the next piece of one, as a row of parts in the order in which the model wrote them.
 *
 * The seam between what understands a model's output and what shows it: every dialect of the API is
 * a rendering of these parts.  Pieces of a streamed answer, put behind one another, give the parts
 * of the whole one.  Plain memory: one thread at a time. */
#ifndef FRONTEND_ANSWER_H
#define FRONTEND_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

enum answer_kind {
    ANSWER_CONTENT,   /* text */
    ANSWER_REASONING, /* text */
    ANSWER_CALL,      /* a tool call begins; its text is the name */
    ANSWER_ARGUMENTS, /* JSON text of the call's arguments, or more of it */
    ANSWER_CALL_END,  /* the arguments are complete; without it the output was cut off */
};

struct answer_part {
    enum answer_kind kind;
    uint32_t call_index; /* of a call's parts, counted from the answer's first call */
    size_t start;        /* in answer.text */
    size_t byte_count;
};

struct answer {
    struct buf text;
    struct answer_part *parts; /* owned; [part_count] */
    uint32_t part_count;
    uint32_t part_cap;
};

void answer_init(struct answer *answer);
void answer_fini(struct answer *answer);
void answer_reset(struct answer *answer);

/* Append; text that continues the last part becomes one with it.  Empty text is nothing, but for a
 * call's begin and end. */
void answer_put(struct answer *answer, enum answer_kind kind, uint32_t call_index, const char *text,
                size_t byte_count);

/* Borrowed until the next change. */
const char *answer_part_text(const struct answer *answer, const struct answer_part *part);

/* Append the text of all parts of the kind. */
void answer_join(const struct answer *answer, enum answer_kind kind, struct buf *out);
bool answer_has(const struct answer *answer, enum answer_kind kind);

#endif
