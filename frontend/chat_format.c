/* Which of the official formats a checkpoint uses, and a rendering's token ids. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/sha256.h"
#include "frontend/chat_render.h"

enum {
    TEMPLATE_MAX_BYTES = 1 << 20,
};

/* Source: chat_template.jinja of the published checkpoints, 2026-07-09. */
static const struct {
    const char *sha256;
    enum chat_format format;
} known_templates[] = {
    {"ae53464bf3be25802b3a5b37def7fd89667067d7577049b3b2d74c4d8de4c6d4", CHAT_FORMAT_LARGE},
    {"0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5", CHAT_FORMAT_SMALL},
};

static enum err_code read_template(const char *path, struct buf *text, bool *out_is_absent,
                                   struct err *err)
{
    int fd = -1;
    uint64_t file_bytes = 0;
    enum err_code code = file_open(path, &fd, &file_bytes, err);
    *out_is_absent = code == ERR_NOT_FOUND;
    if (code != ERR_OK) {
        return *out_is_absent ? ERR_OK : code;
    }
    char chunk[4096];
    ssize_t got = 0;
    while (text->used_bytes <= TEMPLATE_MAX_BYTES &&
           ((got = read(fd, chunk, sizeof(chunk))) > 0 || (got < 0 && errno == EINTR))) {
        buf_append(text, chunk, got > 0 ? (size_t)got : 0);
    }
    int cause = errno;
    (void)close(fd); /* only read from */
    if (got < 0) {
        return err_errno(err, cause, "reading '%s'", path);
    }
    return text->used_bytes <= TEMPLATE_MAX_BYTES
               ? ERR_OK
               : err_set(err, ERR_UNSUPPORTED, "'%s' has more than %d bytes", path,
                         TEMPLATE_MAX_BYTES);
}

enum err_code chat_format_detect(const char *model_dir, enum chat_format *out_format,
                                 struct err *err)
{
    struct buf path;
    struct buf text;
    char hex[SHA256_HEX_BYTES];
    bool is_absent = false;
    buf_init(&path);
    buf_init(&text);
    buf_printf(&path, "%s/chat_template.jinja", model_dir);
    enum err_code code = read_template(buf_text(&path), &text, &is_absent, err);
    if (code == ERR_OK && is_absent) {
        *out_format = CHAT_FORMAT_NONE;
        goto out;
    }
    code = code == ERR_OK ? sha256_hex(buf_text(&text), text.used_bytes, hex, err) : code;
    if (code != ERR_OK) {
        goto out;
    }
    for (size_t i = 0; i < sizeof(known_templates) / sizeof(known_templates[0]); i++) {
        if (strcmp(known_templates[i].sha256, hex) == 0) {
            *out_format = known_templates[i].format;
            goto out;
        }
    }
    code = err_set(err, ERR_UNSUPPORTED, "'%.80s' is no known chat template: its sha256 is %s",
                   buf_text(&path), hex);
out:
    buf_fini(&text);
    buf_fini(&path);
    return code;
}

void chat_encode(const struct tokenizer *tokenizer, const struct chat_prompt *prompt,
                 struct tok_ids *ids)
{
    for (size_t i = 0; i < prompt->span_count; i++) {
        const struct chat_span *span = &prompt->spans[i];
        tok_encode(tokenizer, prompt->text.at + span->start, span->byte_count,
                   span->is_control ? TOK_SPECIAL_PARSE : TOK_SPECIAL_AS_TEXT, ids);
    }
}
