#include "frontend/output.h"

#include <string.h>

enum err_code output_init(struct output *output, const struct api_request *request,
                          const struct api_plan *plan, const struct tokenizer *tokenizer,
                          const struct chat_markers *markers, struct err *err)
{
    memset(output, 0, sizeof(*output));
    output->route = request->route;
    output->tokenizer = tokenizer;
    output->wants_logprobs = request->wants_logprobs;
    output->pair_count = request->pair_count;
    output->stop_id_count = plan->admit.stop_ids.count;
    output->eos_count = plan->eos_count;
    output->stop_reason.token = TOK_NONE;
    output->is_prompt_only = plan->is_prompt_only;
    output->skips_special = !request->has_skip_special_tokens || request->skip_special_tokens;
    memcpy(output->stop_ids, plan->stop_ids, sizeof(output->stop_ids));
    buf_init(&output->prompt_ids);
    buf_init(&output->prompt_logprobs);
    answer_init(&output->raw);
    buf_init(&output->text);
    buf_init(&output->content);
    answer_init(&output->answer);
    buf_init(&output->token_ids);
    output->wants_token_ids = request->return_token_ids || !tokenizer;
    api_logprobs_init(&output->logprobs, request->route);
    stop_init(&output->stop, request->include_stop);
    if (tokenizer && request->route == API_ROUTE_CHAT) {
        chat_parse_init(&output->parse, markers, tokenizer, plan->admit.prompt.at,
                        plan->admit.prompt.count, request->tools);
        output->is_single_call = request->has_parallel_calls && !request->parallel_calls;
        output->has_parse = true;
    } else if (tokenizer) {
        detok_init(&output->detok, tokenizer, output->skips_special);
    }
    for (uint32_t i = 0; i < request->stop_count; i++) {
        enum err_code code =
            stop_add(&output->stop, request->stops[i].at, request->stops[i].byte_count, err);
        if (code) {
            return code;
        }
    }
    return ERR_OK;
}

void output_fini(struct output *output)
{
    if (output->has_parse) {
        chat_parse_fini(&output->parse);
    }
    stop_fini(&output->stop);
    api_logprobs_fini(&output->logprobs);
    answer_fini(&output->raw);
    buf_fini(&output->text);
    buf_fini(&output->content);
    answer_fini(&output->answer);
    buf_fini(&output->token_ids);
    buf_fini(&output->prompt_ids);
    buf_fini(&output->prompt_logprobs);
}

/* Ends the output, and notes what the request's own stop id it was. */
static bool is_stop_id(struct output *output, uint32_t token)
{
    for (uint32_t i = 0; i < output->stop_id_count; i++) {
        if (output->stop_ids[i] == token) {
            output->stop_reason.token = i < output->eos_count ? TOK_NONE : token;
            return true;
        }
    }
    return false;
}

/* Chats never show a special token. */
static bool shows_stop_id(const struct output *output, uint32_t token)
{
    return output->stop.include_match &&
           !(output->has_parse && tok_is_special(output->tokenizer, token));
}

static void put_content(struct output *output)
{
    answer_put(&output->answer, ANSWER_CONTENT, 0, buf_text(&output->content),
               output->content.used_bytes);
    buf_reset(&output->content);
}

/* Content goes through the stop strings.  They match within a run of content: what the model wrote
 * in between, a thought or a call, is no part of the text that a user sees. */
static void take_part(struct output *output, const struct answer_part *part)
{
    const char *text = answer_part_text(&output->raw, part);
    uint32_t matched = 0;
    if (part->kind == ANSWER_CONTENT) {
        output->has_matched =
            stop_push(&output->stop, text, part->byte_count, &output->content, &matched);
        if (output->has_matched) {
            output->stop_reason.text = output->stop.strings[matched];
            output->stop_reason.byte_count = output->stop.string_bytes[matched];
        }
        put_content(output);
        return;
    }
    stop_finish(&output->stop, &output->content);
    put_content(output);
    answer_put(&output->answer, part->kind, part->call_index, text, part->byte_count);
    output->has_matched = part->kind == ANSWER_CALL_END && output->is_single_call;
}

static void take_raw(struct output *output)
{
    if (output->text.used_bytes > 0) {
        answer_put(&output->raw, ANSWER_CONTENT, 0, output->text.at, output->text.used_bytes);
        buf_reset(&output->text);
    }
    for (uint32_t i = 0; i < output->raw.part_count && !output->has_matched; i++) {
        take_part(output, &output->raw.parts[i]);
    }
    answer_reset(&output->raw);
}

bool output_push(struct output *output, const struct engine_event *event)
{
    if (output->has_matched || output->is_prompt_only) {
        return output->has_matched;
    }
    output->token_count++;
    if (output->wants_token_ids) {
        buf_printf(&output->token_ids, output->token_ids.used_bytes > 0 ? ",%u" : "%u",
                   event->token);
    }
    if (is_stop_id(output, event->token) && !shows_stop_id(output, event->token)) {
        return false; /* ends the output and is no part of it */
    }
    bool is_content = true;
    if (output->has_parse) {
        is_content = chat_parse_push(&output->parse, event->token, &output->raw);
        output->reasoning_count += output->parse.state == CHAT_PARSE_REASONING;
    } else if (output->tokenizer) {
        detok_push(&output->detok, event->token, &output->text);
    }
    if (output->wants_logprobs && is_content) {
        output->logprobs.skips_special = output->skips_special;
        api_logprobs_add(&output->logprobs, output->tokenizer, event, output->pair_count);
    }
    take_raw(output);
    return output->has_matched;
}

void output_finish(struct output *output)
{
    if (output->has_matched) {
        return;
    }
    if (output->has_parse) {
        chat_parse_finish(&output->parse, &output->raw);
    } else if (output->tokenizer) {
        detok_finish(&output->detok, &output->text);
    }
    take_raw(output);
    if (!output->has_matched) {
        stop_finish(&output->stop, &output->content);
        put_content(output);
    }
}

bool output_has_call(const struct output *output)
{
    return output->has_parse && output->parse.whole_count > 0;
}

bool output_has_piece(const struct output *output)
{
    return output->answer.part_count > 0 || output->logprobs.entry_count > 0 ||
           output->token_ids.used_bytes > 0;
}

struct api_piece output_piece(const struct output *output)
{
    return (struct api_piece){
        .index = output->index,
        .answer = &output->answer,
        .logprobs = output->wants_logprobs ? &output->logprobs : NULL,
        .token_ids = output->wants_token_ids ? &output->token_ids : NULL,
        .prompt_ids =
            output->wants_prompt_ids && !output->has_told_prompt ? &output->prompt_ids : NULL,
        .prompt_logprobs = output->wants_prompt_logprobs ? &output->prompt_logprobs : NULL,
    };
}

void output_reset(struct output *output)
{
    answer_reset(&output->answer);
    buf_reset(&output->token_ids);
    api_logprobs_reset(&output->logprobs);
    output_told_prompt(output);
}

size_t output_held_bytes(const struct output *output)
{
    const struct api_logprobs *logprobs = &output->logprobs;
    return output->answer.text.used_bytes + output->token_ids.used_bytes +
           output->prompt_ids.used_bytes + logprobs->content.used_bytes +
           logprobs->tokens.used_bytes + logprobs->values.used_bytes + logprobs->tops.used_bytes +
           logprobs->offsets.used_bytes;
}
