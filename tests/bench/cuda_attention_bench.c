/* Time of attention per layer on cuda: a graph of LAYERS calls, each with K and V of its own, so
 * that nothing is left in L2.  Prints microseconds, bytes of K and V per second (few rows) or operations
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
struct load {
    const struct shape *shape;
    uint32_t slots;
    uint32_t tokens;
    uint32_t end;
    bool is_dependent;
};

static void make_tokens(struct bench *bench, const struct load *load)
{
    uint32_t count = load->slots * load->tokens;
    uint32_t *positions = mem_zalloc(count, sizeof(uint32_t));
    uint32_t *slots = mem_zalloc(count, sizeof(uint32_t));
    for (uint32_t t = 0; t < count; t++) {
        slots[t] = t / load->tokens;
        positions[t] = load->end - load->tokens + t % load->tokens;
    }
    bench->args.tokens = (struct k_tokens){
        .count = count,
        .positions = cuda_rig_upload(positions, count * sizeof(uint32_t)),
        .slots = cuda_rig_upload(slots, count * sizeof(uint32_t)),
    };
    mem_free(slots);
    mem_free(positions);
}

static void make_pages(struct bench *bench, const struct load *load)
{
    uint32_t table_pages = num_ceil_div(load->end, PAGE_TOKENS);
    uint32_t page_count = load->slots * table_pages;
    uint32_t *table = mem_zalloc(page_count, sizeof(uint32_t));
    for (uint32_t i = 0; i < page_count; i++) {
        /* Neighbouring pages of a slot lie apart. */
        table[i] = i % table_pages * load->slots + i / table_pages;
    }
    struct k_pages *pages = &bench->args.pages;
    *pages = (struct k_pages){
        .table = cuda_rig_upload(table, page_count * sizeof(uint32_t)),
        .table_pages = table_pages,
        .pages = page_count,
        .page_tokens = PAGE_TOKENS,
        .kv_layers = LAYERS,
        .kv_heads = load->shape->kv_heads,
        .head_dim = load->shape->head_dim,
    };
    uint64_t pool_elems = (page_count + 1) * k_page_offset(pages, 1, 0, 0, 0);
    pages->base = random_elems(pool_elems, pool_elems * sizeof(uint16_t), 0.5);
    mem_free(table);
}

static void print_figures(const struct load *load, double us)
{
    const struct shape *shape = load->shape;
    double weighed = 0.0; /* keys, over the tokens of a slot */
    double read = 0.0;    /* keys of a slot, each once */
    for (uint32_t t = 0; t < load->tokens; t++) {
        double seen = load->end - load->tokens + t + 1;
        seen = shape->window != 0 ? fmin(seen, shape->window) : seen;
        weighed += seen;
        read += t == 0 ? seen : 1.0;
    }
    double bytes = read * load->slots * shape->kv_heads * shape->head_dim * 2 * sizeof(uint16_t);
    double ops = weighed * load->slots * shape->heads * shape->head_dim * 4;
    printf(
        "%-12s %3u x %4u tokens to %5u %s %8.1f us %5.0f GB/s (%3.0f%%) %4.0f TFLOP/s (%2.0f%%)\n",
        shape->name, load->slots, load->tokens, load->end,
        load->is_dependent ? "dependent" : "plain    ", us, bytes / us * 1e-3,
        bytes / us * 1e8 / ROOF_BYTES_S, ops / us * 1e-6, ops / us * 1e8 / TENSOR_OPS_S);
    (void)fflush(stdout);
}

static void free_device(const void *at)
{
    cuda_rig_free((void *)(uintptr_t)at);
}

static void run(const struct load *load)
{
    const struct shape *shape = load->shape;
    struct bench bench = {0};
    struct k_cuda_shape device_shape = {
        .max_tokens = load->slots * load->tokens,
        .max_rows = 128,
        .slots = load->slots,
        .max_context_tokens = load->end,
        .hidden_elems = 1024,
        .max_linear_out_elems = 1024,
        .heads = shape->heads,
        .max_head_dim = shape->head_dim,
        .max_kv_heads = shape->kv_heads,
        .vocab_tokens = 1000,
    };
    cuda_rig_open(&bench.rig, &device_shape, load->is_dependent);
    make_tokens(&bench, load);
    make_pages(&bench, load);
    uint64_t row_elems = (uint64_t)shape->heads * shape->head_dim;
    uint64_t elems = bench.args.tokens.count * row_elems;
    bench.args.window_tokens = shape->window;
    bench.args.q = random_elems(elems, elems * sizeof(uint16_t), 0.5);
    bench.args.q_stride_elems = row_elems;
    bench.args.heads = shape->heads;
    bench.args.out = cuda_rig_alloc(elems * sizeof(uint16_t));
    print_figures(load, cuda_rig_replay(&bench.rig, record, &bench, REPLAYS) / LAYERS);
    free_device(bench.args.tokens.positions);
    free_device(bench.args.tokens.slots);
    free_device(bench.args.pages.table);
    free_device(bench.args.pages.base);
    free_device(bench.args.q);
    free_device(bench.args.out);
    cuda_rig_close(&bench.rig);
}

static void run_rows(const struct shape *shape)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 24, 32, 64};
    for (uint32_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        run(&(struct load){shape, rows[r], 1, 1100, true});
    }
    run(&(struct load){shape, 16, 1, 1100, false});
    run(&(struct load){shape, 1, 1, 8192, true});
}

static void run_prompts(const struct shape *shape)
{
    run(&(struct load){shape, 1, 1024, 1024, true});
    run(&(struct load){shape, 1, 2048, 8192, true});
}

/* Argument: "rows" or "prompts", for these alone. */
int main(int argc, char **argv)
{
    if (!cuda_rig_is_there()) {
        printf("no GPU\n");
        return 77;
    }
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        if (argc < 2 || strcmp(argv[1], "prompts") != 0) {
            run_rows(&shapes[s]);
        }
        if (argc < 2 || strcmp(argv[1], "rows") != 0) {
            run_prompts(&shapes[s]);
        }
    }
    return 0;
}
