#include "tests/testlib/sample_rig.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "kernels/philox.h"
#include "tests/testlib/test.h"

#define LOGIT_DEVIATION 4.0
#define MASS_ERROR      0x1p-20
#define LOG_ERROR       0x1p-21 /* absolute, and relative to what is added */

/* ---- operands ---- */

static uint32_t mask_words(const struct sample_case *at)
{
    return num_ceil_div(at->vocab, 32);
}

struct k_sampler *sample_case_sampler(const struct sample_case *at, uint32_t row)
{
    return (struct k_sampler *)at->samplers.host + sample_case_row(at, row)->slot;
}

uint16_t *sample_case_logits(const struct sample_case *at, uint32_t row)
{
    return (uint16_t *)at->logits.host + (uint64_t)row * at->vocab;
}

struct k_sample_row *sample_case_row(const struct sample_case *at, uint32_t row)
{
    return (struct k_sample_row *)at->sample_rows.host + row;
}

static uint32_t *make_masks(uint32_t words, uint64_t *random)
{
    uint32_t *masks = mem_zalloc((size_t)SAMPLE_RIG_MASKS * words, sizeof(*masks));
    for (uint32_t i = 0; i < (SAMPLE_RIG_MASKS - 1) * words; i++) {
        uint64_t bits = test_random(random);
        masks[i] = (uint32_t)bits & (i / words == 0 ? UINT32_MAX : (uint32_t)(bits >> 32));
    }
    return masks;
}

void sample_case_init(struct sample_case *at, uint32_t vocab, uint32_t rows, uint64_t *random)
{
    uint64_t elems = (uint64_t)rows * vocab;
    *at = (struct sample_case){.vocab = vocab, .rows = rows};
    uint32_t words = mask_words(at);
    struct k_sampler *samplers = mem_zalloc(rows, sizeof(*samplers));
    struct k_sample_row *sample_rows = mem_zalloc(rows, sizeof(*sample_rows));
    uint32_t *counts = mem_zalloc(elems, sizeof(*counts));
    for (uint32_t row = 0; row < rows; row++) {
        samplers[row].top_p = 1.0F;
        samplers[row].repetition_penalty = 1.0F;
        sample_rows[row] = (struct k_sample_row){
            .row = (row + 1) % rows, .slot = rows - 1 - row, .position = 20, .mask_row = K_NONE};
    }
    for (uint64_t i = 0; i < elems; i += 1 + twin_random_below(random, 7)) {
        uint32_t count = twin_random_below(random, 4);
        counts[i] = count | (twin_random_below(random, 2) == 0 ? K_COUNT_PROMPT : 0);
    }
    at->logits =
        twin_in(twin_random_bf16(elems, LOGIT_DEVIATION, random), elems * sizeof(uint16_t));
    at->samplers = twin_in(samplers, rows * sizeof(*samplers));
    at->sample_rows = twin_in(sample_rows, rows * sizeof(*sample_rows));
    at->counts = twin_in(counts, elems * sizeof(*counts));
    at->masks = twin_in(make_masks(words, random), sizeof(uint32_t) * SAMPLE_RIG_MASKS * words);
    at->missing = twin_in(mem_zalloc(SAMPLE_RIG_MASKS, sizeof(uint32_t)),
                          SAMPLE_RIG_MASKS * sizeof(uint32_t));
    at->picks = twin_out(rows * sizeof(struct k_pick));
    at->logprobs = twin_out(rows * sizeof(struct k_logprob_row));
}

void sample_case_fini(struct sample_case *at)
{
    twin_free(&at->logits);
    twin_free(&at->samplers);
    twin_free(&at->counts);
    twin_free(&at->masks);
    twin_free(&at->missing);
    twin_free(&at->sample_rows);
    twin_free(&at->picks);
    twin_free(&at->logprobs);
}

static bool one_in(uint64_t *random, uint32_t count)
{
    return twin_random_below(random, count) == 0;
}

