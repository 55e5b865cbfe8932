/* Bodies of /v1/messages: turns of blocks into messages, results of tools into messages of their
 * own.  Fields that both APIs have are copied, and judged where chat completions are. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/dialect.h"
#include "frontend/dialect_internal.h"

struct conversion {
    struct buf *messages;
    struct dialect_turn *turn;
    struct api_error *error;
    char path[64]; /* of the present message's content */
};

static enum err_code refuse_block(const struct conversion *to, size_t index, const char *type)
{
    return api_error_set(to->error, ERR_UNSUPPORTED, to->path,
                         "%s[%zu] is a block of type '%.32s', which is not served here", to->path,
                         index, type);
}

static enum err_code put_result(struct conversion *to, const struct json_t *block, size_t index)
{
    struct buf text;
    const char *id = dialect_text(block, "tool_use_id");
    const struct json_t *content = dialect_given(block, "content");
    enum err_code code = ERR_OK;
    if (!id) {
        return api_error_set(to->error, ERR_ARGUMENT, to->path, "%s[%zu].tool_use_id is required",
                             to->path, index);
    }
    buf_init(&text);
    if (content) {
        code = dialect_join_text(content, to->path, &text, to->error);
    }
    if (!code) {
        dialect_put_message("tool", &text, id, to->messages);
    }
    buf_fini(&text);
    return code;
}

/* Blocks of text gather in text; results go out at once, before it. */
static enum err_code put_user_block(struct conversion *to, const struct json_t *block, size_t index,
                                    struct buf *text)
{
    const char *type = dialect_text(block, "type");
    const char *at = dialect_text(block, "text");
    if (type && strcmp(type, "tool_result") == 0) {
        return put_result(to, block, index);
    }
    if (!type || strcmp(type, "text") != 0 || !at) {
        return refuse_block(to, index, type ? type : "");
    }
    buf_append_text(text, text->used_bytes > 0 ? "\n" : "");
    buf_append_text(text, at);
    return ERR_OK;
}

static enum err_code put_user(struct conversion *to, const struct json_t *content)
{
    struct buf text;
    enum err_code code = ERR_OK;
    buf_init(&text);
    bool is_text = json_kind(content) == JSON_KIND_TEXT;
    if (is_text) {
        code = dialect_join_text(content, to->path, &text, to->error);
    }
    for (size_t i = 0; !is_text && !code && i < json_count(content); i++) {
        code = put_user_block(to, json_element(content, i), i, &text);
    }
    if (!code && (text.used_bytes > 0 || is_text)) {
        dialect_put_message("user", &text, NULL, to->messages);
    }
    buf_fini(&text);
    return code;
}

static enum err_code put_assistant_block(struct conversion *to, const struct json_t *block,
                                         size_t index)
{
    struct dialect_turn *turn = to->turn;
    const char *type = dialect_text(block, "type");
    const char *text = dialect_text(block, "text");
    const char *thinking = dialect_text(block, "thinking");
    const char *id = dialect_text(block, "id");
    const char *name = dialect_text(block, "name");
    const struct json_t *input = dialect_given(block, "input");
    if (type && strcmp(type, "text") == 0 && text) {
        buf_append_text(&turn->content, text);
    } else if (type && strcmp(type, "thinking") == 0 && thinking) {
        buf_append_text(&turn->reasoning, thinking);
    } else if (type && strcmp(type, "tool_use") == 0 && id && name && input) {
        dialect_turn_add_call(turn, id, name, input);
    } else if (!type || strcmp(type, "redacted_thinking") != 0) {
        return refuse_block(to, index, type ? type : "");
    }
    return ERR_OK;
}

static enum err_code put_assistant(struct conversion *to, const struct json_t *content)
{
    enum err_code code = ERR_OK;
    to->turn->is_open = true;
    if (json_kind(content) == JSON_KIND_TEXT) {
        code = dialect_join_text(content, to->path, &to->turn->content, to->error);
    }
    for (size_t i = 0; !code && json_kind(content) == JSON_KIND_ARRAY && i < json_count(content);
         i++) {
        code = put_assistant_block(to, json_element(content, i), i);
    }
    dialect_turn_flush(to->turn, to->messages);
    return code;
}

static enum err_code put_message(struct conversion *to, const struct json_t *message, size_t index)
{
    const char *role = dialect_text(message, "role");
    const struct json_t *content = dialect_given(message, "content");
    (void)snprintf(to->path, sizeof(to->path), "messages[%zu].content", index); /* fits */
    bool has_content =
        content && (json_kind(content) == JSON_KIND_TEXT || json_kind(content) == JSON_KIND_ARRAY);
    if (!has_content) {
        return api_error_set(to->error, ERR_ARGUMENT, to->path,
                             "%s must be a string or a list of blocks", to->path);
    }
    if (role && strcmp(role, "user") == 0) {
        return put_user(to, content);
    }
    if (role && strcmp(role, "assistant") == 0) {
        return put_assistant(to, content);
    }
    return api_error_set(to->error, ERR_ARGUMENT, "messages",
                         "messages[%zu].role '%.32s' is neither user nor assistant", index,
                         role ? role : "");
}

