/* The whole product with pools for a few requests: whoever is preempted gets what it would have got
 * alone, sampled, penalised and with logprobs as it may be, and is counted once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

enum {
    REQUEST_COUNT = 20,
};

static uint32_t request_count(void)
{
    return test_is_sanitized() ? 8 : REQUEST_COUNT;
}

/* Prompts of some 30 to 250 tokens, 60 to 150 tokens of output. */
static void make_body(struct buf *out, uint32_t index)
{
    static const char *const ways[] = {
        "\"temperature\":0",
        "\"temperature\":0.9",
        "\"temperature\":1.1,\"presence_penalty\":0.7,\"frequency_penalty\":0.4",
        "\"temperature\":0.8,\"repetition_penalty\":1.2,\"top_k\":40,\"top_p\":0.9",
        "\"temperature\":0,\"logprobs\":4",
        "\"temperature\":0.7,\"min_tokens\":40",
    };
    buf_append_text(out, "{\"prompt\":\"");
    for (uint32_t i = 0; i < 2 + index * 5 % 18; i++) {
        buf_printf(out, "In year %u of reign %u it rained. ", i * 7 + index, index);
    }
    buf_printf(out, "\",\"ignore_eos\":%s,\"priority\":%u,\"max_tokens\":%u,\"seed\":%u,%s}",
               index % 6 == 5 ? "false" : "true", index % 3, 60 + index * 31 % 90, index,
               ways[index % 6]);
}

static void send_one(const struct system_process *system, uint32_t index,
                     struct http_client *client)
{
    struct buf body;
    buf_init(&body);
    make_body(&body, index);
    http_client_open(client, system->port);
    http_client_request(client, "POST", "/v1/completions", "", buf_text(&body));
    buf_fini(&body);
}

static void check_preempted_equal_alone(const char *const *args)
{
    struct system_process system;
    struct http_client clients[REQUEST_COUNT];
    struct buf alone[REQUEST_COUNT];
    system_start(&system, args);
    for (uint32_t i = 0; i < request_count(); i++) {
        struct http_client client;
        buf_init(&alone[i]);
        send_one(&system, i, &client);
        system_take_choices(&client, &alone[i]);
    }
    test_eq_u64(http_client_metric(system.port, "vllm:num_preemptions_total"), 0);
    uint64_t prompt_tokens = http_client_metric(system.port, "vllm:prompt_tokens_total");
    uint64_t output_tokens = http_client_metric(system.port, "vllm:generation_tokens_total");
    for (uint32_t i = 0; i < request_count(); i++) {
        send_one(&system, i, &clients[i]);
    }
    for (uint32_t i = 0; i < request_count(); i++) {
        struct buf together;
        buf_init(&together);
        system_take_choices(&clients[i], &together);
        test_eq_str(buf_text(&together), buf_text(&alone[i]));
        buf_fini(&together);
        buf_fini(&alone[i]);
    }
    uint64_t preemptions = http_client_metric(system.port, "vllm:num_preemptions_total");
    (void)fprintf(stderr, "%llu preemptions\n", (unsigned long long)preemptions);
    test_true(preemptions > 0);
    /* counted once however often it was computed */
    test_eq_u64(http_client_metric(system.port, "vllm:prompt_tokens_total"), 2 * prompt_tokens);
    test_eq_u64(http_client_metric(system.port, "vllm:generation_tokens_total"), 2 * output_tokens);
    test_eq_u64(http_client_metric(system.port, "bezel:plans_refused_total"), 0);
    system_expect_all_free(&system);
    system_stop(&system);
}

/* With pages kept for reuse. */
static void test_full_pages_run_out(void)
{
    static const char *const args[] = {"--page-tokens=16",   "--global-pages=60",
                                       "--local-pages=400",  "--max-slots=12",
                                       "--itl-target-ms=20", NULL};
    check_preempted_equal_alone(args);
}

static void test_both_kinds_run_out_without_a_prefix_cache(void)
{
    static const char *const args[] = {"--page-tokens=16",
                                       "--global-pages=45",
                                       "--local-pages=36",
                                       "--max-step-tokens=64",
                                       "--max-slots=12",
                                       "--no-prefix-cache",
                                       NULL};
    check_preempted_equal_alone(args);
}

/* One stream beside a flood of long prompts: it goes on all the time. */
static void test_a_stream_goes_on_beside_long_prompts(void)
{
    static const char *const args[] = {"--max-slots=12", "--no-prefix-cache", NULL};
    enum {
        FLOOD_COUNT = 8,
        PROMPT_TOKENS = 1500,
        FULL_STEP_TOKENS = 512
    };
    struct system_process system;
    struct http_client stream;
    struct http_client flood[FLOOD_COUNT];
    system_start(&system, args);
    system_open_stream(&system, &stream, "Count with me: one, two,", 600);
    test_true(http_client_await(&stream, "data: "));
    for (uint32_t i = 0; i < FLOOD_COUNT; i++) {
        struct buf body;
        buf_init(&body);
        buf_append_text(&body, "{\"max_tokens\":1,\"prompt\":[2");
        for (uint32_t k = 0; k < PROMPT_TOKENS; k++) {
            buf_printf(&body, ",%u", 300 + (k * 7 + i) % 400);
        }
        buf_append_text(&body, "]}");
        http_client_open(&flood[i], system.port);
        http_client_request(&flood[i], "POST", "/v1/completions", "", buf_text(&body));
        buf_fini(&body);
    }
    uint64_t longest_ns = 0;
    uint64_t last_ns = clock_now_ns();
    uint64_t first_ns = last_ns;
    uint32_t tokens = 0;
    struct buf line;
    buf_init(&line);
    /* until the flood is done: a byte at a time, an event ends with an empty line */
    while (http_client_metric(system.port, "bezel:requests_finished_total") < FLOOD_COUNT) {
        buf_reset(&line);
        while (strstr(buf_text(&line), "\n\n") == NULL) {
            test_true(http_client_take(&stream, 1, &line));
        }
        uint64_t now_ns = clock_now_ns();
        longest_ns = now_ns - last_ns > longest_ns ? now_ns - last_ns : longest_ns;
        last_ns = now_ns;
        tokens++;
    }
    (void)fprintf(stderr, "%u tokens in %llu ms beside prompts, longest gap %llu ms\n", tokens,
                  (unsigned long long)((last_ns - first_ns) / CLOCK_NS_PER_MS),
                  (unsigned long long)(longest_ns / CLOCK_NS_PER_MS));
    /* a token with every step, however full; where the target counts, steps are less than half full */
    uint32_t full_steps = FLOOD_COUNT * PROMPT_TOKENS / FULL_STEP_TOKENS;
    test_true(tokens >= full_steps && (tokens > 2 * full_steps || !test_times_count()));
    buf_fini(&line);
    for (uint32_t i = 0; i < FLOOD_COUNT; i++) {
        struct http_answer answer;
        http_client_read(&flood[i], &answer);
        test_eq_u64((uint64_t)answer.status, 200);
        http_answer_fini(&answer);
        http_client_close(&flood[i]);
    }
    http_client_reset(&stream);
    system_expect_all_free(&system);
    system_stop(&system);
}

static const struct test_case cases[] = {
    TEST(test_full_pages_run_out),
    TEST(test_both_kinds_run_out_without_a_prefix_cache),
    TEST(test_a_stream_goes_on_beside_long_prompts),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
