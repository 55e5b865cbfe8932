#include "proto/result.h"

#include <stddef.h>
#include <string.h>

#include "common/num.h"
#include "proto/wire.h"

/* Where each field of a record lies; hashed into the handshake. */
static const struct {
    const char *name;
    size_t offset_bytes;
    size_t field_bytes;
} layout[] = {
#define FIELD(path)                                                                            \
    {                                                                                          \
#path, offsetof(struct result_record, path), sizeof(((struct result_record *)0)->path) \
    }
    FIELD(kind),
    FIELD(flags),
    FIELD(epoch),
    FIELD(seq_id),
    FIELD(msg_seq),
    FIELD(as.token.position),
    FIELD(as.token.token),
    FIELD(as.token.logprob),
    FIELD(as.token.rank),
    FIELD(as.logprobs.position),
    FIELD(as.logprobs.token),
    FIELD(as.logprobs.logprob),
    FIELD(as.logprobs.rank),
    FIELD(as.logprobs.first_index),
    FIELD(as.logprobs.pair_count),
    FIELD(as.logprobs.ids),
    FIELD(as.logprobs.logprobs),
    FIELD(as.finished.reason),
    FIELD(as.finished.total_tokens),
    FIELD(as.admitted.figures.applied),
    FIELD(as.admitted.figures.local_quota_left_pages),
    FIELD(as.admitted.figures.global_quota_left_pages),
    FIELD(as.admitted.figures.slots_withheld),
    FIELD(as.admitted.reused_tokens),
    FIELD(as.refused.code),
    FIELD(as.refused.text),
    FIELD(as.step_done.figures),
    FIELD(as.step_done.device_ns),
    FIELD(as.step_done.row_count),
    FIELD(as.step_done.token_count),
    FIELD(as.step_done.in_flight),
    FIELD(as.step_done.held_rows),
    FIELD(as.state.figures),
    FIELD(as.state.sequences),
    FIELD(as.pong.figures),
    FIELD(as.pong.nonce),
    FIELD(as.failed.code),
    FIELD(as.failed.text),
#undef FIELD
};

/* Kinds and reasons are numbers on the wire too. */
static const uint32_t values[] = {
    RESULT_TOKEN,
    RESULT_LOGPROBS,
    RESULT_FINISHED,
    RESULT_ADMITTED,
    RESULT_REFUSED,
    RESULT_STEP_DONE,
    RESULT_STATE,
    RESULT_PONG,
    RESULT_FAILED,
    RESULT_FINISH_STOP,
    RESULT_FINISH_LENGTH,
    RESULT_FINISH_CANCEL,
    RESULT_TOKEN_LAST,
    RESULT_LOGPROBS_PROMPT,
    RESULT_LOGPROBS_PER_RECORD,
};

uint64_t result_hash_layout(uint64_t hash)
{
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++) {
        hash = wire_hash_text(hash, layout[i].name);
        hash = wire_hash_u64(hash, layout[i].offset_bytes);
        hash = wire_hash_u64(hash, layout[i].field_bytes);
    }
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        hash = wire_hash_u64(hash, values[i]);
    }
    return hash;
}

static enum err_code check_code(const char *name, uint32_t code, const char *text,
                                size_t text_bytes, struct err *err)
{
    if (code == ERR_OK || code >= ERR_CODE_COUNT) {
        return err_set(err, ERR_FORMAT, "%s.code: %u, want 1 to %u", name, code,
                       ERR_CODE_COUNT - 1);
    }
    if (memchr(text, '\0', text_bytes) == NULL) {
        return err_set(err, ERR_FORMAT, "%s.text: no end within %zu bytes", name, text_bytes);
    }
    return ERR_OK;
}

static enum err_code check_logprobs(const struct result_logprobs *logprobs, struct err *err)
{
    if (logprobs->pair_count > RESULT_LOGPROBS_PER_RECORD) {
        return err_set(err, ERR_FORMAT, "logprobs.pair_count: %u, at most %u", logprobs->pair_count,
                       RESULT_LOGPROBS_PER_RECORD);
    }
    if (logprobs->first_index > PLAN_MAX_LOGPROBS - logprobs->pair_count) {
        return err_set(err, ERR_FORMAT, "logprobs.first_index: %u with %u pairs, at most %u in all",
                       logprobs->first_index, logprobs->pair_count, PLAN_MAX_LOGPROBS);
    }
    return ERR_OK;
}

static enum err_code check_flags(const struct result_record *record, unsigned known,
                                 struct err *err)
{
    if ((record->flags & ~known) != 0) {
        return err_set(err, ERR_FORMAT, "kind %u flags: 0x%x, known are 0x%x", record->kind,
                       record->flags, known);
    }
    return ERR_OK;
}

enum err_code result_check(const struct result_record *record, struct err *err)
{
    enum err_code code;
    switch ((enum result_kind)record->kind) {
    case RESULT_TOKEN: return check_flags(record, RESULT_TOKEN_LAST, err);
    case RESULT_LOGPROBS:
        code = check_flags(record, RESULT_LOGPROBS_PROMPT, err);
        return code != ERR_OK ? code : check_logprobs(&record->as.logprobs, err);
    case RESULT_FINISHED:
        if (record->as.finished.reason < RESULT_FINISH_STOP ||
            record->as.finished.reason > RESULT_FINISH_CANCEL) {
            return err_set(err, ERR_FORMAT, "finished.reason: %u, want 1 to %u",
                           record->as.finished.reason, RESULT_FINISH_CANCEL);
        }
        return check_flags(record, 0, err);
    case RESULT_REFUSED:
        return check_code("refused", record->as.refused.code, record->as.refused.text,
                          sizeof(record->as.refused.text), err);
    case RESULT_FAILED:
        return check_code("failed", record->as.failed.code, record->as.failed.text,
                          sizeof(record->as.failed.text), err);
    case RESULT_ADMITTED:
    case RESULT_STEP_DONE:
    case RESULT_STATE:
    case RESULT_PONG: return check_flags(record, 0, err);
    }
    return err_set(err, ERR_FORMAT, "kind: %u, want 1 to %u", record->kind, RESULT_FAILED);
}

uint32_t result_records_per_token(uint32_t pair_count)
{
    return 1 + num_ceil_div(pair_count, RESULT_LOGPROBS_PER_RECORD);
}
