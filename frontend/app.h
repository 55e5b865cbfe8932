/* What main constructs and the HTTP modules share.  Loop thread only, but for the members that say
 * otherwise. */
#ifndef FRONTEND_APP_H
#define FRONTEND_APP_H

#include <stdbool.h>
#include <stdint.h>

#include "frontend/metrics.h"
#include "frontend/options.h"
#include "frontend/prepare.h"

struct api_keys;
struct engine;
struct http_admin_wait;
struct http_conns;
struct loop;
struct work;

struct app {
    const struct options *options;       /* borrowed; any thread */
    struct prepare_model model;          /* any thread: read-only once the loop runs */
    struct engine *engine;               /* owned by main; any thread */
    struct loop *loop;                   /* owned by main */
    struct work *work;                   /* owned by main */
    struct http_conns *conns;            /* owned by the server */
    struct http_admin_wait *admin_waits; /* owned by their requests */
    struct api_keys *keys;               /* owned by main; null: everybody may ask; any thread */
    struct metrics metrics;
    uint64_t created_s;     /* wall clock at start, for /v1/models */
    uint64_t random_state;  /* seeds and ids; from the system at start */
    uint32_t waiting_count; /* generation requests not yet admitted by the worker */
    uint32_t open_count;    /* generation requests not yet ended */
    bool is_draining;       /* answers close their connections */
    bool has_successor;     /* draining, but another process accepts connections */
    bool is_broken;         /* the worker serves another checkpoint: nothing may run */
};

/* A random number, as good as the system's at start. */
static inline uint64_t app_random(struct app *app)
{
    uint64_t mixed = app->random_state += 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
}

#endif
