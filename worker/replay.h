/* Feeds a recorded plan stream to the core at full speed, without a frontend.
 *
 * Run-ahead is respected: a message is delivered once every STEP before it is launched and as many
 * steps are answered as were when it came.  Records are counted and dropped.  Constrained rows run
 * unconstrained: masks are not in the record.  One thread. */
#ifndef WORKER_REPLAY_H
#define WORKER_REPLAY_H

#include <stdint.h>

#include "common/err.h"
#include "worker/session.h"

struct replay_options {
    const char *path;
    struct runner *runner; /* borrowed during the call */
    struct session_limits limits;
    struct inject *inject; /* may be null */
};

struct replay_summary {
    uint64_t sessions;
    uint64_t messages;
    uint64_t malformed;
    uint64_t steps; /* committed */
    uint64_t tokens;
    uint64_t refused;
    uint64_t failed; /* sequences */
    uint64_t finished;
    uint64_t wall_ns;
    uint64_t busy_ns; /* in passes that moved something */
    struct runner_counters device;
    uint64_t digest; /* of (seq_id, position, token) of every TOKEN, in any order */
};

/* Errors: those of record_read, ERR_DEVICE, ERR_PROTOCOL (a message the core ends the session for),
 * ERR_INTERNAL (steps that can never run). */
ERR_NODISCARD enum err_code replay_run(const struct replay_options *options,
                                       struct replay_summary *out_summary, struct err *err);

/* Adds one token to a digest; also for tests that compute it from records. */
uint64_t replay_digest_add(uint64_t digest, uint64_t seq_id, uint32_t position, uint32_t token);

#endif
