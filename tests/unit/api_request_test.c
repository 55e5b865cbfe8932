#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/api_request.h"
#include "tests/testlib/test.h"

struct parsed {
    struct json_t *body;
    struct api_request request;
    struct api_error error;
    enum err_code code;
};

static struct parsed parse(enum api_route route, const char *text)
{
    struct parsed parsed = {0};
    parsed.code = api_request_parse_body(text, strlen(text), &parsed.body, &parsed.error);
    if (!parsed.code) {
        parsed.code = api_request_parse(parsed.body, route, &parsed.request, &parsed.error);
    }
    return parsed;
}

static void release(struct parsed *parsed)
{
    api_request_fini(&parsed->request);
    json_release(parsed->body);
}

/* Refused bodies: route, body, field named, part of the message. */
static const struct {
    enum api_route route;
    enum err_code code;
    const char *body;
    const char *param;
    const char *message;
} refused[] = {
    {API_ROUTE_CHAT, ERR_FORMAT, "", "", "empty"},
    {API_ROUTE_CHAT, ERR_FORMAT, "{", "", "not valid JSON"},
    {API_ROUTE_CHAT, ERR_FORMAT, "{\"a\":1,\"a\":2}", "", "not valid JSON"},
    {API_ROUTE_CHAT, ERR_FORMAT, "{\"model\":\"\xff\"}", "", "not valid JSON"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "[]", "", "object"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"model\":3}", "model", "a string"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{}", "messages", "required"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":null}", "messages", "required"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":\"hi\"}", "messages", "list"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[]}", "messages", "empty"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"tools\":{}}", "tools", "list"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":{\"type\":\"function\"}}", "tool_choice",
     "names a function"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":{\"type\":\"function\",\"function\":"
     "{\"name\":\"f\"}}}",
     "tool_choice", "'f', which is none"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":\"any\"}",
     "tool_choice", "'any'"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"tool_choice\":\"auto\"}", "tool_choice",
     "needs tools"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"tool_choice\":1}", "tool_choice",
     "a string"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"top_logprobs\":3}", "top_logprobs",
     "logprobs"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"logprobs\":3}", "logprobs", "true or"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"reasoning_effort\":\"huge\"}",
     "reasoning_effort", "huge"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"reasoning_effort\":1}", "reasoning_effort",
     "a string"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"chat_template_kwargs\":1}",
     "chat_template_kwargs", "an object"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"chat_template_kwargs\":{\"enable_thinking\":1}}",
     "chat_template_kwargs.enable_thinking", "true or"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"response_format\":{\"type\":\"xml\"}}",
     "response_format", "'xml'"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"response_format\":{\"type\":\"json_schema\"}}", "response_format",
     "with a schema"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"response_format\":{\"type\":\"json_object\"},\"regex\":\"a\"}", "regex",
     "response_format and regex exclude"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"regex\":7}", "regex", "a string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"choice\":\"x\"}", "choice", "list"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"guided_json\":\"{\"}", "guided_json",
     "no JSON"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"structured_outputs\":[]}",
     "structured_outputs", "an object"},
    {API_ROUTE_COMPLETIONS, ERR_UNSUPPORTED,
     "{\"prompt\":\"a\",\"structured_outputs\":{\"grammar\":\"x\"}}", "structured_outputs",
     "not served"},
    {API_ROUTE_COMPLETIONS, ERR_UNSUPPORTED, "{\"prompt\":\"a\",\"guided_grammar\":\"x\"}",
     "grammar", "not served"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"regex\":\"a\",\"ignore_eos\":true}",
     "ignore_eos", "exclude"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"regex\":\"a\",\"min_tokens\":2}",
     "min_tokens", "exclude"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"response_format\":7}", "response_format",
     "object"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"top_p\":1e-50}", "top_p",
     "at least 1e-09"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{}", "prompt", "required"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":7}", "prompt", "string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":[1,\"a\"]}", "prompt", "integers"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":[1,-1]}", "prompt", "-1"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":[1.5]}", "prompt", "integers"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":[18446744073709551616]}", "prompt",
     "beyond 64 bits"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"repetition_penalty\":1e-45}",
     "repetition_penalty", "at least 0.001"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1,\"05\":1}}",
     "logit_bias", "'05' in logit_bias is no token id"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":[\"a\",7]}", "prompt", "a string"},
    {API_ROUTE_COMPLETIONS, ERR_LIMIT, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":128}",
     "n", "at most 512 answers"},
    {API_ROUTE_COMPLETIONS, ERR_UNSUPPORTED, "{\"prompt\":\"a\",\"best_of\":2}", "best_of",
     "choosing among answers"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens",
     "at least 1"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT,
     "{\"prompt\":\"a\",\"stream\":true,\"prompt_logprobs\":1}", "prompt_logprobs",
     "stream is false"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"user\":1}", "user", "a string"},
    {API_ROUTE_CHAT, ERR_ARGUMENT, "{\"messages\":[{}],\"metadata\":\"a\"}", "metadata",
     "an object"},
    {API_ROUTE_CHAT, ERR_ARGUMENT,
     "{\"messages\":[{}],\"continue_final_message\":true,\"add_generation_prompt\":true}",
     "continue_final_message", "exclude"},
    {API_ROUTE_COMPLETIONS, ERR_UNSUPPORTED, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix",
     "not served"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"suffix\":1}", "suffix", "a string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"cache_salt\":1}", "cache_salt",
     "a string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"cache_salt\":\"\"}", "cache_salt",
     "empty"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stop\":1}", "stop", "a string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stop\":[\"a\",2]}", "stop",
     "a string"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", "empty"},
    {API_ROUTE_COMPLETIONS, ERR_LIMIT,
     "{\"prompt\":\"a\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\","
     "\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}",
     "stop", "17 strings"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stop_token_ids\":3}",
     "stop_token_ids", "list"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stop_token_ids\":[\"3\"]}",
     "stop_token_ids", "integers"},
    {API_ROUTE_COMPLETIONS, ERR_LIMIT,
     "{\"prompt\":\"a\",\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
     "stop_token_ids", "17 ids"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":[]}", "logit_bias",
     "object"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}",
     "logit_bias", "'x'"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":{\"4294967295\":1}}",
     "logit_bias", "no token id"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":101}}",
     "logit_bias", "-100 to 100"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":\"1\"}}",
     "logit_bias", "object"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT,
     "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}", "stream_options",
     "stream is true"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":1}",
     "stream_options", "an object"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT,
     "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
     "stream_options.include_usage", "true or"},
    {API_ROUTE_COMPLETIONS, ERR_ARGUMENT, "{\"prompt\":\"a\",\"min_tokens\":9,\"max_tokens\":8}",
     "min_tokens", "more than"},
};

