/* Attention on cuda against the cpu backend, on fresh random pages that hold NaN wherever no key is
 * in reach: few rows (split keys), many (tiles), and what runs beside a row.
 *
 * Tolerance: both round the output; the device also rounds each weight to bf16.  Per element
 * 2^-7 |want| + 2^-8 sum p|v|; per head the root mean square of the difference stays below 2^-8 of
 * that of the values, which one average key of 1,024 left out would break eight times over. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_rig.h"
#include "tests/testlib/test.h"

#define SEED        29
#define MAX_TOKENS  2048
#define MAX_CONTEXT 16384
#define MAX_OTHERS  300
#define HEADS       32
#define HEAD_DIM    512
#define PADDING     0xffffffffU /* slot of a segment of padding tokens */

struct shape {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t window; /* 0: none */
};

/* Tokens first .. first + count - 1 of a slot of its own, or of none. */
struct segment {
    uint32_t first;
    uint32_t count;
    bool is_padding;
};

/* A step over random pages, on the host and on the device. */
struct step {
    struct shape shape;
    struct k_attention_args host;
    struct k_attention_args device;
    uint64_t pool_elems;
    uint64_t row_elems;
};

static struct k_cuda_shape device_shape(void)
{
    return (struct k_cuda_shape){
        .max_tokens = MAX_TOKENS,
        .max_rows = 128,
        .slots = 128,
        .max_context_tokens = MAX_CONTEXT,
        .hidden_elems = 1024,
        .max_linear_out_elems = 1024,
        .heads = HEADS,
        .max_head_dim = HEAD_DIM,
        .max_kv_heads = 16,
        .vocab_tokens = 1000,
    };
}

static struct k_stream *cpu_stream(void)
{
    struct err err = {0};
    struct k_stream *stream = NULL;
    struct k_cpu_options options = {
        .threads = 8,
        .shape = {.max_in_elems = 1024,
                  .max_context_tokens = MAX_CONTEXT,
                  .max_group_heads = 16,
                  .max_head_dim = HEAD_DIM,
                  .vocab_tokens = 1000},
    };
    test_ok(k_cpu_stream_create(&options, &stream, &err), &err);
    return stream;
}

/* Sum of four uniform numbers, scaled to the given deviation. */
static void fill_random(uint16_t *to, uint64_t count, double deviation, uint64_t *random)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = test_random(random);
        double sum = 0.0;
        for (int j = 0; j < 4; j++) {
            sum += (double)(bits >> 16 * j & 0xffff) * 0x1p-16 - 0.5;
        }
        to[i] = k_bf16_from_f32((float)(sum * deviation * 1.7320508));
    }
}

static uint64_t token_elems(const struct shape *shape)
{
    return (uint64_t)shape->heads * shape->head_dim;
}

/* First key in reach of any token of a segment. */
static uint32_t oldest_key(const struct shape *shape, const struct segment *segment)
{
    bool is_cut = shape->window != 0 && segment->first + 1 > shape->window;
    return is_cut ? segment->first + 1 - shape->window : 0;
}

/* Keys and values of one slot, into the kv layer 1 of its pages. */
static void write_keys(const struct k_pages *pages, uint32_t slot, uint32_t begin, uint32_t end,
                       uint64_t *random)
{
    for (uint32_t key = begin; key < end; key++) {
        uint64_t within = (uint64_t)(key % pages->page_tokens) * pages->head_dim;
        for (uint32_t head = 0; head < pages->kv_heads; head++) {
            uint32_t page = k_page_of(pages, slot, key);
            fill_random(pages->base + k_page_offset(pages, page, 1, 0, head) + within,
                        pages->head_dim, 1.0 / sqrt(pages->head_dim), random);
            fill_random(pages->base + k_page_offset(pages, page, 1, 1, head) + within,
                        pages->head_dim, 1.0, random);
        }
    }
}

/* Table of every slot: pages in use are dealt from the top, all other entries name the last page,
 * which holds NaN as the page of padding tokens does. */
