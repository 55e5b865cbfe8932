#include <string.h>

#include "common/json.h"
#include "frontend/api_plan.h"
#include "tests/testlib/test.h"

static const struct api_limits limits = {
    .vocab_tokens = 1000, .max_context_tokens = 64, .pool_tokens = 40};

static struct checkpoint_info checkpoint(void)
{
    struct checkpoint_info info = {
        .vocab_tokens = 1000,
        .bos_id = 2,
        .eos_ids = {1, 6},
        .eos_count = 2,
        .suppress_ids = {19},
        .suppress_count = 1,
        .modality_ids = {18},
        .modality_count = 1,
        .sampling = {.do_sample = true, .temperature = 0.75F, .top_k = 64, .top_p = 0.95F},
    };
    return info;
}

struct built {
    struct json_t *body;
    struct api_request request;
    struct checkpoint_info info;
    struct api_plan plan;
    struct api_error error;
    enum err_code code;
};

/* body is a completion request; prompt ids are given beside it. */
static void build(struct built *built, const char *body, const uint32_t *ids, size_t id_count)
{
    memset(built, 0, sizeof(*built));
    struct tok_ids prompt = {0};
    for (size_t i = 0; i < id_count; i++) {
        tok_ids_push(&prompt, ids[i]);
    }
    built->info = checkpoint();
    test_true(api_request_parse_body(body, strlen(body), &built->body, &built->error) == ERR_OK);
    test_true(api_request_parse(built->body, API_ROUTE_COMPLETIONS, &built->request,
                                &built->error) == ERR_OK);
    built->code = api_plan_build(&built->request, &built->info, &limits, &prompt, &built->plan,
                                 &built->error);
    tok_ids_fini(&prompt);
}

static void release(struct built *built)
{
    api_request_fini(&built->request);
    json_release(built->body);
}

static const uint32_t good[] = {2, 300, 301};

static void test_defaults_come_from_the_checkpoint(void)
{
    struct built built;
    build(&built, "{\"prompt\":\"x\"}", good, 3);
    const struct plan_admit *admit = &built.plan.admit;
    test_true(built.code == ERR_OK);
    test_true(admit->temperature == 0.75F && admit->top_p == 0.95F && admit->top_k == 64);
    test_true(admit->repetition_penalty == 1.0F && admit->min_p == 0.0F);
    test_eq_u64(admit->max_total, 40); /* what the pools hold; more only when asked for */
    test_eq_u64(admit->output_start, 3);
    test_eq_u64(admit->stop_ids.count, 2);
    test_eq_u64(admit->stop_ids.at[1], 6);
    test_eq_u64(admit->suppress_ids.at[0], 19);
    test_eq_u64(admit->logprobs, 0);
    release(&built);
}

static void test_output_beyond_the_pools_is_asked_for_and_a_long_prompt_is_left_to_the_gate(void)
{
    struct built built;
    uint32_t ids[41] = {2};
    build(&built, "{\"prompt\":\"x\",\"max_tokens\":61}", good, 3);
    test_eq_u64(built.plan.admit.max_total, 64);
    release(&built);
    build(&built, "{\"prompt\":\"x\"}", ids, 41);
    test_eq_u64(built.plan.admit.max_total, 64);
    release(&built);
}

static void test_request_values_win(void)
{
    struct built built;
    build(&built,
          "{\"prompt\":\"x\",\"temperature\":0,\"top_k\":-1,\"top_p\":1,\"max_tokens\":5,"
          "\"stop_token_ids\":[6,9],\"logprobs\":3,\"seed\":5,\"min_tokens\":2}",
          good, 3);
    const struct plan_admit *admit = &built.plan.admit;
    test_true(built.code == ERR_OK);
    test_true(admit->temperature == 0.0F && admit->top_p == 1.0F && admit->top_k == 0);
    test_eq_u64(admit->max_total, 8);
    test_eq_u64(admit->stop_ids.count, 3); /* 6 is there once */
    test_eq_u64(admit->logprobs, 4);
    test_eq_u64(admit->seed, 5);
    test_eq_u64(admit->min_tokens, 2);
    release(&built);
}

static void test_ignore_eos_keeps_own_stop_ids(void)
{
    struct built built;
    build(&built, "{\"prompt\":\"x\",\"ignore_eos\":true,\"stop_token_ids\":[9]}", good, 3);
    test_eq_u64(built.plan.admit.stop_ids.count, 1);
    test_eq_u64(built.plan.admit.stop_ids.at[0], 9);
    release(&built);
}

