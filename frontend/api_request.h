/* Request JSON of the generation routes into struct api_request.
 *
 * Checks what can be judged from the body alone: kinds, ranges, and fields that contradict each
 * other.  Scalar fields are rows of api_request.def; unknown fields pass.  A field that asks for
 * something this server does not do is refused, never ignored.  Pure: any thread. */
#ifndef FRONTEND_API_REQUEST_H
#define FRONTEND_API_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/api_error.h"
#include "frontend/api_request_constraint.h"
#include "frontend/stop.h"
#include "proto/limits.h"
#include "proto/wire.h"

struct json_t;

#define API_REQUEST_MAX_DEPTH 128 /* nesting of the body */
#define API_MAX_BAD_WORDS     256
#define API_MAX_WORD_BYTES    256
#define API_MAX_CHOICES       512 /* answers to one request: prompts times n */

enum api_route {
    API_ROUTE_CHAT,
    API_ROUTE_COMPLETIONS,
};

/* Whether the model calls a tool.  The last two need a mask over its tokens. */
enum api_tool_choice {
    API_TOOL_CHOICE_AUTO,     /* as it likes */
    API_TOOL_CHOICE_NONE,     /* it does not see the tools */
    API_TOOL_CHOICE_REQUIRED, /* one or more */
    API_TOOL_CHOICE_NAMED,    /* exactly that one */
};

struct api_text {
    const char *at; /* borrowed from the body's JSON */
    size_t byte_count;
};

/* One prompt of a completion request. */
struct api_prompt {
    struct api_text text; /* borrowed; at is null where ids were given */
    uint32_t *ids;        /* owned; [id_count] */
    uint32_t id_count;
};

#define API_TYPE_F32  float
#define API_TYPE_U32  uint32_t
#define API_TYPE_I64  int64_t
#define API_TYPE_BOOL bool

struct api_request {
#define FIELD(kind, member, name, min, max, routes) API_TYPE_##kind member;
#include "frontend/api_request.def"
#undef FIELD
#define FIELD(kind, member, name, min, max, routes) bool has_##member;
#include "frontend/api_request.def"
#undef FIELD
    enum api_route route;
    struct api_text model;         /* at is null where none was named */
    const struct json_t *messages; /* chat; borrowed */
    const struct json_t *tools;    /* chat; borrowed; null where none apply */
    enum api_tool_choice tool_choice;
    struct api_text tool_name; /* NAMED; borrowed */
    bool has_thinking;
    bool enable_thinking;
    bool preserve_thinking;
    struct api_prompt *prompts;              /* owned; [prompt_count]; completions */
    uint32_t prompt_count;                   /* 1 in chats */
    struct api_text stops[STOP_MAX_STRINGS]; /* borrowed */
    uint32_t stop_count;
    uint32_t stop_ids[PLAN_MAX_STOP_IDS];
    uint32_t stop_id_count;
    uint32_t *allowed_ids; /* owned; [allowed_count], not checked; 0: all */
    uint32_t allowed_count;
    struct api_text *bad_words; /* owned; [bad_word_count] */
    uint32_t bad_word_count;
    uint64_t cache_salt;          /* a hash of it; 0: none was given */
    struct wire_bias *logit_bias; /* owned; [logit_bias_count], ids not checked */
    uint32_t logit_bias_count;
    bool include_usage;
    bool include_live_usage; /* in every chunk */
    struct api_constraint constraint;
    uint32_t pair_count; /* best tokens to report beside the chosen one */
    bool wants_logprobs; /* of the chosen token at least */
};

/* Parse body (an object; borrowed: it must outlive out_request).  out_request is initialised in any
 * case: call api_request_fini.  Errors: ERR_ARGUMENT (kind, range), ERR_LIMIT (too many), or
 * ERR_UNSUPPORTED; error names the field. */
ERR_NODISCARD enum err_code api_request_parse(const struct json_t *body, enum api_route route,
                                              struct api_request *out_request,
                                              struct api_error *error);
void api_request_fini(struct api_request *request);

/* Parse the bytes of a body, which must be an object.  *out_body is owned by the caller and null
 * after an error. */
ERR_NODISCARD enum err_code api_request_parse_body(const char *bytes, size_t byte_count,
                                                   struct json_t **out_body,
                                                   struct api_error *error);

/* A member of a body by that name means something to a route. */
bool api_request_knows(const char *name);

/* One row of the table, for tests and documentation. */
struct api_field {
    const char *name;
    const char *kind;
    double min_value;
    double max_value;
    bool is_chat;
    bool is_completions;
};
const struct api_field *api_request_field(uint32_t index); /* null past the last */

#endif
