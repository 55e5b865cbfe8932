/* route, expert_gate_up, expert_down, join_norm.
 *
 * Routes are compared exactly: x of +-1 and a router of small integers make every logit a multiple of
 * 1/8 that bf16 holds.  A pair's products have the bits of the dense operators on its row and its
 * expert's matrices, which have tests of their own. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/test.h"

#define SEED   31
#define EPS    1e-6F
#define HIDDEN 64
#define ONE    0x3f80 /* bf16 */

/* ---- route ---- */

struct route {
    uint32_t rows;
    uint32_t experts;
    uint32_t top;
    uint16_t *x;            /* [rows, HIDDEN] */
    uint32_t *slots;        /* [rows] */
    uint16_t *norm;         /* [HIDDEN] */
    uint16_t *scale;        /* [HIDDEN] */
    uint16_t *proj;         /* [experts, HIDDEN] */
    uint16_t *expert_scale; /* [experts] */
    uint16_t *normed;       /* [rows, HIDDEN] */
    struct k_routing routing;
};

static void route_init(struct route *at, uint32_t rows, uint32_t experts, uint32_t top)
{
    uint64_t random = SEED + rows + experts;
    uint64_t pairs = (uint64_t)rows * top;
    *at = (struct route){.rows = rows, .experts = experts, .top = top};
    at->x = mem_zalloc((uint64_t)rows * HIDDEN, sizeof(uint16_t));
    at->slots = mem_zalloc(rows, sizeof(uint32_t));
    at->norm = ops_random_bf16(&random, HIDDEN, 1.0);
    at->scale = mem_zalloc(HIDDEN, sizeof(uint16_t));
    at->proj = mem_zalloc((uint64_t)experts * HIDDEN, sizeof(uint16_t));
    at->expert_scale = ops_random_bf16(&random, experts, 1.0);
    at->normed = mem_zalloc((uint64_t)rows * HIDDEN, sizeof(uint16_t));
    at->routing = (struct k_routing){
        .ids = mem_zalloc(pairs, sizeof(uint32_t)),
        .weights = mem_zalloc(pairs, sizeof(float)),
        .pairs = mem_zalloc(pairs, sizeof(uint32_t)),
        .starts = mem_zalloc(experts + 1ULL, sizeof(uint32_t)),
    };
    for (uint32_t i = 0; i < rows * HIDDEN; i++) {
        at->x[i] = (uint16_t)(ONE | (test_random(&random) % 2 == 0 ? 0x8000 : 0));
    }
    for (uint32_t i = 0; i < HIDDEN; i++) {
        at->scale[i] = ONE;
    }
    for (uint32_t i = 0; i < experts * HIDDEN; i++) {
        at->proj[i] = k_bf16_from_f32((float)(test_random(&random) % 9) - 4.0F);
    }
    for (uint32_t r = 0; r < rows; r++) {
        at->slots[r] = r;
    }
}

static void route_fini(struct route *at)
{
    mem_free(at->x);
    mem_free(at->slots);
    mem_free(at->norm);
    mem_free(at->scale);
    mem_free(at->proj);
    mem_free(at->expert_scale);
    mem_free(at->normed);
    mem_free(at->routing.ids);
    mem_free(at->routing.weights);
    mem_free(at->routing.pairs);
    mem_free(at->routing.starts);
}

static struct k_route_args route_args(const struct route *at)
{
    return (struct k_route_args){
        .x = at->x,
        .slots = at->slots,
        .rows = at->rows,
        .hidden_elems = HIDDEN,
        .experts = at->experts,
        .top_experts = at->top,
        .norm_weight = at->norm,
        .scale = at->scale,
        .proj = at->proj,
        .expert_scale = at->expert_scale,
        .eps = EPS,
        .normed = at->normed,
        .routing = at->routing,
    };
}

static void run_route(const struct route *at, enum ops_loops loops)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(loops, 0.0F);
    const struct k_route_args args = route_args(at);
    test_ok(k_cpu_ops()->route(stream, &args, &err), &err);
    k_cpu_stream_destroy(stream);
}

/* Eighths; exact. */
static int logit_of(const struct route *at, uint32_t row, uint32_t expert)
{
    int sum = 0;
    for (uint32_t i = 0; i < HIDDEN; i++) {
        int weight = (int)ops_f64(at->proj, (uint64_t)expert * HIDDEN + i);
        sum += ops_f64(at->x, (uint64_t)row * HIDDEN + i) < 0.0 ? -weight : weight;
    }
    return sum;
}

