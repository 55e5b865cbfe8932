/* What a tokenizer.json must describe for this encoder to give the same ids: Gemma's byte-fallback
 * BPE.  Everything else is refused by name. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "frontend/tokenizer_source.h"

enum {
    FOUND_MAX_BYTES = 80,
    RULE_MAX_DEPTH = 16,
};

struct rule {
    const char *name;
    const char *accepted[4]; /* JSON, compared by value; null entries end the list */
    bool may_be_absent;
};

/* Source: tokenizer.json of Gemma 4. */
static const struct rule rules[TOK_RULE_COUNT] = {
    [TOK_RULE_NORMALIZER] =
        {"normalizer",
         {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}"},
         false},
    /* The split never matches: the normalizer has replaced every space. */
    [TOK_RULE_PRE_TOKENIZER] = {"pre_tokenizer",
                                {"null", "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                                         "\"behavior\":\"MergedWithPrevious\",\"invert\":false}"},
                                true},
    [TOK_RULE_DECODER] =
        {"decoder",
         {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
          "\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"},
         false},
    [TOK_RULE_MODEL_TYPE] = {"model.type", {"\"BPE\""}, false},
    [TOK_RULE_DROPOUT] = {"model.dropout", {"null", "0", "0.0"}, true},
    [TOK_RULE_PREFIX] = {"model.continuing_subword_prefix", {"null", "\"\""}, true},
    [TOK_RULE_SUFFIX] = {"model.end_of_word_suffix", {"null", "\"\""}, true},
    /* With all byte tokens present, which is required too, <unk> never comes up: fuse_unk and
     * unk_token have no effect. */
    [TOK_RULE_BYTE_FALLBACK] = {"model.byte_fallback", {"true"}, false},
    [TOK_RULE_IGNORE_MERGES] = {"model.ignore_merges", {"false"}, true},
};

static bool same_object(const struct json_t *a, const struct json_t *b);

static bool same_value(const struct json_t *a, const struct json_t *b)
{
    if (json_kind(a) != json_kind(b)) {
        return false;
    }
    size_t a_bytes = 0;
    size_t b_bytes = 0;
    switch (json_kind(a)) {
    case JSON_KIND_NULL: return true;
    case JSON_KIND_BOOL: return json_bool(a) == json_bool(b);
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER:
    case JSON_KIND_REAL: return json_number(a) == json_number(b);
    case JSON_KIND_TEXT: {
        const char *a_text = json_text(a, &a_bytes);
        const char *b_text = json_text(b, &b_bytes);
        return a_bytes == b_bytes && memcmp(a_text, b_text, a_bytes) == 0;
    }
    case JSON_KIND_ARRAY:
        for (size_t i = 0; i < json_count(a) && json_count(a) == json_count(b); i++) {
            if (!same_value(json_element(a, i), json_element(b, i))) {
                return false;
            }
        }
        return json_count(a) == json_count(b);
    case JSON_KIND_OBJECT: return same_object(a, b);
    }
    return false;
}

static bool same_object(const struct json_t *a, const struct json_t *b)
{
    if (json_count(a) != json_count(b)) {
        return false;
    }
    struct json_iter iter;
    json_iter_start(&iter, a);
    while (json_iter_next(&iter)) {
        const struct json_t *other = json_member(b, iter.key);
        if (other == NULL || !same_value(iter.value, other)) {
            return false;
        }
    }
    return true;
}

static enum err_code refuse(const struct rule *rule, const struct json_t *found, struct err *err)
{
    struct buf text;
    buf_init(&text);
    json_put_value(&text, found);
    size_t shown = text.used_bytes;
    bool is_cut = shown > FOUND_MAX_BYTES;
    if (is_cut) {
        shown = utf8_complete_prefix(text.at, FOUND_MAX_BYTES);
    }
    enum err_code code = err_set(err, ERR_UNSUPPORTED, "%s is %.*s%s, which is not Gemma's",
                                 rule->name, (int)shown, buf_text(&text), is_cut ? "..." : "");
    buf_fini(&text);
    return code;
}

static enum err_code rule_check(const struct rule *rule, const struct tok_scan_span *value,
                                struct err *err)
{
    if (value->at == NULL) {
        return rule->may_be_absent ? ERR_OK
                                   : err_set(err, ERR_UNSUPPORTED,
                                             "%s is missing, Gemma's must be there", rule->name);
    }
    struct json_t *found = NULL;
    enum err_code code = json_parse(value->at, value->byte_count, RULE_MAX_DEPTH, &found, err);
    if (code != ERR_OK) {
        return err_wrap(err, "%s", rule->name);
    }
    bool is_accepted = false;
    for (size_t i = 0; i < sizeof(rule->accepted) / sizeof(rule->accepted[0]) &&
                       rule->accepted[i] != NULL && code == ERR_OK && !is_accepted;
         i++) {
        struct json_t *accepted = NULL;
        code = json_parse(rule->accepted[i], strlen(rule->accepted[i]), RULE_MAX_DEPTH, &accepted,
                          err);
        is_accepted = code == ERR_OK && same_value(found, accepted);
        json_release(accepted);
    }
    if (code == ERR_OK && !is_accepted) {
        code = refuse(rule, found, err);
    }
    json_release(found);
    return code;
}

enum err_code tok_rules_check(const struct tok_scan_span values[TOK_RULE_COUNT], struct err *err)
{
    for (size_t i = 0; i < TOK_RULE_COUNT; i++) {
        enum err_code code = rule_check(&rules[i], &values[i], err);
        if (code != ERR_OK) {
            return code;
        }
    }
    return ERR_OK;
}

enum err_code tok_rules_added(const struct json_t *entry, size_t index, struct tok_added *out_added,
                              struct err *err)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "added_tokens[%zu]", index); /* always fits */
    if (json_kind(entry) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_FORMAT, "%s is %s, not an object", path,
                       json_kind_text(json_kind(entry)));
    }
    const struct json_t *content = json_member(entry, "content");
    if (content == NULL || json_kind(content) != JSON_KIND_TEXT) {
        return err_set(err, ERR_FORMAT, "%s.content is not a string", path);
    }
    static const char *const must_be_false[] = {"lstrip", "rstrip", "single_word", "normalized"};
    for (size_t i = 0; i < sizeof(must_be_false) / sizeof(must_be_false[0]); i++) {
        bool value = false;
        enum err_code code = json_get_bool_or(entry, path, must_be_false[i], false, &value, err);
        if (code != ERR_OK) {
            return code;
        }
        if (value) {
            return err_set(err, ERR_UNSUPPORTED, "%s.%s is true, only false is served", path,
                           must_be_false[i]);
        }
    }
    uint32_t id = 0;
    enum err_code code = json_get_u32(entry, path, "id", TOK_MAX_TOKENS - 1, &id, err);
    if (code != ERR_OK) {
        return code;
    }
    bool is_special = false;
    code = json_get_bool_or(entry, path, "special", false, &is_special, err);
    if (code != ERR_OK) {
        return code;
    }
    *out_added = (struct tok_added){.id = id, .is_special = is_special};
    out_added->content = json_text(content, &out_added->content_bytes);
    return out_added->content_bytes > 0 ? ERR_OK
                                        : err_set(err, ERR_FORMAT, "%s.content is empty", path);
}