static void test_bad_bodies_name_the_field(void)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct parsed parsed = parse(refused[i].route, refused[i].body);
        if (parsed.code != refused[i].code || strcmp(parsed.error.param, refused[i].param) != 0 ||
            !strstr(parsed.error.message, refused[i].message) || parsed.error.status != 400) {
            test_fail(__FILE__, __LINE__, "%s: code %d status %d param '%s' message '%s'",
                      refused[i].body, parsed.code, parsed.error.status, parsed.error.param,
                      parsed.error.message);
        }
        release(&parsed);
    }
}

/* value as JSON put into an otherwise good body. */
static struct parsed parse_field(const struct api_field *field, const char *value)
{
    char body[256];
    bool is_chat = field->is_chat;
    (void)snprintf(body, sizeof(body), "{%s,\"%s\":%s}",
                   is_chat ? "\"messages\":[{}]" : "\"prompt\":\"a\"", field->name, value);
    return parse(is_chat ? API_ROUTE_CHAT : API_ROUTE_COMPLETIONS, body);
}

static void expect_field(const struct api_field *field, const char *value, bool is_good)
{
    struct parsed parsed = parse_field(field, value);
    bool names_it = strcmp(parsed.error.param, field->name) == 0;
    bool refused_otherwise = parsed.code && (parsed.code == ERR_UNSUPPORTED || !names_it ||
                                             strstr(parsed.error.message, "needs"));
    if (is_good ? parsed.code && !refused_otherwise : !parsed.code || !names_it) {
        test_fail(__FILE__, __LINE__, "%s = %s: code %d, param '%s', '%s'", field->name, value,
                  parsed.code, parsed.error.param, parsed.error.message);
    }
    release(&parsed);
}

