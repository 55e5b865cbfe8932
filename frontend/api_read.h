/* Members of a request body, with errors that name them.  Pure: any thread. */
#ifndef FRONTEND_API_READ_H
#define FRONTEND_API_READ_H

#include <stdint.h>

#include "frontend/api_error.h"
#include "frontend/api_request.h"

/* body[name], null where it is absent or a JSON null. */
const struct json_t *api_request_given(const struct json_t *body, const char *name);

/* "<param> must be <wanted>, not <kind>". */
enum err_code api_request_wrong_kind(const struct json_t *value, const char *param,
                                     const char *wanted, struct api_error *error);

/* A token id; its bound by the vocabulary is checked later (api_plan.h). */
ERR_NODISCARD enum err_code api_request_read_id(const struct json_t *value, const char *param,
                                                uint32_t *out_id, struct api_error *error);

/* Leaves *out_text alone where the member is absent. */
ERR_NODISCARD enum err_code api_request_read_text(const struct json_t *body, const char *name,
                                                  struct api_text *out_text,
                                                  struct api_error *error);

#endif
