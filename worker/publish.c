#include "worker/publish.h"

#include <assert.h>
#include <string.h>

#include "common/num.h"
#include "worker/session.h"

static struct result_record blank(const struct publish_to *to, enum result_kind kind,
                                  uint64_t seq_id, uint64_t msg_seq)
{
    struct result_record record;
    memset(&record, 0, sizeof(record)); /* unused bytes cross the process boundary too */
    record.kind = (uint16_t)kind;
    record.epoch = to->epoch;
    record.seq_id = seq_id;
    record.msg_seq = msg_seq;
    return record;
}

static void push(const struct publish_to *to, const struct result_record *record)
{
    to->sink->push(to->sink->context, to->owner, record);
}

/* LOGPROBS records of one position: at least one when is_alone. */
static void push_logprobs(const struct publish_to *to, struct result_record *record,
                          uint32_t position, const struct runner_logprob *logprob,
                          uint32_t pair_count, bool is_alone)
{
    assert(pair_count <= PLAN_MAX_LOGPROBS);
    uint32_t records = num_ceil_div(pair_count, RESULT_LOGPROBS_PER_RECORD);
    records = is_alone ? num_max(1, records) : records;
    for (uint32_t r = 0; r < records; r++) {
        uint32_t first = r * RESULT_LOGPROBS_PER_RECORD;
        struct result_logprobs *out = &record->as.logprobs;
        *out = (struct result_logprobs){
            .position = position,
            .token = logprob->token,
            .logprob = logprob->logprob,
            .rank = logprob->rank,
            .first_index = first,
            .pair_count = num_min(pair_count - first, RESULT_LOGPROBS_PER_RECORD),
        };
        memcpy(out->ids, logprob->ids + first, out->pair_count * sizeof(out->ids[0]));
        memcpy(out->logprobs, logprob->logprobs + first,
               out->pair_count * sizeof(out->logprobs[0]));
        push(to, record);
    }
}

void publish_token(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                   const struct runner_logprob *logprob, bool is_last)
{
    struct result_record record = blank(to, RESULT_TOKEN, seq->seq_id, msg_seq);
    uint32_t position = seq->token_count - 1;
    record.flags = is_last ? RESULT_TOKEN_LAST : 0;
    record.as.token.position = position;
    record.as.token.token = seq->tokens[position];
    if (logprob != NULL) {
        record.as.token.logprob = logprob->logprob;
        record.as.token.rank = logprob->rank;
    }
    push(to, &record);
    if (logprob != NULL) {
        record = blank(to, RESULT_LOGPROBS, seq->seq_id, msg_seq);
        push_logprobs(to, &record, position, logprob,
                      num_min(logprob->pair_count, seq->logprob_pairs), false);
    }
}

void publish_prompt_logprobs(const struct publish_to *to, const struct sequence *seq,
                             uint64_t msg_seq, const struct runner_logprob *logprobs,
                             uint32_t start, uint32_t count)
{
    struct result_record record = blank(to, RESULT_LOGPROBS, seq->seq_id, msg_seq);
    record.flags = RESULT_LOGPROBS_PROMPT;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = start + i + 1;
        if (position < seq->prompt_tokens) {
            push_logprobs(to, &record, position, &logprobs[i],
                          num_min(logprobs[i].pair_count, seq->prompt_logprob_pairs), true);
        }
    }
}

void publish_finished(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                      enum result_finish reason)
{
    struct result_record record = blank(to, RESULT_FINISHED, seq->seq_id, msg_seq);
    record.as.finished.reason = (uint32_t)reason;
    record.as.finished.total_tokens = seq->token_count;
    push(to, &record);
}

/* Cut to fit, terminated. */
static void copy_text(char *out, size_t out_bytes, const char *text)
{
    size_t byte_count = strnlen(text, out_bytes - 1);
    memcpy(out, text, byte_count);
    out[byte_count] = '\0';
}

void publish_failed(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                    const struct err *why)
{
    struct result_record record = blank(to, RESULT_FAILED, seq->seq_id, msg_seq);
    record.as.failed.code = (uint32_t)why->code;
    copy_text(record.as.failed.text, sizeof(record.as.failed.text), why->message);
    push(to, &record);
}

void publish_refused(const struct publish_to *to, uint64_t seq_id, uint64_t msg_seq,
                     const struct err *why)
{
    struct result_record record = blank(to, RESULT_REFUSED, seq_id, msg_seq);
    record.as.refused.code = (uint32_t)why->code;
    copy_text(record.as.refused.text, sizeof(record.as.refused.text), why->message);
    push(to, &record);
}

void publish_admitted(const struct publish_to *to, uint64_t seq_id, uint64_t msg_seq,
                      const struct result_figures *figures, uint32_t reused_tokens)
{
    struct result_record record = blank(to, RESULT_ADMITTED, seq_id, msg_seq);
    record.as.admitted.figures = *figures;
    record.as.admitted.reused_tokens = reused_tokens;
    push(to, &record);
}

void publish_step_done(const struct publish_to *to, uint64_t msg_seq,
                       const struct result_step_done *done)
{
    struct result_record record = blank(to, RESULT_STEP_DONE, 0, msg_seq);
    record.as.step_done = *done;
    push(to, &record);
}

void publish_state(const struct publish_to *to, const struct result_figures *figures,
                   uint32_t sequences)
{
    struct result_record record = blank(to, RESULT_STATE, 0, figures->applied);
    record.as.state.figures = *figures;
    record.as.state.sequences = sequences;
    push(to, &record);
}

void publish_pong(const struct publish_to *to, uint64_t msg_seq,
                  const struct result_figures *figures, uint64_t nonce)
{
    struct result_record record = blank(to, RESULT_PONG, 0, msg_seq);
    record.as.pong.figures = *figures;
    record.as.pong.nonce = nonce;
    push(to, &record);
}