static enum err_code put_messages(const struct json_t *body, struct buf *out,
                                  struct api_error *error)
{
    struct buf messages;
    struct buf system_text;
    struct dialect_turn turn;
    struct conversion to = {.messages = &messages, .turn = &turn, .error = error};
    const struct json_t *list = dialect_given(body, "messages");
    const struct json_t *system = dialect_given(body, "system");
    enum err_code code = ERR_OK;
    if (!list || json_kind(list) != JSON_KIND_ARRAY || json_count(list) == 0) {
        return api_error_set(error, ERR_ARGUMENT, "messages",
                             "messages must be a list of at least one message");
    }
    buf_init(&messages);
    buf_init(&system_text);
    dialect_turn_init(&turn);
    if (system) {
        code = dialect_join_text(system, "system", &system_text, error);
        dialect_put_message("system", &system_text, NULL, &messages);
    }
    for (size_t i = 0; !code && i < json_count(list); i++) {
        code = put_message(&to, json_element(list, i), i);
    }
    buf_append_text(out, ",\"messages\":[");
    buf_append(out, buf_text(&messages), messages.used_bytes);
    buf_append_char(out, ']');
    const char *last_role = dialect_text(json_element(list, json_count(list) - 1), "role");
    if (last_role && strcmp(last_role, "assistant") == 0) {
        buf_append_text(out, ",\"continue_final_message\":true"); /* the client began the answer */
    }
    dialect_turn_fini(&turn);
    buf_fini(&system_text);
    buf_fini(&messages);
    return code;
}

static enum err_code put_tools(const struct json_t *body, struct buf *out, struct api_error *error)
{
    const struct json_t *tools = dialect_given(body, "tools");
    if (!tools) {
        return ERR_OK;
    }
    if (json_kind(tools) != JSON_KIND_ARRAY) {
        return api_error_set(error, ERR_ARGUMENT, "tools", "tools is %s, not a list of tools",
                             json_kind_text(json_kind(tools)));
    }
    buf_append_text(out, ",\"tools\":[");
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json_t *tool = json_element(tools, i);
        const char *type = dialect_text(tool, "type");
        const char *name = dialect_text(tool, "name");
        if ((type && strcmp(type, "custom") != 0) || !name) {
            return api_error_set(error, type ? ERR_UNSUPPORTED : ERR_ARGUMENT, "tools",
                                 "tools[%zu] must be a custom tool with a name", i);
        }
        buf_append_text(out, i > 0 ? ",{" : "{");
        buf_append_text(out, "\"type\":\"function\",\"function\":{\"name\":");
        dialect_put_string(name, out);
        dialect_copy(tool, "description", "description", out);
        dialect_copy(tool, "input_schema", "parameters", out);
        buf_append_text(out, "}}");
    }
    buf_append_char(out, ']');
    return ERR_OK;
}

static enum err_code put_choice(const struct json_t *body, struct buf *out, struct api_error *error)
{
    static const char *const types[][2] = {
        {"auto", "\"auto\""}, {"any", "\"required\""}, {"none", "\"none\""}};
    const struct json_t *choice = dialect_given(body, "tool_choice");
    const char *type = choice ? dialect_text(choice, "type") : NULL;
    const char *name = choice ? dialect_text(choice, "name") : NULL;
    if (!choice) {
        return ERR_OK;
    }
    const struct json_t *single = dialect_given(choice, "disable_parallel_tool_use");
    if (single && json_kind(single) == JSON_KIND_BOOL && json_bool(single)) {
        buf_append_text(out, ",\"parallel_tool_calls\":false");
    }
    for (size_t i = 0; type && i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i][0], type) == 0) {
            buf_printf(out, ",\"tool_choice\":%s", types[i][1]);
            return ERR_OK;
        }
    }
    if (!type || strcmp(type, "tool") != 0 || !name) {
        return api_error_set(error, ERR_ARGUMENT, "tool_choice",
                             "tool_choice must be an object of type auto, any, none, or tool with "
                             "a name");
    }
    buf_append_text(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    dialect_put_string(name, out);
    buf_append_text(out, "}}");
    return ERR_OK;
}

static enum err_code put_thinking(const struct json_t *body, struct buf *out,
                                  struct api_error *error)
{
    const struct json_t *thinking = dialect_given(body, "thinking");
    const char *type = thinking ? dialect_text(thinking, "type") : "disabled";
    bool is_on = type && (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0);
    if (!is_on && (!type || strcmp(type, "disabled") != 0)) {
        return api_error_set(error, ERR_ARGUMENT, "thinking",
                             "thinking must be an object of type enabled, adaptive or disabled");
    }
    buf_printf(out, ",\"chat_template_kwargs\":{\"enable_thinking\":%s}", is_on ? "true" : "false");
    return ERR_OK;
}

enum err_code dialect_messages_to_chat(const struct json_t *body, struct buf *out,
                                       struct api_error *error)
{
    static const char *const fields[][2] = {
        {"max_tokens", "max_tokens"}, {"model", "model"},       {"stop_sequences", "stop"},
        {"stream", "stream"},         {"top_k", "top_k"},       {"temperature", "temperature"},
        {"top_p", "top_p"},           {"metadata", "metadata"},
    };
    if (!dialect_given(body, "max_tokens")) {
        return api_error_set(error, ERR_ARGUMENT, "max_tokens", "max_tokens is required");
    }
    buf_append_text(out, "{\"n\":1");
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        dialect_copy(body, fields[i][0], fields[i][1], out);
    }
    enum err_code code = put_messages(body, out, error);
    code = code ? code : put_tools(body, out, error);
    code = code ? code : put_choice(body, out, error);
    code = code ? code : put_thinking(body, out, error);
    buf_append_char(out, '}');
    return code;
}
