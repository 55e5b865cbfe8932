/* Inside of the cpu backend: what an operator finds in its stream.  Included by kernels/cpu only. */
#ifndef KERNELS_CPU_STREAM_H
#define KERNELS_CPU_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/threads.h"

/* Rows whose widened activations a thread holds at once: every weight is widened once for them. */
#define K_ROW_BLOCK 16
/* Query tokens that share one pass over the keys, and rows (tokens x heads of a group) of them. */
#define K_QUERY_BLOCK    8
#define K_QUERY_ROWS     16
#define K_MAX_GROUP_ROWS 256

struct k_stream {
    struct k_threads *threads;   /* owned */
    const struct k_cpu_isa *isa; /* borrowed, static */
    struct k_cpu_options options;
    uint16_t *gelu;         /* owned, [65536] bf16(gelu_tanh(x)) by the bits of x */
    uint16_t *softcap;      /* owned, [65536] soft-cap by the bits of the logit */
    unsigned char *scratch; /* owned, [threads, scratch_bytes] */
    size_t scratch_bytes;   /* of one thread, a multiple of 64 */
};

/* Scratch of a thread; its content lasts for one item. */
static inline void *k_stream_scratch(const struct k_stream *stream, uint32_t thread)
{
    return stream->scratch + (size_t)thread * stream->scratch_bytes;
}

enum err_code k_cpu_embed_norm(struct k_stream *stream, const struct k_embed_norm_args *args,
                               struct err *err);
enum err_code k_cpu_linear(struct k_stream *stream, const struct k_linear_args *args,
                           struct err *err);
enum err_code k_cpu_qkv_norm_rope(struct k_stream *stream, const struct k_qkv_norm_rope_args *args,
                                  struct err *err);
enum err_code k_cpu_attention(struct k_stream *stream, const struct k_attention_args *args,
                              struct err *err);
enum err_code k_cpu_residual_norm(struct k_stream *stream, const struct k_residual_norm_args *args,
                                  struct err *err);
enum err_code k_cpu_gate_up(struct k_stream *stream, const struct k_gate_up_args *args,
                            struct err *err);
enum err_code k_cpu_head(struct k_stream *stream, const struct k_head_args *args, struct err *err);
enum err_code k_cpu_route(struct k_stream *stream, const struct k_route_args *args,
                          struct err *err);
enum err_code k_cpu_expert_gate_up(struct k_stream *stream, const struct k_expert_args *args,
                                   struct err *err);
enum err_code k_cpu_expert_down(struct k_stream *stream, const struct k_expert_args *args,
                                struct err *err);
enum err_code k_cpu_join_norm(struct k_stream *stream, const struct k_join_norm_args *args,
                              struct err *err);
enum err_code k_cpu_ple_inputs(struct k_stream *stream, const struct k_ple_inputs_args *args,
                               struct err *err);
enum err_code k_cpu_ple_layer(struct k_stream *stream, const struct k_ple_layer_args *args,
                              struct err *err);
enum err_code k_cpu_open(struct k_stream *stream, const struct k_open_args *args, struct err *err);
enum err_code k_cpu_expand(struct k_stream *stream, const struct k_expand_args *args,
                           struct err *err);
enum err_code k_cpu_sample(struct k_stream *stream, const struct k_sample_args *args,
                           struct err *err);
enum err_code k_cpu_logprobs(struct k_stream *stream, const struct k_logprobs_args *args,
                             struct err *err);
enum err_code k_cpu_advance(struct k_stream *stream, const struct k_advance_args *args,
                            struct err *err);

/* Scratch bytes of one item of each family that uses any. */
size_t k_cpu_linear_scratch_bytes(const struct k_cpu_shape *shape);
size_t k_cpu_attention_scratch_bytes(const struct k_cpu_shape *shape);
size_t k_cpu_route_scratch_bytes(const struct k_cpu_shape *shape);
size_t k_cpu_sample_scratch_bytes(const struct k_cpu_shape *shape);

#endif
