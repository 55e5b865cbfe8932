/* Paged attention against an f64 twin; pages hold NaN wherever no key was written. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/test.h"

#define SEED 13

struct shape {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t window; /* 0: none */
};

/* One sequence whose queries [first, first + count) are asked, over random keys and values. */
struct rig {
    struct shape shape;
    struct k_pages pages;
    uint32_t *table;
    uint16_t *keys;   /* [context, kv_heads, head_dim] */
    uint16_t *values; /* [context, kv_heads, head_dim] */
    uint32_t context;
};

static void rig_init(struct rig *rig, const struct shape *shape, uint32_t context, uint64_t *random)
{
    uint32_t table_pages = num_ceil_div(context, shape->page_tokens) + 1;
    uint64_t elems = (uint64_t)context * shape->kv_heads * shape->head_dim;
    *rig = (struct rig){
        .shape = *shape,
        .table = mem_zalloc(table_pages, sizeof(uint32_t)),
        .keys = ops_random_bf16(random, elems, 1.0 / sqrt(shape->head_dim)),
        .values = ops_random_bf16(random, elems, 1.0),
        .context = context,
    };
    rig->pages = (struct k_pages){
        .table = rig->table,
        .table_pages = table_pages,
        .pages = table_pages,
        .page_tokens = shape->page_tokens,
        .kv_layers = 2,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
    };
    uint64_t pool_elems = (table_pages + 1) * k_page_offset(&rig->pages, 1, 0, 0, 0);
    rig->pages.base = mem_zalloc(pool_elems, sizeof(uint16_t));
    memset(rig->pages.base, 0xff, pool_elems * sizeof(uint16_t));
    for (uint32_t i = 0; i < table_pages; i++) {
        rig->table[i] = table_pages - 1 - i;
    }
}

static void rig_fini(struct rig *rig)
{
    mem_free(rig->pages.base);
    mem_free(rig->values);
    mem_free(rig->keys);
    mem_free(rig->table);
}

/* Keys [begin, end) into their pages, NaN everywhere else. */
static void write_pages(struct rig *rig, uint32_t begin, uint32_t end)
{
    const struct k_pages *pages = &rig->pages;
    uint32_t head_dim = pages->head_dim;
    uint64_t pool_elems = (pages->pages + 1) * k_page_offset(pages, 1, 0, 0, 0);
    memset(pages->base, 0xff, pool_elems * sizeof(uint16_t));
    for (uint32_t j = begin; j < end; j++) {
        for (uint32_t head = 0; head < pages->kv_heads; head++) {
            uint32_t page = k_page_of(pages, 0, j);
            uint64_t within = (uint64_t)(j % pages->page_tokens) * head_dim;
            uint64_t from = ((uint64_t)j * pages->kv_heads + head) * head_dim;
            memcpy(pages->base + k_page_offset(pages, page, 1, 0, head) + within, rig->keys + from,
                   head_dim * sizeof(uint16_t));
            memcpy(pages->base + k_page_offset(pages, page, 1, 1, head) + within,
                   rig->values + from, head_dim * sizeof(uint16_t));
        }
    }
}

static void check_query(const struct rig *rig, const uint16_t *q, const uint16_t *got,
                        uint32_t position, uint32_t head)
{
    const struct shape *shape = &rig->shape;
    uint32_t kv_head = head / (shape->heads / shape->kv_heads);
    uint32_t first =
        shape->window != 0 && position + 1 > shape->window ? position + 1 - shape->window : 0;
    double *p = mem_zalloc(position + 1, sizeof(*p));
    double sum = 0.0;
    for (uint32_t j = first; j <= position; j++) {
        uint64_t from = ((uint64_t)j * shape->kv_heads + kv_head) * shape->head_dim;
        double score = 0.0;
        for (uint32_t d = 0; d < shape->head_dim; d++) {
            score += ops_f64(q, d) * ops_f64(rig->keys, from + d);
        }
        p[j] = exp(score);
        sum += p[j];
    }
    for (uint32_t d = 0; d < shape->head_dim; d++) {
        double value = 0.0;
        double absolute = 0.0;
        for (uint32_t j = first; j <= position; j++) {
            uint64_t from = ((uint64_t)j * shape->kv_heads + kv_head) * shape->head_dim;
            value += p[j] / sum * ops_f64(rig->values, from + d);
            absolute += p[j] / sum * fabs(ops_f64(rig->values, from + d));
        }
        ops_check_bf16(got[d], value, 4.0 * absolute, "attention", d);
    }
    mem_free(p);
}

