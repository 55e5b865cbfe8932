#include "tests/sim/sim.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/sim/model.h"

#define TRACE_ID(client) (unsigned long long)(client)->number

/* A system prompt is the same for every request that begins with it. */
static void append_shared(struct client *client, uint32_t which, uint32_t count)
{
    struct random random = {client->sim->world.seed * 31 + which};
    uint32_t vocab = client->sim->world.limits.vocab_tokens;
    for (uint32_t i = 0; i < count; i++) {
        client->tokens[i] = random_below(&random, vocab);
    }
    client->token_count = count;
}

static void append_conversation(struct client *client, const struct conversation *said,
                                uint32_t count, struct random *random)
{
    memcpy(client->tokens, said->tokens, count * sizeof(uint32_t));
    client->token_count = count;
    client->admit.cache_salt = said->cache_salt;
    if (random_one_in(random, 4)) { /* an edit: what follows it is not what was said */
        client->tokens[random_below(random, count)] =
            random_below(random, client->sim->world.limits.vocab_tokens);
    }
}

static void fill_prompt(struct client *client, uint32_t prompt_count, struct random *random)
{
    struct sim *sim = client->sim;
    uint32_t known = num_min(sim->conversation_count, SIM_CONVERSATIONS);
    uint32_t way = random_below(random, 5);
    if (way <= 1) {
        append_shared(client, random_below(random, sim->world.shared_prompts),
                      random_below(random, prompt_count));
    } else if (way <= 3 && known > 0) {
        const struct conversation *said = &sim->conversations[random_below(random, known)];
        uint32_t count = num_min(said->token_count, prompt_count); /* all of it: asked again */
        if (count > 0) {
            append_conversation(client, said, count, random);
        }
    }
    while (client->token_count < prompt_count) {
        client->tokens[client->token_count++] =
            random_below(random, sim->world.limits.vocab_tokens);
    }
}

static struct client *draw(struct sim *sim, struct random *random)
{
    const struct world *world = &sim->world;
    struct client *client = mem_zalloc(1, sizeof(*client));
    uint32_t longest = random_one_in(random, world->long_prompt_one_in)
                           ? world->most_prompt_tokens
                           : num_min(world->most_prompt_tokens, 40);
    uint32_t prompt_count = random_between(random, 1, longest);
    uint32_t output_count = random_between(random, 1, world->most_output_tokens);
    if (random_one_in(random, 4)) { /* whole pages, as far as that goes */
        uint32_t page = world->limits.page_tokens;
        prompt_count = num_min(num_ceil_div(prompt_count, page) * page, longest);
    }
    if (random_one_in(random, 20)) { /* as long as may be, or one more */
        prompt_count = longest;
        output_count = world->limits.max_context_tokens + random_below(random, 2) - prompt_count;
    }
    client->sim = sim;
    client->number = sim->next_number++;
    client->tokens = mem_zalloc(prompt_count + output_count, sizeof(uint32_t));
    client->sums = mem_zalloc(prompt_count + output_count + 1, sizeof(uint64_t));
    client->faults_before = sim->report->faults;
    client->priority = world->has_priorities ? (int32_t)random_below(random, 3) - 1 : 0;
    if (world->has_deadlines && random_one_in(random, 4)) {
        client->deadline_ns = sim->now_ns + random_between(random, 1, 200) * SIM_MS;
    }
    client->stop_ids[0] = random_below(random, world->limits.vocab_tokens);
    client->stop_ids[1] = random_below(random, world->limits.vocab_tokens);
    client->admit = (struct plan_admit){
        .output_start = prompt_count,
        .max_total = prompt_count + output_count,
        .min_tokens = random_one_in(random, 4) ? random_below(random, output_count + 1) : 0,
        .seed = client->number,
        .top_p = 1,
        .repetition_penalty = 1,
        .presence_penalty = random_one_in(random, 3) ? 1 : 0,
        .stop_ids = {.at = client->stop_ids, .count = random_below(random, 3)},
        .ignore_eos = random_one_in(random, 8),
        .cache_salt = random_below(random, world->salts),
    };
    if (world->has_logprobs && random_one_in(random, 2)) {
        client->admit.logprobs = random_between(random, 1, PLAN_MAX_LOGPROBS + 1);
    }
    if (world->has_prompt_logprobs && random_one_in(random, 3)) {
        client->admit.prompt_logprobs = random_between(random, 1, PLAN_MAX_LOGPROBS + 1);
    }
    fill_prompt(client, prompt_count, random);
    client->admit.prompt = (struct wire_u32_array){.at = client->tokens, .count = prompt_count};
    return client;
}

static void client_free(struct client *client)
{
    if (client != NULL) {
        mem_free(client->tokens);
        mem_free(client->sums);
        mem_free(client);
    }
}

