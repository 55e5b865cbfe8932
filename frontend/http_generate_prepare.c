/* From the body to choices that run: on a work thread, and back on the loop. */
#include "frontend/http_generate_internal.h"

#include <h2o.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/prepare.h"

enum {
    LARGE_BODY_BYTES = 128 << 10, /* tokenizing takes tens of milliseconds from here */
};

/* Engine thread. */
static void on_event(void *owner, const struct engine_event *event)
{
    struct http_choice *choice = owner;
    mailbox_put(&choice->mailbox, event);
}

uint32_t http_call_retry_after_s(const struct app *app)
{
    struct engine_status status;
    engine_get_status(app->engine, &status);
    return status.retry_after_s > 0 ? status.retry_after_s : API_ERROR_RETRY_SECONDS;
}

static struct engine_request request_of(struct http_choice *choice, const struct prepared *prepared)
{
    const struct http_call *call = choice->call;
    const struct api_request *asked = &prepared->request;
    uint32_t prompt_index = choice->index / asked->n;
    struct engine_request request = {
        .admit = prepared->prompts[prompt_index].plan.admit,
        .priority = asked->has_priority ? (int32_t)asked->priority : 0,
        .group = asked->n > 1 ? (call->random_seed + prompt_index) | 1 : 0,
        .key_hash = call->key_hash,
        .constraint = prepare_constraint(&call->app->model, prepared, prompt_index),
        .on_event = on_event,
        .owner = choice,
    };
    if (asked->route == API_ROUTE_CHAT && choice->index > 0) {
        request.admit.prompt_logprobs = 0; /* told once beside all choices */
    }
    request.admit.seed = prepare_seed(prepared, prompt_index, choice->index % asked->n);
    if (asked->has_timeout) {
        request.deadline_ns =
            call->arrived_ns + (uint64_t)((double)asked->timeout * (double)CLOCK_NS_PER_SEC);
    }
    return request;
}

/* Work thread.  All choices, or an error: those before it are cancelled by on_prepared. */
static enum err_code submit(struct http_call *call, const struct prepared *prepared)
{
    struct err err;
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; !code && i < call->choice_count; i++) {
        struct http_choice *choice = &call->choices[i];
        struct engine_request request = request_of(choice, prepared);
        code = engine_submit(call->app->engine, &request, &choice->request_id, &err);
        choice->was_submitted = !code;
        call->submitted_count += !code;
    }
    if (code) {
        api_error_from_err(&call->error, &err);
    }
    if (code == ERR_BUSY) {
        call->error.retry_after_s = http_call_retry_after_s(call->app);
    }
    return code;
}

static enum err_code fill_choice(struct http_choice *choice, const struct prepared *prepared)
{
    struct http_call *call = choice->call;
    const struct api_request *request = &prepared->request;
    const struct prepared_prompt *prompt = &prepared->prompts[choice->index / request->n];
    const struct prepare_model *model = &call->app->model;
    struct err err;
    choice->is_first = choice->index % request->n == 0;
    choice->prompt_tokens = (uint32_t)prompt->ids.count;
    enum err_code code = output_init(&choice->output, request, &prompt->plan, model->tokenizer,
                                     &model->markers, &err);
    choice->output.index = choice->index;
    choice->has_output = true;
    if (code) {
        api_error_from_err(&call->error, &err);
        return code;
    }
    struct output_prompt shown = {.ids = &prompt->ids, .has_added_bos = prompt->has_added_bos};
    if (request->prompts) {
        shown.text = request->prompts[choice->index / request->n].text;
    }
    output_begin_prompt(&choice->output, request, &shown);
    return ERR_OK;
}

/* They pass: clients of other servers send many. */
static void log_unknown(const struct http_call *call, const struct json_t *body)
{
    struct json_iter iter;
    json_iter_start(&iter, body);
    while (json_iter_next(&iter)) {
        char id[HTTP_REQUEST_ID_BYTES + 8];
        char name[64];
        if (!api_request_knows(iter.key)) {
            log_debug("http", "unknown_field", "req=%s name=%s",
                      log_quote(call->request_id_text, id, sizeof(id)),
                      log_quote(iter.key, name, sizeof(name)));
        }
    }
}

