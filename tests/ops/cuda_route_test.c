/* The router and the joined norms on cuda against the cpu twin.
 *
 * Of the router the choice must be the twin's: x of +-1 and a router of -1, 0 and 1 make every sum exact
 * in f32, ties included.  Weights may be off by 2^-18 of themselves.  join_norm may differ by the errors
 * of its sums, taken through every rounding that kernels/experts.h names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/linear_rig.h"
#include "tests/testlib/test.h"

#define SEED         93
#define EPS          1e-6F
#define MAX_ROWS     TWIN_MAX_ROWS
#define WEIGHT_ERROR 0x1p-18
#define LABEL_BYTES  96
#define ONE          0x3f80 /* bf16 */
#define NEGATIVE     0x8000

static const uint32_t row_counts[] = TWIN_ROW_COUNTS;

/* 26B-A4B, the moe checkpoint, every expert of few, more than four to a lane, the largest hidden size,
 * pairs of few rows that one block does not sort. */
static const struct layout {
    uint32_t hidden;
    uint32_t experts;
    uint32_t top;
} layouts[] = {{2816, 128, 8}, {64, 16, 4},    {72, 5, 5},
               {256, 1000, 3}, {6144, 130, 8}, {8, 256, 100}};

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    struct k_cuda_shape shape = linear_rig_shape();
    shape.hidden_elems = 6144;
    shape.experts = 1024;
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

/* ---- the router ---- */

struct route {
    struct layout layout;
    struct twin_buffer x;     /* [MAX_ROWS, hidden] */
    struct twin_buffer slots; /* [MAX_ROWS] */
    struct twin_buffer norm;
    struct twin_buffer scale;
    struct twin_buffer proj;
    struct twin_buffer expert_scale;
    struct twin_buffer normed; /* the hosts' are the twin's, as of all below */
    struct twin_buffer ids;
    struct twin_buffer weights;
    struct twin_buffer pairs;
    struct twin_buffer starts;
};

static const void *side(const struct twin_buffer *buffer, bool is_on_device)
{
    return is_on_device ? buffer->device : buffer->host;
}

static struct k_route_args route_args(const struct route *at, uint32_t rows, bool is_on_device)
{
    return (struct k_route_args){
        .x = side(&at->x, is_on_device),
        .slots = side(&at->slots, is_on_device),
        .rows = rows,
        .hidden_elems = at->layout.hidden,
        .experts = at->layout.experts,
        .top_experts = at->layout.top,
        .norm_weight = side(&at->norm, is_on_device),
        .scale = side(&at->scale, is_on_device),
        .proj = side(&at->proj, is_on_device),
        .expert_scale = side(&at->expert_scale, is_on_device),
        .eps = EPS,
        .normed = is_on_device ? at->normed.device : at->normed.host,
        .routing =
            {
                .ids = is_on_device ? at->ids.device : at->ids.host,
                .weights = is_on_device ? at->weights.device : at->weights.host,
                .pairs = is_on_device ? at->pairs.device : at->pairs.host,
                .starts = is_on_device ? at->starts.device : at->starts.host,
            },
    };
}

/* Some rows are padding, some hold what is not a number; the others +-1. */
static void fill_rows(struct route *at, uint64_t *random)
{
    uint32_t hidden = at->layout.hidden;
    uint16_t *x = at->x.host;
    uint32_t *slots = at->slots.host;
    test_true(x != NULL && slots != NULL);
    for (uint32_t i = 0; i < MAX_ROWS * hidden; i++) {
        x[i] = (uint16_t)(ONE | (test_random(random) % 2 == 0 ? NEGATIVE : 0));
    }
    for (uint32_t row = 0; row < MAX_ROWS; row++) {
        slots[row] = row % 9 == 4 ? K_SLOT_NONE : row;
        x[row * hidden + row % hidden] = row % 10 == 6   ? 0x7fc0
                                         : row % 20 == 9 ? 0xff80
                                                         : x[row * hidden + row % hidden];
    }
    twin_write(&at->x);
    twin_write(&at->slots);
}

