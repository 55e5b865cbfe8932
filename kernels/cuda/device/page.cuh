/* The one place where a page address is computed on the device (twins: k_page_of, k_page_offset). */
#ifndef KERNELS_CUDA_DEVICE_PAGE_CUH
#define KERNELS_CUDA_DEVICE_PAGE_CUH

#include <stdint.h>

#include "kernels/ops.h"

/* Physical page that holds a slot's position; the padding page where there is no slot. */
static __device__ __forceinline__ uint32_t k_page_at(const k_pages &pages, uint32_t slot,
                                                     uint32_t position)
{
    if (slot == K_SLOT_NONE) {
        return pages.pages;
    }
    uint32_t logical_page = position / pages.page_tokens;
    return __ldcg(pages.table + (uint64_t)slot * pages.table_pages +
                  logical_page % pages.table_pages);
}

/* Row of `position` in a head's K (part 0) or V (part 1): [head_dim] bf16. */
static __device__ __forceinline__ uint16_t *k_page_row(const k_pages &pages, uint32_t page,
                                                       uint32_t kv_layer, uint32_t part,
                                                       uint32_t head, uint32_t position)
{
    uint64_t block = ((uint64_t)page * pages.kv_layers + kv_layer) * 2 + part;
    uint64_t row =
        (block * pages.kv_heads + head) * pages.page_tokens + position % pages.page_tokens;
    return pages.base + row * pages.head_dim;
}

/* Elements from a row of K to the same row of V. */
static __device__ __forceinline__ uint64_t k_page_value_offset(const k_pages &pages)
{
    return (uint64_t)pages.kv_heads * pages.page_tokens * pages.head_dim;
}

#endif
