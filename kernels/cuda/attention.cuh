/* The two ways of attention on cuda; kernels/cuda/attention.cu chooses by the count of tokens. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/stream.cuh"

/* Up to this many tokens, every token is a row of its own with its keys split over the device. */
#define K_SPLIT_KV_MAX_ROWS 128

/* Arguments are checked.  Both enqueue and return. */
cudaError_t k_attention_split_kv(const k_stream *stream, const k_attention_args *args);
cudaError_t k_attention_tiles(const k_stream *stream, const k_attention_args *args);

uint64_t k_attention_split_kv_scratch_bytes(const k_cuda_shape *shape);
uint64_t k_attention_tiles_scratch_bytes(const k_cuda_shape *shape);
cudaError_t k_attention_split_kv_prepare(void);
cudaError_t k_attention_tiles_prepare(void);

#endif
