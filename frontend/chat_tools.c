/* Tool calls of a message and the responses to them. */
#include <string.h>

#include "frontend/chat_internal.h"

enum {
    ARGUMENTS_MAX_DEPTH = 128,
};

enum err_code chat_list_member(const struct chat_rendering *render,
                               const struct chat_message *message, const char *key,
                               const struct json_t **out_array)
{
    const struct json_t *value = json_member(message->value, key);
    struct chat_path path = {.up = message->path, .key = key};
    if (!chat_is_null(value) && json_kind(value) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(render->err, &path, value, "an array");
    }
    *out_array = chat_is_truthy(value) ? value : NULL;
    return ERR_OK;
}

/* Arguments as an object or as the JSON text of one; empty text and null are no arguments. */
static enum err_code put_arguments(const struct chat_rendering *render,
                                   const struct json_t *arguments, const struct chat_path *path)
{
    if (chat_is_null(arguments) || (chat_is_text(arguments) && !chat_is_truthy(arguments))) {
        return ERR_OK;
    }
    struct json_t *parsed = NULL;
    enum err_code code = ERR_OK;
    if (chat_is_text(arguments)) {
        size_t byte_count = 0;
        const char *text = json_text(arguments, &byte_count);
        struct err cause = {0};
        if (json_parse(text, byte_count, ARGUMENTS_MAX_DEPTH, &parsed, &cause) != ERR_OK) {
            return chat_refuse(render->err, ERR_ARGUMENT, path, "is not JSON: %s", cause.message);
        }
        arguments = parsed;
    }
    if (json_kind(arguments) == JSON_KIND_OBJECT) {
        chat_put_members(render->prompt, arguments);
    } else {
        code = chat_refuse_kind(render->err, path, arguments, "an object");
    }
    json_release(parsed);
    return code;
}

static enum err_code put_call(const struct chat_rendering *render, const struct json_t *call,
                              const struct chat_path *path)
{
    struct chat_path function_path = {.up = path, .key = "function"};
    struct chat_path name_path = {.up = &function_path, .key = "name"};
    struct chat_path arguments_path = {.up = &function_path, .key = "arguments"};
    const struct json_t *function = chat_member(call, "function");
    if (function == NULL || json_kind(function) != JSON_KIND_OBJECT) {
        return chat_refuse_kind(render->err, &function_path, function, "an object");
    }
    const struct json_t *name = json_member(function, "name");
    if (!chat_is_text(name)) {
        return chat_refuse_kind(render->err, &name_path, name, "a string");
    }
    size_t name_bytes = 0;
    const char *name_text = json_text(name, &name_bytes);
    chat_put_control(render->prompt, "<|tool_call>");
    chat_put_literal(render->prompt, "call:");
    chat_put_text(render->prompt, name_text, name_bytes);
    chat_put_literal(render->prompt, "{");
    enum err_code code = put_arguments(render, json_member(function, "arguments"), &arguments_path);
    chat_put_literal(render->prompt, "}");
    chat_put_control(render->prompt, "<tool_call|>");
    return code;
}

/* name is null for an unknown one.  text stands for the value where value is null. */
static void put_response(const struct chat_rendering *render, const struct json_t *name,
                         const struct json_t *value, const struct buf *text)
{
    size_t name_bytes = 0;
    const char *name_text = name == NULL ? "unknown" : json_text(name, &name_bytes);
    struct chat_prompt *prompt = render->prompt;
    chat_put_control(prompt, "<|tool_response>");
    chat_put_literal(prompt, "response:");
    chat_put_text(prompt, name_text, name == NULL ? strlen(name_text) : name_bytes);
    chat_put_literal(prompt, "{");
    if (value != NULL && json_kind(value) == JSON_KIND_OBJECT) {
        chat_put_members(prompt, value);
    } else {
        chat_put_literal(prompt, "value:");
        if (value != NULL) {
            chat_put_value(prompt, value, false);
        } else if (text != NULL) {
            chat_put_quoted(prompt, buf_text(text), text->used_bytes);
        } else {
            chat_put_literal(prompt, "null");
        }
    }
    chat_put_literal(prompt, "}");
    chat_put_control(prompt, "<tool_response|>");
}

/* Responses in Gemma's own field of the message that called. */
static enum err_code put_own_responses(struct chat_rendering *render,
                                       const struct json_t *responses, const struct chat_path *path)
{
    for (size_t i = 0; i < json_count(responses); i++) {
        struct chat_path here = {.up = path, .index = i};
        struct chat_path name_path = {.up = &here, .key = "name"};
        struct chat_path response_path = {.up = &here, .key = "response"};
        const struct json_t *one = json_element(responses, i);
        const struct json_t *name = chat_member(one, "name");
        const struct json_t *response = chat_member(one, "response");
        if (!chat_is_null(name) && !chat_is_text(name)) {
            return chat_refuse_kind(render->err, &name_path, name, "a string");
        }
        if (response == NULL) {
            return chat_refuse_kind(render->err, &response_path, response, "there");
        }
        put_response(render, chat_is_truthy(name) ? name : NULL, response, NULL);
        render->state = CHAT_TURN_RESPONDED;
    }
    return ERR_OK;
}

