/* Tensor-core products of bf16 with f32 sums, and the copies and fragment loads that feed them.
 *
 * mma.m16n8k16: lane 4g + t holds of A rows {g, g+8} x k {2t, 2t+8} (two each), of B (k x n) column
 * g, k {2t, 2t+8}, of the sums rows {g, g+8} x columns {2t, 2t+1}. */
#ifndef KERNELS_CUDA_DEVICE_MMA_CUH
#define KERNELS_CUDA_DEVICE_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t k_shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* 16 bytes into shared memory; zeroes where is_there is false (from must still be an address). */
static __device__ __forceinline__ void k_copy16(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void k_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
static __device__ __forceinline__ void k_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ uint4 k_load_matrices(uint32_t at)
{
    uint4 out;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(at)
                 : "memory");
    return out;
}

static __device__ __forceinline__ uint4 k_load_matrices_transposed(uint32_t at)
{
    uint4 out;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(at)
                 : "memory");
    return out;
}

/* The transpose of an 8x8 matrix spread over the warp. */
static __device__ __forceinline__ uint32_t k_transposed(uint32_t matrix)
{
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
    return out;
}

static __device__ __forceinline__ void k_mma(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* low in the lower half. */
static __device__ __forceinline__ uint32_t k_bf16_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* 2^x within 2 units of the last place; 0 for -inf. */
static __device__ __forceinline__ float k_exp2(float x)
{
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

#endif
