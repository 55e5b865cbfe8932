/* Products of the cuda backend against the cpu twin, for any operator table that makes them.
 *
 * Permitted: sums of k products of bf16 are exact in f64; f32 in any order is held to
 * 2^-21 |x| |w| (lengths of the two vectors).  That is some twenty times what orders of summation
 * were seen to differ by and a tenth of what one lost product of 3,840 usually changes. */
#ifndef TESTS_TESTLIB_LINEAR_RIG_H
#define TESTS_TESTLIB_LINEAR_RIG_H

#include "tests/testlib/cuda_twin.h"

#define LINEAR_RIG_SOFTCAP 30.0F
#define LINEAR_RIG_ERROR   0x1p-21

/* Where the products come from. */
struct linear_source {
    const struct k_ops *ops;
    struct k_stream *stream;
    double error; /* permitted in a sum, per |x| |w| */
};

enum linear_kind {
    LINEAR_KIND_PLAIN,
    LINEAR_KIND_GATE_UP, /* outs[0] = outs[1] = intermediate */
    LINEAR_KIND_HEAD,    /* outs[0] = vocabulary; token_index reads x backwards, some rows twice */
    LINEAR_KIND_HEAD_UNCAPPED,
};

struct linear_shape {
    const char *name;
    enum linear_kind kind;
    uint32_t in_elems;
    uint32_t outs[K_MAX_LINEAR_PARTS];
    bool is_joined; /* the matrices lie side by side */
};

/* One shape's operands, and the twin's result for its most rows. */
struct linear_case {
    const struct linear_shape *shape;
    double error; /* LINEAR_RIG_ERROR unless set */
    uint32_t max_rows;
    uint32_t part_count;
    uint32_t columns;
    uint64_t part_offsets[K_MAX_LINEAR_PARTS]; /* elements from the first matrix */
    struct twin_buffer x;                      /* [max_rows, in] */
    struct twin_buffer weights;
    struct twin_buffer token_index; /* [max_rows] */
    struct twin_buffer out;         /* [max_rows, columns]; the host's is the twin's */
};

void linear_case_init(struct linear_case *at, const struct linear_shape *shape, uint32_t max_rows,
                      uint64_t *random);
void linear_case_fini(struct linear_case *at);

/* The device's operator over the first rows; enqueues. */
void linear_case_run(const struct linear_case *at, const struct linear_source *source,
                     uint32_t rows);

/* What the device makes of the first rows, to be freed; every other byte must be as it was. */
uint16_t *linear_case_got(const struct linear_case *at, const struct linear_source *source,
                          uint32_t rows);

/* Comparison of such a result with the twin; label must outlive it. */
struct twin_compare linear_case_compare(struct linear_case *at, const uint16_t *got, uint32_t rows,
                                        const char *label);

/* Runs the shape at each of these row counts and compares. */
void linear_rig_check(const struct linear_source *source, const struct linear_shape *shape,
                      const uint32_t *row_counts, uint32_t count_count);

/* Shapes of one layer and the head; vocabularies cut where the head's own test has the whole. */
struct linear_layer {
    const char *name;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t heads;
    uint32_t local_kv_heads;
    uint32_t full_kv_heads;
    uint32_t full_head_dim;
    uint32_t vocab;
};
extern const struct linear_layer linear_layer_12b;
extern const struct linear_layer linear_layer_31b;
extern const struct linear_layer linear_layer_demo;
extern const struct linear_layer linear_layer_tiny;

/* Every product of such a layer, at each of the row counts. */
void linear_rig_check_layer(const struct linear_source *source, const struct linear_layer *layer,
                            const uint32_t *row_counts, uint32_t count_count);

/* A stream's shape that takes all of the above. */
struct k_cuda_shape linear_rig_shape(void);

#endif
