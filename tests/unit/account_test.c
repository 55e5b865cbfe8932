#include "proto/account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/testlib/test.h"

static const struct account_geometry wide = {
    .page_tokens = 64, .window_tokens = 1024, .max_step_tokens = 2048};

/* Frontier (launched and committed), new tokens, local origin and resident pages before; needs;
 * local origin and resident pages once committed. */
static const struct vector {
    uint32_t frontier, new_tokens, origin, resident;
    uint32_t need_local, need_global;
    uint32_t origin_after, resident_after;
} vectors[] = {
    {0, 1000, 0, 0, 16, 16, 0, 16}, {1000, 100, 0, 16, 2, 2, 1, 17},
    {1100, 1, 1, 17, 0, 0, 1, 17},  {1151, 1, 1, 17, 0, 0, 2, 16},
    {1152, 1, 2, 16, 1, 1, 2, 17},  {1024, 2048, 0, 16, 32, 32, 32, 16},
};

static void test_vectors(void)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        const struct vector *v = &vectors[i];
        struct account account = {
            .launched_tokens = v->frontier,
            .committed_tokens = v->frontier,
            .local = {v->origin, v->resident},
            .global = {0, v->origin + v->resident},
        };
        struct err err;
        struct account_need need;
        test_true(account_check(&account, &wide));
        test_ok(account_need(&account, &wide, v->new_tokens, &need, &err), &err);
        test_eq_u64(need.local_pages, v->need_local);
        test_eq_u64(need.global_pages, v->need_global);
        account_launch(&account, &need, v->new_tokens);
        test_true(account_check(&account, &wide));
        uint32_t released = account_commit(&account, &wide, v->new_tokens);
        test_eq_u64(released, v->origin_after - v->origin);
        test_eq_u64(account.local.origin_pages, v->origin_after);
        test_eq_u64(account.local.resident_pages, v->resident_after);
        test_true(account_check(&account, &wide));
    }
}

/* As if the tokens had been computed in one row, at every whole page about the window. */
static void test_begins_behind_reused_pages(void)
{
    for (uint32_t pages = 0; pages <= 40; pages++) {
        struct account computed = {0};
        struct account_need need;
        struct err err;
        uint32_t tokens = pages * wide.page_tokens;
        struct account reused = account_begin(&wide, tokens);
        test_ok(account_need(&computed, &wide, tokens, &need, &err), &err);
        account_launch(&computed, &need, tokens);
        (void)account_commit(&computed, &wide, tokens); /* compared below */
        test_true(account_check(&reused, &wide));
        test_eq_u64(reused.launched_tokens, tokens);
        test_eq_u64(reused.local.origin_pages, computed.local.origin_pages);
        test_eq_u64(reused.local.resident_pages, computed.local.resident_pages);
        test_eq_u64(reused.global.resident_pages, computed.global.resident_pages);
    }
}

static void test_negative_need_is_an_error(void)
{
    struct account account = {
        .launched_tokens = 64, .committed_tokens = 64, .local = {0, 3}, .global = {0, 3}};
    struct account_need need = {77, 77};
    struct err err;
    test_eq_u64(account_need(&account, &wide, 64, &need, &err), ERR_INTERNAL);
    test_true(strstr(err.message, "128 tokens want 2 pages, accounted are 3 local") != NULL);
    test_eq_u64(need.local_pages, 77);
    account.launched_tokens = UINT32_MAX - 5;
    test_eq_u64(account_need(&account, &wide, 6, &need, &err), ERR_INTERNAL);
}

static void test_held_row_keeps_its_page(void)
{
    struct account account = {0};
    struct account_need need;
    struct err err;
    test_ok(account_need(&account, &wide, 64, &need, &err), &err);
    account_launch(&account, &need, 64);
    (void)account_commit(&account, &wide, 64);
    test_ok(account_need(&account, &wide, 1, &need, &err), &err);
    test_eq_u64(need.local_pages, 1);
    account_launch(&account, &need, 1);
    account_unlaunch(&account, 1);
    test_true(account_check(&account, &wide));
    test_eq_u64(account.local.resident_pages, 2);
    test_ok(account_need(&account, &wide, 1, &need, &err), &err);
    test_eq_u64(need.local_pages + need.global_pages, 0);
}