/* A request that clearly fits is not refused, one that cannot is. */
static void check_rejection(const struct client *client, const struct front *front,
                            enum err_code code, const char *text)
{
    const struct sim *sim = client->sim;
    const struct runner_limits *limits = &sim->world.limits;
    struct sched_gate gate;
    sched_get_gate(front->sched, &gate);
    uint32_t pages = num_ceil_div(client->admit.max_total, limits->page_tokens) + 1;
    bool may_not_fit = client->admit.max_total > limits->max_context_tokens ||
                       pages > limits->pages[RUNNER_FAMILY_GLOBAL] ||
                       pages > limits->pages[RUNNER_FAMILY_LOCAL];
    if (code == ERR_LIMIT && may_not_fit) {
        report_cover(sim->report, COVER_REJECTED_LIMIT);
    } else if (code == ERR_BUSY && gate.waiting >= sim->world.max_queue) {
        report_cover(sim->report, COVER_REJECTED_BUSY);
    } else if (code == ERR_CLOSED && front->session == NULL) {
        report_cover(sim->report, COVER_REJECTED_CLOSED);
    } else {
        report_fail(sim->report, "request %llu: rejected for no reason: %s", TRACE_ID(client),
                    text);
    }
}

void client_submit(struct sim *sim, struct front *front, struct random *random)
{
    if (sim->alive_count >= sim->world.most_alive || front->sched == NULL) {
        return;
    }
    struct client *client = draw(sim, random);
    const struct engine_request wanted = {
        .admit = client->admit,
        .priority = client->priority,
        .key_hash = sim->world.has_keys ? random_below(random, 4) : 0,
        .deadline_ns = client->deadline_ns,
        .on_event = client_on_event,
        .owner = client,
    };
    struct req *req = NULL;
    struct err err;
    if (req_create(&wanted, &req, &err) != ERR_OK) {
        report_fail(sim->report, "request %llu: %s", TRACE_ID(client), err.message);
    }
    client->front_index = front->index;
    client->front_life = front->life;
    client->request_id = sim->next_request_id++;
    req->request_id = client->request_id;
    front->counts.arrived++;
    report_trace(sim->report, "request %llu: prompt %u, max_total %u, salt %llu", TRACE_ID(client),
                 client->admit.prompt.count, client->admit.max_total,
                 (unsigned long long)client->admit.cache_salt);
    enum err_code code = sched_submit(front->sched, req, sim->now_ns, &err);
    if (code != ERR_OK) {
        front->counts.rejected++;
        check_rejection(client, front, code, err.message);
        req_destroy(req);
        client_free(client);
        return;
    }
    sim->alive[sim->alive_count++] = client;
}

static enum cover cancel_cover(const struct client *client)
{
    if (!client->is_sent) {
        return COVER_CANCEL_WAITING;
    }
    if (!client->is_admitted) {
        return COVER_CANCEL_ADMITTING;
    }
    return client->token_count == client->admit.output_start ? COVER_CANCEL_PROMPT
                                                             : COVER_CANCEL_DECODE;
}

void client_cancel(struct sim *sim, struct client *client)
{
    struct front *front = &sim->fronts[client->front_index];
    if (front->sched == NULL || front->life != client->front_life) {
        return;
    }
    report_cover(sim->report, client->has_ended ? COVER_CANCEL_ENDED : cancel_cover(client));
    client->is_cancelled = true;
    sched_cancel(front->sched, client->request_id, sim->now_ns);
    if (!client->has_ended) {
        report_fail(sim->report, "request %llu: lives on after its cancel", TRACE_ID(client));
    }
}

static void keep_conversation(struct sim *sim, const struct client *client)
{
    struct conversation *said = &sim->conversations[sim->conversation_count++ % SIM_CONVERSATIONS];
    mem_free(said->tokens);
    said->tokens = mem_zalloc(client->token_count, sizeof(uint32_t));
    memcpy(said->tokens, client->tokens, client->token_count * sizeof(uint32_t));
    said->token_count = client->token_count;
    said->cache_salt = client->admit.cache_salt;
}

void client_sweep(struct sim *sim)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        struct client *client = sim->alive[i];
        if (!client->has_ended) {
            sim->alive[kept++] = client;
            continue;
        }
        if (client->token_count > sim->world.limits.page_tokens || sim->conversation_count < 2) {
            keep_conversation(sim, client);
        }
        struct client **place = &sim->ended[sim->ended_count++ % SIM_KEPT_CLIENTS];
        client_free(*place);
        *place = client;
    }
    sim->alive_count = kept;
}

void client_lose(struct sim *sim, const struct front *front)
{
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        if (sim->alive[i]->front_index == front->index) {
            sim->alive[i]->is_lost = true;
        }
    }
}

void client_free_all(struct sim *sim)
{
    for (uint32_t i = 0; i < SIM_KEPT_CLIENTS; i++) {
        client_free(sim->ended[i]);
    }
    for (uint32_t i = 0; i < SIM_CONVERSATIONS; i++) {
        mem_free(sim->conversations[i].tokens);
    }
}
