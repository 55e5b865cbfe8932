#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/output.h"
#include "tests/testlib/test.h"

struct rig {
    struct tokenizer *tokenizer;
    struct chat_markers markers;
    struct json_t *body;
    struct api_request request;
    struct api_plan plan;
    struct output output;
};

static void open_rig(struct rig *rig, enum api_route route, const char *body, bool has_tokenizer)
{
    struct err err;
    struct api_error error;
    memset(rig, 0, sizeof(*rig));
    if (has_tokenizer) {
        test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &rig->tokenizer, &err), &err);
        chat_markers_find(rig->tokenizer, &rig->markers);
    }
    test_true(api_request_parse_body(body, strlen(body), &rig->body, &error) == ERR_OK);
    test_true(api_request_parse(rig->body, route, &rig->request, &error) == ERR_OK);
    rig->plan.stop_ids[0] = 1;
    rig->plan.admit.stop_ids = (struct wire_u32_array){rig->plan.stop_ids, 1};
    test_ok(
        output_init(&rig->output, &rig->request, &rig->plan, rig->tokenizer, &rig->markers, &err),
        &err);
}

static void close_rig(struct rig *rig)
{
    output_fini(&rig->output);
    api_request_fini(&rig->request);
    json_release(rig->body);
    tok_destroy(rig->tokenizer);
}

static void put_whole(const struct api_head *head, const struct api_piece *piece,
                      enum api_finish finish, const struct api_usage *usage, struct buf *out)
{
    api_response_begin(head, out);
    api_response_choice(head, piece, finish, out);
    api_response_end(head, piece, usage, out);
}

/* Pushes the text's tokens, then the stop id; pieces are joined where step is true. */
static void push_text(struct rig *rig, const char *text, struct buf *joined, bool by_piece)
{
    struct tok_ids ids = {0};
    tok_encode(rig->tokenizer, text, strlen(text), TOK_SPECIAL_PARSE, &ids);
    tok_ids_push(&ids, 1);
    bool has_matched = false;
    for (size_t i = 0; i < ids.count && !has_matched; i++) {
        struct engine_event event = {.kind = ENGINE_EVENT_TOKEN, .token = ids.at[i]};
        has_matched = output_push(&rig->output, &event);
        if (by_piece) {
            answer_join(&rig->output.answer, ANSWER_CONTENT, joined);
            output_reset(&rig->output);
        }
    }
    output_finish(&rig->output);
    answer_join(&rig->output.answer, ANSWER_CONTENT, joined);
    tok_ids_fini(&ids);
}

/* What a completion shows of an output, with stop strings. */
static const struct {
    const char *stop;
    const char *output;
    const char *text;
} rows[] = {
    {"null", "plain text", "plain text"},
    {"\"xt\"", "plain text", "plain te"},
    {"[\"n t\",\"text\"]", "plain text", "plai"},
    {"\"\xc3\xa9\"", "caf\xc3\xa9 noir", "caf"},
    {"\"\xf0\x9f\x98\x80\"", "a \xf0\x9f\x98\x80 b", "a "},
    {"\"plain\"", "plain text", ""},
    {"\"text!\"", "plain text", "plain text"},
    {"null", "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
     "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d"},
    {"null", "a<turn|>b", "ab"},
};

static void test_stop_strings_and_pieces(void)
{
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig rig;
        struct buf joined;
        char body[200];
        (void)snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"stop\":%s}", rows[i / 2].stop);
        buf_init(&joined);
        open_rig(&rig, API_ROUTE_COMPLETIONS, body, true);
        push_text(&rig, rows[i / 2].output, &joined, i % 2);
        test_eq_str(buf_text(&joined), rows[i / 2].text);
        close_rig(&rig);
        buf_fini(&joined);
    }
}

static void test_included_stop_string(void)
{
    struct rig rig;
    struct buf joined;
    buf_init(&joined);
    open_rig(&rig, API_ROUTE_COMPLETIONS,
             "{\"prompt\":\"x\",\"stop\":\"in t\",\"include_stop_str_in_output\":true}", true);
    push_text(&rig, "plain text", &joined, true);
    test_eq_str(buf_text(&joined), "plain t");
    test_true(rig.output.has_matched);
    close_rig(&rig);
    buf_fini(&joined);
}

static void test_reasoning_is_apart_and_counted(void)
{
    struct rig rig;
    struct buf joined;
    buf_init(&joined);
    open_rig(&rig, API_ROUTE_CHAT, "{\"messages\":[{}],\"stop\":\"secret\"}", true);
    push_text(&rig, "<|channel>thought\na secret<channel|>open", &joined, false);
    test_eq_str(buf_text(&joined), "open");
    struct buf reasoning;
    buf_init(&reasoning);
    answer_join(&rig.output.answer, ANSWER_REASONING, &reasoning);
    test_eq_str(buf_text(&reasoning), "a secret"); /* stop strings are for content */
    buf_fini(&reasoning);
    test_true(rig.output.reasoning_count > 0);
    test_true(rig.output.reasoning_count < rig.output.token_count);
    close_rig(&rig);
    buf_fini(&joined);
}

