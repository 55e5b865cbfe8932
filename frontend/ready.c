#include "frontend/ready.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/loop.h"
#include "frontend/server.h"

enum {
    EAGER_TICK_MS = 10, /* until first ready: a restart is over within 150 ms */
    CALM_TICK_MS = 1000,
    QUOTED_BYTES = 512,
};

/* A worker that is there answers within this. */
#define PATIENCE_NS (500 * CLOCK_NS_PER_MS)

struct ready {
    struct app *app;       /* borrowed */
    struct server *server; /* borrowed */
    uint64_t start_ns;
    struct loop_timer *eager_timer; /* owned; null once ready */
    struct loop_timer *calm_timer;  /* owned */
    int ready_fd;
    bool was_ready;
    bool is_alone;        /* nobody else accepts connections */
    uint64_t instance_id; /* worker compared last */
    struct err error;
    char told[ERR_MESSAGE_BYTES]; /* why not yet, to the launcher */
};

static void compare_tokenizers(struct ready *ready, const struct engine_status *status)
{
    const struct hello_welcome *welcome = &status->welcome;
    if (!status->is_attached || welcome->instance_id == ready->instance_id) {
        return;
    }
    ready->instance_id = welcome->instance_id;
    const struct tokenizer *tokenizer = ready->app->model.tokenizer;
    uint64_t own_hash = tokenizer ? tok_file_hash(tokenizer) : 0;
    if (own_hash != welcome->tokenizer_hash) {
        (void)err_set(&ready->error, ERR_CONFIG, /* kept for ready_check */
                      "tokenizer.json of the worker's checkpoint has hash %016" PRIx64
                      ", the frontend's %016" PRIx64,
                      welcome->tokenizer_hash, own_hash);
        ready->app->is_broken = true;
        loop_stop(ready->app->loop);
    }
}

static void announce(struct ready *ready)
{
    ready->was_ready = true;
    char quoted[QUOTED_BYTES];
    log_info("ready", "ready", "model=%s",
             log_quote(ready->app->model.name, quoted, sizeof(quoted)));
    if (ready->ready_fd >= 0) {
        static const char byte = '1';
        if (write(ready->ready_fd, &byte, 1) != 1) {
            log_warn("ready", "ready_fd_unwritable", "fd=%d", ready->ready_fd);
        }
        (void)close(ready->ready_fd); /* the byte is what counts */
        ready->ready_fd = -1;
    }
}

static void compare_protocols(struct ready *ready, const struct engine_status *status)
{
    if (ready->is_alone || status->misfit[0] == '\0' || ready->error.code) {
        return;
    }
    if (status->misfit_lasts) {
        (void)err_set(&ready->error, ERR_PROTOCOL, "the worker refuses this frontend: %s",
                      status->misfit); /* kept for ready_check */
        loop_stop(ready->app->loop);
    } else if (strcmp(status->misfit, ready->told) != 0 && ready->ready_fd >= 0) {
        (void)snprintf(ready->told, sizeof(ready->told), "%s", status->misfit); /* cut is fine */
        (void)dprintf(ready->ready_fd, "!%s\n", status->misfit); /* the launcher may be gone */
    }
}

static bool may_answer_unready(const struct ready *ready, const struct engine_status *status)
{
    bool is_loading =
        status->welcome.instance_id != 0 && status->welcome.state != HELLO_STATE_READY;
    return ready->is_alone &&
           (is_loading || status->misfit_lasts || clock_now_ns() - ready->start_ns > PATIENCE_NS);
}

static void look(struct ready *ready)
{
    struct engine_status status;
    engine_get_status(ready->app->engine, &status);
    compare_tokenizers(ready, &status);
    if (ready->was_ready || ready->app->is_broken) {
        return;
    }
    compare_protocols(ready, &status);
    if (status.is_ready) {
        server_open(ready->server);
        announce(ready);
    } else if (may_answer_unready(ready, &status)) {
        server_open(ready->server);
    }
}

static void on_eager_tick(void *owner)
{
    struct ready *ready = owner;
    if (!ready->was_ready) {
        look(ready);
    }
}

static void on_calm_tick(void *owner)
{
    struct ready *ready = owner;
    look(ready);
    if (ready->was_ready) {
        loop_timer_destroy(ready->eager_timer);
        ready->eager_timer = NULL;
    }
}

struct ready *ready_create(struct app *app, struct server *server, int ready_fd)
{
    struct ready *ready = mem_zalloc(1, sizeof(*ready));
    ready->app = app;
    ready->server = server;
    ready->start_ns = clock_now_ns();
    ready->ready_fd = ready_fd;
    ready->is_alone = !app->options->successor;
    ready->eager_timer = loop_timer_create(app->loop, EAGER_TICK_MS, on_eager_tick, ready);
    ready->calm_timer = loop_timer_create(app->loop, CALM_TICK_MS, on_calm_tick, ready);
    return ready;
}

void ready_stand_alone(struct ready *ready)
{
    ready->is_alone = true;
    look(ready);
}

void ready_destroy(struct ready *ready)
{
    if (!ready) {
        return;
    }
    loop_timer_destroy(ready->eager_timer);
    loop_timer_destroy(ready->calm_timer);
    if (ready->ready_fd >= 0) {
        (void)close(ready->ready_fd); /* nothing was written: the reader sees that */
    }
    mem_free(ready);
}

enum err_code ready_check(const struct ready *ready, struct err *err)
{
    if (ready->error.code && err) {
        *err = ready->error;
    }
    return ready->error.code;
}
