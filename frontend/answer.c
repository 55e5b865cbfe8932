#include "frontend/answer.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"

void answer_init(struct answer *answer)
{
    memset(answer, 0, sizeof(*answer));
    buf_init(&answer->text);
}

void answer_fini(struct answer *answer)
{
    buf_fini(&answer->text);
    mem_free(answer->parts);
    answer->parts = NULL;
}

void answer_reset(struct answer *answer)
{
    buf_reset(&answer->text);
    answer->part_count = 0;
}

static bool is_event(enum answer_kind kind)
{
    return kind == ANSWER_CALL || kind == ANSWER_CALL_END;
}

void answer_put(struct answer *answer, enum answer_kind kind, uint32_t call_index, const char *text,
                size_t byte_count)
{
    if (byte_count == 0 && !is_event(kind)) {
        return;
    }
    struct answer_part *last =
        answer->part_count > 0 ? &answer->parts[answer->part_count - 1] : NULL;
    size_t start = answer->text.used_bytes;
    if (byte_count > 0) {
        buf_append(&answer->text, text, byte_count);
    }
    if (last && last->kind == kind && last->call_index == call_index && !is_event(kind)) {
        last->byte_count += byte_count;
        return;
    }
    if (answer->part_count == answer->part_cap) {
        answer->part_cap = answer->part_cap == 0 ? 4 : answer->part_cap * 2;
        answer->parts = mem_realloc(answer->parts, answer->part_cap, sizeof(*answer->parts));
    }
    assert(answer->parts != NULL);
    answer->parts[answer->part_count++] = (struct answer_part){
        .kind = kind, .call_index = call_index, .start = start, .byte_count = byte_count};
}

const char *answer_part_text(const struct answer *answer, const struct answer_part *part)
{
    return buf_text(&answer->text) + part->start;
}

void answer_join(const struct answer *answer, enum answer_kind kind, struct buf *out)
{
    for (uint32_t i = 0; i < answer->part_count; i++) {
        const struct answer_part *part = &answer->parts[i];
        if (part->kind == kind && part->byte_count > 0) {
            buf_append(out, answer_part_text(answer, part), part->byte_count);
        }
    }
}

bool answer_has(const struct answer *answer, enum answer_kind kind)
{
    for (uint32_t i = 0; i < answer->part_count; i++) {
        if (answer->parts[i].kind == kind) {
            return true;
        }
    }
    return false;
}