/* What passes here must pass there: a refusal by the worker is a server error to the client. */
static void check_worker_takes(const struct api_field *field)
{
    static const struct {
        const char *name;
        float min, max;
    } worker[] = {
        {"frequency_penalty", -PLAN_MAX_PENALTY, PLAN_MAX_PENALTY},
        {"min_p", 0, 1},
        {"presence_penalty", -PLAN_MAX_PENALTY, PLAN_MAX_PENALTY},
        {"repetition_penalty", PLAN_MIN_REPETITION, PLAN_MAX_REPETITION},
        {"temperature", 0, PLAN_MAX_TEMPERATURE},
        {"top_p", PLAN_MIN_TOP_P, 1},
    };
    if (strcmp(field->kind, "F32") != 0 || strcmp(field->name, "timeout") == 0) {
        return; /* not the worker's */
    }
    size_t i = 0;
    while (i < sizeof(worker) / sizeof(worker[0]) && strcmp(worker[i].name, field->name) != 0) {
        i++;
    }
    test_true(i < sizeof(worker) / sizeof(worker[0]));
    test_true(field->min_value >= (double)worker[i].min);
    test_true(field->max_value <= (double)worker[i].max);
}

static void test_every_row_has_its_bounds(void)
{
    uint32_t count = 0;
    const struct api_field *field;
    for (; (field = api_request_field(count)); count++) {
        char value[64];
        expect_field(field, "\"text\"", false);
        expect_field(field, "[]", false);
        if (strcmp(field->kind, "BOOL") == 0) {
            expect_field(field, "1", false);
            expect_field(field, "true", true);
            continue;
        }
        expect_field(field, "true", false);
        expect_field(field, "1e300", false);
        expect_field(field, "100000000000000000000000", false);
        bool is_whole = strcmp(field->kind, "F32") != 0;
        expect_field(field, is_whole ? "1.5" : "-1e9", false);
        if (strcmp(field->kind, "I64") == 0 && field->min_value < -1e18) {
            continue; /* no int64 is out of range */
        }
        (void)snprintf(value, sizeof(value), "%.17g", field->min_value);
        expect_field(field, value, true);
        (void)snprintf(value, sizeof(value), "%.16g", field->max_value);
        expect_field(field, value, true);
        check_worker_takes(field);
        (void)snprintf(value, sizeof(value), "%.16g", field->min_value - 1);
        expect_field(field, value, false);
        (void)snprintf(value, sizeof(value), "%.16g", field->max_value + 1);
        expect_field(field, value, false);
    }
    test_true(count >= 20);
}

static void test_null_and_unknown_fields_pass(void)
{
    struct parsed parsed = parse(
        API_ROUTE_CHAT, "{\"messages\":[{}],\"temperature\":null,\"stop\":null,\"tools\":null,"
                        "\"user\":\"me\",\"metadata\":{\"a\":[1]},\"logit_bias\":null,"
                        "\"stream_options\":null,\"no_such_field\":[{}]}");
    test_true(parsed.code == ERR_OK);
    test_true(!parsed.request.has_temperature);
    test_true(!parsed.request.tools);
    test_eq_u64(parsed.request.stop_count, 0);
    release(&parsed);
}

