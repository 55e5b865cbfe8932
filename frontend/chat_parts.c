/* Roles and content parts of messages. */
#include "frontend/chat_internal.h"

bool chat_is_role(const struct chat_rendering *render, size_t index, const char *role)
{
    return chat_text_equals(chat_member(json_element(render->messages, index), "role"), role);
}

enum chat_part chat_part_kind(const struct json_t *part)
{
    static const struct {
        const char *type;
        enum chat_part kind;
    } kinds[] = {
        {"text", CHAT_PART_TEXT},         {"image", CHAT_PART_IMAGE},
        {"image_url", CHAT_PART_IMAGE},   {"audio", CHAT_PART_AUDIO},
        {"input_audio", CHAT_PART_AUDIO}, {"video", CHAT_PART_VIDEO},
    };
    const struct json_t *type = chat_member(part, "type");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (chat_text_equals(type, kinds[i].type)) {
            return kinds[i].kind;
        }
    }
    return CHAT_PART_OTHER;
}

enum err_code chat_part_text(const struct chat_rendering *render, const struct json_t *part,
                             const struct chat_path *path, bool may_be_absent,
                             const struct json_t **out_text)
{
    const struct json_t *text = chat_member(part, "text");
    struct chat_path here = {.up = path, .key = "text"};
    if (!chat_is_text(text) && (text != NULL || !may_be_absent)) {
        return chat_refuse_kind(render->err, &here, text, "a string");
    }
    *out_text = text;
    return ERR_OK;
}

enum err_code chat_part_check(const struct chat_rendering *render, const struct json_t *part,
                              const struct chat_path *path)
{
    if (json_kind(part) != JSON_KIND_OBJECT) {
        return chat_refuse_kind(render->err, path, part, "an object");
    }
    enum chat_part kind = chat_part_kind(part);
    if (kind == CHAT_PART_TEXT || render->options->as_template) {
        return ERR_OK;
    }
    const struct json_t *type = json_member(part, "type");
    struct chat_path here = {.up = path, .key = "type"};
    if (!chat_is_text(type)) {
        return chat_refuse_kind(render->err, &here, type, "a string");
    }
    if (kind == CHAT_PART_OTHER) {
        return chat_refuse(render->err, ERR_ARGUMENT, &here, "is '%.40s', not text",
                           json_text(type, NULL));
    }
    return chat_refuse(render->err, ERR_UNSUPPORTED, &here,
                       "is '%.40s': this server takes text only", json_text(type, NULL));
}

void chat_put_media(const struct chat_rendering *render, enum chat_part kind)
{
    switch (kind) {
    case CHAT_PART_IMAGE: chat_put_control(render->prompt, "<|image|>"); return;
    case CHAT_PART_AUDIO: chat_put_control(render->prompt, "<|audio|>"); return;
    case CHAT_PART_VIDEO: chat_put_control(render->prompt, "<|video|>"); return;
    case CHAT_PART_TEXT:
    case CHAT_PART_OTHER: return;
    }
}