static void random_lists(const struct sample_case *at, struct k_sampler *s, uint64_t *random)
{
    uint32_t most = one_in(random, 6) ? K_MAX_BIAS : 8;
    s->stop_count = twin_random_below(random, K_MAX_STOP_IDS + 1);
    for (uint32_t i = 0; i < s->stop_count; i++) {
        s->stop_ids[i] = twin_random_below(random, at->vocab);
    }
    s->suppress_count = one_in(random, 3) ? twin_random_below(random, most + 1) : 0;
    for (uint32_t i = 0; i < s->suppress_count; i++) {
        s->suppress_ids[i] = twin_random_below(random, at->vocab);
    }
    s->bias_count = one_in(random, 3) ? twin_random_below(random, most + 1) : 0;
    for (uint32_t i = 0; i < s->bias_count; i++) {
        bool stands_twice = i > 0 && one_in(random, 10);
        s->bias_ids[i] = stands_twice ? s->bias_ids[i - 1] : twin_random_below(random, at->vocab);
        s->bias_values[i] = (float)twin_random_below(random, 2000) / 100.0F - 10.0F;
    }
}

void sample_case_random_rules(const struct sample_case *at, uint32_t row, uint64_t *random)
{
    struct k_sampler *s = sample_case_sampler(at, row);
    struct k_sample_row *sample_row = sample_case_row(at, row);
    *s = (struct k_sampler){.seed = test_random(random), .output_start = 5};
    s->temperature = one_in(random, 4) ? 0.0F : 0.3F + (float)twin_random_below(random, 20) / 10.0F;
    s->top_k = one_in(random, 3) ? 1 + twin_random_below(random, 80) : 0;
    s->top_p = one_in(random, 2) ? 1.0F : 0.05F + (float)twin_random_below(random, 90) / 100.0F;
    s->min_p = one_in(random, 3) ? (float)(1 + twin_random_below(random, 50)) / 100.0F : 0.0F;
    s->presence_penalty = (float)twin_random_below(random, 9) / 4.0F - 1.0F;
    s->frequency_penalty = (float)twin_random_below(random, 9) / 8.0F - 0.5F;
    s->repetition_penalty = 0.5F + (float)twin_random_below(random, 15) / 10.0F;
    s->counts_tokens = one_in(random, 2);
    s->min_tokens = twin_random_below(random, 60);
    random_lists(at, s, random);
    sample_row->position = 10 + twin_random_below(random, 100);
    sample_row->mask_row =
        one_in(random, 3) ? twin_random_below(random, SAMPLE_RIG_MASKS - 1) : K_NONE;
}

void sample_case_write(const struct sample_case *at)
{
    twin_write(&at->logits);
    twin_write(&at->samplers);
    twin_write(&at->counts);
    twin_write(&at->masks);
    twin_write(&at->missing);
    twin_write(&at->sample_rows);
    twin_poison(&at->picks);
    twin_poison(&at->logprobs);
    memset(at->picks.host, 0xff, at->picks.bytes);
    memset(at->logprobs.host, 0xff, at->logprobs.bytes);
}

/* ---- runs ---- */

static const void *side(const struct twin_buffer *buffer, bool is_on_device)
{
    return is_on_device ? buffer->device : buffer->host;
}

static struct k_sample_args args_of(const struct sample_case *at, uint32_t rows, bool is_on_device)
{
    return (struct k_sample_args){
        .slots = {.slot_count = at->rows,
                  .vocab_tokens = at->vocab,
                  .samplers = is_on_device ? at->samplers.device : at->samplers.host,
                  .counts = is_on_device ? at->counts.device : at->counts.host},
        .logits = side(&at->logits, is_on_device),
        .row_count = rows,
        .rows = side(&at->sample_rows, is_on_device),
        .masks = side(&at->masks, is_on_device),
        .mask_words = mask_words(at),
        .missing = side(&at->missing, is_on_device),
        .picks = is_on_device ? at->picks.device : at->picks.host,
        .logprobs = is_on_device ? at->logprobs.device : at->logprobs.host,
    };
}

void sample_case_run(const struct sample_case *at, struct cuda_rig *rig, uint32_t rows)
{
    struct err err = {0};
    const struct k_sample_args args = args_of(at, rows, true);
    test_ok(k_cuda_ops()->sample(rig->k, &args, &err), &err);
}

