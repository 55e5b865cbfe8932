#include "frontend/chat_heads.h"

#include <ctype.h>
#include <string.h>

#include "common/json.h"

static const char channel_name[] = "thought\n";
static const char call_word[] = "call:";

enum {
    CHANNEL_NAME_BYTES = sizeof(channel_name) - 1,
    CALL_WORD_BYTES = sizeof(call_word) - 1,
    MAX_NAME_BYTES = 256,
};

static const struct json_t *function_of(const struct json_t *tool)
{
    const struct json_t *function = json_member(tool, "function");
    return function ? function : tool;
}

/* Name of a tool, null where it has none. */
static const char *name_of(const struct json_t *tool, size_t *out_byte_count)
{
    const struct json_t *name = json_member(function_of(tool), "name");
    if (!name || json_kind(name) != JSON_KIND_TEXT) {
        return NULL;
    }
    return json_text(name, out_byte_count);
}

const struct json_t *chat_heads_schema(const struct json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json_t *tool = json_element(tools, i);
        size_t byte_count = 0;
        const char *tool_name = name_of(tool, &byte_count);
        if (tool_name && strcmp(tool_name, name) == 0) {
            return json_member(function_of(tool), "parameters");
        }
    }
    return NULL;
}

/* CHANNEL stands for "the whole of word". */
static enum chat_head_kind match_word(const char *text, size_t byte_count, const char *word,
                                      size_t word_bytes)
{
    size_t common_bytes = byte_count < word_bytes ? byte_count : word_bytes;
    if (memcmp(text, word, common_bytes) != 0) {
        return CHAT_HEAD_NONE;
    }
    return byte_count < word_bytes ? CHAT_HEAD_OPEN : CHAT_HEAD_CHANNEL;
}

/* The call of one tool, at text. */
static enum chat_head_kind match_tool(const char *text, size_t byte_count, const char *name,
                                      size_t name_bytes)
{
    enum chat_head_kind kind = match_word(text, byte_count, name, name_bytes);
    if (kind != CHAT_HEAD_CHANNEL) {
        return kind;
    }
    if (byte_count == name_bytes) {
        return CHAT_HEAD_OPEN;
    }
    return text[name_bytes] == '{' ? CHAT_HEAD_CALL : CHAT_HEAD_NONE;
}

static enum chat_head_kind match_tools(const struct buf *text, const struct json_t *tools,
                                       struct chat_head *out_head)
{
    enum chat_head_kind best = match_word(text->at, text->used_bytes, call_word, CALL_WORD_BYTES);
    if (best != CHAT_HEAD_CHANNEL) {
        return best;
    }
    best = CHAT_HEAD_NONE;
    const char *at = text->at + CALL_WORD_BYTES;
    size_t left_bytes = text->used_bytes - CALL_WORD_BYTES;
    for (size_t i = 0; i < json_count(tools); i++) {
        size_t name_bytes = 0;
        const char *name = name_of(json_element(tools, i), &name_bytes);
        bool is_usable = name && name_bytes > 0 && name_bytes <= MAX_NAME_BYTES;
        enum chat_head_kind kind =
            is_usable ? match_tool(at, left_bytes, name, name_bytes) : CHAT_HEAD_NONE;
        if (kind == CHAT_HEAD_CALL) {
            out_head->name = at;
            out_head->name_bytes = name_bytes;
            out_head->byte_count = CALL_WORD_BYTES + name_bytes + 1;
            return kind;
        }
        best = kind == CHAT_HEAD_OPEN ? kind : best;
    }
    return best;
}

enum chat_head_kind chat_heads_match(const struct buf *text, bool has_channel,
                                     const struct json_t *tools, struct chat_head *out_head)
{
    enum chat_head_kind channel = CHAT_HEAD_NONE;
    if (has_channel) {
        channel = match_word(text->at, text->used_bytes, channel_name, CHANNEL_NAME_BYTES);
    }
    if (channel == CHAT_HEAD_CHANNEL) {
        out_head->byte_count = CHANNEL_NAME_BYTES;
        return channel;
    }
    if (channel == CHAT_HEAD_OPEN || !tools) {
        return channel;
    }
    return match_tools(text, tools, out_head);
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

enum chat_head_kind chat_heads_match_call(const struct buf *text, struct chat_head *out_head)
{
    const char *start = buf_text(text);
    const char *end = start + text->used_bytes;
    const char *at = start + strspn(start, " \n\t\r");
    enum chat_head_kind word = match_word(at, (size_t)(end - at), call_word, CALL_WORD_BYTES);
    if (word == CHAT_HEAD_OPEN || end - start > CALL_WORD_BYTES + 2 * MAX_NAME_BYTES) {
        return word == CHAT_HEAD_OPEN ? word : CHAT_HEAD_NONE;
    }
    at += word == CHAT_HEAD_CHANNEL ? CALL_WORD_BYTES : 0;
    at += *at == ':';
    const char *brace = at;
    while (is_name_char(*brace)) {
        brace++;
    }
    if (brace == end) {
        return CHAT_HEAD_OPEN;
    }
    if (*brace != '{' || brace == at) {
        return CHAT_HEAD_NONE;
    }
    out_head->name = at;
    out_head->name_bytes = (size_t)(brace - at);
    out_head->byte_count = (size_t)(brace - start) + 1;
    return CHAT_HEAD_CALL;
}

bool chat_heads_is_name(const struct buf *text)
{
    return text->used_bytes == CHANNEL_NAME_BYTES - 1 &&
           memcmp(text->at, channel_name, CHANNEL_NAME_BYTES - 1) == 0;
}
