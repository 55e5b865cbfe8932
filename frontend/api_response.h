/* Answers of the generation routes as JSON: whole bodies and stream chunks.
 *
 * Text pieces are appended as they become certain, so that a long answer costs its last chunk only
 * when it ends.  Pure: any thread. */
#ifndef FRONTEND_API_RESPONSE_H
#define FRONTEND_API_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/api_request.h"
#include "frontend/engine.h"
#include "frontend/tokenizer.h"

struct answer;

/* What every body of one answer repeats. */
struct api_head {
    enum api_route route;
    bool is_stream;
    bool wants_usage; /* stream: chunks carry "usage": null, a last one the figures */
    bool wants_logprobs;
    char id[48];
    const char *model; /* borrowed */
    uint64_t created_s;
};

struct api_usage {
    uint32_t prompt_tokens;
    uint32_t output_tokens;
    uint32_t reasoning_tokens;
    uint32_t cached_tokens;
};

/* Logprobs gathered since the last reset, in the route's shape. */
struct api_logprobs {
    enum api_route route;
    uint32_t entry_count;
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

/* New text since the last chunk, or all of it for a whole body. */
struct api_piece {
    uint32_t index;                      /* of the choice */
    const struct answer *answer;         /* its parts */
    const struct api_logprobs *logprobs; /* null: none */
    const struct buf *token_ids;         /* elements of an array; null: not shown */
};

enum api_finish {
    API_FINISH_NONE, /* not yet */
    API_FINISH_STOP,
    API_FINISH_LENGTH,
    API_FINISH_TOOL_CALLS,
};

/* Stream chunks, each one JSON object without framing. */
void api_response_role(const struct api_head *head, uint32_t index, struct buf *out);
void api_response_delta(const struct api_head *head, const struct api_piece *piece,
                        enum api_finish finish, struct buf *out);
void api_response_usage(const struct api_head *head, const struct api_usage *usage,
                        struct buf *out);

/* The body of an answer that is not streamed: its begin, each choice in turn, its end. */
void api_response_begin(const struct api_head *head, struct buf *out);
void api_response_choice(const struct api_head *head, const struct api_piece *piece,
                         enum api_finish finish, struct buf *out);
void api_response_end(const struct api_usage *usage, struct buf *out);

#endif
