/* Bodies of the generation routes, all the way to the ADMIT message: JSON, fields, chat rendering,
 * tokens, limits.  The first byte chooses route and chat format.  What is accepted must be a message
 * that the plan's table takes and whose numbers a sampler can use; what is refused has a status of
 * the 400s and a text. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "frontend/constraint.h"
#include "frontend/prepare.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testlib/test.h"

enum {
    CONTEXT_TOKENS = 4096
};

struct fixture {
    struct checkpoint_info checkpoint;
    struct prepare_model model;
};

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* The demo model's tokenizer and ids; loaded once, kept until the end. */
static struct fixture *open_fixture(void)
{
    char dir[4096];
    char path[4200];
    struct err err;
    struct tokenizer *tokenizer = NULL;
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    (void)snprintf(dir, sizeof(dir), "%s/../../deploy/demo-model", test_golden_dir());
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    if (fixture == NULL || checkpoint_load_info(dir, &fixture->checkpoint, &err) != ERR_OK ||
        tok_load(path, NULL, &tokenizer, &err) != ERR_OK) {
        abort();
    }
    fixture->model = (struct prepare_model){
        .name = "demo", .checkpoint = &fixture->checkpoint, .tokenizer = tokenizer};
    chat_markers_find(tokenizer, &fixture->model.markers);
    const struct grammar_markers markers = {.quote = fixture->model.markers.quote,
                                            .call_open = fixture->model.markers.call_open,
                                            .call_close = fixture->model.markers.call_close};
    fixture->model.grammars = grammar_cache_create(tokenizer, &markers, 8UL << 20);
    return fixture;
}

static void check_ids(const uint32_t *ids, uint32_t count, uint32_t vocab_tokens)
{
    for (uint32_t i = 0; i < count; i++) {
        require(ids[i] < vocab_tokens);
    }
}

static void check_sampling(const struct plan_admit *admit)
{
    require(admit->temperature >= 0 && admit->temperature <= 2);
    require(admit->top_p > 0 && admit->top_p <= 1 && admit->min_p >= 0 && admit->min_p <= 1);
    require(fabsf(admit->presence_penalty) <= 2 && fabsf(admit->frequency_penalty) <= 2);
    require(admit->repetition_penalty > 0 && admit->logprobs <= PLAN_MAX_LOGPROBS + 1);
}

static void check_accepted(const struct fixture *fixture, const struct plan_admit *admit)
{
    uint32_t vocab_tokens = fixture->checkpoint.vocab_tokens;
    struct plan_message message = {.type = PLAN_ADMIT, .epoch = 1, .msg_seq = 1};
    struct buf bytes;
    struct err err;
    require(admit->prompt.count > 0 && admit->max_total > admit->prompt.count);
    require(admit->max_total <= CONTEXT_TOKENS && admit->output_start == admit->prompt.count);
    require(admit->min_tokens <= admit->max_total - admit->prompt.count);
    require(admit->stop_ids.count <= PLAN_MAX_STOP_IDS);
    check_ids(admit->prompt.at, admit->prompt.count, vocab_tokens);
    check_ids(admit->stop_ids.at, admit->stop_ids.count, vocab_tokens);
    for (uint32_t i = 0; i < admit->prompt.count; i++) {
        require(!checkpoint_is_modality(&fixture->checkpoint, admit->prompt.at[i]));
    }
    for (uint32_t i = 0; i < admit->logit_bias.count; i++) {
        require(admit->logit_bias.at[i].token < vocab_tokens);
        require(fabsf(admit->logit_bias.at[i].bias) <= 100);
    }
    check_sampling(admit);
    message.as.admit = *admit;
    buf_init(&bytes);
    require(plan_encode(&message, &bytes, &err) == ERR_OK);
    buf_fini(&bytes);
}

/* Something is allowed at the first position. */
static void check_constraint(const struct fixture *fixture, const struct prepared *prepared)
{
    struct constraint *constraint = prepare_constraint(&fixture->model, prepared, 0);
    uint32_t word_count = (fixture->checkpoint.vocab_tokens + 31) / 32;
    uint32_t *words = calloc(word_count, sizeof(*words));
    uint32_t all = 0;
    require(words != NULL);
    require((constraint != NULL) == prepared->prompts[0].plan.admit.constrained);
    if (constraint != NULL) {
        constraint->fill(constraint, NULL, 0, words, word_count);
        for (uint32_t i = 0; i < word_count; i++) {
            all |= words[i];
        }
        require(all != 0);
    }
    constraint_release(constraint);
    free(words);
}

