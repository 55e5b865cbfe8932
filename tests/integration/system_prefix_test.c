/* Prefix reuse on the whole product as a user sees it: the demo model behind `bezel serve`. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"

enum {
    PAGE = 64,
    OUTPUT = 16,
    TEXT = 2300,
    LIVE = 64
};

static const char *const no_args[] = {NULL};

/* What a completion gave. */
struct reply {
    char text[2048];
    uint32_t ids[OUTPUT];
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
};

/* Ordinary tokens without a pattern. */
static void write_text(uint64_t which, uint32_t *out_ids, uint32_t count)
{
    uint64_t random = which;
    for (uint32_t i = 0; i < count; i++) {
        out_ids[i] = 100 + (uint32_t)(test_random(&random) % 1900);
    }
}

static void put_ids(struct buf *body, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        buf_printf(body, "%s%u", i == 0 ? "" : ",", ids[i]);
    }
}

static uint32_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    test_true(at != NULL);
    return (uint32_t)strtoul(at + strlen(key), NULL, 10);
}

static void read_reply(const char *body, struct reply *out_reply)
{
    const char *text = strstr(body, "\"text\":");
    const char *ids = strstr(body, "\"token_ids\":[");
    test_true(text != NULL && ids != NULL);
    const char *end = strstr(text, "\",\"");
    test_true(end != NULL && (size_t)(end - text) < sizeof(out_reply->text));
    memset(out_reply, 0, sizeof(*out_reply));
    memcpy(out_reply->text, text, (size_t)(end - text));
    ids += strlen("\"token_ids\":[");
    for (uint32_t i = 0; i < OUTPUT; i++) {
        char *rest;
        out_reply->ids[i] = (uint32_t)strtoul(ids, &rest, 10);
        test_true(rest != ids && (*rest == ',' || *rest == ']'));
        ids = rest + 1;
    }
    out_reply->prompt_tokens = number_after(body, "\"prompt_tokens\":");
    out_reply->cached_tokens = number_after(body, "\"cached_tokens\":");
}

/* more: further members of the body, each with a comma behind it. */
static void complete(const struct system_process *process, const uint32_t *ids, uint32_t count,
                     const char *more, struct reply *out_reply)
{
    struct buf body;
    struct http_answer answer;
    buf_init(&body);
    buf_printf(&body, "{%s\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,", more, OUTPUT);
    buf_append_text(&body, "\"return_token_ids\":true,\"prompt\":[");
    put_ids(&body, ids, count);
    buf_append_text(&body, "]}");
    http_client_once(process->port, "POST", "/v1/completions", buf_text(&body), &answer);
    if (answer.status != 200) {
        test_fail(__FILE__, __LINE__, "%d: %s", answer.status, buf_text(&answer.body));
    }
    read_reply(buf_text(&answer.body), out_reply);
    test_eq_u64(out_reply->prompt_tokens, count);
    http_answer_fini(&answer);
    buf_fini(&body);
}

static void test_cold_and_warm_give_the_same_text(void)
{
    static const uint32_t lengths[] = {63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048};
    struct system_process process;
    uint32_t ids[TEXT];
    uint64_t queried = 0;
    uint64_t reused = 0;
    system_start(&process, no_args);
    for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct reply cold;
        struct reply warm;
        write_text(i, ids, TEXT);
        complete(&process, ids, lengths[i], "", &cold);
        complete(&process, ids, lengths[i], "", &warm);
        test_eq_u64(cold.cached_tokens, 0);
        test_eq_u64(warm.cached_tokens, (uint64_t)(lengths[i] - 1) / PAGE * PAGE);
        test_eq_str(warm.text, cold.text);
        test_true(memcmp(warm.ids, cold.ids, sizeof(cold.ids)) == 0);
        queried += 2ULL * lengths[i];
        reused += warm.cached_tokens;
    }
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_queries_total"), queried);
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_hits_total"), reused);
    test_eq_u64(http_client_metric(process.port, "vllm:prompt_tokens_total"), queried);
    system_expect_all_free(&process);
    system_stop(&process);
}

static void test_without_the_cache_everything_is_computed(void)
{
    static const char *const args[] = {"--no-prefix-cache", NULL};
    struct system_process process;
    uint32_t ids[TEXT];
    struct reply first;
    struct reply second;
    write_text(1, ids, TEXT);
    system_start(&process, args);
    complete(&process, ids, 300, "", &first);
    complete(&process, ids, 300, "", &second);
    test_eq_u64(second.cached_tokens, 0);
    test_eq_str(second.text, first.text);
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_queries_total"), 0);
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_hits_total"), 0);
    system_stop(&process);
}