static void route_init(struct route *at, const struct layout *layout)
{
    uint64_t random = SEED;
    uint64_t pairs = (uint64_t)MAX_ROWS * layout->top;
    uint64_t row_bytes = layout->hidden * sizeof(uint16_t);
    *at = (struct route){.layout = *layout};
    uint16_t *scale = mem_zalloc(layout->hidden, sizeof(*scale));
    uint16_t *proj = mem_zalloc((uint64_t)layout->experts * layout->hidden, sizeof(*proj));
    for (uint32_t i = 0; i < layout->hidden; i++) {
        scale[i] = ONE;
    }
    for (uint64_t i = 0; i < (uint64_t)layout->experts * layout->hidden; i++) {
        uint64_t kind = test_random(&random) % 3;
        proj[i] = kind == 0 ? 0 : (uint16_t)(ONE | (kind == 1 ? NEGATIVE : 0));
    }
    at->x = twin_out(MAX_ROWS * row_bytes);
    at->slots = twin_out(MAX_ROWS * sizeof(uint32_t));
    at->norm = twin_in(twin_random_bf16(layout->hidden, 1.0, &random), row_bytes);
    at->scale = twin_in(scale, row_bytes);
    at->proj = twin_in(proj, layout->experts * row_bytes);
    at->expert_scale = twin_in(twin_random_bf16(layout->experts, 1.0, &random),
                               layout->experts * sizeof(uint16_t));
    at->normed = twin_out(MAX_ROWS * row_bytes);
    at->ids = twin_out(pairs * sizeof(uint32_t));
    at->weights = twin_out(pairs * sizeof(float));
    at->pairs = twin_out(pairs * sizeof(uint32_t));
    at->starts = twin_out((layout->experts + 1ULL) * sizeof(uint32_t));
    fill_rows(at, &random);
}

static void route_fini(struct route *at)
{
    struct twin_buffer *buffers[] = {&at->x,       &at->slots,  &at->norm,         &at->scale,
                                     &at->proj,    &at->normed, &at->expert_scale, &at->ids,
                                     &at->weights, &at->pairs,  &at->starts};
    for (uint32_t i = 0; i < TWIN_COUNT_OF(buffers); i++) {
        twin_free(buffers[i]);
    }
}

static void run_twin(struct route *at, uint32_t rows)
{
    struct err err = {0};
    struct k_stream *twin = twin_stream(1000, 0.0F);
    const struct k_route_args args = route_args(at, rows, false);
    test_ok(k_cpu_ops()->route(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void run_route(struct cuda_rig *rig, const struct route *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_route_args args = route_args(at, rows, true);
    test_ok(k_cuda_ops()->route(rig->k, &args, &err), &err);
}

static void poison_route(const struct route *at)
{
    twin_poison(&at->normed);
    twin_poison(&at->ids);
    twin_poison(&at->weights);
    twin_poison(&at->pairs);
    twin_poison(&at->starts);
}

static void check_weights(const struct route *at, const float *got, uint32_t count,
                          const char *label)
{
    const float *want = at->weights.host;
    for (uint32_t p = 0; p < count; p++) {
        double apart = fabs((double)got[p] - (double)want[p]);
        bool is_right =
            isnan(want[p]) ? isnan(got[p]) : apart <= WEIGHT_ERROR * fabs((double)want[p]) + 1e-30;
        if (!is_right) {
            test_fail(__FILE__, __LINE__, "%s: weight of pair %u is %.9g, the twin's %.9g", label,
                      p, (double)got[p], (double)want[p]);
        }
    }
}

/* One rounding of |x| = 1 times the weight, wherever the row is finite. */
static struct twin_interval normed_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct route *at = context;
    uint32_t hidden = at->layout.hidden;
    const uint16_t *x = (const uint16_t *)at->x.host + (uint64_t)row * hidden;
    float value = k_f32_from_bf16(x[column]);
    float weight = k_f32_from_bf16(((const uint16_t *)at->norm.host)[column]);
    return twin_normed((struct twin_interval){value, value}, twin_rms_factor(x, hidden, EPS),
                       (double)weight);
}

static void check_route(struct route *at, uint32_t rows)
{
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof(label), "route, hidden %u, %u of %u experts, %u rows",
                   at->layout.hidden, at->layout.top, at->layout.experts, rows);
    uint32_t pairs = rows * at->layout.top;
    run_twin(at, rows);
    uint32_t live = ((const uint32_t *)at->starts.host)[at->layout.experts];
    uint32_t *ids = twin_read(&at->ids, pairs * sizeof(uint32_t), label);
    uint32_t *starts = twin_read(&at->starts, at->starts.bytes, label);
    uint32_t *sorted = twin_read(&at->pairs, live * sizeof(uint32_t), label);
    float *weights = twin_read(&at->weights, pairs * sizeof(float), label);
    uint16_t *normed = twin_read(&at->normed, (size_t)rows * at->layout.hidden * 2, label);
    twin_check_equal(label, ids, at->ids.host, pairs, sizeof(*ids));
    twin_check_equal(label, starts, at->starts.host, at->layout.experts + 1, sizeof(*starts));
    twin_check_equal(label, sorted, at->pairs.host, live, sizeof(*sorted));
    check_weights(at, weights, pairs, label);
    const struct twin_compare compare = {
        .label = label,
        .got = normed,
        .want = at->normed.host,
        .rows = rows,
        .columns = at->layout.hidden,
        .permitted = normed_permitted,
        .context = at,
    };
    twin_check(&compare, NULL);
    mem_free(ids);
    mem_free(starts);
    mem_free(sorted);
    mem_free(weights);
    mem_free(normed);
}

static void test_routes_of_every_layout(void)
{
    for (int is_dependent = 0; is_dependent < 2; is_dependent++) {
        struct cuda_rig rig;
        open_rig(&rig, is_dependent == 1);
        for (uint32_t l = 0; l < TWIN_COUNT_OF(layouts); l++) {
            struct route at;
            route_init(&at, &layouts[l]);
            for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
                poison_route(&at);
                run_route(&rig, &at, row_counts[c]);
                cuda_rig_wait(&rig);
                check_route(&at, row_counts[c]);
            }
            route_fini(&at);
        }
        cuda_rig_close(&rig);
    }
}

