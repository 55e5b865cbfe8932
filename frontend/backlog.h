/* How long what waits will take, from what was served: the Retry-After of a full queue.
 *
 * Work, here and as the queue charges it to a key: a prompt token 1, an output token 2, since it holds
 * a row of a whole step.  The rate is that of the
 * last half minute of busy time; a waiting request is expected to have as much output as the last ones
 * had.  Pure. */
#ifndef FRONTEND_BACKLOG_H
#define FRONTEND_BACKLOG_H

#include <stdint.h>

#define BACKLOG_PROMPT_WORK 1U
#define BACKLOG_OUTPUT_WORK 2U

#define BACKLOG_MAX_RETRY_S 60U

struct backlog {
    double work; /* done in busy_ns */
    double busy_ns;
    double output_tokens; /* of a request, on average; 0 none has finished */
    uint64_t last_done_ns;
};

/* A step that was sent at sent_ns is done. */
void backlog_note_step(struct backlog *backlog, uint64_t sent_ns, uint64_t now_ns,
                       uint64_t prompt_tokens, uint64_t output_tokens);

/* A request finished with so much output. */
void backlog_note_output(struct backlog *backlog, uint32_t output_tokens);

/* Seconds until a quarter of what waits will have been served, so that one who comes then finds room:
 * 1 to BACKLOG_MAX_RETRY_S; 1 while nothing was measured. */
uint32_t backlog_retry_s(const struct backlog *backlog, uint64_t waiting_prompt_tokens,
                         uint32_t waiting_requests);

#endif
