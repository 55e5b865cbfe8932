#include "frontend/api_message.h"

#include <string.h>

#include "common/json.h"
#include "frontend/answer.h"

void api_message_call_id(const struct api_head *head, const struct api_piece *piece,
                         uint32_t call_index, struct buf *out)
{
    const char *unique = strchr(head->id, '-');
    buf_printf(out, "call_%s", unique ? unique + 1 : head->id);
    if (piece->index > 0) {
        buf_printf(out, "%uc", piece->index);
    }
    buf_printf(out, "%u", call_index);
}

/* "name": "text", where the answer has such parts. */
static bool put_text(const struct answer *answer, enum answer_kind kind, const char *name,
                     const char *comma, struct buf *out)
{
    if (!answer_has(answer, kind)) {
        return false;
    }
    struct buf text;
    buf_init(&text);
    answer_join(answer, kind, &text);
    buf_printf(out, "%s\"%s\":", comma, name);
    json_put_text(out, buf_text(&text), text.used_bytes);
    buf_fini(&text);
    return true;
}

/* One element: the parts of a call from *at on, which is left behind them. */
static void put_call(const struct api_head *head, const struct api_piece *piece, uint32_t *at,
                     struct buf *out)
{
    const struct answer *answer = piece->answer;
    const struct answer_part *first = &answer->parts[*at];
    uint32_t call_index = first->call_index;
    struct buf arguments;
    buf_init(&arguments);
    buf_append_char(out, '{');
    if (head->is_stream) {
        buf_printf(out, "\"index\":%u,", call_index);
    }
    if (first->kind == ANSWER_CALL) {
        buf_append_text(out, "\"id\":\"");
        api_message_call_id(head, piece, call_index, out);
        buf_append_text(out, "\",\"type\":\"function\",\"function\":{\"name\":");
        json_put_text(out, answer_part_text(answer, first), first->byte_count);
        buf_append_text(out, ",\"arguments\":");
    } else {
        buf_append_text(out, "\"function\":{\"arguments\":");
    }
    while (*at < answer->part_count && answer->parts[*at].call_index == call_index &&
           answer->parts[*at].kind >= ANSWER_CALL) {
        const struct answer_part *part = &answer->parts[(*at)++];
        if (part->kind == ANSWER_ARGUMENTS) {
            buf_append(&arguments, answer_part_text(answer, part), part->byte_count);
        }
    }
    json_put_text(out, buf_text(&arguments), arguments.used_bytes);
    buf_append_text(out, "}}");
    buf_fini(&arguments);
}

/* "tool_calls": [...], where the answer has such parts. */
static void put_calls(const struct api_head *head, const struct api_piece *piece, const char *comma,
                      struct buf *out)
{
    const struct answer *answer = piece->answer;
    if (!answer_has(answer, ANSWER_CALL) && !answer_has(answer, ANSWER_ARGUMENTS)) {
        return;
    }
    buf_printf(out, "%s\"tool_calls\":[", comma);
    const char *separator = "";
    uint32_t i = 0;
    while (i < answer->part_count) {
        enum answer_kind kind = answer->parts[i].kind;
        if (kind != ANSWER_CALL && kind != ANSWER_ARGUMENTS) {
            i++;
            continue;
        }
        buf_append_text(out, separator);
        put_call(head, piece, &i, out);
        separator = ",";
    }
    buf_append_char(out, ']');
}

/* Two names are in use for the thoughts, and clients read one or the other. */
static bool put_reasoning(const struct answer *answer, const char *comma, struct buf *out)
{
    return put_text(answer, ANSWER_REASONING, "reasoning_content", comma, out) &&
           put_text(answer, ANSWER_REASONING, "reasoning", ",", out);
}

void api_message_delta(const struct api_head *head, const struct api_piece *piece, struct buf *out)
{
    const char *comma = "";
    buf_append_text(out, "\"delta\":{");
    if (put_reasoning(piece->answer, comma, out)) {
        comma = ",";
    }
    if (put_text(piece->answer, ANSWER_CONTENT, "content", comma, out)) {
        comma = ",";
    }
    put_calls(head, piece, comma, out);
    buf_append_char(out, '}');
}

void api_message_whole(const struct api_head *head, const struct api_piece *piece, struct buf *out)
{
    const struct answer *answer = piece->answer;
    buf_append_text(out, "\"message\":{\"role\":\"assistant\"");
    if (!put_text(answer, ANSWER_CONTENT, "content", ",", out)) {
        bool has_calls = answer_has(answer, ANSWER_CALL);
        buf_append_text(out, has_calls ? ",\"content\":null" : ",\"content\":\"\"");
    }
    buf_append_text(out, ",\"refusal\":null");
    if (!put_reasoning(answer, ",", out)) {
        buf_append_text(out, ",\"reasoning_content\":null,\"reasoning\":null");
    }
    put_calls(head, piece, ",", out);
    buf_append_char(out, '}');
}
