#include "tests/testlib/cuda_twin.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/test.h"

#define GUARD_BYTES   256
#define MAX_THREADS   16
#define RANDOM_VALUES 4096
#define TWIN_SAMPLE   64 /* elements of the twin held to their own interval, per comparison */

struct k_stream *twin_stream(uint32_t vocab_tokens, float softcap)
{
    struct err err = {0};
    struct k_stream *stream = NULL;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct k_cpu_options options = {
        .threads = processors < 1 ? 1 : num_min((uint32_t)processors, MAX_THREADS),
        .shape = {.max_in_elems = 21504,
                  .max_context_tokens = 4096,
                  .max_group_heads = 16,
                  .max_head_dim = 512,
                  .vocab_tokens = vocab_tokens,
                  .max_experts = 1024},
        .softcap = softcap,
    };
    test_ok(k_cpu_stream_create(&options, &stream, &err), &err);
    return stream;
}

/* ---- operands ---- */

static unsigned char *guarded(const struct twin_buffer *buffer)
{
    return (unsigned char *)buffer->device - GUARD_BYTES;
}

static struct twin_buffer buffer_of(void *host, size_t bytes)
{
    size_t padded = num_align_up(bytes, GUARD_BYTES);
    unsigned char *base = cuda_rig_alloc(padded + 2UL * GUARD_BYTES);
    cuda_rig_poison(base, padded + 2UL * GUARD_BYTES);
    return (struct twin_buffer){.host = host, .device = base + GUARD_BYTES, .bytes = bytes};
}

struct twin_buffer twin_in(void *host, size_t bytes)
{
    struct twin_buffer buffer = buffer_of(host, bytes);
    twin_write(&buffer);
    return buffer;
}

struct twin_buffer twin_out(size_t bytes)
{
    void *host = mem_zalloc(bytes, 1);
    memset(host, 0xff, bytes);
    return buffer_of(host, bytes);
}

void twin_write(const struct twin_buffer *buffer)
{
    cuda_rig_write(buffer->device, buffer->host, buffer->bytes);
}

void twin_poison(const struct twin_buffer *buffer)
{
    cuda_rig_poison(buffer->device, buffer->bytes);
}

/* First byte of [begin, end) that is not 0xff; end: none. */
static size_t first_touched(const unsigned char *bytes, size_t begin, size_t end)
{
    while (begin < end && bytes[begin] == 0xff) {
        begin++;
    }
    return begin;
}

void *twin_read(const struct twin_buffer *buffer, size_t used_bytes, const char *label)
{
    size_t padded = num_align_up(buffer->bytes, GUARD_BYTES);
    size_t whole = padded + 2UL * GUARD_BYTES;
    unsigned char *bytes = mem_zalloc(whole, 1);
    cuda_rig_read(bytes, guarded(buffer), whole);
    size_t before = first_touched(bytes, 0, GUARD_BYTES);
    size_t after = first_touched(bytes, GUARD_BYTES + used_bytes, whole);
    bool is_clean = before == GUARD_BYTES && after == whole;
    if (!is_clean) {
        size_t at = before < GUARD_BYTES ? before : after;
        test_fail(__FILE__, __LINE__, "%s: byte %lld of %zu used ones was written: 0x%02x", label,
                  (long long)at - GUARD_BYTES, used_bytes, bytes[at]);
    }
    memmove(bytes, bytes + GUARD_BYTES, buffer->bytes);
    return bytes;
}

void twin_free(struct twin_buffer *buffer)
{
    if (buffer->device != NULL) {
        cuda_rig_free(guarded(buffer));
        mem_free(buffer->host);
    }
    *buffer = (struct twin_buffer){0};
}