static void make_pages(struct step *step, const struct segment *segments, uint32_t segment_count,
                       uint64_t *random)
{
    const struct shape *shape = &step->shape;
    uint32_t table_pages = 1;
    uint32_t page_count = 1;
    for (uint32_t s = 0; s < segment_count; s++) {
        uint32_t first = oldest_key(shape, &segments[s]) / shape->page_tokens;
        uint32_t last = (segments[s].first + segments[s].count - 1) / shape->page_tokens;
        table_pages = num_max(table_pages, last - first + 1);
        page_count += segments[s].is_padding ? 0 : last - first + 1;
    }
    uint32_t *table = mem_zalloc((size_t)segment_count * table_pages, sizeof(*table));
    struct k_pages *pages = &step->host.pages;
    *pages = (struct k_pages){
        .table = table,
        .table_pages = table_pages,
        .pages = page_count,
        .page_tokens = shape->page_tokens,
        .kv_layers = 2,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
    };
    step->pool_elems = (page_count + 1) * k_page_offset(pages, 1, 0, 0, 0);
    pages->base = mem_zalloc(step->pool_elems, sizeof(uint16_t));
    memset(pages->base, 0xff, step->pool_elems * sizeof(uint16_t));
    for (uint32_t i = 0; i < segment_count * table_pages; i++) {
        table[i] = page_count - 1;
    }
    uint32_t next = page_count - 1;
    for (uint32_t s = 0; s < segment_count; s++) {
        uint32_t begin = oldest_key(shape, &segments[s]);
        uint32_t end = segments[s].first + segments[s].count;
        if (segments[s].is_padding) {
            continue;
        }
        for (uint32_t p = begin / shape->page_tokens; p <= (end - 1) / shape->page_tokens; p++) {
            table[(uint64_t)s * table_pages + p % table_pages] = --next;
        }
        write_keys(pages, s, begin, end, random);
    }
    step->device.pages = *pages;
    step->device.pages.base = cuda_rig_upload(pages->base, step->pool_elems * sizeof(uint16_t));
    step->device.pages.table =
        cuda_rig_upload(table, (size_t)segment_count * table_pages * sizeof(*table));
}

static void step_init(struct step *step, const struct shape *shape, const struct segment *segments,
                      uint32_t segment_count, uint64_t *random)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < segment_count; s++) {
        count += segments[s].count;
    }
    *step = (struct step){.shape = *shape, .row_elems = token_elems(shape) + 8};
    uint32_t *positions = mem_zalloc(count, sizeof(*positions));
    uint32_t *slots = mem_zalloc(count, sizeof(*slots));
    uint16_t *q = mem_zalloc(count * step->row_elems, sizeof(*q));
    uint32_t token = 0;
    for (uint32_t s = 0; s < segment_count; s++) {
        for (uint32_t i = 0; i < segments[s].count; i++) {
            positions[token] = segments[s].first + i;
            slots[token++] = segments[s].is_padding ? K_SLOT_NONE : s;
        }
    }
    fill_random(q, count * step->row_elems, 2.0, random);
    make_pages(step, segments, segment_count, random);
    step->host.tokens = (struct k_tokens){.count = count, .positions = positions, .slots = slots};
    step->host.kv_layer = 1;
    step->host.window_tokens = shape->window;
    step->host.q = q;
    step->host.q_stride_elems = step->row_elems;
    step->host.heads = shape->heads;
    step->host.out = mem_zalloc(count * token_elems(shape), sizeof(uint16_t));
    struct k_pages device_pages = step->device.pages;
    step->device = step->host;
    step->device.pages = device_pages;
    step->device.tokens.positions = cuda_rig_upload(positions, count * sizeof(*positions));
    step->device.tokens.slots = cuda_rig_upload(slots, count * sizeof(*slots));
    step->device.q = cuda_rig_upload(q, count * step->row_elems * sizeof(*q));
    step->device.out = cuda_rig_alloc(count * token_elems(shape) * sizeof(uint16_t));
}

static void free_host(const void *at)
{
    mem_free((void *)(uintptr_t)at);
}

static void free_device(const void *at)
{
    cuda_rig_free((void *)(uintptr_t)at);
}

static void step_fini(struct step *step)
{
    const struct k_attention_args *host = &step->host;
    const struct k_attention_args *device = &step->device;
    free_host(host->tokens.positions);
    free_host(host->tokens.slots);
    free_host(host->pages.base);
    free_host(host->pages.table);
    free_host(host->q);
    free_host(host->out);
    free_device(device->tokens.positions);
    free_device(device->tokens.slots);
    free_device(device->pages.base);
    free_device(device->pages.table);
    free_device(device->q);
    free_device(device->out);
}

/* What the device makes of a step; [tokens, heads * head_dim], to be freed. */
static uint16_t *device_out(struct cuda_rig *rig, struct step *step)
{
    struct err err = {0};
    uint64_t bytes = step->host.tokens.count * token_elems(&step->shape) * sizeof(uint16_t);
    uint16_t *out = mem_zalloc(bytes, 1);
    cuda_rig_poison(step->device.out, bytes);
    test_ok(k_cuda_ops()->attention(rig->k, &step->device, &err), &err);
    cuda_rig_wait(rig);
    cuda_rig_read(out, step->device.out, bytes);
    return out;
}

