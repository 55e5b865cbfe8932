/* Records from the worker to the frontend, in a shared-memory ring of fixed 128-byte slots.
 *
 * Written only by the worker's executor.  Every record carries the session's epoch; one of another
 * epoch is dropped and counted.  Order: all TOKEN, LOGPROBS and FINISHED records of a step come
 * before its STEP_DONE.  Native byte order: both ends are one machine and the segment dies with
 * its session. */
#ifndef PROTO_RESULT_H
#define PROTO_RESULT_H

#include <stdint.h>

#include "common/err.h"
#include "proto/limits.h"

enum result_kind {
    RESULT_TOKEN = 1,
    RESULT_LOGPROBS = 2, /* follows its TOKEN, or stands alone for a prompt position */
    RESULT_FINISHED = 3,
    RESULT_ADMITTED = 4,
    RESULT_REFUSED = 5,
    RESULT_STEP_DONE = 6,
    RESULT_STATE = 7, /* figures changed with no step running */
    RESULT_PONG = 8,
    RESULT_FAILED = 9, /* one sequence failed; FINISHED does not follow */
};

enum result_finish {
    RESULT_FINISH_STOP = 1,   /* a stop id was sampled */
    RESULT_FINISH_LENGTH = 2, /* max_total reached */
    RESULT_FINISH_CANCEL = 3,
};

/* flags of TOKEN */
#define RESULT_TOKEN_LAST 1U /* FINISHED follows in this step */
/* flags of LOGPROBS */
#define RESULT_LOGPROBS_PROMPT 1U /* of a prompt position */

/* Ids and logprobs of the best tokens, best first; further records continue at first_index. */
#define RESULT_LOGPROBS_PER_RECORD 9

struct result_token {
    uint32_t position; /* of this token in the sequence */
    uint32_t token;
    float logprob; /* of the soft-capped logits before any sampler change; valid if asked for */
    uint32_t rank; /* 1 is best; 0 where logprobs were not asked for */
};

struct result_logprobs {
    uint32_t position;
    uint32_t token; /* the token at position */
    float logprob;
    uint32_t rank;
    uint32_t first_index; /* of this record's pairs among all */
    uint32_t pair_count;  /* in this record */
    uint32_t ids[RESULT_LOGPROBS_PER_RECORD];
    float logprobs[RESULT_LOGPROBS_PER_RECORD];
};

struct result_finished {
    uint32_t reason;       /* enum result_finish */
    uint32_t total_tokens; /* prompt and output, the last token included */
};

/* The session's quota less what it holds and has reserved, as of message `applied`. */
struct result_figures {
    uint64_t applied; /* highest msg_seq whose effects are in the figures */
    uint32_t local_quota_left_pages;
    uint32_t global_quota_left_pages;
    uint32_t
        slots_withheld; /* of welcome.slots; the session may not have more alive than the rest */
    uint32_t reserved;
};

struct result_admitted {
    struct result_figures figures;
    uint32_t reused_tokens;
    uint32_t reserved;
};

struct result_refused {
    uint32_t code; /* enum err_code */
    uint32_t reserved;
    char text[88]; /* zero-terminated, cut */
};

struct result_step_done {
    struct result_figures figures;
    uint64_t device_ns; /* time the step took on the device */
    uint32_t row_count;
    uint32_t token_count; /* tokens computed */
    uint32_t in_flight;   /* steps launched and not yet done, after this one */
    uint32_t held_rows;   /* constrained rows whose mask was not there */
};

struct result_state {
    struct result_figures figures;
    uint32_t sequences; /* alive in this session */
    uint32_t reserved;
};

struct result_pong {
    struct result_figures figures;
    uint64_t nonce;
};

struct result_failed {
    uint32_t code; /* enum err_code */
    uint32_t reserved;
    char text[88];
};

struct result_record {
    uint16_t kind; /* enum result_kind */
    uint16_t flags;
    uint32_t reserved;
    uint64_t epoch;
    uint64_t seq_id;  /* 0 where no sequence is meant */
    uint64_t msg_seq; /* the message this answers; for TOKEN the STEP that sampled it */
    union {
        struct result_token token;
        struct result_logprobs logprobs;
        struct result_finished finished;
        struct result_admitted admitted;
        struct result_refused refused;
        struct result_step_done step_done;
        struct result_state state;
        struct result_pong pong;
        struct result_failed failed;
        unsigned char bytes[RESULT_RECORD_BYTES - 32];
    } as;
};

_Static_assert(sizeof(struct result_record) == RESULT_RECORD_BYTES, "one record is 128 bytes");

/* Validates a private copy of a record: kind, counts, text termination.
 * Errors: ERR_FORMAT names the field and the value. */
ERR_NODISCARD enum err_code result_check(const struct result_record *record, struct err *err);

/* Field names, offsets and sizes into the table hash. */
uint64_t result_hash_layout(uint64_t hash);

/* Records one TOKEN with `logprobs` pairs needs: 1 + ceil(pairs / 9). */
uint32_t result_records_per_token(uint32_t pair_count);

#endif