/* Arbitrary x: near-ties go either way, but ids stay valid and distinct, and the experts' input right. */
static void test_arbitrary_rows_have_distinct_experts(void)
{
    enum {
        ROWS = 40
    };
    uint64_t random = SEED + 1;
    struct cuda_rig rig;
    struct route at;
    open_rig(&rig, true);
    route_init(&at, &layouts[0]);
    mem_free(at.x.host);
    at.x.host = twin_random_bf16((uint64_t)MAX_ROWS * at.layout.hidden, 3.0, &random);
    twin_write(&at.x);
    poison_route(&at);
    run_route(&rig, &at, ROWS);
    cuda_rig_wait(&rig);
    run_twin(&at, ROWS);
    uint32_t *ids =
        twin_read(&at.ids, (size_t)ROWS * at.layout.top * sizeof(uint32_t), "arbitrary rows");
    uint16_t *normed = twin_read(&at.normed, (size_t)ROWS * at.layout.hidden * 2, "arbitrary rows");
    uint32_t same = 0;
    for (uint32_t p = 0; p < ROWS * at.layout.top; p++) {
        bool is_padding = ((const uint32_t *)at.slots.host)[p / at.layout.top] == K_SLOT_NONE;
        test_true(is_padding ? ids[p] == K_EXPERT_NONE : ids[p] < at.layout.experts);
        for (uint32_t q = p / at.layout.top * at.layout.top; q < p && !is_padding; q++) {
            test_true(ids[q] != ids[p]);
        }
        same += ids[p] == ((const uint32_t *)at.ids.host)[p] ? 1 : 0;
    }
    (void)printf("%u of %u choices are the twin's\n", same, ROWS * at.layout.top);
    test_true(same >= ROWS * at.layout.top * 9 / 10);
    const struct twin_compare compare = {
        .label = "arbitrary rows",
        .got = normed,
        .want = at.normed.host,
        .rows = ROWS,
        .columns = at.layout.hidden,
        .permitted = normed_permitted,
        .context = &at,
    };
    twin_check(&compare, NULL);
    mem_free(ids);
    mem_free(normed);
    route_fini(&at);
    cuda_rig_close(&rig);
}

/* ---- both branches ---- */

struct join {
    uint32_t hidden;
    uint32_t top;
    struct twin_buffer dense;   /* [MAX_ROWS, hidden] */
    struct twin_buffer experts; /* [MAX_ROWS * top, hidden] */
    struct twin_buffer ids;
    struct twin_buffer weights;
    struct twin_buffer norms;  /* [4, hidden] dense, expert, post, next */
    struct twin_buffer scalar; /* device null: none */
    struct twin_buffer x;      /* the host's is the twin's, as is normed's */
    struct twin_buffer normed;
    uint16_t *x_before;
    uint32_t cached_row; /* whose h lies in h_low, h_high */
    struct twin_interval *h;
    struct twin_interval h_factor;
    const uint16_t *x_got;
};

