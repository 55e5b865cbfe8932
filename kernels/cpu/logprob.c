/* Log probabilities of soft-capped logits: of one token, its rank, and of the best ones. */
#include <math.h>

#include "common/num.h"
#include "kernels/cpu/candidates.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"

/* f32 sums over this many, f64 over the blocks. */
#define SUM_BLOCK 1024

struct job {
    const struct k_stream *stream;
    const struct k_logprobs_args *args;
};

/* log(sum of exp(logits)).  values is overwritten. */
static double log_sum_exp(const struct k_cpu_isa *isa, float *values, uint32_t count)
{
    float max = isa->max(values, count);
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i += SUM_BLOCK) {
        sum += (double)isa->exp_sum(values + i, num_min(SUM_BLOCK, count - i), max);
    }
    return (double)max + log(sum);
}

static uint32_t rank_of(const uint16_t *logits, uint32_t count, uint32_t token)
{
    float value = k_f32_from_bf16(logits[token]);
    uint32_t rank = 1;
    for (uint32_t v = 0; v < count; v++) {
        float other = k_f32_from_bf16(logits[v]);
        rank += other > value || (other == value && v < token) ? 1 : 0;
    }
    return rank;
}

static void logprob_item(void *context, uint32_t item, uint32_t thread)
{
    const struct job *job = context;
    const struct k_logprobs_args *args = job->args;
    const struct k_logprob_row *row = &args->rows[item];
    if (row->want == 0) {
        return;
    }
    if (row->target == K_NONE) {
        args->records[row->record] = (struct k_logprob){.token = K_NONE};
        return;
    }
    uint32_t vocab_tokens = args->vocab_tokens;
    const uint16_t *logits = args->logits + (uint64_t)item * vocab_tokens;
    struct k_candidate *candidates = k_stream_scratch(job->stream, thread);
    float *values = (float *)(void *)(candidates + vocab_tokens);
    for (uint32_t v = 0; v < vocab_tokens; v++) {
        values[v] = k_f32_from_bf16(logits[v]);
        candidates[v] = (struct k_candidate){.value = values[v], .id = v};
    }
    double total = log_sum_exp(job->stream->isa, values, vocab_tokens);
    struct k_logprob *record = &args->records[row->record];
    record->token = row->target;
    record->logprob = (float)((double)k_f32_from_bf16(logits[row->target]) - total);
    record->rank = rank_of(logits, vocab_tokens, row->target);
    record->pair_count = num_min(num_min(row->want - 1, K_MAX_LOGPROBS), vocab_tokens);
    k_candidates_order(candidates, vocab_tokens, record->pair_count);
    for (uint32_t i = 0; i < record->pair_count; i++) {
        record->ids[i] = candidates[i].id;
        record->logprobs[i] = (float)((double)candidates[i].value - total);
    }
}

enum err_code k_cpu_logprobs(struct k_stream *stream, const struct k_logprobs_args *args,
                             struct err *err)
{
    if (args->vocab_tokens != stream->options.shape.vocab_tokens) {
        return err_set(err, ERR_SHAPE, "logprobs: vocabulary %u, the stream was made for %u",
                       args->vocab_tokens, stream->options.shape.vocab_tokens);
    }
    struct job job = {.stream = stream, .args = args};
    k_threads_run(stream->threads, args->row_count, logprob_item, &job);
    return ERR_OK;
}