/* How many experts stand before this one: a larger logit, or the same and a lower id. */
static uint32_t place_of(const struct route *at, uint32_t row, uint32_t expert)
{
    uint32_t place = 0;
    int logit = logit_of(at, row, expert);
    for (uint32_t e = 0; e < at->experts; e++) {
        int other = logit_of(at, row, e);
        place += other > logit || (other == logit && e < expert) ? 1 : 0;
    }
    return place;
}

static void check_row(const struct route *at, uint32_t row)
{
    const uint32_t *ids = at->routing.ids + (uint64_t)row * at->top;
    double total = 0.0;
    for (uint32_t k = 0; k < at->top; k++) {
        test_true(ids[k] < at->experts);
        test_eq_u64(place_of(at, row, ids[k]), k);
        total += exp((logit_of(at, row, ids[k]) - logit_of(at, row, ids[0])) / 8.0);
    }
    for (uint32_t k = 0; k < at->top; k++) {
        double share = exp((logit_of(at, row, ids[k]) - logit_of(at, row, ids[0])) / 8.0) / total;
        double want = share * ops_f64(at->expert_scale, ids[k]);
        double got = (double)at->routing.weights[(uint64_t)row * at->top + k];
        test_true(fabs(got - want) <= 2e-6 * fabs(want));
    }
}

/* Every pair of a token that is there, by expert, ascending. */
static void check_pairs(const struct route *at)
{
    const struct k_routing *routing = &at->routing;
    uint32_t live = 0;
    for (uint32_t r = 0; r < at->rows; r++) {
        live += at->slots[r] == K_SLOT_NONE ? 0 : at->top;
    }
    test_eq_u64(routing->starts[0], 0);
    test_eq_u64(routing->starts[at->experts], live);
    for (uint32_t e = 0; e < at->experts; e++) {
        for (uint32_t i = routing->starts[e]; i < routing->starts[e + 1]; i++) {
            test_eq_u64(routing->ids[routing->pairs[i]], e);
            test_true(i == routing->starts[e] || routing->pairs[i] > routing->pairs[i - 1]);
        }
    }
}

/* The experts' input is the ordinary norm: |x| = 1 makes it the weight with x's sign. */
static void check_normed(const struct route *at, uint32_t row)
{
    for (uint32_t i = 0; i < HIDDEN; i++) {
        uint64_t from = (uint64_t)row * HIDDEN + i;
        double want = ops_f64(at->x, from) * ops_f64(at->norm, i);
        ops_check_bf16(at->normed[from], want, fabs(want), "normed", from);
    }
}

static void check_route(uint32_t rows, uint32_t experts, uint32_t top)
{
    struct route at;
    route_init(&at, rows, experts, top);
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        run_route(&at, (enum ops_loops)loops);
        for (uint32_t r = 0; r < rows; r++) {
            check_row(&at, r);
            check_normed(&at, r);
        }
        check_pairs(&at);
    }
    route_fini(&at);
}

static void test_routes_of_every_size(void)
{
    check_route(1, 16, 4);
    check_route(1, 1, 1);
    check_route(3, 64, 8);
    check_route(17, 7, 7); /* every expert */
    check_route(70, 50, 2);
    check_route(200, 5, 1);
}

/* All logits alike, and in pairs: the lower ids come first. */
static void test_ties_go_to_the_lower_id(void)
{
    struct route at;
    route_init(&at, 2, 16, 4);
    memset(at.proj, 0, 16UL * HIDDEN * sizeof(uint16_t));
    run_route(&at, OPS_LOOPS_BEST);
    for (uint32_t k = 0; k < 8; k++) {
        test_eq_u64(at.routing.ids[k], k % 4);
    }
    check_pairs(&at);
    for (uint32_t e = 0; e < 16; e++) {
        at.proj[(size_t)e * HIDDEN] = k_bf16_from_f32((float)(e / 2 % 4));
        at.proj[(size_t)e * HIDDEN + 1] = 0;
    }
    at.x[0] = ONE;
    at.x[HIDDEN] = ONE | 0x8000;
    run_route(&at, OPS_LOOPS_BEST);
    static const uint32_t want[] = {6, 7, 14, 15, 0, 1, 8, 9};
    for (uint32_t k = 0; k < 8; k++) {
        test_eq_u64(at.routing.ids[k], want[k]);
    }
    check_row(&at, 0);
    check_row(&at, 1);
    route_fini(&at);
}

