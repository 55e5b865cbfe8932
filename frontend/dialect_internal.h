/* Shared by the files of the dialects alone: bodies into those of chat completions. */
#ifndef FRONTEND_DIALECT_INTERNAL_H
#define FRONTEND_DIALECT_INTERNAL_H

#include "frontend/dialect.h"

enum err_code dialect_messages_to_chat(const struct json_t *body, struct buf *out,
                                       struct api_error *error);

#endif
