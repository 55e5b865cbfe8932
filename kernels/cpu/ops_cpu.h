/* The cpu backend of the operator table: plain C with AVX2 inner loops, spread over threads.
 *
 * "Enqueue" is to compute before returning; one thread at a time uses a stream. */
#ifndef KERNELS_CPU_OPS_CPU_H
#define KERNELS_CPU_OPS_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/ops.h"

/* Largest shapes that the operators will be called with; they size the scratch of each thread. */
struct k_cpu_shape {
    uint32_t
        max_in_elems; /* inputs of any matrix: hidden, heads * head_dim, intermediate, expert's */
    uint32_t max_context_tokens;
    uint32_t max_group_heads; /* query heads per kv head */
    uint32_t max_head_dim;
    uint32_t vocab_tokens;
    uint32_t max_experts; /* 0: none */
};

struct k_cpu_options {
    uint32_t threads; /* the calling one included, at least 1 */
    struct k_cpu_shape shape;
    float softcap; /* the cap that head will be called with; 0: none */
    bool is_plain; /* the plain loops even where AVX2 exists */
};

/* Errors: ERR_MEMORY, ERR_SYSTEM (a thread). */
ERR_NODISCARD enum err_code k_cpu_stream_create(const struct k_cpu_options *options,
                                                struct k_stream **out_stream, struct err *err);
void k_cpu_stream_destroy(struct k_stream *stream);

const struct k_ops *k_cpu_ops(void);

#endif
