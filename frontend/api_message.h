/* The parts of an answer as an assistant message of chat completions: whole, or a stream's deltas.
 * Pure: any thread. */
#ifndef FRONTEND_API_MESSAGE_H
#define FRONTEND_API_MESSAGE_H

#include "common/buf.h"
#include "frontend/api_response.h"

/* Id of a call, unique to the answer: all dialects use the same. */
void api_message_call_id(const struct api_head *head, const struct api_piece *piece,
                         uint32_t call_index, struct buf *out);

/* Append `"delta":{...}`: of each call's first piece the id, the type and the name, of all pieces
 * the arguments' next text. */
void api_message_delta(const struct api_head *head, const struct api_piece *piece, struct buf *out);

/* Append `"message":{...}`. */
void api_message_whole(const struct api_head *head, const struct api_piece *piece, struct buf *out);

#endif
