/* Philox4x32-10: counter-based random numbers, the same on every backend.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define K_PHILOX_FN static __host__ __device__ inline
#else
#define K_PHILOX_FN static inline
#endif

struct k_philox {
    uint32_t words[4];
};

K_PHILOX_FN struct k_philox k_philox(uint64_t key, const uint32_t counter[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t low = 0xD2511F53ULL * c[0];
        uint64_t high = 0xCD9E8D57ULL * c[2];
        uint32_t next[4] = {(uint32_t)(high >> 32) ^ c[1] ^ k0, (uint32_t)high,
                            (uint32_t)(low >> 32) ^ c[3] ^ k1, (uint32_t)low};
        c[0] = next[0];
        c[1] = next[1];
        c[2] = next[2];
        c[3] = next[3];
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    struct k_philox out = {{c[0], c[1], c[2], c[3]}};
    return out;
}

/* Gumbel noise of a token at a position: -log(-log(1 - u)), u in (0, 1) from 32 bits; the small u
 * that make large noise are exact in f32. */
K_PHILOX_FN float k_philox_gumbel(uint64_t seed, uint32_t position, uint32_t token)
{
    const uint32_t counter[4] = {position, token / 4, 0, 0};
    uint32_t word = k_philox(seed, counter).words[token % 4];
    float u = ((float)word + 0.5F) * 0x1p-32F;
    u = u > 1.0F - 0x1p-24F ? 1.0F - 0x1p-24F : u;
    return -logf(-log1pf(-u));
}

#endif
