/* Warpgroup products of bf16 with f32 sums (sm_90a): 64 rows by N columns by 16, B in shared memory.
 *
 * Matrices lie in blocks of 64 columns, a row of a block being 128 bytes whose 16-byte pieces are
 * swizzled: piece p of row r at r * 128 + (p ^ r % 8) * 16, blocks 1,024-byte aligned.  Sums and A in
 * registers are spread as by mma.m16n8k16, warp w of the group having rows 16 w .. 16 w + 15. */
#ifndef KERNELS_CUDA_DEVICE_WGMMA_CUH
#define KERNELS_CUDA_DEVICE_WGMMA_CUH

#include <stdint.h>

#define K_BLOCK_ROW_BYTES 128

static __device__ __forceinline__ uint32_t k_block_offset(uint32_t rows, uint32_t row,
                                                          uint32_t piece)
{
    return (piece / 8 * rows + row) * K_BLOCK_ROW_BYTES + (piece % 8 ^ row % 8) * 16;
}

/* Describes a matrix from `at` on: 8 rows are 1,024 bytes apart; block_bytes from a block of 64
 * columns to the next, where the product runs over the rows (transposed). */
static __device__ __forceinline__ uint64_t k_wgmma_matrix(uint32_t at, uint32_t block_bytes)
{
    constexpr uint64_t SWIZZLE_128 = 1ULL << 62;
    constexpr uint64_t EIGHT_ROWS = (uint64_t)(8 * K_BLOCK_ROW_BYTES / 16) << 32;
    return SWIZZLE_128 | EIGHT_ROWS | (uint64_t)(block_bytes / 16) << 16 | (at & 0x3ffffU) / 16;
}

/* Keeps the compiler from moving uses of the sums past this point. */
template <uint32_t N>
static __device__ __forceinline__ void k_wgmma_hold(float (&sum)[N][4])
{
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        asm volatile(""
                     : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
                     :
                     : "memory");
    }
}

/* Before the first product into sum: registers and shared memory as written so far. */
template <uint32_t N>
static __device__ __forceinline__ void k_wgmma_begin(float (&sum)[N][4])
{
    k_wgmma_hold(sum);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Waits for every product into sum. */
template <uint32_t N>
static __device__ __forceinline__ void k_wgmma_finish(float (&sum)[N][4])
{
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
    k_wgmma_hold(sum);
}

/* By each thread that wrote operands, before the barrier that hands them over. */
static __device__ __forceinline__ void k_wgmma_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define K_SUMS(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])

/* sum += A B^T; A and B by rows. */
/* clang-format off */
static __device__ __forceinline__ void k_wgmma_32(float (&sum)[4][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, 1, 1, 1, 0, 0;"
                 : K_SUMS(0), K_SUMS(1), K_SUMS(2), K_SUMS(3)
                 : "l"(a), "l"(b)
                 : "memory");
}

static __device__ __forceinline__ void k_wgmma_64(float (&sum)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, 1, 1, 1, 0, 0;"
                 : K_SUMS(0), K_SUMS(1), K_SUMS(2), K_SUMS(3), K_SUMS(4), K_SUMS(5),
                   K_SUMS(6), K_SUMS(7)
                 : "l"(a), "l"(b)
                 : "memory");
}

/* sum += A B; A in registers, B by rows of the summed index. */
static __device__ __forceinline__ void k_wgmma_256(float (&sum)[32][4], uint4 a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : K_SUMS(0), K_SUMS(1), K_SUMS(2), K_SUMS(3), K_SUMS(4), K_SUMS(5),
                   K_SUMS(6), K_SUMS(7), K_SUMS(8), K_SUMS(9), K_SUMS(10), K_SUMS(11),
                   K_SUMS(12), K_SUMS(13), K_SUMS(14), K_SUMS(15), K_SUMS(16), K_SUMS(17),
                   K_SUMS(18), K_SUMS(19), K_SUMS(20), K_SUMS(21), K_SUMS(22), K_SUMS(23),
                   K_SUMS(24), K_SUMS(25), K_SUMS(26), K_SUMS(27), K_SUMS(28), K_SUMS(29),
                   K_SUMS(30), K_SUMS(31)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b)
                 : "memory");
}
/* clang-format on */

#undef K_SUMS

#endif
