#include "tests/testlib/sched_rig.h"

#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/test.h"

#define PROMPT_MAX 8192

static const uint32_t zero_prompt[PROMPT_MAX];

static void on_send(void *owner, const struct plan_message *message)
{
    struct rig *rig = owner;
    model_deliver(rig->model, message, rig->now_ns);
    if (!rig->keeps_sent) {
        return;
    }
    if (rig->sent_count == rig->sent_cap) {
        rig->sent_cap = rig->sent_cap == 0 ? 64 : 2 * rig->sent_cap;
        rig->sent = mem_realloc(rig->sent, rig->sent_cap, sizeof(rig->sent[0]));
    }
    struct rig_sent *sent = &rig->sent[rig->sent_count++];
    *sent =
        (struct rig_sent){.type = message->type, .at_ns = rig->now_ns, .msg_seq = message->msg_seq};
    switch (message->type) {
    case PLAN_ADMIT: sent->seq_id = message->as.admit.seq_id; break;
    case PLAN_CANCEL: sent->seq_id = message->as.cancel.seq_id; break;
    case PLAN_RELEASE: sent->seq_id = message->as.release.seq_id; break;
    case PLAN_PING: break;
    case PLAN_STEP:
        sent->after = message->as.step.after;
        sent->row_count = message->as.step.rows.count;
        sent->outstanding = sched_outstanding_steps(rig->sched);
        for (uint32_t i = 0; i < sent->row_count; i++) {
            const struct wire_row *row = &message->as.step.rows.at[i];
            sent->token_count += row->count == 0 ? 1 : row->count;
            if (i < RIG_MAX_ROWS) {
                sent->rows[i] = *row;
            }
        }
        break;
    }
}

static void on_event(void *owner, const struct engine_event *event)
{
    struct rig_request *request = owner;
    if (request->ended > 0) {
        request->ended++; /* an event after the last: as wrong as a second end */
        return;
    }
    switch (event->kind) {
    case ENGINE_EVENT_ADMITTED: request->admitted++; break;
    case ENGINE_EVENT_TOKEN:
        if (event->position != request->prompt_count + request->token_count) {
            request->has_wrong_token = true;
        }
        if (request->model != NULL &&
            event->token != model_token(request->model, request->seed, event->position)) {
            request->has_wrong_token = true;
        }
        request->first_token_ns =
            request->token_count == 0 ? event->time_ns : request->first_token_ns;
        if (request->token_count > 0 &&
            event->time_ns - request->last_token_ns > request->longest_gap_ns) {
            request->longest_gap_ns = event->time_ns - request->last_token_ns;
        }
        request->last_token_ns = event->time_ns;
        request->token_count++;
        request->pair_count += event->pair_count;
        break;
    case ENGINE_EVENT_PROMPT_LOGPROBS:
        request->prompt_logprob_count++;
        request->has_wrong_token |= event->position != request->prompt_logprob_count;
        break;
    case ENGINE_EVENT_FINISHED:
        request->ended++;
        request->ended_ns = event->time_ns;
        request->reason = event->reason;
        break;
    case ENGINE_EVENT_FAILED:
        request->ended++;
        request->ended_ns = event->time_ns;
        request->code = event->code;
        (void)snprintf(request->text, sizeof(request->text), "%s", event->text); /* cut is fine */
        break;
    }
}

struct model_options rig_model_options(void)
{
    return (struct model_options){
        .limits = model_small_limits(), .step_ns = 10 * RIG_MS, .down_ns = 100000, .up_ns = 100000};
}

struct sched_options rig_sched_options(void)
{
    return (struct sched_options){.max_queue = 64, .detached_wait_ns = 30000 * RIG_MS};
}

void rig_init(struct rig *rig, const struct model_options *model_options,
              const struct sched_options *sched_options)
{
    *rig = (struct rig){
        .model_options = *model_options,
        .sched_options = *sched_options,
        .now_ns = 1000000000,
        .next_request_id = 1,
        .next_epoch = 1,
        .keeps_sent = true,
    };
    rig->sched = sched_create(sched_options, on_send, rig);
    rig_attach(rig);
}

void rig_init_default(struct rig *rig)
{
    struct model_options model = rig_model_options();
    struct sched_options sched = rig_sched_options();
    rig_init(rig, &model, &sched);
}

void rig_fini(struct rig *rig)
{
    sched_destroy(rig->sched, rig->now_ns);
    model_destroy(rig->model);
    mem_free(rig->sent);
}

void rig_attach(struct rig *rig)
{
    struct err err;
    rig->model = model_create(&rig->model_options);
    model_open(rig->model, rig->next_epoch);
    test_ok(
        sched_attach(rig->sched, &rig->model_options.limits, rig->next_epoch, rig->now_ns, &err),
        &err);
    rig->next_epoch++;
}

void rig_detach(struct rig *rig)
{
    test_eq_str(model_violation(rig->model), "");
    model_destroy(rig->model);
    rig->model = NULL;
    sched_detach(rig->sched, "the worker is gone", rig->now_ns);
}

