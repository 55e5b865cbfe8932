/* The products of experts.cu, for the files of the experts' family only. */
#ifndef KERNELS_CUDA_EXPERTS_CUH
#define KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/stream.cuh"

/* out[pair] = weights of the pair's expert times x[pair / pairs_per_x], rounded.
 * One matrix for all rows: pairs and starts null, experts 1, pair_count rows. */
struct k_expert_product {
    const uint16_t *x;
    const uint32_t *pairs;
    const uint32_t *starts;
    uint32_t pair_count; /* at most, padding included */
    uint32_t experts;
    uint32_t pairs_per_x;
    uint32_t in_elems;
    uint32_t out_elems; /* of gate and up: of each */
    uint32_t
        out_stride_elems;    /* a multiple of 8, at least out_elems; what is between becomes zero */
    const uint16_t *weights; /* [experts, out, in], or [experts, 2 * out, in] */
    uint16_t *out;           /* [pairs, out_stride] */
};

/* columns: pairs of a block, 8, 16, 32, 64 or 128. */
enum err_code k_cuda_expert_multiply(struct k_stream *stream,
                                     const struct k_expert_product *product, bool is_gate_up,
                                     uint32_t columns, struct err *err);

#endif