/* Work thread.  What the answer needs is set before the engine's first event can come. */
static enum err_code fill_answer(struct http_call *call, const struct prepared *prepared)
{
    const struct api_request *request = &prepared->request;
    call->is_stream = request->stream;
    call->head.is_stream = request->stream;
    call->head.wants_usage = request->include_usage;
    call->head.wants_live_usage = request->include_live_usage;
    call->choice_count = prepared->prompt_count * request->n;
    call->choices = mem_zalloc(call->choice_count, sizeof(*call->choices));
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct http_choice *choice = &call->choices[i];
        choice->call = call;
        choice->index = i;
        mailbox_init(&choice->mailbox, call->app->loop, http_choice_on_mail);
        code = code ? code : fill_choice(choice, prepared);
    }
    return code;
}

/* Work thread. */
static enum err_code prepare_and_submit(struct http_call *call, struct prepared *out_prepared)
{
    struct engine_status status;
    engine_get_status(call->app->engine, &status);
    if (!status.is_attached && !call->text_answer) {
        return api_error_set(&call->error, ERR_CLOSED, NULL, "%s",
                             status.welcome.state == HELLO_STATE_LOADING ? "the worker is loading"
                                                                         : "no worker is attached");
    }
    struct prepare_input input = {
        .route = call->head.route,
        .limits = {.vocab_tokens = status.welcome.vocab_tokens,
                   .max_context_tokens = status.welcome.max_context_tokens,
                   .pool_tokens = status.pool_tokens},
        .body = &call->body,
        .random_seed = call->random_seed,
    };
    if (call->text_answer) {
        return call->text_answer(&call->app->model, &input, &call->text, &call->error);
    }
    enum err_code code = call->dialect ? http_dialect_translate(call) : ERR_OK;
    if (!code) {
        code = prepare_request(&call->app->model, &input, out_prepared, &call->error);
    }
    if (!code) {
        log_unknown(call, out_prepared->body);
        code = fill_answer(call, out_prepared);
    }
    if (!code && atomic_load_explicit(&call->is_unwanted, memory_order_relaxed)) {
        code = api_error_set(&call->error, ERR_CANCELLED, NULL, "the client has gone");
    }
    return code ? code : submit(call, out_prepared);
}

/* Work thread. */
static void run_work(struct work_item *item)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, work, item);
    struct prepared prepared = {0};
    if (atomic_load_explicit(&call->is_unwanted, memory_order_relaxed)) {
        call->prepare_code =
            api_error_set(&call->error, ERR_CANCELLED, NULL, "the client has gone");
    } else {
        call->prepare_code = prepare_and_submit(call, &prepared);
    }
    struct buf body = call->body;
    buf_init(&call->body);
    loop_post(call->app->loop, &call->prepared_task); /* the call may be gone after this */
    /* Large trees and buffers are freed here rather than on the loop thread. */
    prepare_fini(&prepared);
    buf_fini(&body);
}

static void reply_text(struct http_call *call)
{
    http_call_end(call, HTTP_CALL_FINISHED, "done");
    if (call->request) {
        call->has_replied = true;
        http_reply_body(call->app, call->request, call->request_id_text, "application/json",
                        &call->text);
    }
}

static void on_prepared(struct loop_task *task)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, prepared_task, task);
    metrics_observe(&call->app->metrics, METRICS_work_time,
                    (double)(clock_now_ns() - call->arrived_ns) / (double)CLOCK_NS_PER_SEC);
    call->is_prepared = true;
    if (call->prepare_code || call->has_ended) {
        http_call_cancel_engine(call);
    }
    if (call->prepare_code) {
        http_call_fail(call, HTTP_CALL_REJECTED, &call->error);
    }
    if (call->text_answer && !call->has_ended) {
        reply_text(call);
    }
    for (uint32_t i = 0; i < call->choice_count; i++) {
        if (call->choices[i].has_mail) {
            http_choice_read_mail(&call->choices[i]);
        }
    }
    http_call_leave_engine(call);
    http_call_release(call);
}

void http_call_stop_early(struct http_call *call)
{
    http_call_release(call);
    http_call_release(call);
}

void http_call_refuse(struct http_call *call, enum err_code code, const char *text)
{
    struct api_error error;
    (void)api_error_set(&error, code, NULL, "%s", text); /* the code given */
    if (code == ERR_BUSY) {
        error.retry_after_s = http_call_retry_after_s(call->app);
    }
    http_call_fail(call, HTTP_CALL_REJECTED, &error);
    http_call_stop_early(call);
}

void http_call_start_work(struct http_call *call)
{
    call->prepared_task.run = on_prepared;
    call->work.run = run_work;
    call->work.is_large = call->body.used_bytes >= LARGE_BODY_BYTES;
    if (!work_try_submit(call->app->work, &call->work)) {
        http_call_refuse(call, ERR_BUSY, "too many bodies wait for a work thread; try again");
    }
}
