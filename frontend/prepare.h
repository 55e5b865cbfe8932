/* A request body into what the engine and the answer need: everything that may take long.
 *
 * Runs on a work thread; holds no HTTP and no loop state. */
#ifndef FRONTEND_PREPARE_H
#define FRONTEND_PREPARE_H

#include <stddef.h>
#include <stdint.h>

#include "common/checkpoint.h"
#include "frontend/api_error.h"
#include "frontend/api_plan.h"
#include "frontend/api_request.h"
#include "frontend/chat_parse.h"
#include "frontend/chat_render.h"
#include "frontend/grammar_cache.h"
#include "frontend/output.h"
#include "frontend/tokenizer.h"

/* What does not change while the process runs; borrowed by every preparation. */
struct prepare_model {
    const char *name; /* in the API */
    const struct checkpoint_info *checkpoint;
    const struct tokenizer *tokenizer; /* null: token ids only */
    enum chat_format chat_format;
    struct chat_markers markers;
    struct grammar_cache *grammars; /* null without a tokenizer; any thread */
};

/* One request as it came. */
struct prepare_input {
    enum api_route route;
    struct api_limits limits;
    const struct buf *body; /* borrowed */
    uint64_t random_seed;   /* where the request has none */
    struct buf *rendered;   /* a chat's prompt as text is appended; null: not wanted */
};

struct prepared_prompt {
    struct tok_ids ids;
    bool has_added_bos;   /* ids begins with one that the text does not */
    struct api_plan plan; /* of its first choice */
};

struct prepared {
    struct json_t *body; /* owned */
    struct api_request request;
    struct grammar *grammar;         /* counted; null: none asked for */
    struct prepared_prompt *prompts; /* owned; [prompt_count] */
    uint32_t prompt_count;
    struct tok_ids suppressed; /* the model's and bad words of one token; empty: the model's */
    struct tok_ids *bad_rows;  /* owned; [bad_row_count]: bad words of several tokens */
    uint32_t bad_row_count;
    uint32_t vocab_tokens;
};

/* Body into request, prompt and plan.  out_prepared is initialised in any case: call prepare_fini.
 * Errors: those of api_request_parse_body, api_request_parse, chat_render and api_plan_build; error
 * names the field. */
ERR_NODISCARD enum err_code prepare_request(const struct prepare_model *model,
                                            const struct prepare_input *input,
                                            struct prepared *out_prepared, struct api_error *error);
void prepare_fini(struct prepared *prepared);

/* A chat's messages into a prompt; out_text may be null. */
ERR_NODISCARD enum err_code prepare_render(const struct prepare_model *model,
                                           const struct api_request *request, struct buf *out_text,
                                           struct tok_ids *out_ids, struct api_error *error);

/* Errors: ERR_NOT_FOUND where name is another model's. */
ERR_NODISCARD enum err_code prepare_check_model(const struct prepare_model *model,
                                                const struct api_text *name,
                                                struct api_error *error);

/* prepare_rules.c: bad words and allowed ids into the plans.  Part of prepare_request. */
ERR_NODISCARD enum err_code prepare_rules(const struct prepare_model *model, uint32_t vocab_tokens,
                                          struct prepared *prepared, struct api_error *error);

/* What the request is to be submitted with, once for each choice; null where nothing constrains it. */
struct constraint *prepare_constraint(const struct prepare_model *model,
                                      const struct prepared *prepared, uint32_t prompt_index);

/* prepare_rules.c: the same of bad words and allowed ids alone. */
struct constraint *prepare_rules_constraint(const struct prepared *prepared);

/* prepare_constraint.c: the grammar that the request asks for.  Part of prepare_request. */
ERR_NODISCARD enum err_code prepare_grammar(const struct prepare_model *model,
                                            struct prepared *prepared, struct api_error *error);

/* Seed of the choice of that index among those of its prompt. */
uint64_t prepare_seed(const struct prepared *prepared, uint32_t prompt_index, uint32_t index);

#endif
