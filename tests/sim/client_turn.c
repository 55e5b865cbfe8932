/* Whose turn it is: order of admission, preempted requests, progress of those that run. */
#include "tests/sim/sim.h"

#include <string.h>

#include "common/num.h"

#define TRACE_ID(client) (unsigned long long)(client)->number

static bool is_before(const struct client *a, const struct client *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->number < b->number;
}

static struct client *find(const struct sim *sim, const struct front *front, uint64_t number)
{
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        struct client *client = sim->alive[i];
        if (client->front_index == front->index && !client->has_ended && client->number == number) {
            return client;
        }
    }
    report_fail(sim->report, "ADMIT of request %llu, which is not alive",
                (unsigned long long)number);
}

/* What the worker is to compute is what the client has, with the output behind the prompt. */
static void check_admit(const struct client *client, const struct plan_admit *admit)
{
    bool is_same =
        admit->prompt.count == client->token_count &&
        admit->output_start == client->admit.output_start &&
        admit->max_total == client->admit.max_total &&
        admit->cache_salt == client->admit.cache_salt &&
        memcmp(admit->prompt.at, client->tokens, client->token_count * sizeof(uint32_t)) == 0;
    if (!is_same) {
        report_fail(client->sim->report,
                    "request %llu: ADMIT of %u tokens, output from %u; it has %u, output from %u",
                    TRACE_ID(client), admit->prompt.count, admit->output_start, client->token_count,
                    client->admit.output_start);
    }
}

/* The head of the queue is passed by a bounded number of others. */
static void note_passing(struct sim *sim, const struct front *front, const struct client *sent)
{
    struct client *head = NULL;
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        struct client *client = sim->alive[i];
        bool waits = client->front_index == front->index && !client->has_ended &&
                     (client == sent || !client->is_sent);
        if (waits && (head == NULL || is_before(client, head))) {
            head = client;
        }
    }
    if (head == NULL || head == sent) {
        return;
    }
    head->passed++;
    report_cover(sim->report, COVER_OVERTAKEN);
    if (head->passed == SCHED_MAX_OVERTAKES) {
        report_cover(sim->report, COVER_OVERTAKEN_MOST);
    }
    if (head->passed > SCHED_MAX_OVERTAKES && !sim->world.has_keys) {
        report_fail(sim->report, "request %llu: overtaken %u times at the head of the queue",
                    TRACE_ID(head), head->passed);
    }
}

void client_note_admit(struct sim *sim, const struct front *front, const struct plan_admit *admit)
{
    struct client *sent = find(sim, front, admit->seed);
    check_admit(sent, admit);
    if (sent->was_preempted) {
        report_cover(sim->report, sent->token_count > sent->admit.output_start
                                      ? COVER_RESUMED_DECODE
                                      : COVER_RESUMED_PROMPT);
    }
    if (!sent->is_sent) { /* those that return go ahead of those that never ran */
        note_passing(sim, front, sent);
    }
    sent->was_preempted = false;
    sent->is_sent = true;
    sent->seq_id = admit->seq_id;
    sent->is_decoding = false;
}

void client_note_release(struct sim *sim, const struct front *front, uint64_t seq_id)
{
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        struct client *client = sim->alive[i];
        if (client->front_index == front->index && !client->has_ended && client->seq_id == seq_id) {
            report_cover(sim->report, COVER_PREEMPTED);
            client->was_preempted = true;
            client->is_decoding = false;
        }
    }
}

void client_note_delay(struct sim *sim, const struct front *front)
{
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        if (sim->alive[i]->front_index == front->index) {
            sim->alive[i]->quiet_steps = 0;
        }
    }
}

/* Decode rows take turns where they do not all fit. */
static uint32_t most_quiet_steps(const struct world *world)
{
    const struct runner_limits *limits = &world->limits;
    uint32_t budget = world->budget_tokens == 0 ? limits->max_step_tokens : world->budget_tokens;
    uint32_t depth = world->frontend_depth == 0 ? limits->pipeline_depth : world->frontend_depth;
    uint32_t kept_tokens = num_max(budget / 4, limits->segment_tokens);
    uint32_t rows = limits->max_step_rows > 1 ? limits->max_step_rows - 1 : 1;
    rows = num_min(rows, budget > kept_tokens ? budget - kept_tokens : 1);
    return 3 * depth + 3 * num_ceil_div(world->slots, rows) + 16;
}

void client_note_step(struct sim *sim, const struct front *front)
{
    uint32_t most = most_quiet_steps(&sim->world);
    struct result_figures figures;
    sched_get_figures(front->sched, &figures);
    uint32_t some_pages =
        3 * sim->world.slots; /* with fewer left a row may have to wait for pages */
    if (figures.local_quota_left_pages < some_pages ||
        figures.global_quota_left_pages < some_pages) {
        client_note_delay(sim, front);
        return;
    }
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        struct client *client = sim->alive[i];
        if (client->front_index != front->index || client->has_ended || !client->is_decoding) {
            continue;
        }
        client->quiet_steps++;
        if (client->quiet_steps > most) {
            report_fail(sim->report, "request %llu: no token for %u steps while it decodes",
                        TRACE_ID(client), client->quiet_steps);
        }
    }
}

void client_check_deadlines(const struct sim *sim, const struct front *front)
{
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        const struct client *client = sim->alive[i];
        if (client->front_index == front->index && !client->has_ended && client->deadline_ns != 0 &&
            client->deadline_ns <= sim->now_ns) {
            report_fail(sim->report, "request %llu: alive beyond its deadline", TRACE_ID(client));
        }
    }
}
