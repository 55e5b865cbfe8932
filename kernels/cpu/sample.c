/* The sampler; order and choices are stated in kernels/sampler.h. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/candidates.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"
#include "kernels/philox.h"

/* Candidates ordered at first where top-p has no top-k before it. */
#define FIRST_PREFIX 64
/* Beyond this distance below the best no noise can win: Gumbel noise from 32 random bits lies
 * between -2.9 and 22.9. */
#define NOISE_RANGE 26.0F

size_t k_cpu_sample_scratch_bytes(const struct k_cpu_shape *shape)
{
    return (size_t)shape->vocab_tokens * (sizeof(float) + sizeof(struct k_candidate));
}

struct row {
    const struct k_sample_args *args;
    const struct k_sample_row *at;
    const struct k_sampler *sampler;
    float *values;                  /* [vocab] */
    struct k_candidate *candidates; /* [vocab] */
};

/* False when a logit is not a finite number. */
static bool take_logits(const struct row *row, const uint16_t *logits)
{
    uint32_t vocab_tokens = row->args->slots.vocab_tokens;
    bool is_finite = true;
    for (uint32_t v = 0; v < vocab_tokens; v++) {
        row->values[v] = k_f32_from_bf16(logits[v]);
        is_finite = is_finite && (logits[v] & 0x7f80U) != 0x7f80U;
    }
    return is_finite;
}

static void suppress(const struct row *row)
{
    const struct k_sampler *sampler = row->sampler;
    for (uint32_t i = 0; i < sampler->suppress_count; i++) {
        row->values[sampler->suppress_ids[i]] = -INFINITY;
    }
    uint32_t output_tokens = row->at->position - sampler->output_start;
    for (uint32_t i = 0; output_tokens < sampler->min_tokens && i < sampler->stop_count; i++) {
        row->values[sampler->stop_ids[i]] = -INFINITY;
    }
}

static void apply_mask(const struct row *row)
{
    if (row->at->mask_row == K_NONE) {
        return;
    }
    const uint32_t *mask = row->args->masks + (uint64_t)row->at->mask_row * row->args->mask_words;
    for (uint32_t v = 0; v < row->args->slots.vocab_tokens; v++) {
        bool is_allowed = (mask[v / 32] >> (v % 32) & 1U) != 0;
        row->values[v] = is_allowed ? row->values[v] : -INFINITY;
    }
}

static void apply_penalties(const struct row *row)
{
    const struct k_sampler *sampler = row->sampler;
    uint32_t vocab_tokens = row->args->slots.vocab_tokens;
    const uint32_t *counts = row->args->slots.counts + (uint64_t)row->at->slot * vocab_tokens;
    for (uint32_t v = 0; sampler->counts_tokens && v < vocab_tokens; v++) {
        if (counts[v] == 0) {
            continue;
        }
        float l = row->values[v];
        uint32_t output_count = counts[v] & ~K_COUNT_PROMPT;
        l = l > 0.0F ? l / sampler->repetition_penalty : l * sampler->repetition_penalty;
        l -= output_count > 0 ? sampler->presence_penalty : 0.0F;
        l -= sampler->frequency_penalty * (float)output_count;
        row->values[v] = l;
    }
}

/* Best value, lowest id; false when every token is excluded or a value is not a number. */
static bool best_of(const float *values, uint32_t count, uint32_t *out_token)
{
    uint32_t best = 0;
    bool is_sound = true;
    for (uint32_t v = 0; v < count; v++) {
        best = values[v] > values[best] ? v : best;
        is_sound = is_sound && values[v] <= FLT_MAX;
    }
    *out_token = best;
    return is_sound && values[best] >= -FLT_MAX;
}

/* Candidates left of the first `count` by top-p; they need not be in order. */
static uint32_t cut_top_p(struct k_candidate *candidates, uint32_t count, float top_p, float best)
{
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += (double)expf(candidates[i].value - best);
    }
    uint32_t prefix = FIRST_PREFIX < count ? FIRST_PREFIX : count;
    for (;;) {
        k_candidates_order(candidates, count, prefix);
        double mass = 0.0;
        for (uint32_t i = 0; i < prefix; i++) {
            mass += (double)expf(candidates[i].value - best);
            if (mass >= (double)top_p * total) {
                return i + 1;
            }
        }
        if (prefix == count) {
            return count;
        }
        prefix = count / 8 > prefix ? prefix * 8 : count;
    }
}

