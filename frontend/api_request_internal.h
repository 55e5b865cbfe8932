/* Shared by the files of api_request alone. */
#ifndef FRONTEND_API_REQUEST_INTERNAL_H
#define FRONTEND_API_REQUEST_INTERNAL_H

#include "frontend/api_read.h"
#include "frontend/api_request.h"

ERR_NODISCARD enum err_code api_request_read_fields(const struct json_t *body,
                                                    struct api_request *request,
                                                    struct api_error *error);
/* tool_choice into request->tool_choice and tool_name.  tools: the request's, null where absent. */
ERR_NODISCARD enum err_code api_request_read_tool_choice(const struct json_t *body,
                                                         const struct json_t *tools,
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
ERR_NODISCARD enum err_code api_request_read_allowed(const struct json_t *body,
                                                     struct api_request *request,
                                                     struct api_error *error);
ERR_NODISCARD enum err_code api_request_read_bad_words(const struct json_t *body,
                                                       struct api_request *request,
                                                       struct api_error *error);

#endif
