/* Records of one session, built and handed to the sink.
 *
 * The caller has made sure of room.  Executor thread only. */
#ifndef WORKER_PUBLISH_H
#define WORKER_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/result.h"
#include "worker/runner.h"
#include "worker/sequence.h"

struct session_sink;

struct publish_to {
    const struct session_sink *sink; /* borrowed */
    void *owner;
    uint64_t epoch;
};

/* TOKEN for the last token of seq, then LOGPROBS as asked for. */
void publish_token(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                   const struct runner_logprob *logprob, bool is_last);

/* LOGPROBS of prompt positions start + 1 .. start + count, those within the prompt. */
void publish_prompt_logprobs(const struct publish_to *to, const struct sequence *seq,
                             uint64_t msg_seq, const struct runner_logprob *logprobs,
                             uint32_t start, uint32_t count);

void publish_finished(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                      enum result_finish reason);

void publish_failed(const struct publish_to *to, const struct sequence *seq, uint64_t msg_seq,
                    const struct err *why);

/* seq_id: 0 where the refused message was no ADMIT. */
void publish_refused(const struct publish_to *to, uint64_t seq_id, uint64_t msg_seq,
                     const struct err *why);

void publish_admitted(const struct publish_to *to, uint64_t seq_id, uint64_t msg_seq,
                      const struct result_figures *figures, uint32_t reused_tokens);

void publish_step_done(const struct publish_to *to, uint64_t msg_seq,
                       const struct result_step_done *done);

void publish_state(const struct publish_to *to, const struct result_figures *figures,
                   uint32_t sequences);

void publish_pong(const struct publish_to *to, uint64_t msg_seq,
                  const struct result_figures *figures, uint64_t nonce);

#endif
