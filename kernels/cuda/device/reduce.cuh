/* Sums and maxima over a warp and over a block, in a fixed order. */
#ifndef KERNELS_CUDA_DEVICE_REDUCE_CUH
#define KERNELS_CUDA_DEVICE_REDUCE_CUH

#include <stdint.h>

#define K_WARP_LANES 32

static __device__ __forceinline__ float k_warp_sum(float value)
{
#pragma unroll
    for (int step = K_WARP_LANES / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffU, value, step);
    }
    return value;
}

/* Every thread gets the sum.  partial [WARPS] shared; safe to call again after another barrier. */
template <int WARPS>
static __device__ __forceinline__ float k_block_sum(float value, float *partial)
{
    value = k_warp_sum(value);
    if (threadIdx.x % K_WARP_LANES == 0) {
        partial[threadIdx.x / K_WARP_LANES] = value;
    }
    __syncthreads();
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        sum += partial[warp];
    }
    return sum;
}

#endif
