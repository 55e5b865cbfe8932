#include "frontend/chat_render.h"

#include <string.h>

#include "frontend/chat_internal.h"

static enum err_code check_role(const struct chat_rendering *render, const struct json_t *message,
                                const struct chat_path *path)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "model",     "tool"};
    struct chat_path here = {.up = path, .key = "role"};
    if (json_kind(message) != JSON_KIND_OBJECT) {
        return chat_refuse_kind(render->err, path, message, "an object");
    }
    const struct json_t *role = json_member(message, "role");
    if (!chat_is_text(role)) {
        return chat_refuse_kind(render->err, &here, role, "a string");
    }
    bool is_known = render->options->as_template;
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        is_known |= chat_text_equals(role, roles[i]);
    }
    return is_known ? ERR_OK
                    : chat_refuse(render->err, ERR_ARGUMENT, &here,
                                  "is '%.40s', not system, developer, user, assistant or tool",
                                  json_text(role, NULL));
}

static void put_trimmed(const struct chat_rendering *render, const struct json_t *text)
{
    size_t byte_count = 0;
    const char *at = json_text(text, &byte_count);
    struct chat_slice slice = chat_trim(at, byte_count);
    chat_put_text(render->prompt, slice.at, slice.byte_count);
}

static const char *find(const char *text, const char *end, const char *mark)
{
    return memmem(text, (size_t)(end - text), mark, strlen(mark));
}

/* A model's text without its thoughts: of each piece between "<channel|>", what precedes the first
 * "<|channel>". */
static void put_without_thoughts(const struct chat_rendering *render, const struct json_t *text)
{
    static const char opening[] = "<|channel>";
    static const char closing[] = "<channel|>";
    size_t byte_count = 0;
    const char *at = json_text(text, &byte_count);
    const char *end = at + byte_count;
    struct buf kept;
    buf_init(&kept);
    while (at != NULL) {
        const char *close = find(at, end, closing);
        const char *piece_end = close == NULL ? end : close;
        const char *open = find(at, piece_end, opening);
        buf_append(&kept, at, (size_t)((open == NULL ? piece_end : open) - at));
        at = close == NULL ? NULL : close + strlen(closing);
    }
    struct chat_slice slice = chat_trim(buf_text(&kept), kept.used_bytes);
    chat_put_text(render->prompt, slice.at, slice.byte_count);
    buf_fini(&kept);
}

static void put_spoken(const struct chat_rendering *render, const struct json_t *text,
                       bool is_model)
{
    if (is_model) {
        put_without_thoughts(render, text);
    } else {
        put_trimmed(render, text);
    }
}

static enum err_code put_content(const struct chat_rendering *render,
                                 const struct chat_message *message)
{
    const struct json_t *content = json_member(message->value, "content");
    struct chat_path path = {.up = message->path, .key = "content"};
    if (chat_is_null(content)) {
        return ERR_OK;
    }
    if (chat_is_text(content)) {
        put_spoken(render, content, message->is_model);
        return ERR_OK;
    }
    if (json_kind(content) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(render->err, &path, content, "a string or an array");
    }
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < json_count(content) && code == ERR_OK; i++) {
        const struct json_t *part = json_element(content, i);
        struct chat_path here = {.up = &path, .index = i};
        const struct json_t *text = NULL;
        code = chat_part_check(render, part, &here);
        if (code == ERR_OK && chat_part_kind(part) == CHAT_PART_TEXT) {
            code = chat_part_text(render, part, &here, false, &text);
        }
        if (text != NULL) {
            put_spoken(render, text, message->is_model);
        } else if (code == ERR_OK) {
            chat_put_media(render, chat_part_kind(part));
        }
    }
    return code;
}

static enum err_code put_system_content(const struct chat_rendering *render,
                                        const struct json_t *content, const struct chat_path *path)
{
    if (chat_is_null(content)) {
        return ERR_OK;
    }
    if (chat_is_text(content)) {
        put_trimmed(render, content);
        return ERR_OK;
    }
    if (json_kind(content) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(render->err, path, content, "a string or an array");
    }
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < json_count(content) && code == ERR_OK; i++) {
        const struct json_t *part = json_element(content, i);
        struct chat_path here = {.up = path, .index = i};
        const struct json_t *text = NULL;
        code = chat_part_check(render, part, &here);
        code = code == ERR_OK
                   ? chat_part_text(render, part, &here, render->options->as_template, &text)
                   : code;
        if (text != NULL) {
            put_trimmed(render, text);
        }
        chat_put_literal(render->prompt, " ");
    }
    return code;
}