static void test_chat_values_arrive(void)
{
    struct parsed parsed = parse(
        API_ROUTE_CHAT,
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}],\"temperature\":0.5,\"top_p\":0.25,"
        "\"top_k\":-1,\"min_p\":0.125,\"seed\":-7,\"stream\":true,\"max_tokens\":5,"
        "\"max_completion_tokens\":9,\"stop\":[\"x\",\"yy\"],\"stop_token_ids\":[4,5.0],"
        "\"logit_bias\":{\"12\":-1.5,\"3\":2},\"logprobs\":true,\"top_logprobs\":4,"
        "\"stream_options\":{\"include_usage\":true},\"tools\":[{}],\"tool_choice\":\"auto\","
        "\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true}}");
    test_true(parsed.code == ERR_OK);
    const struct api_request *request = &parsed.request;
    test_eq_str(request->model.at, "m");
    test_true(request->temperature == 0.5F && request->top_p == 0.25F && request->min_p == 0.125F);
    test_true(request->top_k == -1 && request->seed == -7 && request->has_seed);
    test_true(request->stream && request->include_usage && request->wants_logprobs);
    test_eq_u64(request->max_tokens, 9);
    test_eq_u64(request->stop_count, 2);
    test_eq_str(request->stops[1].at, "yy");
    test_eq_u64(request->stop_id_count, 2);
    test_eq_u64(request->stop_ids[1], 5);
    test_eq_u64(request->logit_bias_count, 2);
    test_true(request->logit_bias[0].token == 12 && request->logit_bias[0].bias == -1.5F);
    test_eq_u64(request->pair_count, 4);
    test_true(request->tools && request->has_thinking && request->enable_thinking);
    release(&parsed);
}

static void test_tool_choice_none_hides_tools(void)
{
    struct parsed parsed =
        parse(API_ROUTE_CHAT, "{\"messages\":[{}],\"tools\":[{}],\"tool_choice\":\"none\"}");
    test_true(parsed.code == ERR_OK && !parsed.request.tools);
    release(&parsed);
}

static void test_reasoning_effort_enables_thinking(void)
{
    struct parsed parsed =
        parse(API_ROUTE_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"low\"}");
    test_true(parsed.code == ERR_OK && parsed.request.enable_thinking);
    release(&parsed);
    parsed = parse(API_ROUTE_CHAT, "{\"messages\":[{}],\"reasoning_effort\":\"none\"}");
    test_true(parsed.code == ERR_OK && parsed.request.has_thinking);
    test_true(!parsed.request.enable_thinking);
    release(&parsed);
}

static void test_completion_prompts(void)
{
    struct parsed parsed =
        parse(API_ROUTE_COMPLETIONS, "{\"prompt\":\"a\\u0000b\",\"logprobs\":2}");
    test_true(parsed.code == ERR_OK && parsed.request.prompts[0].text.at);
    test_eq_u64(parsed.request.prompts[0].text.byte_count, 3);
    test_true(parsed.request.wants_logprobs);
    test_eq_u64(parsed.request.pair_count, 2);
    release(&parsed);
    const char *lists[] = {"{\"prompt\":[5,6,7]}", "{\"prompt\":[[5,6,7]]}"};
    for (int i = 0; i < 2; i++) {
        parsed = parse(API_ROUTE_COMPLETIONS, lists[i]);
        test_true(parsed.code == ERR_OK && !parsed.request.prompts[0].text.at);
        test_eq_u64(parsed.request.prompts[0].id_count, 3);
        test_eq_u64(parsed.request.prompts[0].ids[2], 7);
        release(&parsed);
    }
    parsed = parse(API_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",[5,6],\"b\"],\"n\":2}");
    test_true(parsed.code == ERR_OK);
    test_eq_u64(parsed.request.prompt_count, 3);
    test_eq_u64(parsed.request.n, 2);
    test_eq_u64(parsed.request.prompts[1].id_count, 2);
    test_eq_str(parsed.request.prompts[2].text.at, "b");
    release(&parsed);
    parsed = parse(API_ROUTE_COMPLETIONS, "{\"prompt\":[\"text\"]}");
    test_true(parsed.code == ERR_OK && parsed.request.prompts[0].text.at);
    test_eq_str(parsed.request.prompts[0].text.at, "text");
    release(&parsed);
    parsed = parse(API_ROUTE_COMPLETIONS, "{\"prompt\":[]}");
    test_true(parsed.code == ERR_OK && parsed.request.prompts[0].id_count == 0);
    release(&parsed);
}

static const struct test_case cases[] = {
    TEST(test_bad_bodies_name_the_field),    TEST(test_every_row_has_its_bounds),
    TEST(test_null_and_unknown_fields_pass), TEST(test_chat_values_arrive),
    TEST(test_tool_choice_none_hides_tools), TEST(test_reasoning_effort_enables_thinking),
    TEST(test_completion_prompts),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