/* A scale of 1 + 2^-7 on every input, and hidden^(-1/2) = 1/8. */
static void test_the_scale_and_the_root_are_taken(void)
{
    struct route at;
    route_init(&at, 1, 2, 2);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        at.x[i] = i == 0 ? ONE : ONE | 0x8000;
        at.scale[i] = 0x3f81;
        at.proj[i] = i < 32 ? ONE : 0;
        at.proj[HIDDEN + i] = 0;
    }
    run_route(&at, OPS_LOOPS_BEST);
    /* 30 / 8 * (1 + 2^-7), rounded to bf16: 3.78125. */
    double want = 1.0 / (1.0 + exp(-3.78125)) * ops_f64(at.expert_scale, 1);
    test_eq_u64(at.routing.ids[0], 1);
    test_true(fabs((double)at.routing.weights[0] - want) < 2e-6 * fabs(want));
    route_fini(&at);
}

static void check_distinct(const struct route *at, uint32_t row)
{
    bool is_seen[64] = {false};
    for (uint32_t k = 0; k < at->top; k++) {
        uint32_t id = at->routing.ids[(uint64_t)row * at->top + k];
        test_true(id < at->experts && !is_seen[id]);
        is_seen[id] = true;
    }
}

/* Rows of NaN and infinities get distinct, valid experts, weights that are NaN, and change nothing of
 * other rows; a router with one NaN expert sends it last. */
static void test_rows_that_are_not_finite(void)
{
    static const uint16_t bad[] = {0x7fc0, 0xffff, 0x7f80, 0xff80};
    struct route at;
    struct route sound;
    route_init(&at, 9, 16, 4);
    route_init(&sound, 9, 16, 4);
    run_route(&sound, OPS_LOOPS_BEST);
    for (uint32_t i = 0; i < 4; i++) {
        at.x[(2 * i + 1) * HIDDEN + 5] = bad[i];
    }
    for (uint32_t i = 0; i < HIDDEN; i++) {
        at.x[7 * HIDDEN + i] = 0x7fc0;
    }
    run_route(&at, OPS_LOOPS_BEST);
    for (uint32_t r = 0; r < 9; r++) {
        check_distinct(&at, r);
        for (uint32_t p = r * 4; p < r * 4 + 4; p++) {
            test_true(r % 2 == 1 ? isnan(at.routing.weights[p])
                                 : at.routing.weights[p] == sound.routing.weights[p] &&
                                       at.routing.ids[p] == sound.routing.ids[p]);
        }
    }
    check_pairs(&at);
    route_fini(&sound);
    route_fini(&at);
    route_init(&at, 1, 16, 16);
    at.proj[(size_t)11 * HIDDEN] = 0x7fc0;
    run_route(&at, OPS_LOOPS_BEST);
    check_distinct(&at, 0);
    test_eq_u64(at.routing.ids[15], 11);
    route_fini(&at);
}

