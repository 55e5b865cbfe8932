/* How the cpu backend cuts a product with a weight matrix, for the operators that make one.  Included
 * by kernels/cpu only.
 *
 * An item is a block of rows times a run of columns.  Its rows are widened to f32 once, then each
 * weight is read once for all of them. */
#ifndef KERNELS_CPU_PRODUCT_H
#define KERNELS_CPU_PRODUCT_H

#include "common/num.h"
#include "kernels/cpu/stream.h"

/* Columns between two roundings; a multiple of every tile width of the inner loops. */
#define COL_TILE 48
/* Multiply-adds that make an item worth another thread's while: some 4 us. */
#define ITEM_MULTIPLY_ADDS 50000

struct scratch {
    float *x;     /* [K_ROW_BLOCK, in] lane order */
    float *first; /* [K_ROW_BLOCK, COL_TILE] */
    float *second;
};

static inline struct scratch scratch_of(const struct k_stream *stream, uint32_t thread)
{
    float *at = (float *)k_stream_scratch(stream, thread);
    return (struct scratch){
        .x = at + 2UL * K_ROW_BLOCK * COL_TILE,
        .first = at,
        .second = at + (size_t)K_ROW_BLOCK * COL_TILE,
    };
}

/* Does a thread's scratch hold the widened rows? */
static inline enum err_code check_in(const struct k_stream *stream, const char *what,
                                     uint32_t in_elems, struct err *err)
{
    if (in_elems == 0 || in_elems > stream->options.shape.max_in_elems) {
        return err_set(err, ERR_SHAPE, "%s: %u inputs, the stream was made for 1 to %u", what,
                       in_elems, stream->options.shape.max_in_elems);
    }
    return ERR_OK;
}

/* How a product is cut into items. */
struct cut {
    uint32_t row_blocks;
    uint32_t cols_per_item;
    uint32_t col_items;
};

static inline struct cut cut_of(uint32_t rows, uint32_t in_elems, uint32_t cols, uint32_t matrices)
{
    uint64_t per_col = (uint64_t)num_min(rows, K_ROW_BLOCK) * in_elems * matrices;
    uint64_t tiles = ITEM_MULTIPLY_ADDS / (per_col * COL_TILE + 1) + 1;
    struct cut cut = {.row_blocks = num_ceil_div(rows, K_ROW_BLOCK)};
    for (;; tiles *= 2) {
        cut.cols_per_item = (uint32_t)(tiles * COL_TILE);
        cut.col_items = num_ceil_div(cols, cut.cols_per_item);
        if ((uint64_t)cut.row_blocks * cut.col_items < K_THREADS_MAX_ITEMS) {
            return cut;
        }
    }
}

/* The part of the product that one item computes. */
struct span {
    uint32_t row;
    uint32_t rows;
    uint32_t col;
    uint32_t col_end;
};

static inline struct span span_of(const struct cut *cut, uint32_t item, uint32_t rows,
                                  uint32_t cols)
{
    uint32_t row = item / cut->col_items * K_ROW_BLOCK;
    uint32_t col = item % cut->col_items * cut->cols_per_item;
    return (struct span){
        .row = row,
        .rows = num_min(K_ROW_BLOCK, rows - row),
        .col = col,
        .col_end = num_min(col + cut->cols_per_item, cols),
    };
}

static inline uint64_t row_stride(uint32_t in_elems)
{
    return num_align_up(in_elems, K_LANE_BLOCK);
}

/* The widened rows of a span against `cols` rows of a matrix. */
static inline struct k_dot_args dot_of(const struct scratch *scratch, const struct span *span,
                                       uint32_t in_elems, const uint16_t *w, uint32_t cols)
{
    return (struct k_dot_args){
        .x = scratch->x,
        .x_stride = row_stride(in_elems),
        .rows = span->rows,
        .w = w,
        .w_stride = in_elems,
        .cols = cols,
        .elems = in_elems,
        .out = scratch->first,
        .out_stride = COL_TILE,
    };
}

#endif
