/* Log probabilities of tokens as JSON, in the shapes of both routes.  Pure: any thread. */
#ifndef FRONTEND_API_LOGPROBS_H
#define FRONTEND_API_LOGPROBS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/api_request.h"
#include "frontend/engine.h"
#include "frontend/tokenizer.h"

/* Logprobs gathered since the last reset, in the route's shape. */
struct api_logprobs {
    enum api_route route;
    uint32_t entry_count;
    bool skips_special;         /* special tokens are no part of the output's text */
    uint32_t text_offset_chars; /* completions: of the next token in the output */
    struct buf content;         /* chat: elements of logprobs.content */
    struct buf tokens;          /* completions: elements of the four arrays */
    struct buf values;
    struct buf tops;
    struct buf offsets;
};
void api_logprobs_init(struct api_logprobs *logprobs, enum api_route route);
void api_logprobs_fini(struct api_logprobs *logprobs);
void api_logprobs_reset(struct api_logprobs *logprobs);
/* pair_count of the event's pairs are shown.  tokenizer may be null: ids stand for texts. */
void api_logprobs_add(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                      const struct engine_event *event, uint32_t pair_count);

/* Completions: the first token of an echoed prompt, which nothing predicts; not shown where the server
 * put it there. */
void api_logprobs_add_first(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                            uint32_t token, bool is_shown);

/* Append the member "logprobs" with a comma before it; null gives null. */
void api_logprobs_put(struct buf *out, const struct api_logprobs *logprobs);

/* The elements begin with "null": nothing predicts the first token.  Append a position to the elements of "prompt_logprobs": {"<id>": {logprob, rank, decoded_token}}, the
 * prompt's own token first. */
void api_prompt_logprobs_add(struct buf *out, const struct tokenizer *tokenizer,
                             const struct engine_event *event, uint32_t pair_count);

#endif
