/* Routes that run nothing: text to token ids and back, and a chat as the prompt it becomes.
 *
 * Each takes the body's bytes and appends the answer's JSON.  May take long: work threads. */
#ifndef FRONTEND_API_TEXT_H
#define FRONTEND_API_TEXT_H

#include <stdint.h>

#include "common/buf.h"
#include "frontend/api_error.h"
#include "frontend/prepare.h"

/* Errors of all: those of api_request_parse_body, ERR_ARGUMENT, ERR_NOT_FOUND (model),
 * ERR_UNSUPPORTED (no tokenizer, no chat template); error names the field.  input->route is not
 * looked at; input->limits.max_context_tokens is 0 where no worker was ever attached. */

/* {"prompt": text} or the fields of a chat -> {"count", "max_model_len", "tokens", "token_strs"}. */
ERR_NODISCARD enum err_code api_text_tokenize(const struct prepare_model *model,
                                              const struct prepare_input *input, struct buf *out,
                                              struct api_error *error);

/* {"tokens": ids} -> {"prompt": text}, special tokens as their text. */
ERR_NODISCARD enum err_code api_text_detokenize(const struct prepare_model *model,
                                                const struct prepare_input *input, struct buf *out,
                                                struct api_error *error);

/* A chat request -> {"prompt": text, "token_ids": [...]}; checked as one that is to run. */
ERR_NODISCARD enum err_code api_text_render(const struct prepare_model *model,
                                            const struct prepare_input *input, struct buf *out,
                                            struct api_error *error);

#endif