/* The cpu backend's output, and sum p|v| by its own attention over absolute values; padding rows,
 * whose keys are NaN, are left as they come. */
static void host_out(struct step *step, uint16_t *absolute)
{
    struct err err = {0};
    struct k_stream *stream = cpu_stream();
    test_ok(k_cpu_ops()->attention(stream, &step->host, &err), &err);
    struct k_attention_args args = step->host;
    const struct k_pages *pages = &args.pages;
    uint64_t part_elems = k_page_offset(pages, 0, 0, 1, 0);
    for (uint64_t block = 1; block < step->pool_elems / part_elems; block += 2) {
        for (uint64_t i = 0; i < part_elems; i++) {
            pages->base[block * part_elems + i] &= 0x7fff;
        }
    }
    args.out = absolute;
    test_ok(k_cpu_ops()->attention(stream, &args, &err), &err);
    k_cpu_stream_destroy(stream);
}

static void check_head(const uint16_t *got, const uint16_t *want, const uint16_t *absolute,
                       uint32_t head_dim, uint32_t position, uint32_t head)
{
    double error = 0.0;
    double power = 0.0;
    for (uint32_t i = 0; i < head_dim; i++) {
        double g = (double)k_f32_from_bf16(got[i]);
        double w = (double)k_f32_from_bf16(want[i]);
        double a = (double)k_f32_from_bf16(absolute[i]);
        if (!(fabs(g - w) <= fabs(w) * 0x1p-7 + a * 0x1p-8 + 1e-5)) {
            test_fail(__FILE__, __LINE__, "position %u head %u [%u]: %.9g, expected %.9g", position,
                      head, i, g, w);
        }
        error += (g - w) * (g - w);
        power += w * w;
    }
    if (!(error <= power * 0x1p-16)) {
        test_fail(__FILE__, __LINE__, "position %u head %u: relative error %.3g, at most %.3g",
                  position, head, sqrt(error / power), 0x1p-8);
    }
}

static void check_step(struct cuda_rig *rig, const struct shape *shape,
                       const struct segment *segments, uint32_t segment_count, uint64_t *random)
{
    struct step step;
    step_init(&step, shape, segments, segment_count, random);
    uint32_t count = step.host.tokens.count;
    uint16_t *got = device_out(rig, &step);
    uint16_t *absolute = mem_zalloc(count * token_elems(shape), sizeof(*absolute));
    host_out(&step, absolute);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t h = 0; h < shape->heads; h++) {
            uint64_t at = t * token_elems(shape) + (uint64_t)h * shape->head_dim;
            if (step.host.tokens.slots[t] != K_SLOT_NONE) {
                check_head(got + at, step.host.out + at, absolute + at, shape->head_dim,
                           step.host.tokens.positions[t], h);
                continue;
            }
            for (uint32_t i = 0; i < shape->head_dim; i++) {
                test_eq_u64(got[at + i], 0);
            }
        }
    }
    mem_free(absolute);
    mem_free(got);
    step_fini(&step);
}

static const struct shape shapes[] = {
    {.heads = 16, .kv_heads = 8, .head_dim = 256, .page_tokens = 64, .window = 1024},
    {.heads = 16, .kv_heads = 1, .head_dim = 512, .page_tokens = 64, .window = 0},
    {.heads = 32, .kv_heads = 4, .head_dim = 512, .page_tokens = 64, .window = 0},
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .page_tokens = 16, .window = 64},
    {.heads = 16, .kv_heads = 1, .head_dim = 256, .page_tokens = 32, .window = 129},
    {.heads = 4, .kv_heads = 4, .head_dim = 512, .page_tokens = 256, .window = 0},
    {.heads = 4, .kv_heads = 2, .head_dim = 512, .page_tokens = 16, .window = 100},
    {.heads = 2, .kv_heads = 1, .head_dim = 256, .page_tokens = 128, .window = 0},
};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    struct k_cuda_shape shape = device_shape();
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

/* Single rows around pages, windows and chunks, one at a time and all at once. */
static void test_rows_at_each_edge(void)
{
    static const uint32_t edges[] = {0,    1,    15,   16,   17,   62,   63,  64,   65,
                                     66,   127,  128,  129,  130,  255,  256, 1022, 1023,
                                     1024, 1025, 1026, 1099, 2047, 2048, 2049};
    struct segment rows[COUNT_OF(edges)];
    uint64_t random = SEED;
    struct cuda_rig rig;
    open_rig(&rig, true);
    for (uint32_t i = 0; i < COUNT_OF(edges); i++) {
        rows[i] = (struct segment){.first = edges[i], .count = 1};
    }
    for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
        check_step(&rig, &shapes[s], rows, COUNT_OF(edges), &random);
        for (uint32_t i = 0; i < COUNT_OF(edges); i += 4) {
            check_step(&rig, &shapes[s], &rows[i], 1, &random);
        }
    }
    cuda_rig_close(&rig);
}