static struct k_join_norm_args join_args(const struct join *at, uint32_t rows, bool is_on_device)
{
    const uint16_t *norms = side(&at->norms, is_on_device);
    return (struct k_join_norm_args){
        .dense = side(&at->dense, is_on_device),
        .experts_out = side(&at->experts, is_on_device),
        .ids = side(&at->ids, is_on_device),
        .weights = side(&at->weights, is_on_device),
        .top_experts = at->top,
        .dense_weight = norms,
        .expert_weight = norms + at->hidden,
        .post_weight = norms + 2ULL * at->hidden,
        .layer_scalar = side(&at->scalar, is_on_device),
        .next_weight = norms + 3ULL * at->hidden,
        .eps = EPS,
        .rows = rows,
        .hidden_elems = at->hidden,
        .x = is_on_device ? at->x.device : at->x.host,
        .normed = is_on_device ? at->normed.device : at->normed.host,
    };
}

static void join_init(struct join *at, uint32_t hidden, uint32_t top, bool has_scalar)
{
    struct err err = {0};
    uint64_t random = SEED + hidden;
    uint64_t elems = (uint64_t)MAX_ROWS * hidden;
    uint64_t pairs = (uint64_t)MAX_ROWS * top;
    *at = (struct join){.hidden = hidden, .top = top, .cached_row = UINT32_MAX};
    uint32_t *ids = mem_zalloc(pairs, sizeof(*ids));
    float *weights = mem_zalloc(pairs, sizeof(*weights));
    uint16_t *experts = twin_random_bf16(elems * top, 1.0, &random);
    for (uint32_t p = 0; p < pairs; p++) {
        bool is_padding = p / top % 6 == 3;
        ids[p] = is_padding ? K_EXPERT_NONE : p % 128;
        weights[p] = is_padding ? 0.0F : (float)(1 + test_random(&random) % 4096) * 0x1p-12F;
        if (is_padding) { /* never written: holds anything */
            memset(experts + (uint64_t)p * hidden, 0xff, hidden * sizeof(*experts));
        }
    }
    at->dense = twin_in(twin_random_bf16(elems, 1.0, &random), elems * 2);
    at->experts = twin_in(experts, elems * top * 2);
    at->ids = twin_in(ids, pairs * sizeof(*ids));
    at->weights = twin_in(weights, pairs * sizeof(*weights));
    at->norms = twin_in(twin_random_bf16(4ULL * hidden, 1.0, &random), 8ULL * hidden);
    at->x = twin_in(twin_random_bf16(elems, 3.0, &random), elems * 2);
    at->normed = twin_out(elems * 2);
    if (has_scalar) {
        at->scalar = twin_in(twin_random_bf16(1, 0.6, &random), sizeof(uint16_t));
    }
    at->h = mem_zalloc(hidden, sizeof(*at->h));
    at->x_before = mem_zalloc(elems, sizeof(uint16_t));
    memcpy(at->x_before, at->x.host, elems * 2);
    struct k_stream *twin = twin_stream(1000, 0.0F);
    const struct k_join_norm_args args = join_args(at, MAX_ROWS, false);
    test_ok(k_cpu_ops()->join_norm(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void join_fini(struct join *at)
{
    mem_free(at->h);
    mem_free(at->x_before);
    struct twin_buffer *buffers[] = {&at->dense, &at->experts, &at->ids, &at->weights,
                                     &at->norms, &at->scalar,  &at->x,   &at->normed};
    for (uint32_t i = 0; i < TWIN_COUNT_OF(buffers); i++) {
        twin_free(buffers[i]);
    }
}

static double norm_weight(const struct join *at, uint32_t which, uint32_t column)
{
    const uint16_t *norms = at->norms.host;
    return (double)k_f32_from_bf16(norms[(uint64_t)which * at->hidden + column]);
}

/* The experts' sum of a column. */
static struct twin_interval expert_sum(const struct join *at, uint32_t row, uint32_t column)
{
    const uint16_t *experts = at->experts.host;
    double sum = 0.0;
    double absolute = 0.0;
    for (uint32_t p = row * at->top; p < (row + 1) * at->top; p++) {
        if (((const uint32_t *)at->ids.host)[p] != K_EXPERT_NONE) {
            double term = (double)((const float *)at->weights.host)[p] *
                          (double)k_f32_from_bf16(experts[(uint64_t)p * at->hidden + column]);
            sum += term;
            absolute += fabs(term);
        }
    }
    return twin_rounded(sum, 0x1p-21 * absolute);
}

static double larger_square(struct twin_interval value)
{
    double low = (double)value.low * (double)value.low;
    double high = (double)value.high * (double)value.high;
    return low > high ? low : high;
}

static double smaller_square(struct twin_interval value)
{
    double low = (double)value.low * (double)value.low;
    double high = (double)value.high * (double)value.high;
    bool has_zero = value.low <= 0.0F && value.high >= 0.0F;
    return has_zero ? 0.0 : low < high ? low : high;
}

static struct twin_interval either(struct twin_interval a, struct twin_interval b)
{
    return (struct twin_interval){.low = fminf(a.low, b.low), .high = fmaxf(a.high, b.high)};
}

/* A norm of values that are each within an interval: its factor is between those of the ends. */
static struct twin_interval normed_within(struct twin_interval value, struct twin_interval factor,
                                          double weight)
{
    return either(twin_normed(value, (double)factor.low, weight),
                  twin_normed(value, (double)factor.high, weight));
}

static struct twin_interval factor_of(const struct twin_interval *values, uint32_t elems)
{
    double most = 0.0;
    double least = 0.0;
    for (uint32_t i = 0; i < elems; i++) {
        most += larger_square(values[i]);
        least += smaller_square(values[i]);
    }
    return (struct twin_interval){.low = (float)(1.0 / sqrt(most / elems + (double)EPS)),
                                  .high = (float)(1.0 / sqrt(least / elems + (double)EPS))};
}

/* What h of the row may be. */
static void cache_row(struct join *at, uint32_t row)
{
    if (at->cached_row == row) {
        return;
    }
    const uint16_t *dense = (const uint16_t *)at->dense.host + (uint64_t)row * at->hidden;
    double dense_factor = twin_rms_factor(dense, at->hidden, EPS);
    for (uint32_t i = 0; i < at->hidden; i++) {
        at->h[i] = expert_sum(at, row, i);
    }
    struct twin_interval expert_factor = factor_of(at->h, at->hidden);
    for (uint32_t i = 0; i < at->hidden; i++) {
        float value = k_f32_from_bf16(dense[i]);
        struct twin_interval of_dense =
            twin_normed((struct twin_interval){value, value}, dense_factor, norm_weight(at, 0, i));
        at->h[i] =
            twin_sum(of_dense, normed_within(at->h[i], expert_factor, norm_weight(at, 1, i)));
    }
    at->h_factor = factor_of(at->h, at->hidden);
    at->cached_row = row;
}

static struct twin_interval exactly(uint16_t bits)
{
    return (struct twin_interval){k_f32_from_bf16(bits), k_f32_from_bf16(bits)};
}

static struct twin_interval x_permitted(void *context, uint32_t row, uint32_t column)
{
    struct join *at = context;
    cache_row(at, row);
    struct twin_interval y = normed_within(at->h[column], at->h_factor, norm_weight(at, 2, column));
    struct twin_interval total =
        twin_sum(exactly(at->x_before[(uint64_t)row * at->hidden + column]), y);
    return at->scalar.host == NULL
               ? total
               : twin_product(total, exactly(*(const uint16_t *)at->scalar.host));
}

/* Each norms its own x. */
static struct twin_interval next_permitted(void *context, uint32_t row, uint32_t column)
{
    struct join *at = context;
    uint64_t first = (uint64_t)row * at->hidden;
    const uint16_t *twin_x = at->x.host;
    double weight = norm_weight(at, 3, column);
    return either(twin_normed(exactly(twin_x[first + column]),
                              twin_rms_factor(twin_x + first, at->hidden, EPS), weight),
                  twin_normed(exactly(at->x_got[first + column]),
                              twin_rms_factor(at->x_got + first, at->hidden, EPS), weight));
}

static void run_join(struct cuda_rig *rig, const struct join *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_join_norm_args args = join_args(at, rows, true);
    test_ok(k_cuda_ops()->join_norm(rig->k, &args, &err), &err);
}

static void check_join(struct join *at, uint32_t rows, struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof(label), "join_norm, hidden %u, %u experts, %u rows%s", at->hidden,
                   at->top, rows, at->scalar.host != NULL ? ", scalar" : "");
    uint64_t used = (uint64_t)rows * at->hidden;
    uint16_t *x = twin_read(&at->x, at->x.bytes, label);
    uint16_t *normed = twin_read(&at->normed, used * 2, label);
    struct twin_compare compare = {
        .label = label,
        .got = x,
        .want = at->x.host,
        .rows = rows,
        .columns = at->hidden,
        .permitted = x_permitted,
        .context = at,
    };
    twin_check(&compare, totals);
    twin_check_equal(label, x + used, at->x_before + used, (uint64_t)MAX_ROWS * at->hidden - used,
                     sizeof(*x));
    at->x_got = x;
    compare.got = normed;
    compare.want = at->normed.host;
    compare.permitted = next_permitted;
    twin_check(&compare, totals);
    at->x_got = NULL;
    mem_free(x);
    mem_free(normed);
}

static void prepare_join(const struct join *at)
{
    cuda_rig_write(at->x.device, at->x_before, at->x.bytes);
    twin_poison(&at->normed);
}

static void test_joins_of_every_layout(void)
{
    static const uint32_t hidden_sizes[] = {2816, 64, 8, 2056, 6144};
    struct cuda_rig rig;
    struct twin_totals totals = {0};
    open_rig(&rig, true);
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(hidden_sizes); i++) {
        struct join at;
        join_init(&at, hidden_sizes[i / 2], i % 3 == 0 ? 8 : i % 3, i % 2 == 1);
        for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
            prepare_join(&at);
            run_join(&rig, &at, row_counts[c]);
            cuda_rig_wait(&rig);
            check_join(&at, row_counts[c], &totals);
        }
        join_fini(&at);
    }
    twin_print("join_norm", &totals);
    cuda_rig_close(&rig);
}

