/* The cuda backend of the operator table: kernels for one Hopper device on one stream.
 *
 * An entry checks shapes, launches and returns; it never allocates or synchronises, so any sequence
 * of entries on fixed addresses can be captured into a graph.  Counts that a captured step must
 * not freeze (lengths, which rows live) are read on the device.  Plain C header: no CUDA types. */
#ifndef KERNELS_CUDA_OPS_CUDA_H
#define KERNELS_CUDA_OPS_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Largest shapes the operators will be called with; they size the scratch. */
struct k_cuda_shape {
    uint32_t max_tokens; /* of a step */
    uint32_t max_rows;   /* that are sampled at once */
    uint32_t slots;
    uint32_t max_context_tokens;
    uint32_t hidden_elems;
    uint32_t max_linear_out_elems; /* of a linear product, parts together */
    uint32_t heads;
    uint32_t max_head_dim;
    uint32_t max_kv_heads;
    uint32_t vocab_tokens;
    uint32_t experts; /* 0: none */
};

struct k_cuda_options {
    struct CUstream_st *stream; /* borrowed */
    struct k_cuda_shape shape;
    void *scratch; /* borrowed device memory of k_cuda_scratch_bytes, 256-byte aligned, zeroed */
    bool uses_dependent_launch; /* programmatic dependent launch between neighbours */
    void *owner;                /* returned by k_cuda_stream_owner */
};

uint64_t k_cuda_scratch_bytes(const struct k_cuda_shape *shape);

/* Also sets attributes of the kernels (shared memory).  The current device must be the stream's. */
ERR_NODISCARD enum err_code k_cuda_stream_create(const struct k_cuda_options *options,
                                                 struct k_stream **out_stream, struct err *err);
void k_cuda_stream_destroy(struct k_stream *stream);
void *k_cuda_stream_owner(const struct k_stream *stream);
struct CUstream_st *k_cuda_stream_handle(const struct k_stream *stream); /* as in the options */
uint64_t k_cuda_stream_launches(const struct k_stream *stream); /* of kernels, captured ones too */

/* All entries.  linear, gate_up and head take any row count but are meant for at most
 * K_CUDA_SMALL_ROWS; the worker sends larger products to cuBLAS. */
#define K_CUDA_SMALL_ROWS 16
const struct k_ops *k_cuda_ops(void);

/* What remains of a gate|up product made elsewhere: out = bf16(gelu_tanh(gate)) * up.
 *   gate_up [rows, 2 * intermediate] bf16, gate first; out [rows, intermediate] bf16 */
ERR_NODISCARD enum err_code k_cuda_geglu(struct k_stream *stream, const uint16_t *gate_up,
                                         uint32_t rows, uint32_t intermediate_elems, uint16_t *out,
                                         struct err *err);

/* Gathered rows for a head product made elsewhere, and the soft-cap after it, in place.
 *   out[i] = x[token_index[i]];  logits [rows, vocab] bf16 */
ERR_NODISCARD enum err_code k_cuda_gather(struct k_stream *stream, const uint16_t *x,
                                          const uint32_t *token_index, uint32_t rows,
                                          uint32_t hidden_elems, uint16_t *out, struct err *err);
ERR_NODISCARD enum err_code k_cuda_softcap(struct k_stream *stream, uint16_t *logits, uint32_t rows,
                                           uint32_t vocab_tokens, float softcap, struct err *err);

/* What remains of ple_layer's gate product made elsewhere, in place:
 *   gated = bf16(bf16(gelu_tanh(gated)) * input) */
ERR_NODISCARD enum err_code k_cuda_ple_gelu(struct k_stream *stream,
                                            const struct k_ple_layer_args *args, struct err *err);

/* out[i] = bf16(mean + sigma * n_i), n_i normal, the same for the same seed.  For benchmarks. */
struct k_cuda_normal {
    uint16_t *out; /* device memory */
    uint64_t elems;
    uint64_t seed;
    float mean;
    float sigma;
};
ERR_NODISCARD enum err_code k_cuda_fill_normal(struct CUstream_st *stream,
                                               const struct k_cuda_normal *normal, struct err *err);

/* For tests of what happens when a device misbehaves: the stream stands still for that long; the
 * context is lost by a write to nowhere. */
ERR_NODISCARD enum err_code k_cuda_delay(struct k_stream *stream, uint64_t delay_ns,
                                         struct err *err);
ERR_NODISCARD enum err_code k_cuda_fault(struct k_stream *stream, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