static void test_long_rows(void)
{
    static const struct segment rows[] = {{.first = 8191, .count = 1},
                                          {.first = 8192, .count = 1},
                                          {.first = 0, .count = 1},
                                          {.first = 4097, .count = 1},
                                          {.first = 12345, .count = 1}};
    uint64_t random = SEED + 1;
    struct cuda_rig rig;
    open_rig(&rig, true);
    for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
        check_step(&rig, &shapes[s], rows, COUNT_OF(rows), &random);
    }
    cuda_rig_close(&rig);
}

/* Small steps of prompt segments, decode rows and padding. */
static void test_small_mixed_steps(void)
{
    static const struct segment steps[][5] = {
        {{.first = 0, .count = 31},
         {.first = 500, .count = 1},
         {.first = 0, .count = 33},
         {.first = 3, .count = 7, .is_padding = true},
         {.first = 63, .count = 2}},
        {{.first = 1000, .count = 100},
         {.first = 7, .count = 1, .is_padding = true},
         {.first = 1023, .count = 1},
         {.first = 1024, .count = 1},
         {.first = 90, .count = 25}},
    };
    uint64_t random = SEED + 2;
    struct cuda_rig rig;
    open_rig(&rig, true);
    for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
        for (uint32_t i = 0; i < COUNT_OF(steps); i++) {
            check_step(&rig, &shapes[s], steps[i], COUNT_OF(steps[i]), &random);
        }
    }
    cuda_rig_close(&rig);
}

static void test_large_mixed_steps(void)
{
    static const struct segment steps[][6] = {
        {{.first = 1500, .count = 1},
         {.first = 0, .count = 70},
         {.first = 5, .count = 3, .is_padding = true},
         {.first = 1000, .count = 100},
         {.first = 31, .count = 33},
         {.first = 64, .count = 1}},
        {{.first = 0, .count = 129},
         {.first = 0, .count = 1},
         {.first = 1, .count = 1},
         {.first = 1023, .count = 2},
         {.first = 127, .count = 65},
         {.first = 900, .count = 400}},
    };
    uint64_t random = SEED + 3;
    struct cuda_rig rig;
    open_rig(&rig, true);
    for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
        for (uint32_t i = 0; i < COUNT_OF(steps); i++) {
            check_step(&rig, &shapes[s], steps[i], COUNT_OF(steps[i]), &random);
        }
    }
    cuda_rig_close(&rig);
}

/* A long prompt's last piece, over a long past. */
static void test_large_step_far_in(void)
{
    static const struct segment step[] = {{.first = 7900, .count = 300}};
    uint64_t random = SEED + 4;
    struct cuda_rig rig;
    open_rig(&rig, true);
    check_step(&rig, &shapes[0], step, 1, &random);
    check_step(&rig, &shapes[2], step, 1, &random);
    cuda_rig_close(&rig);
}

/* The canary is the first token of its step; its keys and query are the same in every step.  Steps
 * are filled up to most_others with padding: the shape stays. */
static void check_canary(struct cuda_rig *rig, const struct shape *shape, uint32_t most_others,
                         uint32_t step_others)
{
    uint64_t elems = token_elems(shape);
    uint16_t *alone = NULL;
    struct segment segments[MAX_OTHERS + 2];
    for (uint32_t others = 0; others <= most_others; others += step_others) {
        uint64_t random = SEED + 5;
        struct segment canary = {.first = 1100, .count = 1};
        struct step step;
        for (uint32_t i = 0; i < others; i++) {
            segments[1 + i] = (struct segment){.first = (uint32_t)(test_random(&random) % 1500),
                                               .count = 1,
                                               .is_padding = i % 5 == 4};
        }
        segments[0] = canary;
        segments[others + 1] =
            (struct segment){.first = 0, .count = most_others - others, .is_padding = true};
        random = SEED + 6;
        step_init(&step, shape, segments, others + (others < most_others ? 2 : 1), &random);
        uint64_t own = SEED + 7;
        uint64_t q_random = SEED + 8;
        uint16_t *q = mem_zalloc(step.row_elems, sizeof(*q));
        fill_random(q, step.row_elems, 2.0, &q_random);
        write_keys(&step.host.pages, 0, oldest_key(shape, &canary), canary.first + 1, &own);
        cuda_rig_write(step.device.pages.base, step.host.pages.base,
                       step.pool_elems * sizeof(uint16_t));
        cuda_rig_write((void *)(uintptr_t)step.device.q, q, step.row_elems * sizeof(*q));
        uint16_t *got = device_out(rig, &step);
        if (alone == NULL) {
            alone = mem_zalloc(elems, sizeof(*alone));
            memcpy(alone, got, elems * sizeof(*alone));
        }
        test_true(memcmp(alone, got, elems * sizeof(*alone)) == 0);
        mem_free(got);
        mem_free(q);
        step_fini(&step);
    }
    mem_free(alone);
}

