/* Messages of one session that wait for their turn, each a copy of its own.
 *
 * Bounded: the executor leaves bytes on the socket while is_full.  Blocks of the common size are
 * kept and used again, so that steps do not allocate.  Executor thread only. */
#ifndef WORKER_INBOX_H
#define WORKER_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/plan.h"

#define INBOX_MAX_MESSAGES 1024
#define INBOX_MAX_BYTES    (64U << 20)

struct inbox_entry {
    struct inbox_entry *next;
    size_t byte_count;           /* of the block */
    bool is_malformed;           /* only message.msg_seq is set; error says why */
    struct plan_message message; /* arrays lie behind this struct */
    struct err error;
};

struct inbox {
    struct inbox_entry *first; /* owned list, oldest first */
    struct inbox_entry *last;
    struct inbox_entry *spare; /* owned list of blocks of the common size */
    uint32_t message_count;
    uint32_t step_count; /* STEPs among them */
    size_t byte_count;
};

void inbox_init(struct inbox *inbox);
void inbox_fini(struct inbox *inbox);

bool inbox_is_full(const struct inbox *inbox);

/* Copies everything.  Aborts when memory is gone: messages are bounded by PLAN_MAX_MESSAGE_BYTES. */
void inbox_push(struct inbox *inbox, const struct plan_message *message);
void inbox_push_malformed(struct inbox *inbox, uint64_t msg_seq, const struct err *why);

/* The oldest, null when empty; valid until inbox_pop. */
const struct inbox_entry *inbox_peek(const struct inbox *inbox);
void inbox_pop(struct inbox *inbox);

#endif