static enum err_code put_system_turn(struct chat_rendering *render, const struct json_t *tools)
{
    bool has_system = render->count > 0 &&
                      (chat_is_role(render, 0, "system") || chat_is_role(render, 0, "developer"));
    bool has_tools = chat_is_truthy(tools);
    if (!has_system && !has_tools && !render->options->enable_thinking) {
        return ERR_OK;
    }
    enum err_code code = ERR_OK;
    chat_put_control(render->prompt, "<|turn>");
    chat_put_literal(render->prompt, "system\n");
    if (render->options->enable_thinking) {
        chat_put_control(render->prompt, "<|think|>");
        chat_put_literal(render->prompt, "\n");
    }
    if (has_system) {
        struct chat_path messages_path = {.key = "messages"};
        struct chat_path message_path = {.up = &messages_path};
        struct chat_path path = {.up = &message_path, .key = "content"};
        code = put_system_content(render, json_member(json_element(render->messages, 0), "content"),
                                  &path);
        render->first = 1;
    }
    struct chat_path tools_path = {.key = "tools"};
    for (size_t i = 0; i < json_count(tools) && has_tools && code == ERR_OK; i++) {
        struct chat_path here = {.up = &tools_path, .index = i};
        chat_put_control(render->prompt, "<|tool>");
        code = chat_put_declaration(render->prompt, json_element(tools, i), &here, render->err);
        chat_put_control(render->prompt, "<tool|>");
    }
    chat_put_control(render->prompt, "<turn|>");
    chat_put_literal(render->prompt, "\n");
    return code;
}

static enum err_code put_thoughts(const struct chat_rendering *render,
                                  const struct chat_message *message, bool has_calls)
{
    static const char *const keys[] = {"reasoning", "reasoning_content"};
    const struct json_t *thoughts = NULL;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && thoughts == NULL; i++) {
        const struct json_t *value = json_member(message->value, keys[i]);
        struct chat_path path = {.up = message->path, .key = keys[i]};
        if (!chat_is_null(value) && !chat_is_text(value)) {
            return chat_refuse_kind(render->err, &path, value, "a string");
        }
        thoughts = chat_is_truthy(value) ? value : NULL;
    }
    bool is_recent = render->last_user == SIZE_MAX || message->index > render->last_user;
    if (thoughts != NULL && (is_recent || (render->options->preserve_thinking && has_calls))) {
        size_t byte_count = 0;
        const char *text = json_text(thoughts, &byte_count);
        chat_put_control(render->prompt, "<|channel>");
        chat_put_literal(render->prompt, "thought\n");
        chat_put_text(render->prompt, text, byte_count);
        chat_put_literal(render->prompt, "\n");
        chat_put_control(render->prompt, "<channel|>");
    }
    return ERR_OK;
}

/* Index of the next message that is no tool's; count where there is none. */
static size_t next_speaker(const struct chat_rendering *render, size_t index)
{
    do {
        index++;
    } while (index < render->count && chat_is_role(render, index, "tool"));
    return index;
}

static void end_turn(const struct chat_rendering *render, const struct chat_message *message,
                     bool has_calls, size_t content_start)
{
    size_t next = next_speaker(render, message->index);
    bool has_responses = render->state == CHAT_TURN_RESPONDED;
    const struct buf *text = &render->prompt->text;
    size_t content_bytes = text->used_bytes - content_start;
    bool is_blank =
        content_bytes == 0 || chat_trim(text->at + content_start, content_bytes).byte_count == 0;
    if (render->state == CHAT_TURN_CALLED) {
        chat_put_control(render->prompt, "<|tool_response>");
        return;
    }
    bool is_continued = message->is_model && next < render->count &&
                        chat_is_role(render, next, "assistant") && (!has_calls || has_responses);
    if (is_continued || (has_responses && is_blank && next >= render->count)) {
        return;
    }
    chat_put_control(render->prompt, "<turn|>");
    chat_put_literal(render->prompt, "\n");
}

static void begin_turn(const struct chat_rendering *render, const struct chat_message *message,
                       const struct json_t *role)
{
    if (message->is_model && render->speaker_role != NULL &&
        chat_text_equals(render->speaker_role, "assistant")) {
        return; /* goes on in the same turn */
    }
    size_t role_bytes = 0;
    const char *role_text = json_text(role, &role_bytes);
    chat_put_control(render->prompt, "<|turn>");
    if (message->is_model) {
        chat_put_literal(render->prompt, "model");
    } else {
        chat_put_text(render->prompt, role_text, role_bytes);
    }
    chat_put_literal(render->prompt, "\n");
}

