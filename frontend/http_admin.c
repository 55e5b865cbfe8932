#include "frontend/http_admin.h"

#include <string.h>
#include <unistd.h>

#include <h2o.h>

#include "common/json.h"
#include "common/launcher_socket.h"
#include "common/log.h"
#include "frontend/app.h"
#include "frontend/http_reply.h"
#include "frontend/loop.h"

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