/* Tokens that survive top-k, top-p and min-p, moved to the front of candidates. */
static uint32_t survivors(const struct row *row, float best)
{
    const struct k_sampler *sampler = row->sampler;
    struct k_candidate *candidates = row->candidates;
    uint32_t count = 0;
    for (uint32_t v = 0; v < row->args->slots.vocab_tokens; v++) {
        if (row->values[v] >= -FLT_MAX) {
            candidates[count++] = (struct k_candidate){.value = row->values[v], .id = v};
        }
    }
    if (sampler->top_k != 0 && sampler->top_k < count) {
        k_candidates_order(candidates, count, sampler->top_k);
        count = sampler->top_k;
    }
    if (sampler->top_p < 1.0F) {
        count = cut_top_p(candidates, count, sampler->top_p, best);
    }
    if (sampler->min_p > 0.0F) {
        float least = best + logf(sampler->min_p);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (candidates[i].value >= least) {
                candidates[kept++] = candidates[i];
            }
        }
        count = kept;
    }
    return count;
}

/* Divides by the temperature and picks by noise; `token` is the best before. */
static uint32_t draw(const struct row *row, uint32_t token)
{
    for (uint32_t v = 0; v < row->args->slots.vocab_tokens; v++) {
        row->values[v] /= row->sampler->temperature;
    }
    float best = row->values[token];
    uint32_t count = survivors(row, best);
    float best_noisy = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        const struct k_candidate *candidate = &row->candidates[i];
        if (candidate->value < best - NOISE_RANGE) {
            continue;
        }
        float noisy = candidate->value +
                      k_philox_gumbel(row->sampler->seed, row->at->position, candidate->id);
        if (noisy > best_noisy || (noisy == best_noisy && candidate->id < token)) {
            best_noisy = noisy;
            token = candidate->id;
        }
    }
    return token;
}

struct sample_job {
    const struct k_stream *stream;
    const struct k_sample_args *args;
};

static void sample_item(void *context, uint32_t item, uint32_t thread)
{
    const struct sample_job *job = context;
    const struct k_sample_args *args = job->args;
    uint32_t vocab_tokens = args->slots.vocab_tokens;
    struct row row = {
        .args = args,
        .at = &args->rows[item],
        .sampler = &args->slots.samplers[args->rows[item].slot],
        .candidates = k_stream_scratch(job->stream, thread),
    };
    row.values = (float *)(void *)(row.candidates + vocab_tokens);
    struct k_pick *pick = &args->picks[row.at->row];
    args->logprobs[item].target = K_NONE;
    if (row.at->mask_row != K_NONE && args->missing != NULL &&
        args->missing[row.at->mask_row] != 0) {
        *pick = (struct k_pick){.outcome = K_OUTCOME_HELD};
        return;
    }
    *pick = (struct k_pick){.outcome = K_OUTCOME_BAD};
    if (!take_logits(&row, args->logits + (uint64_t)item * vocab_tokens)) {
        return;
    }
    suppress(&row);
    apply_mask(&row);
    apply_penalties(&row);
    for (uint32_t i = 0; i < row.sampler->bias_count; i++) {
        row.values[row.sampler->bias_ids[i]] += row.sampler->bias_values[i];
    }
    uint32_t token = 0;
    if (!best_of(row.values, vocab_tokens, &token)) {
        return;
    }
    if (row.sampler->temperature >= K_MIN_TEMPERATURE) {
        token = draw(&row, token);
    }
    *pick = (struct k_pick){.outcome = K_OUTCOME_TOKEN, .token = token};
    args->logprobs[item].target = token;
}

enum err_code k_cpu_sample(struct k_stream *stream, const struct k_sample_args *args,
                           struct err *err)
{
    if (args->slots.vocab_tokens != stream->options.shape.vocab_tokens) {
        return err_set(err, ERR_SHAPE, "sample: vocabulary %u, the stream was made for %u",
                       args->slots.vocab_tokens, stream->options.shape.vocab_tokens);
    }
    struct sample_job job = {.stream = stream, .args = args};
    k_threads_run(stream->threads, args->row_count, sample_item, &job);
    return ERR_OK;
}
