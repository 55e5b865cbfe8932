/* Messages and tools into prompt tokens, exactly as Gemma 4's two official chat templates do.
 *
 * Rendering yields pieces: control strings (which become their ids) and everything else (in which
 * special strings stay ordinary text), so user text can never forge a turn.  Pure: any thread. */
#ifndef FRONTEND_CHAT_RENDER_H
#define FRONTEND_CHAT_RENDER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "frontend/tokenizer.h"

enum chat_format {
    CHAT_FORMAT_NONE,  /* no template: chat is refused */
    CHAT_FORMAT_LARGE, /* 12B, 26B-A4B, 31B */
    CHAT_FORMAT_SMALL, /* E2B, E4B */
};

struct chat_options {
    enum chat_format format;
    bool add_generation_prompt;
    bool enable_thinking;
    bool preserve_thinking;
    /* The prompt ends inside the last message, right behind its content. */
    bool continue_final_message;
    /* What a template prints as a placeholder or passes over in silence is rendered so: media parts,
     * parts of unknown types, roles of any name.  Otherwise they are refused. */
    bool as_template;
};

/* Format of a checkpoint from the sha256 of its chat_template.jinja.  NONE with ERR_OK where there
 * is no file.  Errors: ERR_UNSUPPORTED names the hash of an unknown template. */
ERR_NODISCARD enum err_code chat_format_detect(const char *model_dir, enum chat_format *out_format,
                                               struct err *err);

/* One run of the prompt. */
struct chat_span {
    size_t start; /* in chat_prompt.text */
    size_t byte_count;
    bool is_control; /* control strings and nothing else; the spans take turns */
};

struct chat_prompt {
    struct buf text;         /* the whole rendering */
    struct chat_span *spans; /* owned; cover text without gaps */
    size_t span_count;
    size_t span_cap;
};
void chat_prompt_init(struct chat_prompt *prompt);
void chat_prompt_fini(struct chat_prompt *prompt);

/* messages: array; tools: array or null; both borrowed.  Arguments of tool calls may be objects or,
 * as OpenAI's clients send them, the JSON text of one.  Errors: ERR_ARGUMENT with the path of the
 * member ("messages[2].content[0].type") and what was wrong; ERR_UNSUPPORTED for images, audio and
 * video. */
ERR_NODISCARD enum err_code chat_render(const struct json_t *messages, const struct json_t *tools,
                                        const struct chat_options *options,
                                        struct chat_prompt *out_prompt, struct err *err);

/* Token ids of a rendering.  Adjacent spans of ordinary text are encoded as one piece, so that the
 * ids equal those of the whole text wherever no content holds a special string. */
void chat_encode(const struct tokenizer *tokenizer, const struct chat_prompt *prompt,
                 struct tok_ids *ids);

#endif
