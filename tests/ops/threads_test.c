/* The fork-join pool: every item once, whatever the timing. */
#include <stdatomic.h>

#include "common/mem.h"
#include "kernels/cpu/threads.h"
#include "tests/testlib/test.h"

struct job {
    _Atomic uint32_t *runs; /* per item */
    uint32_t *plain;        /* written by the item, read after the join */
    uint32_t thread_count;
    uint32_t value;
};

static void on_item(void *context, uint32_t item, uint32_t thread)
{
    struct job *job = context;
    test_true(thread < job->thread_count);
    atomic_fetch_add_explicit(&job->runs[item], 1, memory_order_relaxed);
    job->plain[item] = job->value + item;
}

static void check_jobs(uint32_t thread_count, uint32_t jobs)
{
    enum {
        MOST = 300
    };
    struct err err = {0};
    struct k_threads *threads = NULL;
    _Atomic uint32_t runs[MOST] = {0};
    uint32_t plain[MOST] = {0};
    uint64_t random = thread_count;
    struct job job = {.runs = runs, .plain = plain, .thread_count = thread_count};
    test_ok(k_threads_create(thread_count, &threads, &err), &err);
    test_eq_u64(k_threads_count(threads), thread_count);
    for (job.value = 1; job.value <= jobs; job.value++) {
        uint32_t items = (uint32_t)(test_random(&random) % MOST);
        items = job.value % 3 == 0 ? items % 4 : items;
        k_threads_run(threads, items, on_item, &job);
        for (uint32_t i = 0; i < MOST; i++) {
            test_eq_u64(atomic_load(&runs[i]), i < items ? 1 : 0);
            test_true(i >= items || plain[i] == job.value + i);
            atomic_store(&runs[i], 0);
        }
    }
    k_threads_destroy(threads);
}

static void test_every_item_runs_once(void)
{
    check_jobs(1, 50);
    check_jobs(2, 3000);
    check_jobs(5, 1000);
}

static void test_create_and_destroy_at_once(void)
{
    for (uint32_t i = 0; i < 50; i++) {
        check_jobs(4, i % 2);
    }
}

static const struct test_case cases[] = {
    TEST(test_every_item_runs_once),
    TEST(test_create_and_destroy_at_once),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
