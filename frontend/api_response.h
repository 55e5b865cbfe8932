/* Answers of the generation routes as JSON: whole bodies and stream chunks.
 *
 * Text pieces are appended as they become certain, so that a long answer costs its last chunk only
 * when it ends.  Pure: any thread. */
#ifndef FRONTEND_API_RESPONSE_H
#define FRONTEND_API_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/api_logprobs.h"
#include "frontend/api_request.h"

struct answer;

struct api_usage {
    uint32_t prompt_tokens;
    uint32_t output_tokens;
    uint32_t reasoning_tokens;
    uint32_t cached_tokens;
};

/* What every body of one answer repeats. */
struct api_head {
    enum api_route route;
    bool is_stream;
    bool wants_usage;      /* stream: chunks carry "usage": null, a last one the figures */
    bool wants_live_usage; /* stream: chunks carry the figures so far, live_usage */
    char id[48];
    const char *model; /* borrowed */
    uint64_t created_s;
    struct api_usage live_usage;
};

/* What a stop string or a stop id of the request has ended; neither: the end was the model's. */
struct api_stop_reason {
    const char *text; /* null: no stop string */
    size_t byte_count;
    uint32_t token; /* TOK_NONE: no stop id */
};

/* New text since the last chunk, or all of it for a whole body. */
struct api_piece {
    uint32_t index;                            /* of the choice */
    const struct answer *answer;               /* its parts */
    const struct api_logprobs *logprobs;       /* null: none */
    const struct buf *token_ids;               /* elements of an array; null: not shown */
    const struct buf *prompt_ids;              /* the same, of the prompt; with its first piece */
    const struct buf *prompt_logprobs;         /* the same, one per token of the prompt */
    const struct api_stop_reason *stop_reason; /* null before the end */
};

enum api_finish {
    API_FINISH_NONE, /* not yet */
    API_FINISH_STOP,
    API_FINISH_LENGTH,
    API_FINISH_TOOL_CALLS,
};

/* Stream chunks, each one JSON object without framing. */
void api_response_role(const struct api_head *head, const struct api_piece *piece, struct buf *out);
void api_response_delta(const struct api_head *head, const struct api_piece *piece,
                        enum api_finish finish, struct buf *out);
void api_response_usage(const struct api_head *head, const struct api_usage *usage,
                        struct buf *out);

/* The body of an answer that is not streamed: its begin, each choice in turn, its end, which the first
 * choice's prompt belongs to in chats. */
void api_response_begin(const struct api_head *head, struct buf *out);
void api_response_choice(const struct api_head *head, const struct api_piece *piece,
                         enum api_finish finish, struct buf *out);
void api_response_end(const struct api_head *head, const struct api_piece *first,
                      const struct api_usage *usage, struct buf *out);

#endif
