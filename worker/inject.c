#include "worker/inject.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const stage_texts[INJECT_STAGE_COUNT] = {
#define STAGE(NAME, text) [INJECT_##NAME] = text,
#include "worker/inject.def"
#undef STAGE
};

static uint32_t find_stage(const char *text, size_t byte_count)
{
    uint32_t stage = 0;
    while (stage < INJECT_STAGE_COUNT && (strlen(stage_texts[stage]) != byte_count ||
                                          memcmp(stage_texts[stage], text, byte_count) != 0)) {
        stage++;
    }
    return stage;
}

/* "STAGE:N" or "STAGE:N+" of byte_count bytes. */
static enum err_code parse_one(struct inject *inject, const char *text, size_t byte_count,
                               struct err *err)
{
    int shown_bytes = byte_count > 40 ? 40 : (int)byte_count;
    const char *colon = memchr(text, ':', byte_count);
    uint32_t stage = colon == NULL ? INJECT_STAGE_COUNT : find_stage(text, (size_t)(colon - text));
    if (stage == INJECT_STAGE_COUNT) {
        return err_set(err, ERR_ARGUMENT, "inject '%.*s': no such stage", shown_bytes, text);
    }
    char *end = NULL;
    errno = 0;
    unsigned long long passage = strtoull(colon + 1, &end, 10);
    bool from_then_on = *end == '+';
    end += from_then_on;
    bool is_number = colon[1] >= '0' && colon[1] <= '9' && errno == 0 && passage > 0;
    if (!is_number || end != text + byte_count) {
        return err_set(err, ERR_ARGUMENT, "inject '%.*s': want %s:N or %s:N+ with N from 1",
                       shown_bytes, text, stage_texts[stage], stage_texts[stage]);
    }
    inject->at[stage] = passage;
    inject->from_then_on[stage] = from_then_on;
    return ERR_OK;
}

enum err_code inject_parse(struct inject *inject, const char *text, struct err *err)
{
    struct inject parsed = {0};
    const char *at = text == NULL ? "" : text;
    while (*at != '\0') {
        size_t byte_count = strcspn(at, ",");
        enum err_code code = parse_one(&parsed, at, byte_count, err);
        if (code != ERR_OK) {
            return code;
        }
        at += byte_count;
        if (*at == ',' && *++at == '\0') {
            return err_set(err, ERR_ARGUMENT, "inject '%s': nothing after the last comma", text);
        }
    }
    *inject = parsed;
    return ERR_OK;
}

bool inject_hits(struct inject *inject, enum inject_stage stage)
{
    uint64_t passage = ++inject->seen[stage];
    uint64_t at = inject->at[stage];
    return at != 0 && (passage == at || (inject->from_then_on[stage] && passage > at));
}
