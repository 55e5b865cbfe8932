#include "frontend/http_admin.h"

#include <string.h>
#include <unistd.h>

#include <h2o.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/launcher_socket.h"
#include "common/log.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/http_reply.h"
#include "frontend/loop.h"

#define RESET_WAIT_NS (5 * CLOCK_NS_PER_SEC)

/* A reset of the cache that is under way.  Lives in the request's pool. */
struct http_admin_wait {
    struct http_admin_wait *next;
    struct http_admin_wait **slot; /* null once answered */
    struct app *app;               /* borrowed */
    h2o_req_t *request;            /* borrowed */
    uint64_t ticket;
    uint64_t until_ns;
    char id[HTTP_REQUEST_ID_BYTES];
};

/* Lives in the request's pool. */
struct reload {
    struct app *app;          /* borrowed */
    h2o_req_t *request;       /* borrowed */
    struct loop_watch *watch; /* owned; null once answered */
    char id[HTTP_REQUEST_ID_BYTES];
};

static void end_watch(struct reload *reload)
{
    loop_watch_destroy(reload->watch); /* closes what it watched */
    reload->watch = NULL;
}

static void on_disposed(void *at)
{
    end_watch(at);
}

static void reply_error(struct reload *reload, const struct err *err)
{
    struct api_error error;
    int status = err->code == ERR_BUSY ? 409 : 503;
    api_error_http(&error, status, status == 409 ? "reload_refused" : "unavailable", "reload: %s",
                   err->message);
    http_reply_error(reload->app, reload->request, reload->id, &error);
}

static void on_answer(void *owner, int fd)
{
    struct reload *reload = owner;
    struct err err;
    struct buf body;
    char text[LAUNCHER_TEXT_BYTES];
    int own_fd = dup(fd); /* the watch closes the other */
    enum err_code code = own_fd < 0
                             ? err_set(&err, ERR_SYSTEM, "no descriptor for the answer is left")
                             : launcher_socket_finish(own_fd, text, &err);
    end_watch(reload);
    if (code) {
        reply_error(reload, &err);
        return;
    }
    buf_init(&body);
    buf_append_text(&body, "{\"status\":\"ok\",\"message\":");
    json_put_text(&body, text, strlen(text));
    buf_append_text(&body, "}");
    http_reply_body(reload->app, reload->request, reload->id, "application/json", &body);
}

void http_admin_reload(struct app *app, struct st_h2o_req_t *request)
{
    int fd = -1;
    struct err err;
    struct reload *reload = h2o_mem_alloc_shared(&request->pool, sizeof(*reload), on_disposed);
    memset(reload, 0, sizeof(*reload));
    reload->app = app;
    reload->request = request;
    http_reply_request_id(app, request, reload->id);
    char quoted[HTTP_REQUEST_ID_BYTES + 8];
    log_info("admin", "reload_asked", "req=%s", log_quote(reload->id, quoted, sizeof(quoted)));
    if (launcher_socket_begin(app->options->run_dir, "reload", &fd, &err)) {
        reply_error(reload, &err);
        return;
    }
    reload->watch = loop_watch_create(app->loop, fd, on_answer, reload);
}

static void leave_list(struct http_admin_wait *wait)
{
    if (!wait->slot) {
        return;
    }
    *wait->slot = wait->next;
    if (wait->next) {
        wait->next->slot = wait->slot;
    }
    wait->slot = NULL;
}

static void on_wait_disposed(void *at)
{
    leave_list(at);
}

static void reply_reset(struct http_admin_wait *wait, const struct hello_stats_answer *worker)
{
    struct buf body;
    buf_init(&body);
    buf_printf(&body, "{\"status\":\"ok\",\"held_pages\":{\"local\":%u,\"global\":%u}}",
               worker->local_prefix_pages, worker->global_prefix_pages);
    http_reply_body(wait->app, wait->request, wait->id, "application/json", &body);
}

static void reply_unavailable(struct app *app, h2o_req_t *request, const char *id, const char *why)
{
    struct api_error error;
    api_error_http(&error, 503, "unavailable", "resetting the cache: %s", why);
    http_reply_error(app, request, id, &error);
}

void http_admin_reset_cache(struct app *app, struct st_h2o_req_t *request)
{
    struct engine_status status;
    struct http_admin_wait *wait =
        h2o_mem_alloc_shared(&request->pool, sizeof(*wait), on_wait_disposed);
    memset(wait, 0, sizeof(*wait));
    http_reply_request_id(app, request, wait->id);
    engine_get_status(app->engine, &status);
    if (!status.is_attached) {
        reply_unavailable(app, request, wait->id, "no worker is attached");
        return;
    }
    char quoted[HTTP_REQUEST_ID_BYTES + 8];
    log_info("admin", "cache_reset_asked", "req=%s", log_quote(wait->id, quoted, sizeof(quoted)));
    wait->app = app;
    wait->request = request;
    wait->until_ns = clock_now_ns() + RESET_WAIT_NS;
    wait->ticket = engine_reset_cache(app->engine);
    wait->next = app->admin_waits;
    wait->slot = &app->admin_waits;
    if (wait->next) {
        wait->next->slot = &wait->next;
    }
    app->admin_waits = wait;
}

void http_admin_sweep(struct app *app, uint64_t now_ns)
{
    struct engine_status status;
    if (!app->admin_waits) {
        return;
    }
    engine_get_status(app->engine, &status);
    struct http_admin_wait *next;
    for (struct http_admin_wait *wait = app->admin_waits; wait; wait = next) {
        next = wait->next;
        if (status.cache_resets_done >= wait->ticket) {
            leave_list(wait);
            reply_reset(wait, &status.worker);
        } else if (now_ns > wait->until_ns) {
            leave_list(wait);
            reply_unavailable(app, wait->request, wait->id, "the worker does not answer");
        }
    }
}
