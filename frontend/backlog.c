#include "frontend/backlog.h"

#define NS_PER_S       1e9
#define MEMORY_NS      (30.0 * NS_PER_S)
#define MEAN_OF_OUTPUT 16.0 /* requests */
#define SOON_PARTS     4.0  /* the queue has room again when one of so many parts is served */

void backlog_note_step(struct backlog *backlog, uint64_t sent_ns, uint64_t now_ns,
                       uint64_t prompt_tokens, uint64_t output_tokens)
{
    uint64_t begin_ns = sent_ns > backlog->last_done_ns ? sent_ns : backlog->last_done_ns;
    backlog->last_done_ns = now_ns;
    backlog->busy_ns += (double)(now_ns > begin_ns ? now_ns - begin_ns : 0);
    backlog->work += (double)(prompt_tokens * BACKLOG_PROMPT_WORK) +
                     (double)(output_tokens * BACKLOG_OUTPUT_WORK);
    if (backlog->busy_ns > 2.0 * MEMORY_NS) {
        backlog->busy_ns /= 2.0;
        backlog->work /= 2.0;
    }
}

void backlog_note_output(struct backlog *backlog, uint32_t output_tokens)
{
    if (backlog->output_tokens <= 0.0) {
        backlog->output_tokens = output_tokens;
        return;
    }
    backlog->output_tokens += ((double)output_tokens - backlog->output_tokens) / MEAN_OF_OUTPUT;
}

uint32_t backlog_retry_s(const struct backlog *backlog, uint64_t waiting_prompt_tokens,
                         uint32_t waiting_requests)
{
    if (backlog->work <= 0.0 || backlog->busy_ns <= 0.0) {
        return 1;
    }
    double waiting = (double)waiting_prompt_tokens * BACKLOG_PROMPT_WORK +
                     backlog->output_tokens * waiting_requests * BACKLOG_OUTPUT_WORK;
    double seconds = waiting / SOON_PARTS * (backlog->busy_ns / NS_PER_S) / backlog->work;
    if (seconds >= (double)BACKLOG_MAX_RETRY_S) {
        return BACKLOG_MAX_RETRY_S;
    }
    return (uint32_t)seconds + 1;
}
