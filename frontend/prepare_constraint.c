/* What an output has to be: grammars, allowed tokens and bad words as constraints. */
#include "frontend/constraint_grammar.h"
#include "frontend/prepare.h"

enum err_code prepare_grammar(const struct prepare_model *model, struct prepared *prepared,
                              struct api_error *error)
{
    const struct api_constraint *constraint = &prepared->request.constraint;
    struct err err;
    if (!constraint->is_given) {
        return ERR_OK;
    }
    if (!model->grammars) {
        return api_error_set(error, ERR_UNSUPPORTED, constraint->param,
                             "%s is not served: the model has no tokenizer.json",
                             constraint->param);
    }
    enum err_code code =
        grammar_cache_get(model->grammars, &constraint->source, &prepared->grammar, &err);
    if (code) {
        return api_error_set(error, code, constraint->param, "%s: %s", constraint->param,
                             err.message);
    }
    for (uint32_t i = 0; i < prepared->prompt_count; i++) {
        struct plan_admit *admit = &prepared->prompts[i].plan.admit;
        if (admit->stop_ids.count == 0) {
            return api_error_set(error, ERR_UNSUPPORTED, constraint->param,
                                 "%s: the checkpoint names no token that ends an output",
                                 constraint->param);
        }
        admit->constrained = true;
    }
    return ERR_OK;
}

/* The prompt ends inside an open channel: the output begins with the rest of a thought. */
static bool is_thinking(const struct chat_markers *markers, const struct tok_ids *prompt)
{
    for (size_t i = prompt->count; i-- > 0;) {
        uint32_t id = prompt->at[i];
        if (id == markers->channel_open) {
            return true;
        }
        if (id == markers->channel_close || id == markers->call_open || id == markers->turn_open ||
            id == markers->turn_close) {
            return false;
        }
    }
    return false;
}

struct constraint *prepare_constraint(const struct prepare_model *model,
                                      const struct prepared *prepared, uint32_t prompt_index)
{
    const struct api_request *request = &prepared->request;
    const struct prepared_prompt *prompt = &prepared->prompts[prompt_index];
    const struct chat_markers *markers = &model->markers;
    if (!prepared->grammar) {
        return prepare_rules_constraint(prepared);
    }
    bool has_channels = request->route == API_ROUTE_CHAT && markers->channel_open != TOK_NONE &&
                        markers->channel_close != TOK_NONE;
    struct constraint_grammar options = {
        .grammar = prepared->grammar,
        .end_ids = prompt->plan.admit.stop_ids.at,
        .end_count = prompt->plan.admit.stop_ids.count,
        .may_think = has_channels && request->enable_thinking,
        .is_thinking = has_channels && is_thinking(markers, &prompt->ids),
        .channel_open = markers->channel_open,
        .channel_close = markers->channel_close,
    };
    return constraint_grammar_create(&options);
}
