#include "worker/ranges.h"

#include <inttypes.h>
#include <stdio.h>

#include <nvtx3/nvToolsExt.h>

#include "worker/gemm.h"

enum {
    NAME_BYTES = 32
};

void ranges_begin_plan(uint64_t step_number)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof(name), "plan %" PRIu64, step_number); /* fits */
    (void)nvtxRangePushA(name); /* the depth is of no use here, nor below */
}

void ranges_begin_layer(uint32_t layer)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof(name), "layer %u", layer); /* fits */
    (void)nvtxRangePushA(name);
}

void ranges_end(void)
{
    (void)nvtxRangePop();
}

static const struct k_ops *begin(struct k_stream *stream, const char *name)
{
    (void)nvtxRangePushA(name);
    return gemm_ops(k_cuda_stream_owner(stream));
}

static enum err_code end(enum err_code code)
{
    ranges_end();
    return code;
}

/* One function per entry of the table, all alike. */
#define IN_RANGE_OF(entry, args_of)                                                               \
    static enum err_code in_range_##entry(struct k_stream *stream,                                \
                                          const struct k_##args_of##_args *args, struct err *err) \
    {                                                                                             \
        return end(begin(stream, #entry)->entry(stream, args, err));                              \
    }
#define IN_RANGE(entry) IN_RANGE_OF(entry, entry)

IN_RANGE(embed_norm)
IN_RANGE(linear)
IN_RANGE(qkv_norm_rope)
IN_RANGE(attention)
IN_RANGE(residual_norm)
IN_RANGE(gate_up)
IN_RANGE(head)
IN_RANGE(route)
IN_RANGE(join_norm)
IN_RANGE_OF(ple_fetch, ple_inputs)
IN_RANGE(ple_inputs)
IN_RANGE(ple_layer)
IN_RANGE_OF(expert_gate_up, expert)
IN_RANGE_OF(expert_down, expert)
IN_RANGE(open)
IN_RANGE(expand)
IN_RANGE(sample)
IN_RANGE(logprobs)
IN_RANGE(advance)

const struct k_ops *ranges_ops(void)
{
    static const struct k_ops ops = {
        .embed_norm = in_range_embed_norm,
        .linear = in_range_linear,
        .qkv_norm_rope = in_range_qkv_norm_rope,
        .attention = in_range_attention,
        .residual_norm = in_range_residual_norm,
        .gate_up = in_range_gate_up,
        .head = in_range_head,
        .route = in_range_route,
        .expert_gate_up = in_range_expert_gate_up,
        .expert_down = in_range_expert_down,
        .join_norm = in_range_join_norm,
        .ple_fetch = in_range_ple_fetch,
        .ple_inputs = in_range_ple_inputs,
        .ple_layer = in_range_ple_layer,
        .open = in_range_open,
        .expand = in_range_expand,
        .sample = in_range_sample,
        .logprobs = in_range_logprobs,
        .advance = in_range_advance,
    };
    return &ops;
}
