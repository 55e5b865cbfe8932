/* {"messages": ..., "tools": ...} in both formats, with every option.  A rendering's spans cover it in
 * turns, its control spans hold control strings only, and its ids hold no other special token. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "frontend/chat_render.h"
#include "frontend/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#define MAX_DEPTH 64

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static size_t count_special(const struct tokenizer *tokenizer, const struct tok_ids *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++) {
        count += tok_is_special(tokenizer, ids->at[i]);
    }
    return count;
}

static void check_prompt(const struct tokenizer *tokenizer, const struct chat_prompt *prompt)
{
    struct tok_ids ids = {0};
    size_t at = 0;
    size_t control_count = 0;
    for (size_t i = 0; i < prompt->span_count; i++) {
        const struct chat_span *span = &prompt->spans[i];
        require(span->start == at && span->byte_count > 0);
        require(i == 0 || prompt->spans[i - 1].is_control != span->is_control);
        at += span->byte_count;
        if (span->is_control) {
            ids.count = 0;
            tok_encode(tokenizer, prompt->text.at + span->start, span->byte_count,
                       TOK_SPECIAL_PARSE, &ids);
            require(count_special(tokenizer, &ids) == ids.count);
            control_count += ids.count;
        }
    }
    require(at == prompt->text.used_bytes);
    require(utf8_is_valid(buf_text(&prompt->text), prompt->text.used_bytes));
    ids.count = 0;
    chat_encode(tokenizer, prompt, &ids);
    require(count_special(tokenizer, &ids) == control_count);
    tok_ids_fini(&ids);
}

static void render_all(const struct tokenizer *tokenizer, const struct json_t *request)
{
    for (unsigned flags = 0; flags < 64; flags++) {
        const struct chat_options options = {
            .format = (flags & 1) != 0 ? CHAT_FORMAT_LARGE : CHAT_FORMAT_SMALL,
            .add_generation_prompt = (flags & 2) != 0,
            .enable_thinking = (flags & 4) != 0,
            .preserve_thinking = (flags & 8) != 0,
            .continue_final_message = (flags & 16) != 0,
            .as_template = (flags & 32) != 0,
        };
        struct chat_prompt prompt;
        struct err err = {0};
        chat_prompt_init(&prompt);
        enum err_code code = chat_render(json_member(request, "messages"),
                                         json_member(request, "tools"), &options, &prompt, &err);
        if (code == ERR_OK) {
            check_prompt(tokenizer, &prompt);
        } else {
            require(code == ERR_ARGUMENT || code == ERR_UNSUPPORTED);
            require(err.message[0] != '\0' && strchr(err.message, '\n') == NULL);
        }
        chat_prompt_fini(&prompt);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct tokenizer *tokenizer; /* loaded once, then only read */
    struct err err;
    struct json_t *request = NULL;
    if (tokenizer == NULL &&
        tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &tokenizer, &err) != ERR_OK) {
        abort();
    }
    if (json_parse((const char *)bytes, byte_count, MAX_DEPTH, &request, &err) != ERR_OK) {
        return 0;
    }
    if (json_kind(request) == JSON_KIND_OBJECT) {
        render_all(tokenizer, request);
    }
    json_release(request);
    return 0;
}