struct engine_request rig_engine_request(struct rig_request *request, uint32_t prompt_count,
                                         uint32_t output_count, uint64_t seed)
{
    *request = (struct rig_request){
        .seed = seed, .prompt_count = prompt_count, .max_total = prompt_count + output_count};
    return (struct engine_request){
        .admit = {.prompt = {.at = zero_prompt, .count = prompt_count},
                  .output_start = prompt_count,
                  .max_total = prompt_count + output_count,
                  .seed = seed,
                  .top_p = 1,
                  .repetition_penalty = 1},
        .on_event = on_event,
        .owner = request,
    };
}

enum err_code rig_submit(struct rig *rig, struct rig_request *request,
                         const struct engine_request *engine_request, struct err *err)
{
    struct req *req = NULL;
    enum err_code code = req_create(engine_request, &req, err);
    if (code != ERR_OK) {
        return code;
    }
    req->request_id = rig->next_request_id++;
    request->request_id = req->request_id;
    request->model = &rig->model_options;
    code = sched_submit(rig->sched, req, rig->now_ns, err);
    if (code != ERR_OK) {
        req_destroy(req);
        return code;
    }
    sched_tick(rig->sched, rig->now_ns);
    return ERR_OK;
}

void rig_add(struct rig *rig, struct rig_request *request, uint32_t prompt_count,
             uint32_t output_count)
{
    struct err err;
    struct engine_request plain =
        rig_engine_request(request, prompt_count, output_count, rig->next_request_id);
    test_ok(rig_submit(rig, request, &plain, &err), &err);
}

void rig_cancel(struct rig *rig, const struct rig_request *request)
{
    sched_cancel(rig->sched, request->request_id, rig->now_ns);
    sched_tick(rig->sched, rig->now_ns);
}

/* Hand over what is due now; false when there was nothing. */
static void exchange(struct rig *rig)
{
    struct result_record record;
    if (rig->model == NULL) {
        sched_tick(rig->sched, rig->now_ns);
        return;
    }
    model_advance(rig->model, rig->now_ns);
    while (model_try_pop(rig->model, rig->now_ns, &record)) {
        struct err err;
        test_ok(sched_record(rig->sched, &record, rig->now_ns, &err), &err);
    }
    test_true(sched_check(rig->sched));
    sched_tick(rig->sched, rig->now_ns);
    test_true(sched_check(rig->sched));
    test_eq_str(model_violation(rig->model), "");
}

void rig_run_to(struct rig *rig, uint64_t until_ns)
{
    for (;;) {
        exchange(rig);
        uint64_t next_ns = rig->model == NULL ? UINT64_MAX : model_next_ns(rig->model);
        uint64_t wake_ns = sched_wake_ns(rig->sched);
        next_ns = wake_ns < next_ns ? wake_ns : next_ns;
        if (next_ns > until_ns) {
            break;
        }
        rig->now_ns = next_ns > rig->now_ns ? next_ns : rig->now_ns;
    }
    rig->now_ns = until_ns;
}

void rig_run_idle(struct rig *rig, uint64_t limit_ns)
{
    uint64_t end_ns = rig->now_ns + limit_ns;
    for (;;) {
        struct sched_gate gate;
        sched_get_gate(rig->sched, &gate);
        if (gate.waiting == 0 && gate.running == 0) {
            break;
        }
        uint64_t next_ns = rig->model == NULL ? UINT64_MAX : model_next_ns(rig->model);
        uint64_t wake_ns = sched_wake_ns(rig->sched);
        next_ns = wake_ns < next_ns ? wake_ns : next_ns;
        if (next_ns > end_ns) {
            test_fail(__FILE__, __LINE__, "%u waiting, %u running after %llu ms", gate.waiting,
                      gate.running, (unsigned long long)(limit_ns / 1000000));
        }
        rig->now_ns = next_ns > rig->now_ns ? next_ns : rig->now_ns;
        exchange(rig);
    }
    /* what is on its way still arrives: the last RELEASE */
    rig_run_to(rig, rig->now_ns + rig->model_options.down_ns + rig->model_options.up_ns + 1);
}

uint32_t rig_count_sent(const struct rig *rig, enum plan_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rig->sent_count; i++) {
        count += rig->sent[i].type == type;
    }
    return count;
}

const struct rig_sent *rig_nth_sent(const struct rig *rig, enum plan_type type, uint32_t index)
{
    for (uint32_t i = 0; i < rig->sent_count; i++) {
        if (rig->sent[i].type == type && index-- == 0) {
            return &rig->sent[i];
        }
    }
    test_fail(__FILE__, __LINE__, "no such message was sent");
}

void rig_check_length(const struct rig_request *request, uint32_t output_count)
{
    test_eq_str(request->text, "");
    test_eq_u64(request->ended, 1);
    test_eq_u64(request->reason, RESULT_FINISH_LENGTH);
    test_eq_u64(request->token_count, output_count);
    test_true(!request->has_wrong_token);
}

void rig_check_all_returned(const struct rig *rig)
{
    struct model_stats stats = rig_model_stats(rig);
    test_eq_u64(stats.sequences, 0);
    test_eq_u64(stats.local_held_pages, 0);
    test_eq_u64(stats.global_held_pages, 0);
}

struct sched_stats rig_stats(const struct rig *rig)
{
    struct sched_stats stats;
    sched_get_stats(rig->sched, &stats);
    return stats;
}

struct model_stats rig_model_stats(const struct rig *rig)
{
    struct model_stats stats;
    model_get_stats(rig->model, &stats);
    return stats;
}
