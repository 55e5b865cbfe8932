/* Inside of the cuda backend: what an operator finds in its stream, and how it launches.
 * Included by the .cu files of kernels/cuda only. */
#ifndef KERNELS_CUDA_STREAM_CUH
#define KERNELS_CUDA_STREAM_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/ops_cuda.h"

/* A product whose slices of k are not added up yet: the next residual_norm of `out` does it. */
struct k_partial {
    const uint16_t *out; /* null: there is none */
    const float *sums;   /* [slices, rows, out_elems] f32, in scratch */
    uint32_t slices;
};

struct k_stream {
    cudaStream_t stream;
    mutable uint64_t launches; /* a count, no part of what an operator sees */
    k_cuda_shape shape;
    unsigned char *scratch; /* of the running operator; each operator leaves its counters zero */
    struct k_partial partial;
    cudaStream_t fetch_stream; /* owned; rows of a far table come on it, between these */
    cudaEvent_t fetch_begin;   /* owned */
    cudaEvent_t fetch_end;     /* owned */
    const uint16_t *fetched;   /* where they come to; null: none are on their way */
    uint32_t sm_count;
    bool uses_dependent_launch;
    void *owner;
};

/* Entries of the table, one family per .cu file. */
extern "C" {
enum err_code k_cuda_embed_norm(struct k_stream *, const struct k_embed_norm_args *, struct err *);
enum err_code k_cuda_linear(struct k_stream *, const struct k_linear_args *, struct err *);
enum err_code k_cuda_qkv_norm_rope(struct k_stream *, const struct k_qkv_norm_rope_args *,
                                   struct err *);
enum err_code k_cuda_attention(struct k_stream *, const struct k_attention_args *, struct err *);
enum err_code k_cuda_residual_norm(struct k_stream *, const struct k_residual_norm_args *,
                                   struct err *);
enum err_code k_cuda_gate_up(struct k_stream *, const struct k_gate_up_args *, struct err *);
enum err_code k_cuda_head(struct k_stream *, const struct k_head_args *, struct err *);
enum err_code k_cuda_route(struct k_stream *, const struct k_route_args *, struct err *);
enum err_code k_cuda_expert_gate_up(struct k_stream *, const struct k_expert_args *, struct err *);
enum err_code k_cuda_expert_down(struct k_stream *, const struct k_expert_args *, struct err *);
enum err_code k_cuda_join_norm(struct k_stream *, const struct k_join_norm_args *, struct err *);
enum err_code k_cuda_ple_fetch(struct k_stream *, const struct k_ple_inputs_args *, struct err *);
enum err_code k_cuda_ple_inputs(struct k_stream *, const struct k_ple_inputs_args *, struct err *);
enum err_code k_cuda_ple_layer(struct k_stream *, const struct k_ple_layer_args *, struct err *);
enum err_code k_cuda_open(struct k_stream *, const struct k_open_args *, struct err *);
enum err_code k_cuda_expand(struct k_stream *, const struct k_expand_args *, struct err *);
enum err_code k_cuda_sample(struct k_stream *, const struct k_sample_args *, struct err *);
enum err_code k_cuda_logprobs(struct k_stream *, const struct k_logprobs_args *, struct err *);
enum err_code k_cuda_advance(struct k_stream *, const struct k_advance_args *, struct err *);
}

/* gated of ple_layer, from x: a product with an end of its own (linear.cu). */
extern "C" enum err_code k_cuda_ple_gate(struct k_stream *, const struct k_ple_layer_args *,
                                         struct err *);

/* Scratch of each family and one-time attributes; called by stream.cu. */
uint64_t k_cuda_attention_scratch_bytes(const k_cuda_shape *shape);
uint64_t k_cuda_linear_scratch_bytes(const k_cuda_shape *shape);
uint64_t k_cuda_sample_scratch_bytes(const k_cuda_shape *shape);
uint64_t k_cuda_route_scratch_bytes(const k_cuda_shape *shape);
cudaError_t k_cuda_attention_prepare(void);
cudaError_t k_cuda_experts_prepare(void);
cudaError_t k_cuda_linear_prepare(void);

#endif
