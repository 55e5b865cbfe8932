/* The operator table of the cuda worker: the kernels' own, with products of many rows sent to
 * cuBLAS.  Where two matrices lie side by side in memory one call makes both products. */
#ifndef WORKER_GEMM_H
#define WORKER_GEMM_H

#include <stdint.h>

#include "common/err.h"
#include "kernels/cuda/ops_cuda.h"

struct gemm;

/* Device memory that gemm_create takes: cuBLAS's workspace and the products that are not final. */
uint64_t gemm_workspace_bytes(uint32_t max_tokens, uint32_t max_rows, uint32_t hidden_elems,
                              uint32_t max_intermediate_elems);

struct gemm_options {
    struct CUstream_st *stream; /* borrowed */
    unsigned char *workspace;   /* borrowed, gemm_workspace_bytes */
    uint32_t max_tokens;
    uint32_t max_rows;
    uint32_t hidden_elems;
    uint32_t max_intermediate_elems;
    uint32_t small_rows; /* products of at most so many rows go to the kernels */
};

/* Errors: ERR_DEVICE. */
ERR_NODISCARD enum err_code gemm_create(const struct gemm_options *options, struct gemm **out_gemm,
                                        struct err *err);
void gemm_destroy(struct gemm *gemm);

/* Asserts that products go to this stream. */
void gemm_check_stream(const struct gemm *gemm, struct CUstream_st *stream);
uint64_t gemm_launches(const struct gemm *gemm); /* calls of cuBLAS so far, captured ones too */

/* Borrowed from gemm.  The stream handed to these entries must have the gemm as its owner. */
const struct k_ops *gemm_ops(const struct gemm *gemm);

#endif