static enum err_code put_message(struct chat_rendering *render, size_t index)
{
    struct chat_path messages_path = {.key = "messages"};
    struct chat_path path = {.up = &messages_path, .index = index};
    struct chat_message message = {
        .value = json_element(render->messages, index), .path = &path, .index = index};
    const struct json_t *role = json_member(message.value, "role");
    const struct json_t *calls = NULL;
    message.is_model = chat_text_equals(role, "assistant") || chat_text_equals(role, "model");
    render->state = CHAT_TURN_PLAIN;
    enum err_code code = chat_list_member(render, &message, "tool_calls", &calls);
    if (code != ERR_OK) {
        return code;
    }
    begin_turn(render, &message, role);
    code = put_thoughts(render, &message, calls != NULL);
    code = code == ERR_OK ? chat_put_tool_turn(render, &message, calls) : code;
    if (code != ERR_OK) {
        return code;
    }
    size_t content_start = render->prompt->text.used_bytes;
    code = put_content(render, &message);
    if (code != ERR_OK) {
        return code;
    }
    if (!render->options->continue_final_message || index + 1 < render->count) {
        end_turn(render, &message, calls != NULL, content_start);
    }
    render->speaker_role = role;
    return ERR_OK;
}

static void put_generation_prompt(const struct chat_rendering *render)
{
    bool thinks = render->options->enable_thinking;
    if (render->state == CHAT_TURN_PLAIN) {
        chat_put_control(render->prompt, "<|turn>");
        chat_put_literal(render->prompt, "model\n");
    }
    bool is_closed =
        render->state == CHAT_TURN_PLAIN && !thinks && render->options->format == CHAT_FORMAT_LARGE;
    if (is_closed || (render->state == CHAT_TURN_RESPONDED && thinks)) {
        chat_put_control(render->prompt, "<|channel>");
        chat_put_literal(render->prompt, "thought\n");
    }
    if (is_closed) {
        chat_put_control(render->prompt, "<channel|>");
    }
}

static enum err_code check_request(const struct chat_rendering *render, const struct json_t *tools)
{
    struct chat_path messages_path = {.key = "messages"};
    struct chat_path tools_path = {.key = "tools"};
    if (render->options->format == CHAT_FORMAT_NONE) {
        return err_set(render->err, ERR_UNSUPPORTED, "this model has no chat format");
    }
    if (render->messages == NULL || json_kind(render->messages) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(render->err, &messages_path, render->messages, "an array");
    }
    if (!chat_is_null(tools) && json_kind(tools) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(render->err, &tools_path, tools, "an array");
    }
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < render->count && code == ERR_OK; i++) {
        struct chat_path here = {.up = &messages_path, .index = i};
        code = check_role(render, json_element(render->messages, i), &here);
    }
    if (code == ERR_OK && render->options->continue_final_message &&
        (render->options->add_generation_prompt || render->count == 0 ||
         chat_is_role(render, render->count - 1, "tool"))) {
        return chat_refuse(render->err, ERR_ARGUMENT, &messages_path,
                           "have no final message to continue");
    }
    return code;
}

enum err_code chat_render(const struct json_t *messages, const struct json_t *tools,
                          const struct chat_options *options, struct chat_prompt *out_prompt,
                          struct err *err)
{
    struct chat_rendering render = {.messages = messages,
                                    .options = options,
                                    .prompt = out_prompt,
                                    .err = err,
                                    .count = messages == NULL ? 0 : json_count(messages),
                                    .last_user = SIZE_MAX};
    enum err_code code = check_request(&render, tools);
    if (code != ERR_OK) {
        return code;
    }
    chat_put_control(out_prompt, "<bos>");
    code = put_system_turn(&render, tools);
    for (size_t i = render.first; i < render.count; i++) {
        render.last_user = chat_is_role(&render, i, "user") ? i : render.last_user;
    }
    for (size_t i = render.first; i < render.count && code == ERR_OK; i++) {
        if (!chat_is_role(&render, i, "tool")) {
            code = put_message(&render, i);
        }
    }
    if (code == ERR_OK && options->add_generation_prompt) {
        put_generation_prompt(&render);
    }
    return code;
}