/* Two steps in flight cross a page and both are held: the frontier falls back behind the page. */
static void test_two_held_rows_across_a_page(void)
{
    struct account account = {0};
    struct account_need need;
    struct err err;
    test_ok(account_need(&account, &wide, 63, &need, &err), &err);
    account_launch(&account, &need, 63);
    (void)account_commit(&account, &wide, 63);
    for (uint32_t i = 0; i < 2; i++) {
        test_ok(account_need(&account, &wide, 1, &need, &err), &err);
        test_eq_u64(need.global_pages, i);
        account_launch(&account, &need, 1);
    }
    account_unlaunch(&account, 1);
    account_unlaunch(&account, 1);
    test_eq_u64(account.launched_tokens, 63);
    test_eq_u64(account.local.resident_pages, 2);
    for (uint32_t i = 0; i < 65; i++) {
        test_ok(account_need(&account, &wide, 1, &need, &err), &err);
        test_eq_u64(need.local_pages + need.global_pages, 0);
        account_launch(&account, &need, 1);
        (void)account_commit(&account, &wide, 1);
        test_true(account_check(&account, &wide));
    }
    test_ok(account_need(&account, &wide, 1, &need, &err), &err);
    test_eq_u64(need.local_pages, 1);
}

static void test_check_sees_each_broken_invariant(void)
{
    const struct account good = {
        .launched_tokens = 1152, .committed_tokens = 1152, .local = {2, 16}, .global = {0, 18}};
    test_true(account_check(&good, &wide));
    struct account bad = good;
    bad.committed_tokens = 1153;
    test_true(!account_check(&bad, &wide));
    bad = good;
    bad.local.resident_pages = 15;
    test_true(!account_check(&bad, &wide));
    bad = good;
    bad.local = (struct account_family){1, 17};
    test_true(!account_check(&bad, &wide));
    bad = good;
    bad.global = (struct account_family){1, 17};
    test_true(!account_check(&bad, &wide));
    bad = good;
    bad.launched_tokens = 1153;
    test_true(!account_check(&bad, &wide));
}

static void test_table_pages(void)
{
    test_eq_u64(account_local_table_pages(&wide), 16 + 32 + 2);
    const struct account_geometry odd = {
        .page_tokens = 64, .window_tokens = 100, .max_step_tokens = 65};
    test_eq_u64(account_local_table_pages(&odd), 2 + 2 + 2);
}

/* ---- property: against a model that keeps every page as a flag ---- */

enum {
    MODEL_PAGES = 4096,
    PENDING_MAX = 3,
    OPERATIONS = 200000
};

struct model {
    bool local_held[MODEL_PAGES];
    bool global_held[MODEL_PAGES];
    uint32_t launched_tokens;
    uint32_t committed_tokens;
    uint32_t pending[PENDING_MAX];
    uint32_t pending_count;
};

static uint32_t count_held(const bool *held)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < MODEL_PAGES; i++) {
        count += held[i];
    }
    return count;
}

/* Position by position: a page is missing when a position of it is written and it is not held. */
static uint32_t take_pages(bool *held, uint32_t first, uint32_t count, uint32_t page_tokens)
{
    uint32_t taken = 0;
    for (uint32_t position = first; position < first + count; position++) {
        taken += !held[position / page_tokens];
        held[position / page_tokens] = true;
    }
    return taken;
}

/* A page goes when its last position is window or more behind the next position to be computed. */
static uint32_t drop_pages(struct model *model, const struct account_geometry *geometry)
{
    uint32_t dropped = 0;
    for (uint32_t page = 0;
         (page + 1) * geometry->page_tokens + geometry->window_tokens <= model->committed_tokens;
         page++) {
        dropped += model->local_held[page];
        model->local_held[page] = false;
    }
    return dropped;
}

static void model_launch(struct model *model, struct account *account,
                         const struct account_geometry *geometry, uint32_t tokens)
{
    struct account_need need;
    struct err err;
    test_ok(account_need(account, geometry, tokens, &need, &err), &err);
    test_eq_u64(need.local_pages, take_pages(model->local_held, model->launched_tokens, tokens,
                                             geometry->page_tokens));
    test_eq_u64(need.global_pages, take_pages(model->global_held, model->launched_tokens, tokens,
                                              geometry->page_tokens));
    account_launch(account, &need, tokens);
    model->launched_tokens += tokens;
    model->pending[model->pending_count++] = tokens;
}

