/* From the engine's events to what the choices show. */
#include "frontend/http_generate_internal.h"

#include <h2o.h>

#include "common/clock.h"
#include "frontend/app.h"
#include "frontend/engine.h"

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)CLOCK_NS_PER_SEC : 0.0;
}

static void count_finish(const struct http_choice *choice)
{
    const struct http_call *call = choice->call;
    struct metrics *metrics = &call->app->metrics;
    uint32_t output_tokens = choice->output.token_count;
    metrics->success_stop += choice->finish != API_FINISH_LENGTH;
    metrics->success_length += choice->finish == API_FINISH_LENGTH;
    metrics_observe(metrics, METRICS_e2e, seconds_between(call->arrived_ns, choice->last_ns));
    metrics_observe(metrics, METRICS_decode_time,
                    seconds_between(choice->first_ns, choice->last_ns));
    metrics_observe(metrics, METRICS_inference_time,
                    seconds_between(choice->admitted_ns, choice->last_ns));
    if (output_tokens > 1) {
        metrics_observe(metrics, METRICS_tpot,
                        seconds_between(choice->first_ns, choice->last_ns) / (output_tokens - 1));
    }
    metrics_observe(metrics, METRICS_request_prompt, choice->prompt_tokens);
    metrics_observe(metrics, METRICS_request_output, output_tokens);
}

static void finish(struct http_choice *choice, enum api_finish finish)
{
    struct http_call *call = choice->call;
    if (call->has_ended || choice->is_done) {
        return;
    }
    output_finish(&choice->output);
    if (finish == API_FINISH_STOP && output_has_call(&choice->output)) {
        finish = API_FINISH_TOOL_CALLS;
    }
    choice->finish = choice->output.is_prompt_only ? API_FINISH_LENGTH : finish;
    choice->is_done = true;
    call->done_count++;
    count_finish(choice);
    if (call->done_count == call->choice_count) {
        http_call_end(call, HTTP_CALL_FINISHED, finish == API_FINISH_LENGTH ? "length" : "stop");
    }
    if (call->request) {
        http_choice_write_end(choice);
    }
}

static void take_admitted(struct http_choice *choice, const struct engine_event *event)
{
    struct http_call *call = choice->call;
    struct metrics *metrics = &call->app->metrics;
    bool is_first = choice->admitted_ns == 0;
    http_call_leave_queue(call);
    if (!is_first) {
        return; /* admitted again after a preemption */
    }
    choice->admitted_ns = event->time_ns;
    choice->cached_tokens = event->reused_tokens;
    metrics->prompt_tokens += choice->prompt_tokens;
    metrics->prefix_queries += event->queried_tokens;
    metrics->prefix_hits += event->reused_tokens;
    metrics_observe(metrics, METRICS_queue_time, seconds_between(call->arrived_ns, event->time_ns));
}

static void count_token(struct http_choice *choice, const struct engine_event *event)
{
    struct http_call *call = choice->call;
    struct metrics *metrics = &call->app->metrics;
    metrics->output_tokens++;
    if (choice->first_ns == 0) {
        choice->first_ns = event->time_ns;
        call->first_ns = call->first_ns == 0 ? event->time_ns : call->first_ns;
        metrics_observe(metrics, METRICS_ttft, seconds_between(call->arrived_ns, event->time_ns));
        metrics_observe(metrics, METRICS_prefill_time,
                        seconds_between(choice->admitted_ns, event->time_ns));
    } else {
        double seconds = seconds_between(choice->last_ns, event->time_ns);
        metrics_observe(metrics, METRICS_itl, seconds);
        metrics_observe(metrics, METRICS_itl_old, seconds);
    }
    choice->last_ns = event->time_ns;
}

static void take_token(struct http_choice *choice, const struct engine_event *event)
{
    struct http_call *call = choice->call;
    if (call->has_ended || choice->is_done) {
        return; /* tokens that were under way when it ended */
    }
    http_call_leave_queue(call);
    count_token(choice, event);
    if (output_push(&choice->output, event)) {
        engine_cancel(call->app->engine, choice->request_id);
        finish(choice, API_FINISH_STOP);
    }
}

static void take_finished(struct http_choice *choice, const struct engine_event *event)
{
    struct api_error error;
    switch (event->reason) {
    case RESULT_FINISH_STOP: finish(choice, API_FINISH_STOP); break;
    case RESULT_FINISH_LENGTH: finish(choice, API_FINISH_LENGTH); break;
    case RESULT_FINISH_CANCEL:
        if (!choice->is_done) { /* no-op where it was this side's wish */
            (void)api_error_set(&error, ERR_CANCELLED, NULL, "the server cancelled the request");
            http_call_fail(choice->call, HTTP_CALL_FAILED, &error);
        }
        break;
    }
}

/* An answer lacks none of its choices: one that fails ends the others. */
static void take_failed(struct http_choice *choice, const struct engine_event *event)
{
    struct http_call *call = choice->call;
    struct api_error error;
    if (choice->is_done || call->has_ended) {
        return;
    }
    (void)api_error_set(&error, event->code ? event->code : ERR_INTERNAL, NULL, "%s",
                        event->text ? event->text : "the request failed");
    http_call_cancel_engine(call);
    http_call_fail(call, call->is_admitted ? HTTP_CALL_FAILED : HTTP_CALL_REJECTED, &error);
}

static void take_event(struct http_choice *choice, const struct engine_event *event)
{
    switch (event->kind) {
    case ENGINE_EVENT_ADMITTED: take_admitted(choice, event); break;
    case ENGINE_EVENT_TOKEN: take_token(choice, event); break;
    case ENGINE_EVENT_PROMPT_LOGPROBS: output_push_prompt(&choice->output, event); break;
    case ENGINE_EVENT_FINISHED:
    case ENGINE_EVENT_FAILED:
        choice->has_terminal = true;
        choice->call->terminal_count++;
        if (event->kind == ENGINE_EVENT_FINISHED) {
            take_finished(choice, event);
        } else {
            take_failed(choice, event);
        }
        break;
    }
}

void http_call_leave_engine(struct http_call *call)
{
    if (call->is_prepared && call->terminal_count == call->submitted_count &&
        !call->has_left_engine) {
        call->has_left_engine = true;
        http_call_release(call);
    }
}

void http_choice_read_mail(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    struct engine_event event;
    call->ref_count++;
    mailbox_take(&choice->mailbox);
    while (mailbox_next(&choice->mailbox, &event)) {
        take_event(choice, &event);
    }
    if (!call->has_ended && call->is_stream && call->request) {
        http_call_write(call);
    }
    http_call_leave_engine(call);
    http_call_release(call);
}

/* Mail may come before the loop thread knows the call's choices; then it waits for that. */
void http_choice_on_mail(struct loop_task *task)
{
    struct http_choice *choice = H2O_STRUCT_FROM_MEMBER(struct http_choice, mailbox.task, task);
    choice->has_mail = true;
    if (choice->call->is_prepared) {
        http_choice_read_mail(choice);
    }
}
