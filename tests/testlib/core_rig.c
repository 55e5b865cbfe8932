#include "tests/testlib/core_rig.h"

#include <string.h>

#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

static uint32_t on_room(void *context, void *owner, uint32_t wanted)
{
    const struct core_rig *rig = context;
    const struct rig_session *session = owner;
    (void)wanted; /* counted whole */
    return rig->ring_records - (session->pushed_count - session->read_count);
}

static void on_push(void *context, void *owner, const struct result_record *record)
{
    const struct core_rig *rig = context;
    struct rig_session *session = owner;
    struct err err;
    test_ok(result_check(record, &err), &err);
    test_true(session->session != NULL);
    test_eq_u64(record->epoch, session->epoch);
    test_true(session->pushed_count - session->read_count < rig->ring_records);
    buf_append(&session->records, record, sizeof(*record));
    session->pushed_count++;
}

static void on_flush(void *context, void *owner)
{
    struct rig_session *session = owner;
    (void)context;
    session->seen_count = session->pushed_count;
}

static const uint32_t *on_mask(void *context, void *owner, uint64_t seq_id, uint32_t position)
{
    struct core_rig *rig = context;
    return rig->mask == NULL ? NULL : rig->mask(rig->mask_context, owner, seq_id, position);
}

void rig_init(struct core_rig *rig, struct runner *runner, bool is_model,
              const struct session_limits *limits, struct inject *inject)
{
    *rig = (struct core_rig){
        .runner = runner,
        .is_model = is_model,
        .ring_records = limits->ring_records,
        .next_epoch = 7,
    };
    const struct session_sink sink = {
        .context = rig,
        .room = on_room,
        .push = on_push,
        .flush = on_flush,
        .mask = on_mask,
    };
    struct err err;
    test_ok(session_core_create(runner, limits, &sink, inject, &rig->core, &err), &err);
}

void rig_fini(struct core_rig *rig)
{
    session_core_destroy(rig->core);
    rig->core = NULL;
}

void rig_open(struct core_rig *rig, struct rig_session *session, const struct session_quota *quota)
{
    *session = (struct rig_session){
        .rig = rig,
        .epoch = rig->next_epoch++,
        .next_msg_seq = 1,
    };
    struct err err;
    buf_init(&session->records);
    test_ok(session_open(rig->core, session->epoch, session, quota, &session->session, &err), &err);
}

void rig_close(struct rig_session *session)
{
    session_close(session->session);
    session->session = NULL;
    buf_fini(&session->records);
}

enum err_code rig_try_advance(struct core_rig *rig, struct err *err)
{
    enum err_code code;
    do {
        if (rig->is_model) {
            model_runner_set_now(rig->runner, rig->now_ns);
        }
        code = session_core_advance(rig->core, rig->now_ns, &rig->progress, err);
    } while (code == ERR_OK && rig->progress.moved);
    if (rig->is_model && model_runner_violation(rig->runner) != NULL) {
        test_fail(__FILE__, __LINE__, "device: %s", model_runner_violation(rig->runner));
    }
    struct err check_err;
    test_ok(session_core_check(rig->core, &check_err), &check_err);
    return code;
}

void rig_advance(struct core_rig *rig)
{
    struct err err;
    test_ok(rig_try_advance(rig, &err), &err);
}

static uint64_t deliver(struct rig_session *session, struct plan_message *message)
{
    message->epoch = session->epoch;
    message->msg_seq = session->next_msg_seq++;
    struct err err;
    test_true(session_can_receive(session->session));
    test_ok(session_deliver(session->session, message, &err), &err);
    return message->msg_seq;
}

uint64_t rig_admit(struct rig_session *session, const struct plan_admit *admit)
{
    struct plan_message message = {.type = PLAN_ADMIT, .as.admit = *admit};
    return deliver(session, &message);
}

uint64_t rig_step(struct rig_session *session, uint64_t after, const struct wire_row *rows,
                  uint32_t row_count)
{
    struct plan_message message = {.type = PLAN_STEP};
    message.as.step.after = after;
    message.as.step.rows = (struct wire_row_array){.at = rows, .count = row_count};
    return deliver(session, &message);
}

uint64_t rig_cancel(struct rig_session *session, uint64_t seq_id)
{
    struct plan_message message = {.type = PLAN_CANCEL};
    message.as.cancel.seq_id = seq_id;
    return deliver(session, &message);
}

uint64_t rig_release(struct rig_session *session, uint64_t seq_id)
{
    struct plan_message message = {.type = PLAN_RELEASE};
    message.as.release.seq_id = seq_id;
    return deliver(session, &message);
}

uint64_t rig_ping(struct rig_session *session, uint64_t nonce)
{
    struct plan_message message = {.type = PLAN_PING};
    message.as.ping.nonce = nonce;
    return deliver(session, &message);
}

uint64_t rig_ping_waiting(struct rig_session *session, const uint32_t pages[RUNNER_FAMILY_COUNT],
                          bool is_leaving)
{
    struct plan_message message = {.type = PLAN_PING};
    message.as.ping.waiting_local_pages = pages[RUNNER_FAMILY_LOCAL];
    message.as.ping.waiting_global_pages = pages[RUNNER_FAMILY_GLOBAL];
    message.as.ping.is_leaving = is_leaving;
    return deliver(session, &message);
}

uint64_t rig_malformed(struct rig_session *session)
{
    struct err why;
    (void)err_set(&why, ERR_FORMAT, "step.rows: not an array");
    session_deliver_malformed(session->session, &why);
    return session->next_msg_seq++;
}

const struct result_record *rig_record(const struct rig_session *session, uint32_t index)
{
    if (index >= session->seen_count) {
        return NULL;
    }
    return (const struct result_record *)(const void *)session->records.at + index;
}

void rig_read_all(struct rig_session *session)
{
    session->read_count = session->seen_count;
}

static bool matches(const struct result_record *record, enum result_kind kind, uint64_t seq_id)
{
    return record->kind == kind && (seq_id == 0 || record->seq_id == seq_id);
}

const struct result_record *rig_last(const struct rig_session *session, enum result_kind kind,
                                     uint64_t seq_id)
{
    for (uint32_t i = session->seen_count; i > 0; i--) {
        const struct result_record *record = rig_record(session, i - 1);
        if (matches(record, kind, seq_id)) {
            return record;
        }
    }
    return NULL;
}

uint32_t rig_count(const struct rig_session *session, enum result_kind kind, uint64_t seq_id)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->seen_count; i++) {
        count += matches(rig_record(session, i), kind, seq_id);
    }
    return count;
}

uint32_t rig_tokens(const struct rig_session *session, uint64_t seq_id, uint32_t *out_tokens,
                    uint32_t most)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < session->seen_count; i++) {
        const struct result_record *record = rig_record(session, i);
        if (matches(record, RESULT_TOKEN, seq_id) && count < most) {
            out_tokens[count++] = record->as.token.token;
        }
    }
    return count;
}

struct plan_admit rig_plain_admit(uint64_t seq_id, const uint32_t *prompt, uint32_t prompt_count,
                                  uint32_t max_total)
{
    return (struct plan_admit){
        .seq_id = seq_id,
        .prompt = {.at = prompt, .count = prompt_count},
        .output_start = prompt_count,
        .max_total = max_total,
        .seed = seq_id,
        .top_p = 1.0F,
        .repetition_penalty = 1.0F,
    };
}
