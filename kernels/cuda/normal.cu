/* Normal values for made-up weights: Philox words by element, Box-Muller pairs. */
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/philox.h"

constexpr uint32_t THREADS = 256;
constexpr uint32_t BLOCKS = 132 * 8;
constexpr uint32_t PIECE_ELEMS = 4; /* of one Philox call */
constexpr float TWO_PI = 6.283185307F;

static __device__ __forceinline__ float unit(uint32_t word)
{
    return ((float)word + 0.5F) * 0x1p-32F;
}

static __global__ void __launch_bounds__(THREADS) fill_normal_kernel(k_cuda_normal normal)
{
    uint64_t pieces = (normal.elems + PIECE_ELEMS - 1) / PIECE_ELEMS;
    for (uint64_t piece = (uint64_t)blockIdx.x * THREADS + threadIdx.x; piece < pieces;
         piece += (uint64_t)gridDim.x * THREADS) {
        const uint32_t counter[4] = {(uint32_t)piece, (uint32_t)(piece >> 32), 0, 0};
        struct k_philox words = k_philox(normal.seed, counter);
        float values[PIECE_ELEMS];
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            float u = fminf(unit(words.words[2 * pair]), 1.0F - 0x1p-24F);
            float radius = sqrtf(-2.0F * logf(u));
            float angle = TWO_PI * unit(words.words[2 * pair + 1]);
            values[2 * pair] = radius * cosf(angle);
            values[2 * pair + 1] = radius * sinf(angle);
        }
        for (uint64_t i = piece * PIECE_ELEMS, j = 0; j < PIECE_ELEMS && i < normal.elems;
             i++, j++) {
            normal.out[i] = k_bf16(normal.mean + normal.sigma * values[j]);
        }
    }
}

extern "C" enum err_code k_cuda_fill_normal(struct CUstream_st *stream,
                                            const struct k_cuda_normal *normal, struct err *err)
{
    fill_normal_kernel<<<BLOCKS, THREADS, 0, stream>>>(*normal);
    return k_launched(cudaGetLastError(), "fill_normal", err);
}
