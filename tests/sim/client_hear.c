/* What clients hear: each gets exactly the tokens of an undisturbed run, and ends exactly once. */
#include "tests/sim/model.h"
#include "tests/sim/sim.h"

#define TRACE_ID(client) (unsigned long long)(client)->number

/* Entries of an undisturbed run, up to every token that is known. */
static void compute_entries(struct client *client)
{
    uint32_t window = client->sim->world.limits.window_tokens;
    while (client->entry_count < client->token_count) {
        uint32_t at = client->entry_count;
        uint32_t first = at + 1 > window ? at + 1 - window : 0;
        uint64_t global_sum = client->sums[at];
        uint64_t entry = model_entry(client->admit.cache_salt, at, client->tokens[at], global_sum,
                                     global_sum - client->sums[first]);
        client->sums[at + 1] = global_sum + entry;
        client->entry_count++;
    }
}

/* The next token of an undisturbed run. */
static uint32_t next_token(struct client *client)
{
    compute_entries(client);
    const struct world *world = &client->sim->world;
    uint32_t position = client->token_count;
    uint32_t window = world->limits.window_tokens;
    uint32_t first = position > window ? position - window : 0;
    const struct model_state state = {
        .admit = &client->admit,
        .vocab_tokens = world->limits.vocab_tokens,
        .position = position,
        .global_sum = client->sums[position],
        .local_sum = client->sums[position] - client->sums[first],
        .output_sum = client->output_sum,
    };
    return model_pick(&state);
}

static void on_token(struct client *client, const struct engine_event *event)
{
    struct report *report = client->sim->report;
    if (!client->is_admitted || client->has_last_token) {
        report_fail(report, "request %llu: a token %s", TRACE_ID(client),
                    client->is_admitted ? "after its last" : "before it was admitted");
    }
    uint32_t token = next_token(client);
    if (event->position != client->token_count || event->token != token) {
        report_fail(report, "request %llu: token %u at %u, want %u at %u (prompt %u)",
                    TRACE_ID(client), event->token, event->position, token, client->token_count,
                    client->admit.output_start);
    }
    uint32_t pairs = client->admit.logprobs == 0 ? 0 : client->admit.logprobs - 1;
    if (event->pair_count != pairs) {
        report_fail(report, "request %llu: %u logprobs, want %u", TRACE_ID(client),
                    event->pair_count, pairs);
    }
    client->tokens[client->token_count++] = token;
    client->output_sum += model_output(token);
    client->is_decoding = true;
    client->quiet_steps = 0;
    client->has_last_token = client->token_count == client->admit.max_total;
    client->reason = RESULT_FINISH_LENGTH;
    if (model_stops(&client->admit, event->position, token)) {
        client->has_last_token = true;
        client->reason = RESULT_FINISH_STOP;
    }
    if (pairs > 0) {
        report_cover(report, COVER_LOGPROBS);
    }
    if (client->token_count ==
        client->sim->world.limits.window_tokens + 2 * client->sim->world.limits.page_tokens) {
        report_cover(report, COVER_FRONT_RELEASED);
    }
}

static void on_finished(struct client *client, const struct engine_event *event)
{
    struct report *report = client->sim->report;
    static const enum cover covers[] = {
        [RESULT_FINISH_STOP] = COVER_FINISHED_STOP,
        [RESULT_FINISH_LENGTH] = COVER_FINISHED_LENGTH,
        [RESULT_FINISH_CANCEL] = COVER_COUNT,
    };
    if (event->reason == RESULT_FINISH_CANCEL) {
        if (!client->is_cancelled) {
            report_fail(report, "request %llu: cancelled by nobody", TRACE_ID(client));
        }
        return;
    }
    if (!client->has_last_token || event->reason != client->reason) {
        report_fail(report, "request %llu: finished for reason %u after %u of %u tokens",
                    TRACE_ID(client), event->reason, client->token_count, client->admit.max_total);
    }
    if (client->admit.prompt_logprobs != 0 &&
        client->prompt_logprob_count != client->admit.output_start - 1) {
        report_fail(report, "request %llu: %u prompt logprobs of a prompt of %u", TRACE_ID(client),
                    client->prompt_logprob_count, client->admit.output_start);
    }
    report_cover(report, covers[event->reason]);
}

