/* A parsed request and its prompt's token ids into the ADMIT message of the plan protocol.
 *
 * Fills in the checkpoint's defaults and checks what needs the model's figures: context length,
 * vocabulary, ids of other modalities.  Pure: any thread. */
#ifndef FRONTEND_API_PLAN_H
#define FRONTEND_API_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/checkpoint.h"
#include "frontend/api_error.h"
#include "frontend/api_request.h"
#include "frontend/tokenizer.h"
#include "proto/plan.h"

struct api_limits {
    uint32_t vocab_tokens;
    uint32_t max_context_tokens; /* prompt and output together */
    uint32_t pool_tokens;        /* as many as the worker's pools hold of one sequence */
};

struct api_plan {
    struct plan_admit admit; /* its arrays point into this struct, the request and the checkpoint */
    uint32_t stop_ids[PLAN_MAX_STOP_IDS]; /* the model's, then the request's own */
    uint32_t eos_count;                   /* of the model's */
    bool is_prompt_only; /* asked for no output: the one token that there has to be is not shown */
};

/* Put the checkpoint's BOS before the ids of a raw text prompt unless it is there; true where it was
 * not. */
bool api_plan_add_bos(const struct checkpoint_info *checkpoint, struct tok_ids *prompt);

/* prompt, request and checkpoint are borrowed until the plan is submitted.  The seed is the request's;
 * 0 where it has none: the caller draws one.  Errors: ERR_ARGUMENT, ERR_LIMIT (names both numbers). */
ERR_NODISCARD enum err_code api_plan_build(const struct api_request *request,
                                           const struct checkpoint_info *checkpoint,
                                           const struct api_limits *limits,
                                           const struct tok_ids *prompt, struct api_plan *out_plan,
                                           struct api_error *error);

#endif