static void test_padding_goes_to_no_expert(void)
{
    struct route at;
    route_init(&at, 6, 16, 4);
    at.slots[1] = K_SLOT_NONE;
    at.slots[5] = K_SLOT_NONE;
    run_route(&at, OPS_LOOPS_BEST);
    check_pairs(&at);
    for (uint32_t p = 0; p < 24; p++) {
        bool is_padding = p / 4 == 1 || p / 4 == 5;
        test_true((at.routing.ids[p] == K_EXPERT_NONE) == is_padding);
        test_true(!is_padding || at.routing.weights[p] == 0.0F);
    }
    route_fini(&at);
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct route at;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    route_init(&at, 1, 16, 4);
    struct k_route_args args = route_args(&at);
    args.top_experts = 17;
    test_eq_u64(k_cpu_ops()->route(stream, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "route: 17 experts of a token, there are 16");
    args.experts = 65;
    test_eq_u64(k_cpu_ops()->route(stream, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "route: 65 experts, the stream was made for 1 to 64");
    const struct k_expert_args wide = {.in_elems = 2048};
    test_eq_u64(k_cpu_ops()->expert_down(stream, &wide, &err), ERR_SHAPE);
    const struct k_join_norm_args join = {.hidden_elems = 64};
    test_eq_u64(k_cpu_ops()->join_norm(stream, &join, &err), ERR_SHAPE);
    test_eq_str(err.message, "join_norm: x must not be dense nor normed");
    route_fini(&at);
    k_cpu_stream_destroy(stream);
}

/* ---- products ---- */

struct products {
    struct route route;
    enum ops_loops loops;
    uint32_t inner;
    uint16_t *gate_up; /* [experts, 2 * inner, HIDDEN] */
    uint16_t *down;    /* [experts, HIDDEN, inner] */
    uint16_t *gated;   /* [pairs, inner] */
    uint16_t *out;     /* [pairs, HIDDEN] */
};

static uint32_t pairs_of(const struct products *at)
{
    return at->route.rows * at->route.top;
}

/* The last expert has no pairs, and weights that would show. */
static void products_init(struct products *at, uint32_t rows, uint32_t top, uint32_t inner)
{
    enum {
        EXPERTS = 9
    };
    uint64_t random = SEED + inner;
    uint64_t matrix = (uint64_t)inner * HIDDEN;
    *at = (struct products){.inner = inner};
    route_init(&at->route, rows, EXPERTS, top);
    at->route.slots[rows / 2] = rows > 1 ? K_SLOT_NONE : 0;
    at->gate_up = ops_random_bf16(&random, 2ULL * EXPERTS * matrix, 0.3);
    at->down = ops_random_bf16(&random, EXPERTS * matrix, 0.3);
    at->gated = mem_zalloc((uint64_t)rows * top * inner, sizeof(uint16_t));
    at->out = mem_zalloc((uint64_t)rows * top * HIDDEN, sizeof(uint16_t));
    memset(at->gate_up + 2ULL * (EXPERTS - 1) * matrix, 0xff, 2 * matrix * sizeof(uint16_t));
    memset(at->down + (EXPERTS - 1) * matrix, 0xff, matrix * sizeof(uint16_t));
    for (uint32_t i = 0; i < HIDDEN; i++) { /* a row's logit of it is below all others */
        at->route.proj[(EXPERTS - 1) * HIDDEN + i] = 0x7fc0;
    }
    run_route(&at->route, OPS_LOOPS_BEST);
    test_eq_u64(at->route.routing.starts[EXPERTS], at->route.routing.starts[EXPERTS - 1]);
}

static void products_fini(struct products *at)
{
    route_fini(&at->route);
    mem_free(at->gate_up);
    mem_free(at->down);
    mem_free(at->gated);
    mem_free(at->out);
}

static void run_products(struct products *at, uint32_t block_rows)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(at->loops, 0.0F);
    struct k_expert_args args = {
        .x = at->route.normed,
        .routing = at->route.routing,
        .rows = at->route.rows,
        .experts = at->route.experts,
        .top_experts = at->route.top,
        .in_elems = HIDDEN,
        .out_elems = at->inner,
        .block_rows = block_rows,
        .weights = at->gate_up,
        .out = at->gated,
    };
    memset(at->gated, 0xff, (size_t)pairs_of(at) * at->inner * sizeof(uint16_t));
    memset(at->out, 0xff, (size_t)pairs_of(at) * HIDDEN * sizeof(uint16_t));
    test_ok(k_cpu_ops()->expert_gate_up(stream, &args, &err), &err);
    args.x = at->gated;
    args.in_elems = at->inner;
    args.out_elems = HIDDEN;
    args.weights = at->down;
    args.out = at->out;
    test_ok(k_cpu_ops()->expert_down(stream, &args, &err), &err);
    k_cpu_stream_destroy(stream);
}

/* What the dense operators make of a pair; 0xff where it is not there. */
static void dense_pair(const struct products *at, struct k_stream *stream, uint32_t pair,
                       uint16_t *gated, uint16_t *out)
{
    struct err err = {0};
    uint32_t expert = at->route.routing.ids[pair];
    uint64_t matrix = (uint64_t)at->inner * HIDDEN;
    if (expert == K_EXPERT_NONE) {
        memset(gated, 0xff, at->inner * sizeof(uint16_t));
        memset(out, 0xff, HIDDEN * sizeof(uint16_t));
        return;
    }
    const struct k_gate_up_args gate_up = {
        .x = at->route.normed + (uint64_t)(pair / at->route.top) * HIDDEN,
        .rows = 1,
        .in_elems = HIDDEN,
        .gate = at->gate_up + 2ULL * expert * matrix,
        .up = at->gate_up + 2ULL * expert * matrix + matrix,
        .intermediate_elems = at->inner,
        .out = gated,
    };
    test_ok(k_cpu_ops()->gate_up(stream, &gate_up, &err), &err);
    const struct k_linear_args down = {
        .x = gated,
        .rows = 1,
        .in_elems = at->inner,
        .part_count = 1,
        .weights = {at->down + expert * matrix},
        .out_elems = {HIDDEN},
        .out = out,
    };
    test_ok(k_cpu_ops()->linear(stream, &down, &err), &err);
}

static void check_products(uint32_t rows, uint32_t top, uint32_t inner)
{
    static const uint32_t block_rows[] = {0, 1, 3, 16, 64};
    struct products at;
    uint16_t gated[512];
    uint16_t out[HIDDEN];
    products_init(&at, rows, top, inner);
    for (uint32_t i = 0; i < 10; i++) {
        at.loops = i < 5 ? OPS_LOOPS_BEST : OPS_LOOPS_PLAIN;
        struct k_stream *stream = ops_stream(at.loops, 0.0F);
        run_products(&at, block_rows[i % 5]);
        for (uint32_t p = 0; p < pairs_of(&at); p++) {
            dense_pair(&at, stream, p, gated, out);
            test_true(memcmp(gated, at.gated + (uint64_t)p * inner, inner * 2UL) == 0);
            test_true(memcmp(out, at.out + (uint64_t)p * HIDDEN, HIDDEN * 2UL) == 0);
        }
        k_cpu_stream_destroy(stream);
    }
    products_fini(&at);
}

static void test_pairs_have_the_bits_of_dense_products(void)
{
    check_products(1, 1, 8);
    check_products(1, 8, 72);
    check_products(2, 3, 200);
    check_products(45, 4, 64);
    check_products(130, 2, 40);
}

/* Padding alone: nothing is computed and nothing is written. */
static void test_padding_alone(void)
{
    struct products at;
    products_init(&at, 3, 2, 16);
    for (uint32_t r = 0; r < 3; r++) {
        at.route.slots[r] = K_SLOT_NONE;
    }
    run_route(&at.route, OPS_LOOPS_BEST);
    run_products(&at, 0);
    for (uint32_t i = 0; i < pairs_of(&at) * HIDDEN; i++) {
        test_eq_u64(at.out[i], 0xffff);
    }
    products_fini(&at);
}

/* ---- both branches ---- */

struct join {
    struct k_join_norm_args args;
    uint16_t *x_before;
    uint16_t *dense_before;
    uint32_t *ids;
    float *weights;
    uint16_t *owned[8];
};

static void join_init(struct join *at, uint32_t rows, uint32_t hidden, uint32_t top,
                      const uint16_t *scalar)
{
    uint64_t random = SEED + rows + hidden;
    uint64_t elems = (uint64_t)rows * hidden;
    *at = (struct join){0};
    for (uint32_t i = 0; i < 4; i++) {
        at->owned[i] = ops_random_bf16(&random, hidden, 1.0);
    }
    at->owned[4] = ops_random_bf16(&random, elems, 2.0);
    at->owned[5] = ops_random_bf16(&random, elems * top, 2.0);
    at->owned[6] = ops_random_bf16(&random, elems, 1.0);
    at->x_before = mem_zalloc(elems, sizeof(uint16_t));
    at->dense_before = mem_zalloc(elems, sizeof(uint16_t));
    at->ids = mem_zalloc((uint64_t)rows * top, sizeof(uint32_t));
    at->weights = mem_zalloc((uint64_t)rows * top, sizeof(float));
    memcpy(at->dense_before, at->owned[4], elems * sizeof(uint16_t));
    memcpy(at->x_before, at->owned[6], elems * sizeof(uint16_t));
    for (uint32_t p = 0; p < rows * top; p++) {
        bool is_padding = rows > 1 && p / top == 1;
        at->ids[p] = is_padding ? K_EXPERT_NONE : p % 7;
        at->weights[p] = is_padding ? 0.0F : (float)(test_random(&random) % 1000) * 1e-3F + 1e-3F;
        for (uint32_t i = 0; is_padding && i < hidden; i++) {
            at->owned[5][(uint64_t)p * hidden + i] = 0x7fc0; /* never written: holds anything */
        }
    }
    at->args = (struct k_join_norm_args){
        .dense = at->owned[4],
        .experts_out = at->owned[5],
        .ids = at->ids,
        .weights = at->weights,
        .top_experts = top,
        .dense_weight = at->owned[0],
        .expert_weight = at->owned[1],
        .post_weight = at->owned[2],
        .layer_scalar = scalar,
        .next_weight = at->owned[3],
        .eps = EPS,
        .rows = rows,
        .hidden_elems = hidden,
        .x = at->owned[6],
        .normed = at->owned[4], /* allowed */
    };
}

static void join_fini(struct join *at)
{
    for (uint32_t i = 0; i < 8; i++) {
        mem_free(at->owned[i]);
    }
    mem_free(at->x_before);
    mem_free(at->dense_before);
    mem_free(at->ids);
    mem_free(at->weights);
}

static void norm(double *row, const uint16_t *weight, uint32_t elems)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < elems; i++) {
        sum += row[i] * row[i];
    }
    double factor = 1.0 / sqrt(sum / elems + (double)EPS);
    for (uint32_t i = 0; i < elems; i++) {
        row[i] *= factor * ops_f64(weight, i);
    }
}

