/* A worker core over any runner, with sinks that keep every record: the workbench of its tests.
 *
 * Numbers messages, stands in for the rings (a bounded count of records not yet read), and after
 * every advance checks the core's books and, over a model runner, that no rule was broken; a failed
 * check ends the test. */
#ifndef TESTS_TESTLIB_CORE_RIG_H
#define TESTS_TESTLIB_CORE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "worker/inject.h"
#include "worker/runner.h"
#include "worker/session.h"

/* A fake frontend's end of one session. */
struct rig_session {
    struct core_rig *rig;
    struct session *session; /* null once closed */
    uint64_t epoch;
    uint64_t next_msg_seq;
    struct buf records;    /* struct result_record, all since it was opened */
    uint32_t pushed_count; /* pushed, flushed or not */
    uint32_t seen_count;   /* flushed */
    uint32_t read_count;   /* read: freed in the ring */
};

struct core_rig {
    struct runner *runner; /* borrowed */
    bool is_model;         /* runner is a model_runner */
    struct session_core *core;
    uint32_t ring_records;
    uint64_t now_ns;
    uint64_t next_epoch;
    struct session_progress progress; /* of the last advance */
    /* Masks for constrained sequences; null: none are there. */
    const uint32_t *(*mask)(void *context, struct rig_session *session, uint64_t seq_id,
                            uint32_t position);
    void *mask_context;
};

/* limits.ring_records bounds each session's unread records. */
void rig_init(struct core_rig *rig, struct runner *runner, bool is_model,
              const struct session_limits *limits, struct inject *inject);
void rig_fini(struct core_rig *rig);

/* quota null: every page, shared with another such session. */
void rig_open(struct core_rig *rig, struct rig_session *session, const struct session_quota *quota);

/* Closes, and frees the records kept. */
void rig_close(struct rig_session *session);

/* Advance until nothing moves, then check everything. */
void rig_advance(struct core_rig *rig);

/* As rig_advance where the device may be lost: the code, its message in err. */
enum err_code rig_try_advance(struct core_rig *rig, struct err *err);

/* Each delivers one message and returns its msg_seq; nothing is applied before rig_advance. */
uint64_t rig_admit(struct rig_session *session, const struct plan_admit *admit);
uint64_t rig_step(struct rig_session *session, uint64_t after, const struct wire_row *rows,
                  uint32_t row_count);
uint64_t rig_cancel(struct rig_session *session, uint64_t seq_id);
uint64_t rig_release(struct rig_session *session, uint64_t seq_id);
uint64_t rig_ping(struct rig_session *session, uint64_t nonce);
/* One that tells what waits, and whether the frontend leaves. */
uint64_t rig_ping_waiting(struct rig_session *session, const uint32_t pages[RUNNER_FAMILY_COUNT],
                          bool is_leaving);
uint64_t rig_malformed(struct rig_session *session);

/* The index-th record since the session was opened, null while it is not there. */
const struct result_record *rig_record(const struct rig_session *session, uint32_t index);

/* Mark every flushed record as read. */
void rig_read_all(struct rig_session *session);

/* The newest record of a kind, for a sequence unless seq_id is 0; null: none. */
const struct result_record *rig_last(const struct rig_session *session, enum result_kind kind,
                                     uint64_t seq_id);
uint32_t rig_count(const struct rig_session *session, enum result_kind kind, uint64_t seq_id);

/* Tokens of a sequence so far, in order; returns how many. */
uint32_t rig_tokens(const struct rig_session *session, uint64_t seq_id, uint32_t *out_tokens,
                    uint32_t most);

/* Greedy, nothing special, no stop id. */
struct plan_admit rig_plain_admit(uint64_t seq_id, const uint32_t *prompt, uint32_t prompt_count,
                                  uint32_t max_total);

#endif