static bool same_id(const struct json_t *a, const struct json_t *b)
{
    if (chat_is_null(a) || chat_is_null(b)) {
        return chat_is_null(a) && chat_is_null(b);
    }
    return chat_text_equals(a, json_text(b, NULL));
}

/* Name of the function that a tool message answers: of the last call with its id. */
static enum err_code answered_name(const struct chat_rendering *render, const struct json_t *calls,
                                   const struct chat_message *tool, const struct json_t **out_name)
{
    const struct json_t *name = json_member(tool->value, "name");
    const struct json_t *id = json_member(tool->value, "tool_call_id");
    struct chat_path name_path = {.up = tool->path, .key = "name"};
    struct chat_path id_path = {.up = tool->path, .key = "tool_call_id"};
    if (!chat_is_null(name) && !chat_is_text(name)) {
        return chat_refuse_kind(render->err, &name_path, name, "a string");
    }
    if (!chat_is_null(id) && !chat_is_text(id)) {
        return chat_refuse_kind(render->err, &id_path, id, "a string");
    }
    *out_name = chat_is_truthy(name) ? name : NULL;
    for (size_t i = 0; i < json_count(calls); i++) {
        const struct json_t *call = json_element(calls, i);
        const struct json_t *call_id = json_member(call, "id");
        if ((chat_is_null(call_id) || chat_is_text(call_id)) && same_id(call_id, id)) {
            *out_name = json_member(json_member(call, "function"), "name");
        }
    }
    return ERR_OK;
}

/* Content parts of a tool message: all texts as one value, then the media. */
static enum err_code put_parts_response(const struct chat_rendering *render,
                                        const struct json_t *name, const struct json_t *parts,
                                        const struct chat_path *path)
{
    struct buf joined;
    buf_init(&joined);
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < json_count(parts) && code == ERR_OK; i++) {
        const struct json_t *part = json_element(parts, i);
        struct chat_path here = {.up = path, .index = i};
        const struct json_t *text = NULL;
        code = chat_part_check(render, part, &here);
        if (code == ERR_OK && chat_part_kind(part) == CHAT_PART_TEXT) {
            code = chat_part_text(render, part, &here, true, &text);
        }
        if (text != NULL) {
            size_t byte_count = 0;
            const char *at = json_text(text, &byte_count);
            buf_append(&joined, at, byte_count);
        }
    }
    if (code == ERR_OK) {
        put_response(render, name, NULL, &joined);
        for (size_t i = 0; i < json_count(parts); i++) {
            chat_put_media(render, chat_part_kind(json_element(parts, i)));
        }
    }
    buf_fini(&joined);
    return code;
}

/* The tool messages that follow a message with calls. */
static enum err_code put_tool_messages(struct chat_rendering *render, const struct json_t *calls,
                                       size_t first)
{
    struct chat_path messages_path = {.key = "messages"};
    for (size_t i = first; i < render->count && chat_is_role(render, i, "tool"); i++) {
        struct chat_path path = {.up = &messages_path, .index = i};
        struct chat_path content_path = {.up = &path, .key = "content"};
        struct chat_message tool = {.value = json_element(render->messages, i), .path = &path};
        const struct json_t *content = json_member(tool.value, "content");
        const struct json_t *name = NULL;
        enum err_code code = answered_name(render, calls, &tool, &name);
        if (code != ERR_OK) {
            return code;
        }
        if (chat_is_null(content) || chat_is_text(content)) {
            put_response(render, name, chat_is_null(content) ? NULL : content, NULL);
        } else if (json_kind(content) == JSON_KIND_ARRAY) {
            code = put_parts_response(render, name, content, &content_path);
        } else {
            code = chat_refuse_kind(render->err, &content_path, content, "a string or an array");
        }
        if (code != ERR_OK) {
            return code;
        }
        render->state = CHAT_TURN_RESPONDED;
    }
    return ERR_OK;
}

enum err_code chat_put_tool_turn(struct chat_rendering *render, const struct chat_message *message,
                                 const struct json_t *calls)
{
    const struct json_t *responses = NULL;
    struct chat_path calls_path = {.up = message->path, .key = "tool_calls"};
    struct chat_path responses_path = {.up = message->path, .key = "tool_responses"};
    enum err_code code = chat_list_member(render, message, "tool_responses", &responses);
    for (size_t i = 0; calls != NULL && i < json_count(calls) && code == ERR_OK; i++) {
        struct chat_path here = {.up = &calls_path, .index = i};
        code = put_call(render, json_element(calls, i), &here);
        render->state = CHAT_TURN_CALLED;
    }
    if (code == ERR_OK && responses != NULL) {
        code = put_own_responses(render, responses, &responses_path);
    } else if (code == ERR_OK && calls != NULL) {
        code = put_tool_messages(render, calls, message->index + 1);
    }
    return code;
}