/* Runs of rows between those of nobody. */
void sample_case_twin(const struct sample_case *at, uint32_t rows)
{
    struct err err = {0};
    struct k_stream *twin = twin_stream(at->vocab, 0.0F);
    const struct k_sample_args args = args_of(at, rows, false);
    for (uint32_t first = 0; first < rows;) {
        uint32_t end = first;
        while (end < rows && args.rows[end].row != K_NONE) {
            end++;
        }
        struct k_sample_args some = args;
        some.row_count = end - first;
        some.rows += first;
        some.logprobs += first;
        some.logits += (uint64_t)first * at->vocab;
        test_ok(k_cpu_ops()->sample(twin, &some, &err), &err);
        first = end + 1;
    }
    k_cpu_stream_destroy(twin);
}

struct k_pick *sample_case_picks(const struct sample_case *at, const char *label)
{
    return twin_read(&at->picks, at->picks.bytes, label);
}

static void fail_pick(const struct sample_case *at, uint32_t row, const char *label,
                      const struct k_pick *got, const struct k_pick *want)
{
    const struct k_sampler *s = sample_case_sampler(at, row);
    test_fail(__FILE__, __LINE__,
              "%s: row %u of %u, vocabulary %u: outcome %u token %u, twin %u token %u; seed %llu "
              "position %u temperature %g top_k %u top_p %g min_p %g counts %d repetition %g "
              "presence %g frequency %g suppressed %u biased %u stops %u min_tokens %u mask %d",
              label, row, at->rows, at->vocab, got->outcome, got->token, want->outcome, want->token,
              (unsigned long long)s->seed, sample_case_row(at, row)->position,
              (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p,
              s->counts_tokens, (double)s->repetition_penalty, (double)s->presence_penalty,
              (double)s->frequency_penalty, s->suppress_count, s->bias_count, s->stop_count,
              s->min_tokens, (int)sample_case_row(at, row)->mask_row);
}

uint32_t sample_case_check(const struct sample_case *at, struct cuda_rig *rig, uint32_t rows,
                           const char *label)
{
    sample_case_write(at);
    sample_case_run(at, rig, rows);
    cuda_rig_wait(rig);
    sample_case_twin(at, rows);
    struct k_pick *got = sample_case_picks(at, label);
    struct k_logprob_row *targets = twin_read(&at->logprobs, at->logprobs.bytes, label);
    struct k_logprob_row *twin_targets = at->logprobs.host;
    struct k_pick *want = at->picks.host;
    uint32_t permitted = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t step_row = sample_case_row(at, row)->row;
        if (step_row == K_NONE ||
            memcmp(&got[step_row], &want[step_row], sizeof(got[step_row])) == 0) {
            continue;
        }
        bool is_close = got[step_row].outcome == K_OUTCOME_TOKEN &&
                        want[step_row].outcome == K_OUTCOME_TOKEN &&
                        sample_case_permits(at, row, got[step_row].token);
        if (!is_close) {
            fail_pick(at, row, label, &got[step_row], &want[step_row]);
        }
        permitted++;
        want[step_row] = got[step_row];
        twin_targets[row].target = got[step_row].token;
    }
    /* The rest of both arrays too: what no row writes stays as it was. */
    twin_check_equal(label, got, want, at->rows, sizeof(*got));
    twin_check_equal(label, targets, twin_targets, at->rows, sizeof(*targets));
    mem_free(got);
    mem_free(targets);
    return permitted;
}

/* ---- what is permitted ---- */

struct candidate {
    float value;
    uint32_t id;
    bool is_sure; /* survives whatever the last places are; else it may or may not */
};

