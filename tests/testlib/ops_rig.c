#include "tests/testlib/ops_rig.h"

#include <math.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/test.h"

struct k_stream *ops_stream(enum ops_loops loops, float softcap)
{
    struct err err = {0};
    struct k_stream *stream = NULL;
    struct k_cpu_options options = {
        .threads = 2,
        .shape = {.max_in_elems = 1024,
                  .max_context_tokens = OPS_CONTEXT,
                  .max_group_heads = 32,
                  .max_head_dim = 512,
                  .vocab_tokens = OPS_VOCAB,
                  .max_experts = OPS_EXPERTS},
        .softcap = softcap,
        .is_plain = loops == OPS_LOOPS_PLAIN,
    };
    test_ok(k_cpu_stream_create(&options, &stream, &err), &err);
    return stream;
}

uint16_t *ops_random_bf16(uint64_t *random, uint64_t count, double width)
{
    uint16_t *values = mem_zalloc(count, sizeof(*values));
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0.0; /* of four uniform numbers in (-1/2, 1/2): variance 1/3 */
        for (int j = 0; j < 4; j++) {
            sum += (double)(test_random(random) >> 11) * 0x1p-53 - 0.5;
        }
        values[i] = k_bf16_from_f32((float)(sum * width * 1.7320508));
    }
    return values;
}

double ops_f64(const uint16_t *values, uint64_t index)
{
    return (double)k_f32_from_bf16(values[index]);
}

void ops_check_bf16(uint16_t got, double want, double absolute_sum, const char *what,
                    uint64_t index)
{
    double value = (double)k_f32_from_bf16(got);
    double tolerance = fabs(want) * 0x1p-8 * 1.001 + 2e-6 * absolute_sum + 1e-38;
    if (!(fabs(value - want) <= tolerance)) {
        test_fail(__FILE__, __LINE__, "%s[%llu]: %.9g, expected %.9g within %.3g", what,
                  (unsigned long long)index, value, want, tolerance);
    }
}

double ops_round(double value)
{
    return (double)k_round_bf16((float)value);
}
