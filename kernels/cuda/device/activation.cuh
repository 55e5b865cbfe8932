/* The two elementwise functions of Gemma 4, with the roundings of kernels/ops.h. */
#ifndef KERNELS_CUDA_DEVICE_ACTIVATION_CUH
#define KERNELS_CUDA_DEVICE_ACTIVATION_CUH

#include "kernels/cuda/device/bf16.cuh"

static __device__ __forceinline__ float k_gelu_tanh(float x)
{
    float inner = 0.7978845608028654F * (x + 0.044715F * x * x * x);
    return 0.5F * x * (1.0F + tanhf(inner));
}

/* gate and up are sums of a product; the result is rounded to bf16 by the caller's store. */
static __device__ __forceinline__ uint16_t k_geglu(float gate, float up)
{
    return k_bf16(k_rounded(k_gelu_tanh(k_rounded(gate))) * k_rounded(up));
}

/* cap 0: the rounded logit. */
static __device__ __forceinline__ float k_softcapped(float logit, float cap)
{
    float l = k_rounded(logit);
    if (cap > 0.0F) {
        l = k_rounded(__fdiv_rn(l, cap));
        l = k_rounded(tanhf(l));
        l = k_rounded(l * cap);
    }
    return l;
}

#endif