static void test_a_row_is_the_same_beside_any_others(void)
{
    struct cuda_rig rig;
    open_rig(&rig, true);
    check_canary(&rig, &shapes[0], 33, 3);
    check_canary(&rig, &shapes[1], 33, 1);
    check_canary(&rig, &shapes[3], 127, 2);
    check_canary(&rig, &shapes[6], 33, 1);
    check_canary(&rig, &shapes[3], 300, 13);
    check_canary(&rig, &shapes[6], 300, 13);
    cuda_rig_close(&rig);
}

struct recording {
    struct cuda_rig *rig;
    struct step *step;
};

static void record(void *context)
{
    struct err err = {0};
    struct recording *recording = context;
    test_ok(k_cuda_ops()->attention(recording->rig->k, &recording->step->device, &err), &err);
}

/* Captured once, replayed after the lengths have changed; with and without dependent launch. */
static void test_a_graph_follows_the_lengths(void)
{
    static const struct segment rows[] = {
        {.first = 1300, .count = 1}, {.first = 700, .count = 1}, {.first = 2000, .count = 1}};
    for (int is_dependent = 0; is_dependent < 2; is_dependent++) {
        uint64_t random = SEED + 9;
        struct cuda_rig rig;
        struct step step;
        open_rig(&rig, is_dependent == 1);
        step_init(&step, &shapes[1], rows, COUNT_OF(rows), &random);
        uint64_t bytes = COUNT_OF(rows) * token_elems(&shapes[1]) * sizeof(uint16_t);
        uint16_t *got = mem_zalloc(bytes, 1);
        struct recording recording = {&rig, &step};
        uint16_t *first = device_out(&rig, &step);
        cuda_rig_poison(step.device.out, bytes);
        cuda_rig_replay(&rig, record, &recording, 0);
        cuda_rig_read(got, step.device.out, bytes);
        test_true(memcmp(first, got, bytes) == 0);
        static const uint32_t shorter[] = {3, 699, 1100};
        cuda_rig_write((void *)(uintptr_t)step.device.tokens.positions, shorter, sizeof(shorter));
        uint16_t *second = device_out(&rig, &step);
        cuda_rig_poison(step.device.out, bytes);
        cuda_rig_replay(&rig, record, &recording, 0);
        cuda_rig_read(got, step.device.out, bytes);
        test_true(memcmp(second, got, bytes) == 0);
        test_true(memcmp(first, second, bytes) != 0);
        mem_free(second);
        mem_free(first);
        mem_free(got);
        step_fini(&step);
        cuda_rig_close(&rig);
    }
}

static void test_shapes_are_checked(void)
{
    static const struct segment row = {.first = 3, .count = 1};
    struct err err = {0};
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct step step;
    open_rig(&rig, false);
    step_init(&step, &shapes[3], &row, 1, &random);
    struct k_attention_args args = step.device;
    args.pages.head_dim = 128;
    test_eq_u64(k_cuda_ops()->attention(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "attention: head_dim 128, 256 or 512");
    args = step.device;
    args.heads = 3;
    test_eq_u64(k_cuda_ops()->attention(rig.k, &args, &err), ERR_SHAPE);
    args = step.device;
    args.pages.page_tokens = 48;
    test_eq_u64(k_cuda_ops()->attention(rig.k, &args, &err), ERR_SHAPE);
    args = step.device;
    args.q += 1;
    test_eq_u64(k_cuda_ops()->attention(rig.k, &args, &err), ERR_ALIGN);
    test_eq_str(err.message, "attention: q is not 16-byte aligned");
    args = step.device;
    args.tokens.count = MAX_TOKENS + 1;
    test_eq_u64(k_cuda_ops()->attention(rig.k, &args, &err), ERR_SHAPE);
    step_fini(&step);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_rows_at_each_edge),           TEST(test_long_rows),
    TEST(test_small_mixed_steps),           TEST(test_large_mixed_steps),
    TEST(test_large_step_far_in),           TEST(test_a_row_is_the_same_beside_any_others),
    TEST(test_a_graph_follows_the_lengths), TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
