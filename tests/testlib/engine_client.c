#include "tests/testlib/engine_client.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/test.h"

struct client {
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t cond;
    struct engine *engine; /* of the last submit */
    struct client_view view;
    uint32_t tokens[CLIENT_MAX_TOKENS];
};

struct client *client_create(void)
{
    struct client *client = mem_zalloc(1, sizeof(*client));
    pthread_condattr_t attributes;
    (void)pthread_mutex_init(&client->mutex, NULL); /* these cannot fail on Linux */
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&client->cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return client;
}

void client_destroy(struct client *client)
{
    (void)pthread_cond_destroy(&client->cond);
    (void)pthread_mutex_destroy(&client->mutex);
    mem_free(client);
}

static void on_event(void *owner, const struct engine_event *event)
{
    struct client *client = owner;
    struct client_view *view = &client->view;
    struct engine_status status = {0};
    if (event->kind == ENGINE_EVENT_FAILED) {
        engine_get_status(client->engine, &status);
    }
    (void)pthread_mutex_lock(&client->mutex);
    if (view->ended > 0) {
        view->ended++; /* an event after the last */
    }
    switch (event->kind) {
    case ENGINE_EVENT_ADMITTED: view->admitted++; break;
    case ENGINE_EVENT_TOKEN:
        if (view->token_count < CLIENT_MAX_TOKENS) {
            client->tokens[view->token_count] = event->token;
        }
        view->first_token_ns = view->token_count == 0 ? event->time_ns : view->first_token_ns;
        view->token_count++;
        break;
    case ENGINE_EVENT_PROMPT_LOGPROBS: break;
    case ENGINE_EVENT_FINISHED:
        view->ended++;
        view->ended_ns = event->time_ns;
        view->reason = event->reason;
        break;
    case ENGINE_EVENT_FAILED:
        view->ended++;
        view->ended_ns = event->time_ns;
        view->code = event->code;
        view->failed_attached = status.is_attached;
        (void)snprintf(view->text, sizeof(view->text), "%s", event->text); /* cut is fine */
        break;
    }
    (void)pthread_cond_broadcast(&client->cond);
    (void)pthread_mutex_unlock(&client->mutex);
}

struct engine_request client_request(struct client *client, const uint32_t *prompt,
                                     uint32_t prompt_count, uint32_t output_count, uint64_t seed)
{
    return (struct engine_request){
        .admit = {.prompt = {.at = prompt, .count = prompt_count},
                  .output_start = prompt_count,
                  .max_total = prompt_count + output_count,
                  .seed = seed,
                  .top_p = 1,
                  .repetition_penalty = 1},
        .on_event = on_event,
        .owner = client,
    };
}

enum err_code client_submit(struct client *client, struct engine *engine,
                            const struct engine_request *request, struct err *err)
{
    uint64_t request_id = 0;
    (void)pthread_mutex_lock(&client->mutex);
    client->view = (struct client_view){.submitted_ns = clock_now_ns()};
    client->engine = engine;
    (void)pthread_mutex_unlock(&client->mutex);
    enum err_code code = engine_submit(engine, request, &request_id, err);
    (void)pthread_mutex_lock(&client->mutex);
    client->view.request_id = request_id;
    (void)pthread_mutex_unlock(&client->mutex);
    return code;
}

static bool wait_for(struct client *client, uint32_t token_count, uint64_t timeout_ns)
{
    uint64_t end_ns = clock_now_ns() + test_patience(timeout_ns);
    struct timespec deadline = {.tv_sec = (time_t)(end_ns / CLOCK_NS_PER_SEC),
                                .tv_nsec = (long)(end_ns % CLOCK_NS_PER_SEC)};
    int result = 0;
    (void)pthread_mutex_lock(&client->mutex);
    while (client->view.ended == 0 && client->view.token_count < token_count &&
           result != ETIMEDOUT) {
        result = pthread_cond_timedwait(&client->cond, &client->mutex, &deadline);
    }
    bool holds = client->view.ended > 0 || client->view.token_count >= token_count;
    (void)pthread_mutex_unlock(&client->mutex);
    return holds;
}

bool client_wait_end(struct client *client, uint64_t timeout_ns)
{
    return wait_for(client, UINT32_MAX, timeout_ns);
}

bool client_wait_tokens(struct client *client, uint32_t token_count, uint64_t timeout_ns)
{
    return wait_for(client, token_count, timeout_ns);
}

void client_get(struct client *client, struct client_view *out_view)
{
    (void)pthread_mutex_lock(&client->mutex);
    *out_view = client->view;
    (void)pthread_mutex_unlock(&client->mutex);
}

uint32_t client_token(struct client *client, uint32_t index)
{
    (void)pthread_mutex_lock(&client->mutex);
    uint32_t token = client->tokens[index];
    (void)pthread_mutex_unlock(&client->mutex);
    return token;
}

bool client_wait_status(struct engine *engine, bool (*holds)(const struct engine_status *status),
                        uint64_t timeout_ns)
{
    uint64_t end_ns = clock_now_ns() + test_patience(timeout_ns);
    struct timespec tick = {.tv_nsec = (long)CLOCK_NS_PER_MS};
    struct engine_status status;
    engine_get_status(engine, &status);
    while (!holds(&status)) {
        if (clock_now_ns() >= end_ns) {
            return false;
        }
        (void)nanosleep(&tick, NULL); /* the status has no event to wait on */
        engine_get_status(engine, &status);
    }
    return true;
}

bool client_is_ready(const struct engine_status *status)
{
    return status->is_ready;
}

bool client_is_detached(const struct engine_status *status)
{
    return !status->is_attached;
}

bool client_is_idle(const struct engine_status *status)
{
    return status->waiting_requests == 0 && status->running_requests == 0;
}

bool client_adds_up(const struct engine_status *status)
{
    uint64_t sum = status->requests_rejected + status->requests_failed + status->waiting_requests +
                   status->running_requests;
    for (uint32_t i = 0; i <= RESULT_FINISH_CANCEL; i++) {
        sum += status->requests_finished[i];
    }
    return sum == status->requests_arrived;
}