uint16_t *twin_random_bf16(uint64_t count, double deviation, uint64_t *random)
{
    uint16_t table[RANDOM_VALUES];
    for (uint32_t i = 0; i < RANDOM_VALUES; i++) {
        uint64_t bits = test_random(random);
        double sum = 0.0; /* of four uniform numbers in (-1/2, 1/2): variance 1/3 */
        for (int j = 0; j < 4; j++) {
            sum += (double)(bits >> 16 * j & 0xffff) * 0x1p-16 - 0.5;
        }
        table[i] = k_bf16_from_f32((float)(sum * deviation * 1.7320508));
    }
    uint16_t *values = mem_zalloc(count, sizeof(*values));
    uint64_t bits = 0;
    for (uint64_t i = 0; i < count; i++) {
        bits = i % 5 == 0 ? test_random(random) : bits >> 12;
        values[i] = table[bits % RANDOM_VALUES];
    }
    return values;
}

uint32_t twin_random_below(uint64_t *random, uint32_t limit)
{
    return (uint32_t)((test_random(random) >> 32) * limit >> 32);
}

/* ---- intervals ---- */

struct twin_interval twin_rounded(double value, double slack)
{
    return (struct twin_interval){.low = k_round_bf16((float)(value - slack)),
                                  .high = k_round_bf16((float)(value + slack))};
}

static struct twin_interval of_four(const float (*values)[4])
{
    struct twin_interval out = {.low = (*values)[0], .high = (*values)[0]};
    for (int i = 1; i < 4; i++) {
        out.low = fminf(out.low, (*values)[i]);
        out.high = fmaxf(out.high, (*values)[i]);
    }
    return (struct twin_interval){.low = k_round_bf16(out.low), .high = k_round_bf16(out.high)};
}

struct twin_interval twin_product(struct twin_interval a, struct twin_interval b)
{
    const float values[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    return of_four(&values);
}

struct twin_interval twin_sum(struct twin_interval a, struct twin_interval b)
{
    return (struct twin_interval){.low = k_round_bf16(a.low + b.low),
                                  .high = k_round_bf16(a.high + b.high)};
}

struct twin_interval twin_normed(struct twin_interval value, double factor, double weight)
{
    double low = (double)value.low * factor * weight;
    double high = (double)value.high * factor * weight;
    struct twin_interval a = twin_rounded(low, fabs(low) * TWIN_NORM_ERROR);
    struct twin_interval b = twin_rounded(high, fabs(high) * TWIN_NORM_ERROR);
    return (struct twin_interval){.low = fminf(a.low, b.low), .high = fmaxf(a.high, b.high)};
}

double twin_rms_factor(const uint16_t *values, uint32_t elems, float eps)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < elems; i++) {
        double value = (double)k_f32_from_bf16(values[i]);
        sum += value * value;
    }
    return 1.0 / sqrt(sum / elems + (double)eps);
}

struct twin_interval twin_gelu(float gate)
{
    double x = (double)gate;
    double inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    double value = 0.5 * x * (1.0 + tanh(inner));
    return twin_rounded(value, fabs(x) * 0x1p-22 + fabs(value) * 0x1p-20);
}

struct twin_interval twin_softcapped(float logit, float cap)
{
    if (!(cap > 0.0F)) {
        return (struct twin_interval){.low = logit, .high = logit};
    }
    double bent = tanh((double)k_round_bf16(logit / cap));
    struct twin_interval within = twin_rounded(bent, fabs(bent) * 0x1p-21);
    return twin_product(within, (struct twin_interval){.low = cap, .high = cap});
}

/* ---- comparison ---- */

/* A NaN is permitted where the twin has one. */
static bool is_within(uint16_t bits, uint16_t want, struct twin_interval permitted)
{
    float value = k_f32_from_bf16(bits);
    bool both_nan = isnan(value) && isnan(k_f32_from_bf16(want));
    return both_nan || (value >= permitted.low && value <= permitted.high);
}

static void refuse(struct twin_report *report, uint64_t at, const struct twin_compare *compare,
                   struct twin_interval permitted)
{
    if (report->refused++ == 0) {
        report->row = (uint32_t)(at / compare->columns);
        report->column = (uint32_t)(at % compare->columns);
        report->permitted = permitted;
    }
}