/* The answer becomes part of the next prompt; then that turn is written anew from some place on. */
static void test_turns_and_edits_are_reused_up_to_the_edit(void)
{
    struct system_process process;
    uint32_t ids[TEXT];
    uint32_t other[300];
    struct reply reply;
    write_text(1, ids, TEXT);
    write_text(2, other, 300);
    system_start(&process, no_args);
    complete(&process, ids, 630, "", &reply);
    memcpy(ids + 630, reply.ids, sizeof(reply.ids));
    complete(&process, ids, 900, "", &reply);
    test_eq_u64(reply.cached_tokens, 640); /* into the answer: 645 tokens were written */
    memcpy(ids + 700, other, sizeof(other));
    complete(&process, ids, 900, "", &reply);
    test_eq_u64(reply.cached_tokens, 640);
    ids[639]++;
    complete(&process, ids, 900, "", &reply);
    test_eq_u64(reply.cached_tokens, 576);
    system_stop(&process);
}

static void test_streams_tell_what_was_reused(void)
{
    struct system_process process;
    uint32_t ids[TEXT];
    struct reply reply;
    struct buf body;
    struct http_client client;
    write_text(1, ids, TEXT);
    system_start(&process, no_args);
    complete(&process, ids, 200, "", &reply);
    buf_init(&body);
    buf_append_text(&body,
                    "{\"max_tokens\":4,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                    "\"stream_options\":{\"include_usage\":true},\"prompt\":[");
    put_ids(&body, ids, 200);
    buf_append_text(&body, "]}");
    http_client_open(&client, process.port);
    http_client_request(&client, "POST", "/v1/completions", "", buf_text(&body));
    test_true(http_client_await(&client, "\"prompt_tokens_details\":{\"cached_tokens\":192}"));
    http_client_close(&client);
    buf_fini(&body);
    system_stop(&process);
}

static void test_salts_never_share(void)
{
    struct system_process process;
    uint32_t ids[TEXT];
    struct reply reply;
    write_text(1, ids, TEXT);
    system_start(&process, no_args);
    complete(&process, ids, 200, "", &reply);
    complete(&process, ids, 200, "\"cache_salt\":\"one\",", &reply);
    test_eq_u64(reply.cached_tokens, 0);
    complete(&process, ids, 200, "\"cache_salt\":\"two\",", &reply);
    test_eq_u64(reply.cached_tokens, 0);
    complete(&process, ids, 200, "\"cache_salt\":\"one\",", &reply);
    test_eq_u64(reply.cached_tokens, 192);
    complete(&process, ids, 200, "", &reply);
    test_eq_u64(reply.cached_tokens, 192);
    system_stop(&process);
}

static void test_prefixes_outlive_a_killed_frontend(void)
{
    struct system_process process;
    uint32_t ids[TEXT];
    struct reply cold;
    struct reply warm;
    write_text(1, ids, TEXT);
    system_start(&process, no_args);
    complete(&process, ids, 1000, "", &cold);
    pid_t frontend = system_child(&process, "bezel-frontend");
    test_true(frontend > 0 && kill(frontend, SIGKILL) == 0);
    (void)system_await_ready(&process, 200, 10000); /* how soon is another test's matter */
    complete(&process, ids, 1000, "", &warm);
    test_eq_u64(warm.cached_tokens, 960);
    test_eq_str(warm.text, cold.text);
    system_expect_all_free(&process);
    system_stop(&process);
}

/* 2,000 tokens and 8 more of its own, and so few to come that each stays within one page of its own. */
static void open_live(const struct system_process *process, const uint32_t *ids, uint32_t index,
                      struct http_client *client)
{
    struct buf body;
    buf_init(&body);
    buf_append_text(&body,
                    "{\"max_tokens\":40,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                    "\"prompt\":[");
    put_ids(&body, ids, 2000);
    for (uint32_t i = 0; i < 8; i++) {
        buf_printf(&body, ",%u", 100 + 20 * index + i);
    }
    buf_append_text(&body, "]}");
    http_client_open(client, process->port);
    http_client_request(client, "POST", "/v1/completions", "", buf_text(&body));
    buf_fini(&body);
}