static void test_refusals(void)
{
    static const struct {
        const char *body;
        uint32_t ids[3];
        size_t id_count;
        const char *param;
        const char *message;
    } rows[] = {
        {"{\"prompt\":\"x\"}", {0}, 0, "prompt", "empty"},
        {"{\"prompt\":\"x\"}", {2, 1000, 1}, 3, "prompt", "vocabulary of 1000"},
        {"{\"prompt\":\"x\"}", {2, 18, 1}, 3, "prompt", "modality"},
        {"{\"prompt\":\"x\",\"max_tokens\":62}", {2, 3, 4}, 3, "max_tokens", "holds 64"},
        {"{\"prompt\":\"x\",\"min_tokens\":62}", {2, 3, 4}, 3, "min_tokens", "at most 37"},
        {"{\"prompt\":\"x\",\"stop_token_ids\":[1000]}", {2}, 1, "stop_token_ids", "1000"},
        {"{\"prompt\":\"x\",\"logit_bias\":{\"1000\":1}}", {2}, 1, "logit_bias", "1000"},
        {"{\"prompt\":\"x\",\"stop_token_ids\":[11,12,13,14,15,16,17,18,19,20,21,22,23,24,25]}",
         {2},
         1,
         "stop_token_ids",
         "15 ids beside 2"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct built built;
        build(&built, rows[i].body, rows[i].ids, rows[i].id_count);
        if (!built.code || strcmp(built.error.param, rows[i].param) != 0 ||
            !strstr(built.error.message, rows[i].message) || built.error.status != 400) {
            test_fail(__FILE__, __LINE__, "row %zu: code %d param '%s' message '%s'", i, built.code,
                      built.error.param, built.error.message);
        }
        release(&built);
    }
    uint32_t many[64] = {2};
    struct built built;
    build(&built, "{\"prompt\":\"x\"}", many, 64);
    test_true(built.code == ERR_LIMIT && strstr(built.error.message, "64 tokens"));
    release(&built);
    build(&built, "{\"prompt\":\"x\"}", many, 63);
    test_true(built.code == ERR_OK && built.plan.admit.max_total == 64);
    release(&built);
}

static void test_bos_is_never_there_twice(void)
{
    struct checkpoint_info info = checkpoint();
    struct tok_ids ids = {0};
    tok_ids_push(&ids, 300);
    tok_ids_push(&ids, 301);
    for (int i = 0; i < 2; i++) {
        api_plan_add_bos(&info, &ids);
        test_eq_u64(ids.count, 3);
        test_true(ids.at[0] == 2 && ids.at[1] == 300 && ids.at[2] == 301);
    }
    info.bos_id = CHECKPOINT_NO_ID;
    ids.at[0] = 5;
    api_plan_add_bos(&info, &ids);
    test_eq_u64(ids.count, 3);
    tok_ids_fini(&ids);
}

static uint64_t salt_of(const char *body)
{
    struct built built;
    build(&built, body, good, 3);
    test_true(built.code == ERR_OK);
    uint64_t salt = built.plan.admit.cache_salt;
    release(&built);
    return salt;
}

static void test_a_salt_is_told_by_its_hash(void)
{
    test_eq_u64(salt_of("{\"prompt\":\"x\"}"), 0);
    test_eq_u64(salt_of("{\"prompt\":\"x\",\"cache_salt\":null}"), 0);
    /* The first 16 digits of sha256sum. */
    test_eq_u64(salt_of("{\"prompt\":\"x\",\"cache_salt\":\"a\"}"), 0xca978112ca1bbdcaULL);
    test_eq_u64(salt_of("{\"prompt\":\"x\",\"cache_salt\":\"b\"}"), 0x3e23e8160039594aULL);
}

static const struct test_case cases[] = {
    TEST(test_defaults_come_from_the_checkpoint),
    TEST(test_output_beyond_the_pools_is_asked_for_and_a_long_prompt_is_left_to_the_gate),
    TEST(test_request_values_win),
    TEST(test_ignore_eos_keeps_own_stop_ids),
    TEST(test_refusals),
    TEST(test_bos_is_never_there_twice),
    TEST(test_a_salt_is_told_by_its_hash),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
