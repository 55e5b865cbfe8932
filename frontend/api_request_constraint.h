/* What a request asks its output to be, in every spelling: response_format, vLLM's guided_* and
 * structured_outputs, llama.cpp's json_schema, forced tool calls.  Pure: any thread. */
#ifndef FRONTEND_API_REQUEST_CONSTRAINT_H
#define FRONTEND_API_REQUEST_CONSTRAINT_H

#include "common/err.h"
#include "frontend/api_error.h"
#include "frontend/grammar.h"

struct api_request;
struct json_t;

struct api_constraint {
    bool is_given;
    const char *param;            /* the field that asked for it */
    struct grammar_source source; /* borrowed from the body, and from owned */
    struct json_t *owned;         /* owned; a schema that came as text */
};

/* Reads the body's fields into request->constraint; tools and tool_choice are read before.
 * Errors: ERR_ARGUMENT (kind, two at once, fields that exclude it). */
ERR_NODISCARD enum err_code api_request_read_constraint(const struct json_t *body,
                                                        struct api_request *request,
                                                        struct api_error *error);
void api_request_constraint_fini(struct api_constraint *constraint);

#endif