static void test_64_live_requests_share_31_pages(void)
{
    /* Without sharing they would take 2,112 pages.  All shall have begun before the first one ends,
     * 40 steps later: prompts are not held back for the sake of running streams. */
    static const char *const args[] = {
        "--max-slots", "64", "--global-pages", "1024", "--itl-target-ms", "0", NULL};
    struct system_process process;
    struct http_client clients[LIVE];
    uint32_t ids[TEXT];
    struct reply reply;
    write_text(1, ids, TEXT);
    system_start(&process, args);
    complete(&process, ids, 2000, "", &reply);
    struct worker_client control;
    worker_client_open(&control, process.run_dir);
    for (uint32_t i = 0; i < LIVE; i++) {
        open_live(&process, ids, i, &clients[i]);
    }
    uint32_t most_held = 0;
    uint32_t most_alive = 0;
    for (uint32_t i = 0; i < LIVE; i++) {
        test_true(http_client_await(&clients[i], "data: "));
        struct hello_stats_answer stats = worker_client_stats(&control);
        uint32_t held =
            control.welcome.global_pages - stats.global_pages_free - stats.global_pages_cached;
        /* One that has stopped is alive until it is released, and holds nothing. */
        test_true(held <= 31 + stats.sequences);
        most_held = held > most_held ? held : most_held;
        most_alive = stats.sequences > most_alive ? stats.sequences : most_alive;
    }
    test_eq_u64(most_alive, LIVE);
    test_eq_u64(most_held, 31 + LIVE);
    for (uint32_t i = 0; i < LIVE; i++) {
        test_true(http_client_await(&clients[i], "[DONE]"));
        http_client_close(&clients[i]);
    }
    worker_client_close(&control);
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_hits_total"), LIVE * 1984ULL);
    system_expect_all_free(&process);
    system_stop(&process);
}

/* Nobody has their prefix yet: the first computes it, the others wait for that. */
static void test_a_burst_computes_its_prefix_once(void)
{
    enum {
        BURST = 12
    };
    struct system_process process;
    struct http_client clients[BURST];
    uint32_t ids[TEXT];
    write_text(1, ids, TEXT);
    system_start(&process, no_args);
    for (uint32_t i = 0; i < BURST; i++) {
        open_live(&process, ids, i, &clients[i]);
    }
    for (uint32_t i = 0; i < BURST; i++) {
        test_true(http_client_await(&clients[i], "[DONE]"));
        http_client_close(&clients[i]);
    }
    test_eq_u64(http_client_metric(process.port, "vllm:prefix_cache_hits_total"),
                (BURST - 1) * 1984ULL);
    system_expect_all_free(&process);
    system_stop(&process);
}

/* Pools that hold three of these prompts: the oldest go, and nobody waits or is refused for them. */
static void test_small_pools_give_up_what_is_oldest(void)
{
    static const char *const args[] = {"--local-pages", "24", "--global-pages", "32", NULL};
    struct system_process process;
    uint32_t ids[TEXT];
    struct reply reply;
    system_start(&process, args);
    for (uint32_t i = 0; i < 8; i++) {
        write_text(i, ids, TEXT);
        complete(&process, ids, 600, "", &reply);
        test_eq_u64(reply.cached_tokens, 0);
    }
    complete(&process, ids, 600, "", &reply);
    test_eq_u64(reply.cached_tokens, 576);
    struct worker_client control;
    worker_client_open(&control, process.run_dir);
    struct hello_stats_answer stats = worker_client_stats(&control);
    worker_client_close(&control);
    test_eq_u64(stats.plans_refused, 0);
    test_eq_u64(stats.prefix_hits, 1);
    test_eq_u64(stats.prefix_hit_tokens, 576);
    test_eq_u64(stats.prefix_query_tokens, 9ULL * 600);
    test_true(stats.global_pages_evicted >= 6 * 9 - 32 && stats.local_pages_evicted > 0);
    test_true(stats.global_prefix_pages > 16 && stats.global_prefix_pages <= 32);
    test_true(stats.local_prefix_pages > 3 && stats.local_prefix_pages <= 24);
    system_expect_all_free(&process);
    system_stop(&process);
}

static const struct test_case cases[] = {
    TEST(test_cold_and_warm_give_the_same_text),
    TEST(test_without_the_cache_everything_is_computed),
    TEST(test_turns_and_edits_are_reused_up_to_the_edit),
    TEST(test_streams_tell_what_was_reused),
    TEST(test_salts_never_share),
    TEST(test_prefixes_outlive_a_killed_frontend),
    TEST(test_64_live_requests_share_31_pages),
    TEST(test_a_burst_computes_its_prefix_once),
    TEST(test_small_pools_give_up_what_is_oldest),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
