/* bf16 values as the operators store them (the upper half of a float, in uint16_t), eight at a time.
 * Rounding is to nearest even; a NaN stays a NaN. */
#ifndef KERNELS_CUDA_DEVICE_BF16_CUH
#define KERNELS_CUDA_DEVICE_BF16_CUH

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ float k_f32(uint16_t value)
{
    return __uint_as_float((uint32_t)value << 16);
}

static __device__ __forceinline__ uint16_t k_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

static __device__ __forceinline__ float k_rounded(float value)
{
    return k_f32(k_bf16(value));
}

/* Eight consecutive elements, 16-byte aligned in memory. */
struct k_f32x8 {
    float at[8];
};

static __device__ __forceinline__ k_f32x8 k_unpack(uint4 packed)
{
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    k_f32x8 out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.at[2 * i] = __uint_as_float(words[i] << 16);
        out.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
    return out;
}

static __device__ __forceinline__ uint4 k_pack(const k_f32x8 &values)
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = (uint32_t)k_bf16(values.at[2 * i]) | (uint32_t)k_bf16(values.at[2 * i + 1])
                                                            << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Reads past the first-level cache: data that another launch wrote. */
static __device__ __forceinline__ uint4 k_load_fresh16(const void *at)
{
    return __ldcg(static_cast<const uint4 *>(at));
}

#endif
