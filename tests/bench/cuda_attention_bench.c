/* Time of attention per layer on cuda: a graph of LAYERS calls, each with K and V of its own, so that
 * nothing is left in L2.  Prints microseconds, bytes of K and V per second (few rows) or operations
 * per second (prompts), and their share of the measured read roof or of the tensor rate. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_rig.h"
#include "tests/testlib/test.h"

#define LAYERS       40
#define REPLAYS      15
#define PAGE_TOKENS  64
#define SEED_ELEMS   (8U << 20)
#define ROOF_BYTES_S 4.72e12
#define TENSOR_OPS_S 7.9e14

struct shape {
    const char *name;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t window;
};

static const struct shape shapes[] = {
    {"12B sliding", 16, 8, 256, 1024},
    {"12B full", 16, 1, 512, 0},
    {"31B sliding", 32, 16, 256, 1024},
    {"31B full", 32, 4, 512, 0},
};

struct bench {
    struct cuda_rig rig;
    struct k_attention_args args;
};

static void record(void *context)
{
    struct err err = {0};
    struct bench *bench = context;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        bench->args.kv_layer = layer;
        test_ok(k_cuda_ops()->attention(bench->rig.k, &bench->args, &err), &err);
    }
}

static uint16_t *random_elems(uint64_t count, uint64_t bytes_total, double deviation)
{
    uint64_t seed_elems = count < SEED_ELEMS ? count : SEED_ELEMS;
    uint16_t *values = mem_zalloc(seed_elems, sizeof(*values));
    uint64_t random = 3;
    for (uint64_t i = 0; i < seed_elems; i++) {
        uint64_t bits = test_random(&random);
        double sum = (double)(bits >> 32) * 0x1p-32 + (double)(bits & 0xffffffff) * 0x1p-32 - 1.0;
        values[i] = k_bf16_from_f32((float)(sum * deviation * 2.449));
    }
    uint16_t *at = cuda_rig_alloc(bytes_total);
    cuda_rig_write(at, values, seed_elems * sizeof(*values));
    cuda_rig_repeat(at, seed_elems * sizeof(*values), bytes_total);
    mem_free(values);
    return at;
}

/* slots segments of `tokens` tokens that end at position end - 1. */
static void run(const struct shape *shape, uint32_t slots, uint32_t tokens, uint32_t end,
                bool is_dependent)
{
    struct bench bench;
    uint32_t count = slots * tokens;
    uint32_t table_pages = num_ceil_div(end, PAGE_TOKENS);
    struct k_cuda_shape device_shape = {
        .max_tokens = count,
        .max_rows = 128,
        .slots = slots,
        .max_context_tokens = end,
        .hidden_elems = 1024,
        .max_linear_out_elems = 1024,
        .heads = shape->heads,
        .max_head_dim = shape->head_dim,
        .max_kv_heads = shape->kv_heads,
        .vocab_tokens = 1000,
    };
    cuda_rig_open(&bench.rig, &device_shape, is_dependent);
    uint32_t *positions = mem_zalloc(count, sizeof(uint32_t));
    uint32_t *slot_of = mem_zalloc(count, sizeof(uint32_t));
    uint32_t *table = mem_zalloc((size_t)slots * table_pages, sizeof(uint32_t));
    double keys = 0.0;      /* weighed, over all tokens */
    double keys_read = 0.0; /* of K and V, each once per slot */
    for (uint32_t t = 0; t < count; t++) {
        slot_of[t] = t / tokens;
        positions[t] = end - tokens + t % tokens;
        uint32_t seen = positions[t] + 1;
        keys += shape->window != 0 && seen > shape->window ? shape->window : seen;
        keys_read += t % tokens == 0 ? 0.0 : 1.0;
        keys_read += t % tokens == 0 ? fmin(seen, shape->window != 0 ? shape->window : seen) : 0.0;
    }
    for (uint32_t i = 0; i < slots * table_pages; i++) {
        /* Neighbouring pages of a slot lie apart. */
        table[i] = i % table_pages * slots + i / table_pages;
    }
    struct k_pages pages = {
        .table = cuda_rig_upload(table, (size_t)slots * table_pages * sizeof(uint32_t)),
        .table_pages = table_pages,
        .pages = slots * table_pages,
        .page_tokens = PAGE_TOKENS,
        .kv_layers = LAYERS,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
    };
    uint64_t pool_elems = (pages.pages + 1) * k_page_offset(&pages, 1, 0, 0, 0);
    uint64_t row_elems = (uint64_t)shape->heads * shape->head_dim;
    pages.base = random_elems(pool_elems, pool_elems * sizeof(uint16_t), 0.5);
    bench.args = (struct k_attention_args){
        .tokens = {.count = count,
                   .positions = cuda_rig_upload(positions, count * sizeof(uint32_t)),
                   .slots = cuda_rig_upload(slot_of, count * sizeof(uint32_t))},
        .pages = pages,
        .window_tokens = shape->window,
        .q = random_elems(count * row_elems, count * row_elems * sizeof(uint16_t), 0.5),
        .q_stride_elems = row_elems,
        .heads = shape->heads,
        .out = cuda_rig_alloc(count * row_elems * sizeof(uint16_t)),
    };
    double us = cuda_rig_replay(&bench.rig, record, &bench, REPLAYS) / LAYERS;
    double bytes = keys_read * shape->kv_heads * shape->head_dim * 2 * sizeof(uint16_t);
    double ops = keys * shape->heads * shape->head_dim * 4;
    printf(
        "%-12s %3u x %4u tokens to %5u %s %9.1f us %6.0f GB/s (%3.0f%%) %5.0f TFLOP/s (%2.0f%%)\n",
        shape->name, slots, tokens, end, is_dependent ? "dependent" : "plain    ", us,
        bytes / us * 1e-3, bytes / us * 1e8 / ROOF_BYTES_S, ops / us * 1e-6,
        ops / us * 1e8 / TENSOR_OPS_S);
    (void)fflush(stdout);
    cuda_rig_free((void *)(uintptr_t)bench.args.tokens.positions);
    cuda_rig_free((void *)(uintptr_t)bench.args.tokens.slots);
    cuda_rig_free((void *)(uintptr_t)pages.table);
    cuda_rig_free(pages.base);
    cuda_rig_free((void *)(uintptr_t)bench.args.q);
    cuda_rig_free(bench.args.out);
    mem_free(table);
    mem_free(slot_of);
    mem_free(positions);
    cuda_rig_close(&bench.rig);
}

/* Argument: "rows" or "prompts", for these alone. */
int main(int argc, char **argv)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    if (!cuda_rig_is_there()) {
        printf("no GPU\n");
        return 77;
    }
    bool has_rows = argc < 2 || strcmp(argv[1], "prompts") != 0;
    bool has_prompts = argc < 2 || strcmp(argv[1], "rows") != 0;
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (uint32_t r = 0; has_rows && r < sizeof(rows) / sizeof(rows[0]); r++) {
            run(&shapes[s], rows[r], 1, 1100, true);
        }
        if (has_rows) {
            run(&shapes[s], 16, 1, 1100, false);
            run(&shapes[s], 1, 1, 8192, true);
        }
        if (has_prompts) {
            run(&shapes[s], 1, 1024, 1024, true);
            run(&shapes[s], 1, 2048, 8192, true);
        }
    }
    return 0;
}
