#include "kernels/cpu/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/num.h"
#include "kernels/dtype.h"

#define BF16_VALUES 65536

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), f32 inside, one rounding. */
static uint16_t gelu_of(uint16_t bits)
{
    float x = k_f32_from_bf16(bits);
    float inner = 0.7978845608028654F * (x + 0.044715F * (x * x * x));
    return k_bf16_from_f32(0.5F * x * (1.0F + tanhf(inner)));
}

static uint16_t softcap_of(uint16_t bits, float cap)
{
    float l = k_round_bf16(k_f32_from_bf16(bits) / cap);
    l = k_round_bf16(tanhf(l));
    return k_bf16_from_f32(l * cap);
}

static size_t scratch_bytes(const struct k_cpu_shape *shape)
{
    size_t route = k_cpu_route_scratch_bytes(shape); /* holds a linear product's */
    size_t attention = k_cpu_attention_scratch_bytes(shape);
    size_t sample = k_cpu_sample_scratch_bytes(shape);
    size_t most = route > attention ? route : attention;
    return num_align_up(most > sample ? most : sample, 128);
}

enum err_code k_cpu_stream_create(const struct k_cpu_options *options, struct k_stream **out_stream,
                                  struct err *err)
{
    enum err_code code = ERR_OK;
    struct k_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return err_set(err, ERR_MEMORY, "cpu stream: out of memory");
    }
    stream->options = *options;
    stream->isa = options->is_plain ? &k_cpu_isa_plain : k_cpu_isa_choose();
    stream->scratch_bytes = scratch_bytes(&options->shape);
    stream->gelu = calloc(BF16_VALUES, sizeof(uint16_t));
    stream->softcap = calloc(BF16_VALUES, sizeof(uint16_t));
    stream->scratch = aligned_alloc(128, options->threads * stream->scratch_bytes);
    if (stream->gelu == NULL || stream->softcap == NULL || stream->scratch == NULL) {
        code = err_set(err, ERR_MEMORY, "cpu stream: %zu bytes of scratch for each of %u threads",
                       stream->scratch_bytes, options->threads);
        goto out;
    }
    for (uint32_t bits = 0; bits < BF16_VALUES; bits++) {
        stream->gelu[bits] = gelu_of((uint16_t)bits);
        stream->softcap[bits] =
            options->softcap > 0.0F ? softcap_of((uint16_t)bits, options->softcap) : (uint16_t)bits;
    }
    code = k_threads_create(options->threads, &stream->threads, err);
out:
    if (code != ERR_OK) {
        k_cpu_stream_destroy(stream);
        return code;
    }
    *out_stream = stream;
    return ERR_OK;
}

void k_cpu_stream_destroy(struct k_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    k_threads_destroy(stream->threads);
    free(stream->scratch);
    free(stream->softcap);
    free(stream->gelu);
    free(stream);
}

const struct k_ops *k_cpu_ops(void)
{
    static const struct k_ops ops = {
        .embed_norm = k_cpu_embed_norm,
        .linear = k_cpu_linear,
        .qkv_norm_rope = k_cpu_qkv_norm_rope,
        .attention = k_cpu_attention,
        .residual_norm = k_cpu_residual_norm,
        .gate_up = k_cpu_gate_up,
        .head = k_cpu_head,
        .route = k_cpu_route,
        .expert_gate_up = k_cpu_expert_gate_up,
        .expert_down = k_cpu_expert_down,
        .join_norm = k_cpu_join_norm,
        .ple_inputs = k_cpu_ple_inputs,
        .ple_layer = k_cpu_ple_layer,
        .open = k_cpu_open,
        .expand = k_cpu_expand,
        .sample = k_cpu_sample,
        .logprobs = k_cpu_logprobs,
        .advance = k_cpu_advance,
    };
    return &ops;
}