static void check_refused(const struct api_error *error)
{
    struct buf text;
    struct json_t *parsed = NULL;
    struct err err;
    require(error->status >= 400 && error->status < 500 && error->message[0] != '\0');
    buf_init(&text);
    api_error_body(error, &text);
    require(json_parse(text.at, text.used_bytes, 8, &parsed, &err) == ERR_OK);
    json_release(parsed);
    buf_fini(&text);
}

/* The same messages as the templates print what the server refuses: media, roles of any name. */
static void check_template(const struct prepare_model *model, const struct prepared *prepared)
{
    struct chat_prompt prompt;
    struct err err = {0};
    struct chat_options options = {.format = model->chat_format,
                                   .enable_thinking = prepared->request.enable_thinking,
                                   .continue_final_message = prepared->request.stream,
                                   .as_template = true};
    if (prepared->request.messages == NULL || model->chat_format == CHAT_FORMAT_NONE) {
        return;
    }
    chat_prompt_init(&prompt);
    enum err_code code =
        chat_render(prepared->request.messages, prepared->request.tools, &options, &prompt, &err);
    require(code == ERR_OK || err.message[0] != '\0');
    size_t covered_bytes = 0;
    for (size_t i = 0; code == ERR_OK && i < prompt.span_count; i++) {
        require(prompt.spans[i].start == covered_bytes);
        covered_bytes += prompt.spans[i].byte_count;
    }
    require(code != ERR_OK || covered_bytes == prompt.text.used_bytes);
    chat_prompt_fini(&prompt);
}

/* Every row of the table is known; any name may be asked for. */
static void check_names(const char *bytes, size_t byte_count)
{
    struct json_t *body = NULL;
    struct api_error error = {0};
    struct json_iter iter;
    for (uint32_t i = 0; api_request_field(i) != NULL; i++) {
        require(api_request_knows(api_request_field(i)->name));
    }
    if (api_request_parse_body(bytes, byte_count, &body, &error) != ERR_OK) {
        require(body == NULL);
        return;
    }
    json_iter_start(&iter, body);
    while (json_iter_next(&iter)) {
        (void)api_request_knows(iter.key);
    }
    json_release(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct fixture *fixture;
    static const enum chat_format formats[] = {CHAT_FORMAT_LARGE, CHAT_FORMAT_SMALL,
                                               CHAT_FORMAT_NONE, CHAT_FORMAT_LARGE};
    struct prepared prepared;
    struct api_error error = {0};
    struct buf body;
    if (fixture == NULL) {
        fixture = open_fixture();
    }
    if (byte_count == 0) {
        return 0;
    }
    struct prepare_model model = fixture->model;
    const struct api_limits limits = {.vocab_tokens = fixture->checkpoint.vocab_tokens,
                                      .max_context_tokens = CONTEXT_TOKENS,
                                      .pool_tokens = CONTEXT_TOKENS / 2};
    model.chat_format = formats[bytes[0] >> 1 & 3];
    model.tokenizer = (bytes[0] & 8) != 0 ? NULL : model.tokenizer;
    buf_init(&body);
    buf_append(&body, bytes + 1, byte_count - 1);
    struct prepare_input input = {
        .route = (bytes[0] & 1) != 0 ? API_ROUTE_COMPLETIONS : API_ROUTE_CHAT,
        .limits = limits,
        .body = &body,
        .random_seed = 1,
    };
    enum err_code code = prepare_request(&model, &input, &prepared, &error);
    if (code == ERR_OK) {
        require(prepared.prompt_count > 0);
        require(prepared.prompt_count * prepared.request.n <= API_MAX_CHOICES);
        check_constraint(fixture, &prepared);
        for (uint32_t i = 0; i < prepared.prompt_count; i++) {
            check_accepted(fixture, &prepared.prompts[i].plan.admit);
        }
    } else {
        check_refused(&error);
    }
    check_names((const char *)bytes + 1, byte_count - 1);
    check_template(&model, &prepared);
    prepare_fini(&prepared);
    buf_fini(&body);
    return 0;
}