static void check_join_row(const struct join *at, uint32_t row)
{
    const struct k_join_norm_args *args = &at->args;
    uint32_t hidden = args->hidden_elems;
    uint64_t from = (uint64_t)row * hidden;
    double *dense = mem_zalloc(hidden, sizeof(*dense));
    double *experts = mem_zalloc(hidden, sizeof(*experts));
    double scalar = args->layer_scalar == NULL ? 1.0 : ops_f64(args->layer_scalar, 0);
    for (uint32_t i = 0; i < hidden; i++) {
        dense[i] = ops_f64(at->dense_before, from + i);
        for (uint32_t k = 0; k < args->top_experts; k++) {
            uint64_t pair = (uint64_t)row * args->top_experts + k;
            if (args->ids[pair] != K_EXPERT_NONE) {
                experts[i] +=
                    (double)args->weights[pair] * ops_f64(args->experts_out, pair * hidden + i);
            }
        }
        experts[i] = ops_round(experts[i]);
    }
    norm(dense, args->dense_weight, hidden);
    norm(experts, args->expert_weight, hidden);
    for (uint32_t i = 0; i < hidden; i++) {
        dense[i] = ops_round(ops_round(dense[i]) + ops_round(experts[i]));
    }
    norm(dense, args->post_weight, hidden);
    for (uint32_t i = 0; i < hidden; i++) {
        /* Up to three roundings, of h, of its norm and of the sum, may fall the other way. */
        double sum = ops_f64(at->x_before, from + i) + dense[i];
        double slack = (2.0 * fabs(dense[i]) + fabs(sum)) * fabs(scalar) * 0x1p-7 + 0x1p-7;
        ops_check_bf16(args->x[from + i], sum * scalar, slack / 2e-6, "join", from + i);
        experts[i] = ops_f64(args->x, from + i);
    }
    norm(experts, args->next_weight, hidden);
    for (uint32_t i = 0; i < hidden; i++) {
        ops_check_bf16(args->normed[from + i], experts[i], fabs(experts[i]), "join norm", from + i);
    }
    mem_free(experts);
    mem_free(dense);
}

