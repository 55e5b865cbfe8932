#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/metrics.h"
#include "tests/testlib/test.h"

static uint64_t sample(const struct buf *page, const char *line_start)
{
    const char *found = strstr(buf_text(page), line_start);
    if (!found) {
        test_fail(__FILE__, __LINE__, "no line begins with %s", line_start);
    }
    return strtoull(found + strlen(line_start), NULL, 10);
}

static void test_page_shape(void)
{
    struct metrics metrics = {.arrived = 7, .requests_running = 2.5, .success_length = 3};
    struct buf page;
    buf_init(&page);
    metrics_render(&metrics, "a\"b", &page);
    test_eq_u64(sample(&page, "\nbezel:requests_arrived_total{model_name=\"a\\\"b\"} "), 7);
    test_true(strstr(buf_text(&page),
                     "vllm:num_requests_running{model_name=\"a\\\"b\",engine=\"0\"} 2.5\n"));
    test_eq_u64(
        sample(&page,
               "\nvllm:request_success_total{model_name=\"a\\\"b\",engine=\"0\",finished_reason="
               "\"length\"} "),
        3);
    /* One HELP and TYPE per name, though several rows share it. */
    const char *type = strstr(buf_text(&page), "# TYPE vllm:request_success_total counter\n");
    test_true(type && !strstr(type + 1, "# TYPE vllm:request_success_total"));
    for (const char *line = buf_text(&page); *line; line = strchr(line, '\n') + 1) {
        test_true(strchr(line, '\n') != NULL);
        test_true(*line == '#' || strstr(line, "{model_name=") != NULL);
    }
    buf_fini(&page);
}

static void test_labels_escape_what_the_format_does(void)
{
    static const struct metrics metrics = {.arrived = 1};
    struct buf page;
    buf_init(&page);
    metrics_render(&metrics, "q\" b\\ n\n t\t \xc3\xbc", &page);
    test_eq_u64(sample(&page, "\nbezel:requests_arrived_total{model_name=\"q\\\" b\\\\ n\\n "
                              "t\t \xc3\xbc\"} "),
                1);
    buf_fini(&page);
}

static void test_seconds_are_counters(void)
{
    static const struct metrics metrics = {.worker_busy = 1.5};
    struct buf page;
    buf_init(&page);
    metrics_render(&metrics, "m", &page);
    test_true(strstr(buf_text(&page), "# TYPE bezel:worker_busy_seconds_total counter\n"));
    test_true(strstr(buf_text(&page), "\nbezel:worker_busy_seconds_total{model_name=\"m\"} 1.5\n"));
    buf_fini(&page);
}

static void test_histogram_is_cumulated(void)
{
    static struct metrics metrics;
    memset(&metrics, 0, sizeof(metrics));
    const double values[] = {0.0005, 0.001, 0.0011, 3, 5000};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        metrics_observe(&metrics, METRICS_ttft, values[i]);
    }
    struct buf page;
    buf_init(&page);
    metrics_render(&metrics, "m", &page);
    static const struct {
        const char *bound;
        uint64_t count;
    } buckets[] = {{"0.001", 2}, {"0.005", 3}, {"2.5", 3}, {"5", 4}, {"2560", 4}, {"+Inf", 5}};
    for (size_t i = 0; i < sizeof(buckets) / sizeof(buckets[0]); i++) {
        char start[120];
        (void)snprintf(
            start, sizeof(start),
            "\nvllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"%s\"} ",
            buckets[i].bound);
        test_eq_u64(sample(&page, start), buckets[i].count);
    }
    test_eq_u64(
        sample(&page, "\nvllm:time_to_first_token_seconds_count{model_name=\"m\",engine=\"0\"} "),
        5);
    test_eq_u64(
        sample(&page, "\nvllm:time_to_first_token_seconds_sum{model_name=\"m\",engine=\"0\"} "),
        5003);
    test_eq_u64(
        sample(&page, "\nvllm:e2e_request_latency_seconds_count{model_name=\"m\",engine=\"0\"} "),
        0);
    buf_fini(&page);
}

static const struct test_case cases[] = {
    TEST(test_page_shape),
    TEST(test_labels_escape_what_the_format_does),
    TEST(test_seconds_are_counters),
    TEST(test_histogram_is_cumulated),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