static void compare_element(const struct twin_compare *compare, uint64_t at,
                            struct twin_report *report)
{
    uint16_t got = compare->got[at];
    uint16_t want = compare->want[at];
    struct twin_interval permitted = {.low = k_f32_from_bf16(want), .high = k_f32_from_bf16(want)};
    report->differing += got != want ? 1 : 0;
    if (compare->permitted == NULL) {
        if (got != want) {
            refuse(report, at, compare, permitted);
        }
        return;
    }
    permitted = compare->permitted(compare->context, (uint32_t)(at / compare->columns),
                                   (uint32_t)(at % compare->columns));
    bool is_twin_right = is_within(want, want, permitted);
    if (!is_twin_right || !is_within(got, want, permitted)) {
        report->is_twin_wrong = report->is_twin_wrong || (!is_twin_right && report->refused == 0);
        refuse(report, at, compare, permitted);
    }
}

bool twin_agrees(const struct twin_compare *compare, struct twin_report *report)
{
    uint64_t count = (uint64_t)compare->rows * compare->columns;
    uint64_t stride = count / TWIN_SAMPLE + 1;
    *report = (struct twin_report){0};
    for (uint64_t at = 0; at < count; at++) {
        bool is_sampled = compare->permitted != NULL && at % stride == 0;
        if (compare->got[at] != compare->want[at] || is_sampled) {
            compare_element(compare, at, report);
        }
    }
    return report->refused == 0;
}

void twin_check(const struct twin_compare *compare, struct twin_totals *totals)
{
    struct twin_report report;
    if (!twin_agrees(compare, &report)) {
        uint64_t at = (uint64_t)report.row * compare->columns + report.column;
        uint16_t got = compare->got[at];
        uint16_t want = compare->want[at];
        test_fail(__FILE__, __LINE__,
                  "%s [row %u of %u, column %u of %u]: got %.9g (0x%04x), twin %.9g (0x%04x), "
                  "permitted %.9g to %.9g%s; %" PRIu64 " of %" PRIu64 " refused, %" PRIu64
                  " differ",
                  compare->label, report.row, compare->rows, report.column, compare->columns,
                  (double)k_f32_from_bf16(got), got, (double)k_f32_from_bf16(want), want,
                  (double)report.permitted.low, (double)report.permitted.high,
                  report.is_twin_wrong ? " (the twin itself is outside)" : "", report.refused,
                  (uint64_t)compare->rows * compare->columns, report.differing);
    }
    if (totals != NULL) {
        totals->elements += (uint64_t)compare->rows * compare->columns;
        totals->differing += report.differing;
    }
}

void twin_print(const char *label, const struct twin_totals *totals)
{
    (void)printf("%s: %" PRIu64 " elements, %" PRIu64 " not the twin's bits\n", label,
                 totals->elements, totals->differing);
}

void twin_check_equal(const char *label, const void *got, const void *want, size_t count,
                      size_t elem_bytes)
{
    const unsigned char *a = got;
    const unsigned char *b = want;
    size_t bytes = count * elem_bytes;
    size_t at = 0;
    while (at < bytes && a[at] == b[at]) {
        at++;
    }
    if (at == bytes) {
        return;
    }
    size_t element = at / elem_bytes;
    uint64_t got_value = 0;
    uint64_t want_value = 0;
    size_t value_bytes = elem_bytes < sizeof(got_value) ? elem_bytes : sizeof(got_value);
    size_t value_at = elem_bytes <= sizeof(got_value) ? element * elem_bytes : at / 4 * 4;
    value_bytes = bytes - value_at < value_bytes ? bytes - value_at : value_bytes;
    memcpy(&got_value, a + value_at, value_bytes);
    memcpy(&want_value, b + value_at, value_bytes);
    test_fail(__FILE__, __LINE__,
              "%s: element %zu of %zu (byte %zu of %zu bytes each): got 0x%" PRIx64
              ", want 0x%" PRIx64,
              label, element, count, at - element * elem_bytes, elem_bytes, got_value, want_value);
}
