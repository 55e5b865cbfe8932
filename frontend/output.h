/* Output tokens of one request into what its answer shows: text, reasoning, calls, logprobs.
 *
 * Joins detokenizer, chat parser, stop strings and logprobs.  Without a tokenizer (a checkpoint of
 * token ids only) there is no text and the ids are the output.  One thread at a time. */
#ifndef FRONTEND_OUTPUT_H
#define FRONTEND_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/answer.h"
#include "frontend/api_plan.h"
#include "frontend/api_request.h"
#include "frontend/api_response.h"
#include "frontend/chat_parse.h"
#include "frontend/detok.h"
#include "frontend/stop.h"

/* Borrowed by output_begin_prompt alone. */
struct output_prompt {
    const struct tok_ids *ids;
    struct api_text text; /* at is null where ids were given */
    bool has_added_bos;   /* the text has none */
};

struct output {
    uint32_t index; /* of the choice; set by the caller */
    enum api_route route;
    const struct tokenizer *tokenizer; /* borrowed; may be null */
    struct detok detok;                /* completions */
    struct chat_parse parse;           /* chat */
    bool has_parse;
    struct stop stop;
    bool is_single_call; /* no call but the first */
    bool has_matched;    /* a stop string or a call has ended the output */
    uint32_t stop_ids[PLAN_MAX_STOP_IDS];
    uint32_t stop_id_count;
    uint32_t eos_count; /* of stop_ids, the model's, which come first */
    struct api_stop_reason stop_reason;
    uint32_t token_count;
    uint32_t reasoning_count;
    uint32_t pair_count; /* logprob pairs to show */
    bool wants_logprobs;
    struct answer raw;    /* before stop strings, of one push */
    struct buf text;      /* completions: of one push */
    struct buf content;   /* past the stop strings, of one push */
    struct answer answer; /* since output_reset */
    struct api_logprobs logprobs;
    bool wants_token_ids;
    struct buf token_ids; /* elements of a JSON array, stop ids included */

    /* output_prompt.c: what the answer shows of the prompt */
    bool is_prompt_only; /* and nothing else */
    bool has_told_prompt;
    bool wants_prompt_ids;
    struct buf prompt_ids;
    bool echoes_logprobs;
    bool echoes_special; /* special tokens are part of the echo's text */
    bool skips_special;  /* they are no part of the output's */
    bool wants_prompt_logprobs;
    uint32_t prompt_pair_count;
    struct buf prompt_logprobs;
};

/* markers may be null without a tokenizer.  Copies what it needs of request and plan.
 * Errors: those of stop_add. */
ERR_NODISCARD enum err_code output_init(struct output *output, const struct api_request *request,
                                        const struct api_plan *plan,
                                        const struct tokenizer *tokenizer,
                                        const struct chat_markers *markers, struct err *err);
void output_fini(struct output *output);

/* The prompt as the answer shows it: echoed text, ids, logprobs.  Before the first event. */
void output_begin_prompt(struct output *output, const struct api_request *request,
                         const struct output_prompt *prompt);
/* Take a PROMPT_LOGPROBS event. */
void output_push_prompt(struct output *output, const struct engine_event *event);
/* A chunk has told it: the next pieces do not. */
void output_told_prompt(struct output *output);

/* Take a TOKEN event.  True when the answer is complete, by a stop string or by the one call it may
 * hold: the request is to be cancelled and further tokens are ignored. */
bool output_push(struct output *output, const struct engine_event *event);

/* The output has ended: release what was held back. */
void output_finish(struct output *output);

/* The answer holds a call that ended. */
bool output_has_call(const struct output *output);

/* Text, a call or logprobs have come since the last reset. */
bool output_has_piece(const struct output *output);
struct api_piece output_piece(const struct output *output);
void output_reset(struct output *output);

/* Bytes kept since the last reset. */
size_t output_held_bytes(const struct output *output);

#endif
