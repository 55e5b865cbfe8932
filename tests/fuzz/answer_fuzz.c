/* A flag byte, then an output's text with its markers spelled out.  Each output is also read without
 * each of its markers and cut behind each of its bytes.  Pieces join to what comes at once, calls are
 * numbered in order, a call that ended is JSON, little is held back, and no text is lost. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "frontend/chat_parse.h"
#include "frontend/tokenizer.h"
#include "tests/fuzz/fuzz.h"

enum {
    MAX_DEPTH = 200,
    MAX_DAMAGED_BYTES = 192, /* a longer output is read as it is */
    MAX_HELD_BYTES = 4096 + 512,
    MARKER_LOSS_BYTES = 9, /* the channel's name, or the newline before a marker */
};

struct rig {
    struct tokenizer *tokenizer;
    struct chat_markers markers;
    struct json_t *tools;
};

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void open_rig(struct rig *rig)
{
    static const char tools[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"i\":{\"type\":\"integer\"},\"l\":{\"type\":[\"array\",\"null\"],\"items\":{\"type\":"
        "\"number\"}},\"o\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"b\":{\"type\":"
        "\"boolean\"}}}]}}}}},{\"function\":{\"name\":\"get_weather\"}},7]";
    struct err err;
    if (tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &rig->tokenizer, &err) != ERR_OK ||
        json_parse(tools, sizeof(tools) - 1, MAX_DEPTH, &rig->tools, &err) != ERR_OK) {
        abort();
    }
    chat_markers_find(rig->tokenizer, &rig->markers);
}

static const char *prompt_of(uint8_t flags)
{
    static const char *const prompts[] = {"<|turn>model\n",
                                          "<|turn>model\n<|channel>thought\n<channel|>",
                                          "<tool_response|><|channel>thought\n", ""};
    return prompts[(flags >> 1) & 3];
}

struct output {
    const uint32_t *ids;
    size_t count;
    size_t dropped; /* index left out; count: none */
    uint8_t flags;
};

static bool has_tools(const struct output *output)
{
    return (output->flags & 1) != 0;
}

static void append(const struct answer *piece, struct answer *whole)
{
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct answer_part *part = &piece->parts[i];
        answer_put(whole, part->kind, part->call_index, answer_part_text(piece, part),
                   part->byte_count);
    }
}

static void parse_output(const struct rig *rig, const struct output *output, bool by_piece,
                         struct answer *whole)
{
    struct tok_ids prompt = {0};
    struct chat_parse parse;
    struct answer piece;
    const char *prompt_text = prompt_of(output->flags);
    answer_init(&piece);
    tok_encode(rig->tokenizer, prompt_text, strlen(prompt_text), TOK_SPECIAL_PARSE, &prompt);
    chat_parse_init(&parse, &rig->markers, rig->tokenizer, prompt.at, prompt.count,
                    has_tools(output) ? rig->tools : NULL);
    for (size_t i = 0; i < output->count; i++) {
        if (i == output->dropped) {
            continue;
        }
        chat_parse_push(&parse, output->ids[i], &piece);
        require(parse.held.used_bytes <= MAX_HELD_BYTES);
        require(parse.args.held.used_bytes <= MAX_HELD_BYTES);
        require(parse.piece.used_bytes == 0 && parse.json.used_bytes == 0);
        if (by_piece) {
            append(&piece, whole);
            answer_reset(&piece);
        }
    }
    chat_parse_finish(&parse, &piece);
    append(&piece, whole);
    chat_parse_fini(&parse);
    answer_fini(&piece);
    tok_ids_fini(&prompt);
}

static void check_calls(const struct answer *answer)
{
    uint32_t call_count = 0;
    bool is_open = false;
    struct buf arguments;
    buf_init(&arguments);
    for (uint32_t i = 0; i < answer->part_count; i++) {
        const struct answer_part *part = &answer->parts[i];
        struct json_t *value = NULL;
        struct err err;
        switch (part->kind) {
        case ANSWER_CONTENT:
        case ANSWER_REASONING: require(!is_open && part->byte_count > 0); break;
        case ANSWER_CALL:
            require(!is_open && part->call_index == call_count && part->byte_count > 0);
            is_open = true;
            call_count++;
            buf_reset(&arguments);
            break;
        case ANSWER_ARGUMENTS:
            require(is_open && part->call_index + 1 == call_count);
            buf_append(&arguments, answer_part_text(answer, part), part->byte_count);
            break;
        case ANSWER_CALL_END:
            require(is_open && json_parse(arguments.at, arguments.used_bytes, MAX_DEPTH, &value,
                                          &err) == ERR_OK);
            require(json_kind(value) == JSON_KIND_OBJECT);
            json_release(value);
            is_open = false;
            break;
        }
    }
    buf_fini(&arguments);
}

/* Without tools every byte that is not a marker's is content or reasoning. */
static void check_text(const struct rig *rig, const struct output *output,
                       const struct answer *answer)
{
    size_t text_bytes = 0;
    size_t loss_bytes = 2 * (size_t)MARKER_LOSS_BYTES;
    for (size_t i = 0; i < output->count; i++) {
        uint32_t byte_count = 0;
        bool is_special = tok_is_special(rig->tokenizer, output->ids[i]);
        if (i != output->dropped && tok_bytes(rig->tokenizer, output->ids[i], &byte_count)) {
            text_bytes += is_special ? 0 : byte_count;
            loss_bytes += is_special ? MARKER_LOSS_BYTES : 0;
        }
    }
    require(answer->text.used_bytes + loss_bytes >= text_bytes);
}

static void check_output(const struct rig *rig, const struct output *output)
{
    struct answer whole;
    struct answer joined;
    answer_init(&whole);
    answer_init(&joined);
    parse_output(rig, output, false, &whole);
    parse_output(rig, output, true, &joined);
    require(whole.part_count == joined.part_count);
    require(whole.text.used_bytes == joined.text.used_bytes);
    require(strcmp(buf_text(&whole.text), buf_text(&joined.text)) == 0);
    for (uint32_t i = 0; i < whole.part_count; i++) {
        require(whole.parts[i].kind == joined.parts[i].kind &&
                whole.parts[i].start == joined.parts[i].start &&
                whole.parts[i].call_index == joined.parts[i].call_index);
    }
    check_calls(&whole);
    if (!has_tools(output)) {
        check_text(rig, output, &whole);
    }
    answer_fini(&whole);
    answer_fini(&joined);
}

static void check_text_of(const struct rig *rig, const char *text, size_t byte_count, uint8_t flags,
                          bool drops)
{
    struct tok_ids ids = {0};
    tok_encode(rig->tokenizer, text, byte_count, TOK_SPECIAL_PARSE, &ids);
    struct output output = {
        .ids = ids.at, .count = ids.count, .dropped = ids.count, .flags = flags};
    check_output(rig, &output);
    for (size_t i = 0; drops && i < ids.count; i++) {
        if (tok_is_special(rig->tokenizer, ids.at[i])) {
            output.dropped = i;
            check_output(rig, &output);
        }
    }
    tok_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct rig rig; /* loaded once, then only read */
    if (!rig.tokenizer) {
        open_rig(&rig);
    }
    if (byte_count == 0) {
        return 0;
    }
    const char *text = (const char *)bytes + 1;
    size_t text_bytes = byte_count - 1;
    bool is_short = text_bytes <= MAX_DAMAGED_BYTES;
    check_text_of(&rig, text, text_bytes, bytes[0], is_short);
    for (size_t i = 0; is_short && i < text_bytes; i++) {
        check_text_of(&rig, text, i, bytes[0], false);
    }
    return 0;
}
