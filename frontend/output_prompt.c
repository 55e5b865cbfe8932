/* What an answer shows of its prompt. */
#include "frontend/output.h"

static void put_ids(struct buf *out, const struct tok_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        buf_printf(out, i > 0 ? ",%u" : "%u", ids->at[i]);
    }
}

/* Text as it came; of ids, what they stand for. */
static void put_echo(struct output *output, const struct output_prompt *prompt)
{
    struct buf text;
    struct detok detok;
    if (prompt->text.at) {
        answer_put(&output->answer, ANSWER_CONTENT, 0, prompt->text.at, prompt->text.byte_count);
        return;
    }
    buf_init(&text);
    detok_init(&detok, output->tokenizer, output->skips_special);
    for (size_t i = 0; output->tokenizer && i < prompt->ids->count; i++) {
        detok_push(&detok, prompt->ids->at[i], &text);
    }
    detok_finish(&detok, &text);
    answer_put(&output->answer, ANSWER_CONTENT, 0, buf_text(&text), text.used_bytes);
    buf_fini(&text);
}

void output_begin_prompt(struct output *output, const struct api_request *request,
                         const struct output_prompt *prompt)
{
    if (request->return_token_ids) {
        output->wants_prompt_ids = true;
        put_ids(&output->prompt_ids, prompt->ids);
    }
    if (request->has_prompt_logprobs) {
        output->wants_prompt_logprobs = true;
        output->prompt_pair_count = request->prompt_logprobs;
        buf_append_text(&output->prompt_logprobs, "null");
    }
    if (!request->echo) {
        return;
    }
    put_echo(output, prompt);
    output->echoes_special = prompt->text.at || !output->skips_special;
    output->echoes_logprobs = request->wants_logprobs;
    if (output->echoes_logprobs) {
        output->logprobs.skips_special = !output->echoes_special;
        api_logprobs_add_first(&output->logprobs, output->tokenizer, prompt->ids->at[0],
                               !prompt->has_added_bos);
    }
}

void output_push_prompt(struct output *output, const struct engine_event *event)
{
    if (output->wants_prompt_logprobs) {
        api_prompt_logprobs_add(&output->prompt_logprobs, output->tokenizer, event,
                                output->prompt_pair_count);
    }
    if (output->echoes_logprobs) {
        output->logprobs.skips_special = !output->echoes_special;
        api_logprobs_add(&output->logprobs, output->tokenizer, event, output->pair_count);
    }
}

void output_told_prompt(struct output *output)
{
    output->has_told_prompt = true;
    buf_fini(&output->prompt_ids);
    buf_init(&output->prompt_ids);
}