static void model_commit(struct model *model, struct account *account,
                         const struct account_geometry *geometry)
{
    uint32_t tokens = model->pending[0];
    memmove(model->pending, model->pending + 1, sizeof(uint32_t) * (PENDING_MAX - 1));
    model->pending_count--;
    model->committed_tokens += tokens;
    uint32_t dropped = drop_pages(model, geometry);
    test_eq_u64(account_commit(account, geometry, tokens), dropped);
}

static void run_operations(uint64_t seed, uint32_t operation_count)
{
    uint64_t random = seed;
    struct account_geometry geometry = {
        .page_tokens = 1U << (test_random(&random) % 7 + 1),
        .window_tokens = (uint32_t)(test_random(&random) % 1200 + 1),
        .max_step_tokens = (uint32_t)(test_random(&random) % 300 + 1),
    };
    struct model *model = calloc(1, sizeof(*model));
    test_true(model != NULL);
    struct account account = {0};
    uint32_t most_tokens = geometry.page_tokens * MODEL_PAGES;
    for (uint32_t i = 0; i < operation_count; i++) {
        uint32_t choice = (uint32_t)(test_random(&random) % 4);
        uint32_t tokens =
            choice == 0 ? (uint32_t)(test_random(&random) % geometry.max_step_tokens) + 1 : 1;
        bool fits = model->launched_tokens + tokens <= most_tokens;
        if (choice < 2 && model->pending_count < PENDING_MAX && fits) {
            model_launch(model, &account, &geometry, tokens);
        } else if (choice == 2 && model->pending_count > 0 &&
                   model->pending[model->pending_count - 1] == 1) {
            account_unlaunch(&account, 1); /* held: pages stay on both sides */
            model->launched_tokens--;
            model->pending_count--;
        } else if (model->pending_count > 0) {
            model_commit(model, &account, &geometry);
        }
        test_true(account_check(&account, &geometry));
        test_eq_u64(account.launched_tokens, model->launched_tokens);
        if (i % 64 == 0) {
            test_eq_u64(account.local.resident_pages, count_held(model->local_held));
            test_eq_u64(account.global.resident_pages, count_held(model->global_held));
        }
    }
    free(model);
}

static void test_property_against_a_model(void)
{
    const uint64_t seed = 0x5eed;
    (void)printf("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < 200; i++) {
        run_operations(seed + i, OPERATIONS / 200);
    }
}

/* The peak is reached by some segmentation and passed by none. */
static void test_peak_is_tight(void)
{
    uint64_t random = 99;
    for (uint32_t round = 0; round < 300; round++) {
        struct account_geometry geometry = {
            .page_tokens = 1U << (test_random(&random) % 4 + 1),
            .window_tokens = (uint32_t)(test_random(&random) % 40 + 1),
            .max_step_tokens = 64,
        };
        uint32_t step_tokens = (uint32_t)(test_random(&random) % 20 + 1);
        uint32_t total_tokens = (uint32_t)(test_random(&random) % 200 + 1);
        uint32_t worst = 0;
        for (uint32_t frontier = 0; frontier < total_tokens; frontier++) {
            struct account account = {0};
            struct account_need need;
            struct err err;
            test_ok(account_need(&account, &geometry, frontier, &need, &err), &err);
            account_launch(&account, &need, frontier);
            (void)account_commit(&account, &geometry, frontier);
            uint32_t left = total_tokens - frontier;
            uint32_t tokens = left < step_tokens ? left : step_tokens;
            test_ok(account_need(&account, &geometry, tokens, &need, &err), &err);
            account_launch(&account, &need, tokens);
            worst = account.local.resident_pages > worst ? account.local.resident_pages : worst;
        }
        struct account_need peak = account_peak(&geometry, total_tokens, step_tokens);
        test_eq_u64(peak.local_pages, worst);
        test_eq_u64(peak.global_pages,
                    (total_tokens + geometry.page_tokens - 1) / geometry.page_tokens);
    }
}

static const struct test_case cases[] = {
    TEST(test_vectors),
    TEST(test_begins_behind_reused_pages),
    TEST(test_negative_need_is_an_error),
    TEST(test_held_row_keeps_its_page),
    TEST(test_two_held_rows_across_a_page),
    TEST(test_check_sees_each_broken_invariant),
    TEST(test_table_pages),
    TEST(test_property_against_a_model),
    TEST(test_peak_is_tight),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
