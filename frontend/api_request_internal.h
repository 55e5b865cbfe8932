/* Shared by the files of api_request alone. */
#ifndef FRONTEND_API_REQUEST_INTERNAL_H
#define FRONTEND_API_REQUEST_INTERNAL_H

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
ERR_NODISCARD enum err_code api_request_read_fields(const struct json_t *body,
                                                    struct api_request *request,
                                                    struct api_error *error);
ERR_NODISCARD enum err_code api_request_read_salt(const struct json_t *body,
                                                  struct api_request *request,
                                                  struct api_error *error);
ERR_NODISCARD enum err_code api_request_read_stop(const struct json_t *body,
                                                  struct api_request *request,
                                                  struct api_error *error);
ERR_NODISCARD enum err_code api_request_read_stop_ids(const struct json_t *body,
                                                      struct api_request *request,
                                                      struct api_error *error);
ERR_NODISCARD enum err_code api_request_read_logit_bias(const struct json_t *body,
                                                        struct api_request *request,
                                                        struct api_error *error);

#endif