static int best_first(const void *a, const void *b)
{
    const struct candidate *left = a;
    const struct candidate *right = b;
    if (left->value != right->value) {
        return left->value > right->value ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

static void apply_counts(const struct sample_case *at, uint32_t row, float *values)
{
    const struct k_sampler *s = sample_case_sampler(at, row);
    const uint32_t *counts =
        (const uint32_t *)at->counts.host + (uint64_t)sample_case_row(at, row)->slot * at->vocab;
    for (uint32_t v = 0; s->counts_tokens && v < at->vocab; v++) {
        uint32_t output = counts[v] & ~K_COUNT_PROMPT;
        if (counts[v] != 0) {
            float l = values[v];
            l = l > 0.0F ? l / s->repetition_penalty : l * s->repetition_penalty;
            l -= output > 0 ? s->presence_penalty : 0.0F;
            values[v] = l - s->frequency_penalty * (float)output;
        }
    }
}

/* Values of a row before the temperature. */
static float *adjusted(const struct sample_case *at, uint32_t row)
{
    const struct k_sampler *s = sample_case_sampler(at, row);
    const struct k_sample_row *where = sample_case_row(at, row);
    const uint16_t *logits = sample_case_logits(at, row);
    const uint32_t *masks = at->masks.host;
    float *values = mem_zalloc(at->vocab, sizeof(*values));
    for (uint32_t v = 0; v < at->vocab; v++) {
        values[v] = k_f32_from_bf16(logits[v]);
    }
    for (uint32_t i = 0; i < s->suppress_count; i++) {
        values[s->suppress_ids[i]] = -INFINITY;
    }
    for (uint32_t i = 0; where->position - s->output_start < s->min_tokens && i < s->stop_count;
         i++) {
        values[s->stop_ids[i]] = -INFINITY;
    }
    for (uint32_t v = 0; where->mask_row != K_NONE && v < at->vocab; v++) {
        uint32_t word = masks[(uint64_t)where->mask_row * mask_words(at) + v / 32];
        values[v] = (word >> v % 32 & 1U) != 0 ? values[v] : -INFINITY;
    }
    apply_counts(at, row, values);
    for (uint32_t i = 0; i < s->bias_count; i++) {
        values[s->bias_ids[i]] += s->bias_values[i];
    }
    return values;
}

static uint32_t cut_top_p(struct candidate *sorted, uint32_t count, double top_p)
{
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += exp((double)sorted[i].value - (double)sorted[0].value);
    }
    double before = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && before >= (top_p + MASS_ERROR) * total) {
            return i;
        }
        sorted[i].is_sure = sorted[i].is_sure && (i == 0 || before < (top_p - MASS_ERROR) * total);
        before += exp((double)sorted[i].value - (double)sorted[0].value);
    }
    return count;
}

static uint32_t cut_min_p(struct candidate *sorted, uint32_t count, float min_p)
{
    double best = (double)sorted[0].value;
    double log_p = log((double)min_p);
    double error = LOG_ERROR * (1.0 + fabs(best) + fabs(log_p));
    uint32_t kept = count;
    while (kept > 0 && (double)sorted[kept - 1].value < best + log_p - error) {
        kept--;
    }
    for (uint32_t i = 0; i < kept; i++) {
        sorted[i].is_sure = sorted[i].is_sure && (double)sorted[i].value >= best + log_p + error;
    }
    return kept;
}

/* Survivors in order, sure and unsure. */
static uint32_t survivors(const struct sample_case *at, uint32_t row, struct candidate *sorted)
{
    const struct k_sampler *s = sample_case_sampler(at, row);
    float *values = adjusted(at, row);
    uint32_t count = 0;
    for (uint32_t v = 0; v < at->vocab; v++) {
        float value = values[v] / s->temperature;
        if (value >= -FLT_MAX) {
            sorted[count++] = (struct candidate){value, v, true};
        }
    }
    mem_free(values);
    qsort(sorted, count, sizeof(*sorted), best_first);
    count = s->top_k != 0 ? num_min(count, s->top_k) : count;
    count = s->top_p < 1.0F ? cut_top_p(sorted, count, (double)s->top_p) : count;
    return s->min_p > 0.0F ? cut_min_p(sorted, count, s->min_p) : count;
}

bool sample_case_permits(const struct sample_case *at, uint32_t row, uint32_t token)
{
    const struct k_sampler *s = sample_case_sampler(at, row);
    if (s->temperature < K_MIN_TEMPERATURE) {
        return false; /* nothing is inexact before the largest is taken */
    }
    struct candidate *sorted = mem_zalloc(at->vocab, sizeof(*sorted));
    uint32_t count = survivors(at, row, sorted);
    double best = (double)-INFINITY;
    double own = (double)-INFINITY;
    double error = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double noise =
            (double)k_philox_gumbel(s->seed, sample_case_row(at, row)->position, sorted[i].id);
        double noisy = (double)sorted[i].value + noise;
        if (sorted[i].is_sure && noisy > best) {
            best = noisy;
            error = LOG_ERROR * (1.0 + fabs(noise) + fabs((double)sorted[i].value));
        }
        own = sorted[i].id == token ? noisy : own;
    }
    mem_free(sorted);
    return own >= best - 2.0 * error;
}