static void test_both_branches_are_added(void)
{
    static const struct {
        uint32_t rows;
        uint32_t hidden;
        uint32_t top;
    } sizes[] = {{1, 192, 1}, {2, 64, 8}, {9, 72, 4}, {20, 8, 3}};
    uint16_t scalar = k_bf16_from_f32(0.37F);
    for (uint32_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct err err = {0};
        struct join at;
        struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
        join_init(&at, sizes[i / 2].rows, sizes[i / 2].hidden, sizes[i / 2].top,
                  i % 2 == 0 ? NULL : &scalar);
        test_ok(k_cpu_ops()->join_norm(stream, &at.args, &err), &err);
        for (uint32_t row = 0; row < at.args.rows; row++) {
            check_join_row(&at, row);
        }
        join_fini(&at);
        k_cpu_stream_destroy(stream);
    }
}

static const struct test_case cases[] = {
    TEST(test_routes_of_every_size),
    TEST(test_ties_go_to_the_lower_id),
    TEST(test_the_scale_and_the_root_are_taken),
    TEST(test_rows_that_are_not_finite),
    TEST(test_padding_goes_to_no_expert),
    TEST(test_shapes_are_checked),
    TEST(test_pairs_have_the_bits_of_dense_products),
    TEST(test_padding_alone),
    TEST(test_both_branches_are_added),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
