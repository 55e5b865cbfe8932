#include "frontend/dialect.h"

#include <string.h>

#include "common/json.h"

bool dialect_next_block(const struct answer *answer, uint32_t *at, struct dialect_block *out_block)
{
    while (*at < answer->part_count && answer->parts[*at].kind > ANSWER_CALL) {
        (*at)++; /* of a call that an earlier piece began: none in a whole answer */
    }
    if (*at == answer->part_count) {
        return false;
    }
    const struct answer_part *first = &answer->parts[(*at)++];
    *out_block = (struct dialect_block){.kind = first->kind, .call_index = first->call_index};
    if (first->kind != ANSWER_CALL) {
        out_block->text = answer_part_text(answer, first);
        out_block->byte_count = first->byte_count;
        return true;
    }
    out_block->name = answer_part_text(answer, first);
    out_block->name_bytes = first->byte_count;
    out_block->text = "";
    for (; *at < answer->part_count && answer->parts[*at].kind > ANSWER_CALL; (*at)++) {
        const struct answer_part *part = &answer->parts[*at];
        if (part->kind == ANSWER_ARGUMENTS) {
            out_block->text = answer_part_text(answer, part);
            out_block->byte_count = part->byte_count;
        } else {
            out_block->is_whole = true;
        }
    }
    return true;
}

bool dialect_continues(const struct dialect_state *state, const struct answer_part *part)
{
    if (!state->is_open) {
        return false;
    }
    if (part->kind > ANSWER_CALL) {
        return true; /* of the call that is open: calls do not overlap */
    }
    return part->kind != ANSWER_CALL && part->kind == state->open.kind;
}

void dialect_put_event(const char *name, const struct buf *json, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: ", name);
    buf_append(out, json->at, json->used_bytes);
    buf_append_text(out, "\n\n");
}

const struct json_t *dialect_given(const struct json_t *object, const char *name)
{
    const struct json_t *value = json_member(object, name);
    return value && json_kind(value) != JSON_KIND_NULL ? value : NULL;
}

const char *dialect_text(const struct json_t *object, const char *name)
{
    const struct json_t *value = dialect_given(object, name);
    return value && json_kind(value) == JSON_KIND_TEXT ? json_text(value, NULL) : NULL;
}

void dialect_put_string(const char *text, struct buf *out)
{
    json_put_text(out, text, strlen(text));
}

static void put_member(const char *name, const struct json_t *value, struct buf *out)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_value(out, value);
}

void dialect_copy(const struct json_t *object, const char *name, const char *as, struct buf *out)
{
    const struct json_t *value = dialect_given(object, name);
    if (value) {
        put_member(as, value, out);
    }
}

enum err_code dialect_join_text(const struct json_t *content, const char *param, struct buf *out,
                                struct api_error *error)
{
    size_t byte_count = 0;
    if (json_kind(content) == JSON_KIND_TEXT) {
        const char *text = json_text(content, &byte_count);
        buf_append(out, text, byte_count);
        return ERR_OK;
    }
    if (json_kind(content) != JSON_KIND_ARRAY) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "%s is %s, not a string or a list of parts", param,
                             json_kind_text(json_kind(content)));
    }
    for (size_t i = 0; i < json_count(content); i++) {
        const struct json_t *part = json_element(content, i);
        const struct json_t *text = dialect_given(part, "text");
        const char *type = dialect_text(part, "type");
        if (!text || json_kind(text) != JSON_KIND_TEXT) {
            return api_error_set(error, ERR_UNSUPPORTED, param,
                                 "%s[%zu] is of type '%.32s'; only text is served", param, i,
                                 type ? type : "");
        }
        const char *at = json_text(text, &byte_count);
        buf_append(out, at, byte_count);
    }
    return ERR_OK;
}

void dialect_turn_init(struct dialect_turn *turn)
{
    buf_init(&turn->content);
    buf_init(&turn->reasoning);
    buf_init(&turn->calls);
    turn->is_open = false;
}

void dialect_turn_fini(struct dialect_turn *turn)
{
    buf_fini(&turn->content);
    buf_fini(&turn->reasoning);
    buf_fini(&turn->calls);
}

void dialect_turn_add_call(struct dialect_turn *turn, const char *id, const char *name,
                           const struct json_t *arguments)
{
    struct buf *out = &turn->calls;
    buf_append_text(out, out->used_bytes > 0 ? ",{\"id\":" : "{\"id\":");
    dialect_put_string(id, out);
    buf_append_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
    dialect_put_string(name, out);
    put_member("arguments", arguments, out);
    buf_append_text(out, "}}");
    turn->is_open = true;
}

static void put_text_member(const char *name, const struct buf *text, struct buf *out)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_text(out, buf_text(text), text->used_bytes);
}

void dialect_turn_flush(struct dialect_turn *turn, struct buf *messages)
{
    if (!turn->is_open) {
        return;
    }
    buf_append_text(messages, messages->used_bytes > 0 ? ",{" : "{");
    buf_append_text(messages, "\"role\":\"assistant\"");
    put_text_member("content", &turn->content, messages);
    if (turn->reasoning.used_bytes > 0) {
        put_text_member("reasoning_content", &turn->reasoning, messages);
    }
    if (turn->calls.used_bytes > 0) {
        buf_append_text(messages, ",\"tool_calls\":[");
        buf_append(messages, turn->calls.at, turn->calls.used_bytes);
        buf_append_char(messages, ']');
    }
    buf_append_char(messages, '}');
    buf_reset(&turn->content);
    buf_reset(&turn->reasoning);
    buf_reset(&turn->calls);
    turn->is_open = false;
}

void dialect_put_message(const char *role, const struct buf *text, const char *call_id,
                         struct buf *messages)
{
    buf_append_text(messages, messages->used_bytes > 0 ? ",{\"role\":" : "{\"role\":");
    dialect_put_string(role, messages);
    if (call_id) {
        buf_append_text(messages, ",\"tool_call_id\":");
        dialect_put_string(call_id, messages);
    }
    put_text_member("content", text, messages);
    buf_append_char(messages, '}');
}