static void on_failed(const struct client *client, const struct engine_event *event)
{
    const struct sim *sim = client->sim;
    bool is_explained = sim->report->faults > client->faults_before;
    enum cover cover = COVER_FAILED_REFUSED;
    if (event->code == ERR_TIMEOUT) {
        is_explained = client->deadline_ns != 0 && client->deadline_ns <= sim->now_ns;
        cover = COVER_FAILED_TIMEOUT;
    } else if (event->code == ERR_CLOSED) {
        is_explained = sim->is_closing || sim->fronts[client->front_index].session == NULL;
        cover = COVER_FAILED_CLOSED;
    } else if (event->code == ERR_STEP) {
        cover = COVER_FAILED_STEP;
    } else if (event->code == ERR_SEQUENCE) {
        cover = COVER_FAILED_ROW;
    }
    if (!is_explained) {
        report_fail(sim->report, "request %llu: failed (%s) for no reason: %s", TRACE_ID(client),
                    err_code_text(event->code), event->text);
    }
    report_cover(sim->report, cover);
}

static void count_end(struct client *client, const struct engine_event *event)
{
    struct front_counts *counts = &client->sim->fronts[client->front_index].counts;
    if (event->kind == ENGINE_EVENT_FINISHED) {
        counts->finished[event->reason]++;
    } else {
        counts->failed++;
    }
    client->has_ended = true;
}

static void note_reused(const struct client *client, uint32_t reused_tokens)
{
    const struct world *world = &client->sim->world;
    struct report *report = client->sim->report;
    if (reused_tokens == 0) {
        return;
    }
    bool wants_all = client->admit.prompt_logprobs != 0 && !client->is_admitted;
    if (!world->keeps_prefixes || wants_all) {
        report_fail(report, "request %llu: %u tokens reused, none may be", TRACE_ID(client),
                    reused_tokens);
    }
    report_cover(report, COVER_PREFIX_HIT);
    if (reused_tokens >= world->limits.window_tokens + world->limits.page_tokens) {
        report_cover(report, COVER_PREFIX_HIT_LONG);
    }
}

void client_on_event(void *owner, const struct engine_event *event)
{
    struct client *client = owner;
    struct report *report = client->sim->report;
    if (client->has_ended) {
        report_fail(report, "request %llu: event %u after its end", TRACE_ID(client), event->kind);
    }
    if (event->request_id != client->request_id) {
        report_fail(report, "request %llu: event of %llu", TRACE_ID(client),
                    (unsigned long long)event->request_id);
    }
    switch (event->kind) {
    case ENGINE_EVENT_ADMITTED:
        note_reused(client, event->reused_tokens);
        client->is_admitted = true;
        report_cover(report, COVER_ADMITTED);
        break;
    case ENGINE_EVENT_TOKEN:
        client->sim->fronts[client->front_index].counts.output_tokens++;
        on_token(client, event);
        break;
    case ENGINE_EVENT_PROMPT_LOGPROBS:
        client->prompt_logprob_count++;
        if (event->position != client->prompt_logprob_count ||
            event->token != client->tokens[event->position]) {
            report_fail(report, "request %llu: prompt logprobs of %u, want %u", TRACE_ID(client),
                        event->position, client->prompt_logprob_count);
        }
        report_cover(report, COVER_PROMPT_LOGPROBS);
        break;
    case ENGINE_EVENT_FINISHED:
        on_finished(client, event);
        count_end(client, event);
        break;
    case ENGINE_EVENT_FAILED:
        if (!client->is_lost) {
            on_failed(client, event);
        }
        count_end(client, event);
        break;
    }
    report_trace(report, "  request %llu: event %u token %u position %u reason %u",
                 TRACE_ID(client), event->kind, event->token, event->position, event->reason);
}