static void check_queries(struct rig *rig, enum ops_loops loops, uint32_t first, uint32_t count,
                          uint64_t *random)
{
    struct err err = {0};
    const struct shape *shape = &rig->shape;
    uint64_t row_elems = (uint64_t)shape->heads * shape->head_dim;
    uint16_t *q = ops_random_bf16(random, count * row_elems, 2.0);
    uint16_t *out = mem_zalloc(count * row_elems, sizeof(*out));
    uint32_t *positions = mem_zalloc(count, sizeof(*positions));
    uint32_t *slots = mem_zalloc(count, sizeof(*slots));
    struct k_stream *stream = ops_stream(loops, 0.0F);
    for (uint32_t t = 0; t < count; t++) {
        positions[t] = first + t;
    }
    uint32_t oldest =
        shape->window != 0 && first + 1 > shape->window ? first + 1 - shape->window : 0;
    write_pages(rig, oldest, first + count);
    struct k_attention_args args = {
        .tokens = {.count = count, .positions = positions, .slots = slots},
        .pages = rig->pages,
        .kv_layer = 1,
        .window_tokens = shape->window,
        .q = q,
        .q_stride_elems = row_elems,
        .heads = shape->heads,
        .out = out,
    };
    test_ok(k_cpu_ops()->attention(stream, &args, &err), &err);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t head = 0; head < shape->heads; head++) {
            uint64_t from = t * row_elems + (uint64_t)head * shape->head_dim;
            check_query(rig, q + from, out + from, first + t, head);
        }
    }
    k_cpu_stream_destroy(stream);
    mem_free(slots);
    mem_free(positions);
    mem_free(out);
    mem_free(q);
}

static const struct shape shapes[] = {
    {.heads = 2, .kv_heads = 1, .head_dim = 256, .page_tokens = 64, .window = 128},
    {.heads = 2, .kv_heads = 1, .head_dim = 512, .page_tokens = 64, .window = 0},
    {.heads = 4, .kv_heads = 4, .head_dim = 64, .page_tokens = 16, .window = 1},
    {.heads = 6, .kv_heads = 2, .head_dim = 48, .page_tokens = 8, .window = 5},
    {.heads = 32, .kv_heads = 1, .head_dim = 16, .page_tokens = 4, .window = 0},
};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

/* One query at every place around pages and windows. */
static void test_one_query_at_each_edge(void)
{
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        uint64_t random = SEED;
        for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
            struct rig rig;
            uint32_t page = shapes[s].page_tokens;
            uint32_t window = shapes[s].window;
            uint32_t edges[] = {0,      1,          page - 1,      page,     page + 1,
                                window, window + 1, window + page, 3 * page, 3 * page + 1};
            rig_init(&rig, &shapes[s], 4 * page + window + 2, &random);
            for (uint32_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
                check_queries(&rig, (enum ops_loops)loops, edges[i], 1, &random);
            }
            rig_fini(&rig);
        }
    }
}

/* Segments long enough for blocks of queries, across pages and windows. */
static void test_segments_of_queries(void)
{
    static const uint32_t counts[] = {2, 31, 32, 33, 70};
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        uint64_t random = SEED;
        for (uint32_t s = 0; s < SHAPE_COUNT; s++) {
            struct rig rig;
            rig_init(&rig, &shapes[s], 200, &random);
            for (uint32_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                check_queries(&rig, (enum ops_loops)loops, 0, counts[i], &random);
                check_queries(&rig, (enum ops_loops)loops, 129, counts[i], &random);
            }
            rig_fini(&rig);
        }
    }
}

/* A NaN key inside the range must show: nothing hides a broken cache. */
static void test_a_nan_within_reach_is_seen(void)
{
    struct err err = {0};
    uint64_t random = SEED;
    struct rig rig;
    rig_init(&rig, &shapes[0], 100, &random);
    write_pages(&rig, 1, 100); /* key 0 is missing */
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t *q = ops_random_bf16(&random, 512, 1.0);
    uint16_t out[512];
    uint32_t position = 99;
    uint32_t slot = 0;
    struct k_attention_args args = {
        .tokens = {.count = 1, .positions = &position, .slots = &slot},
        .pages = rig.pages,
        .kv_layer = 1,
        .window_tokens = 128,
        .q = q,
        .q_stride_elems = 512,
        .heads = 2,
        .out = out,
    };
    test_ok(k_cpu_ops()->attention(stream, &args, &err), &err);
    test_true(isnan(ops_f64(out, 0)));
    args.window_tokens = 99; /* key 0 is out of reach */
    test_ok(k_cpu_ops()->attention(stream, &args, &err), &err);
    test_true(!isnan(ops_f64(out, 0)));
    mem_free(q);
    k_cpu_stream_destroy(stream);
    rig_fini(&rig);
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    uint64_t random = SEED;
    struct rig rig;
    rig_init(&rig, &shapes[0], 10, &random);
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint32_t position = OPS_CONTEXT;
    uint32_t slot = 0;
    uint16_t q[512] = {0};
    struct k_attention_args args = {
        .tokens = {.count = 1, .positions = &position, .slots = &slot},
        .pages = rig.pages,
        .q = q,
        .q_stride_elems = 512,
        .heads = 2,
        .out = q,
    };
    test_eq_u64(k_cpu_ops()->attention(stream, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "attention: position 4096, the stream was made for 4096");
    position = 0;
    args.pages.head_dim = 40;
    test_eq_u64(k_cpu_ops()->attention(stream, &args, &err), ERR_SHAPE);
    args.pages.head_dim = 256;
    args.heads = 33;
    test_eq_u64(k_cpu_ops()->attention(stream, &args, &err), ERR_SHAPE);
    k_cpu_stream_destroy(stream);
    rig_fini(&rig);
}

static const struct test_case cases[] = {
    TEST(test_one_query_at_each_edge),
    TEST(test_segments_of_queries),
    TEST(test_a_nan_within_reach_is_seen),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