static void test_calls_whole_and_streamed(void)
{
    for (int is_stream = 0; is_stream < 2; is_stream++) {
        struct rig rig;
        struct buf joined;
        struct buf json;
        buf_init(&joined);
        buf_init(&json);
        open_rig(&rig, API_ROUTE_CHAT, "{\"messages\":[{}],\"tools\":[{}]}", true);
        push_text(&rig, "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>",
                  &joined, false);
        struct api_head head = {
            .route = API_ROUTE_CHAT, .is_stream = is_stream, .id = "chatcmpl-7", .model = "m"};
        struct api_usage usage = {0};
        struct api_piece piece = output_piece(&rig.output);
        test_true(output_has_piece(&rig.output));
        test_true(output_has_call(&rig.output));
        if (is_stream) {
            api_response_delta(&head, &piece, API_FINISH_NONE, &json);
        } else {
            put_whole(&head, &piece, API_FINISH_TOOL_CALLS, &usage, &json);
            test_true(strstr(buf_text(&json), "\"content\":null"));
            test_true(strstr(buf_text(&json), "\"finish_reason\":\"tool_calls\""));
        }
        test_true(strstr(buf_text(&json), "\"id\":\"call_70\",\"type\":\"function\",\"function\":{"
                                          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}"));
        test_true(!!strstr(buf_text(&json), "\"index\":1,\"id\":\"call_71\"") == is_stream);
        output_reset(&rig.output);
        test_true(!output_has_piece(&rig.output));
        close_rig(&rig);
        buf_fini(&json);
        buf_fini(&joined);
    }
}

static void test_without_tokenizer_ids_are_the_output(void)
{
    struct rig rig;
    open_rig(&rig, API_ROUTE_COMPLETIONS, "{\"prompt\":[5],\"logprobs\":1}", false);
    const uint32_t pair_id = 9;
    const float pair_logprob = -0.5F;
    for (uint32_t token = 7; token < 9; token++) {
        struct engine_event event = {.token = token,
                                     .logprob = -0.25F,
                                     .rank = 1,
                                     .pair_count = 1,
                                     .ids = &pair_id,
                                     .logprobs = &pair_logprob};
        test_true(!output_push(&rig.output, &event));
    }
    output_finish(&rig.output);
    struct api_piece piece = output_piece(&rig.output);
    struct api_head head = {.route = API_ROUTE_COMPLETIONS, .id = "id", .model = "m"};
    struct api_usage usage = {.prompt_tokens = 1, .output_tokens = 2};
    struct buf json;
    buf_init(&json);
    put_whole(&head, &piece, API_FINISH_LENGTH, &usage, &json);
    test_true(strstr(buf_text(&json), "\"token_ids\":[7,8]"));
    test_true(strstr(buf_text(&json), "\"tokens\":[\"token_id:7\",\"token_id:8\"]"));
    test_true(strstr(buf_text(&json), "\"top_logprobs\":[{\"token_id:9\":-0.5}"));
    buf_fini(&json);
    close_rig(&rig);
}

static void test_logprobs_of_bytes(void)
{
    struct rig rig;
    open_rig(&rig, API_ROUTE_CHAT, "{\"messages\":[{}],\"logprobs\":true}", true);
    uint32_t id = tok_find(rig.tokenizer, "<0xF0>");
    test_true(id != TOK_NONE);
    struct engine_event event = {.token = id, .logprob = -1.0F, .rank = 1};
    test_true(!output_push(&rig.output, &event));
    test_true(strstr(buf_text(&rig.output.logprobs.content), "\"bytes\":[240]"));
    test_true(strstr(buf_text(&rig.output.logprobs.content), "\"top_logprobs\":[]"));
    /* Not a character yet: no text, but a piece. */
    test_eq_u64(rig.output.answer.part_count, 0);
    test_true(output_has_piece(&rig.output));
    test_true(output_held_bytes(&rig.output) > 0);
    output_reset(&rig.output);
    test_true(!output_has_piece(&rig.output));
    close_rig(&rig);
}

static const struct test_case cases[] = {
    TEST(test_stop_strings_and_pieces),        TEST(test_included_stop_string),
    TEST(test_reasoning_is_apart_and_counted), TEST(test_without_tokenizer_ids_are_the_output),
    TEST(test_calls_whole_and_streamed),       TEST(test_logprobs_of_bytes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