/* ---- graphs ---- */

struct recording {
    struct cuda_rig *rig;
    const struct route *route;
    const struct join *join;
    uint32_t rows;
};

static void record(void *context)
{
    const struct recording *recording = context;
    run_route(recording->rig, recording->route, recording->rows);
    run_join(recording->rig, recording->join, recording->rows);
}

/* One graph, replayed after rows and padding have changed. */
static void test_a_graph_of_routes_and_joins(void)
{
    static const uint32_t rows[] = {1, 16, 24};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(rows); i++) {
        uint64_t random = SEED + 2;
        struct cuda_rig rig;
        struct route route;
        struct join join;
        open_rig(&rig, i % 2 == 0);
        route_init(&route, &layouts[1]);
        join_init(&join, 64, 4, true);
        struct recording recording = {&rig, &route, &join, rows[i / 2]};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < 2; turn++) {
            if (turn == 1) {
                fill_rows(&route, &random);
            }
            poison_route(&route);
            prepare_join(&join);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            check_route(&route, rows[i / 2]);
            check_join(&join, rows[i / 2], NULL);
        }
        cuda_rig_graph_free(graph);
        route_fini(&route);
        join_fini(&join);
        cuda_rig_close(&rig);
    }
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct cuda_rig rig;
    if (cuda_rig_is_stand_in()) {
        test_skip("the cpu backend takes other shapes");
    }
    open_rig(&rig, false);
    struct k_route_args route = {.rows = 1, .hidden_elems = 12, .experts = 4, .top_experts = 2};
    test_eq_u64(k_cuda_ops()->route(rig.k, &route, &err), ERR_SHAPE);
    test_eq_str(err.message, "route: hidden size 12, a multiple of 8 and at most 6144");
    route.hidden_elems = 64;
    route.top_experts = 5;
    test_eq_u64(k_cuda_ops()->route(rig.k, &route, &err), ERR_SHAPE);
    test_eq_str(err.message, "route: 5 experts of a token, there are 4");
    route.experts = 1025;
    test_eq_u64(k_cuda_ops()->route(rig.k, &route, &err), ERR_SHAPE);
    route =
        (struct k_route_args){.rows = 100000, .hidden_elems = 64, .experts = 4, .top_experts = 2};
    test_eq_u64(k_cuda_ops()->route(rig.k, &route, &err), ERR_SHAPE);
    const struct k_join_norm_args join = {.rows = 1, .hidden_elems = 64};
    test_eq_u64(k_cuda_ops()->join_norm(rig.k, &join, &err), ERR_SHAPE);
    test_eq_str(err.message, "join_norm: x must not be dense nor normed");
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_routes_of_every_layout), TEST(test_arbitrary_rows_have_distinct_experts),
    TEST(test_joins_of_every_layout),  TEST(test_a_graph_of_routes_and_joins),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
