#include "frontend/link_stats.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/mem.h"
#include "frontend/link_ask.h"
#include "proto/plan.h"

#define EVERY_NS CLOCK_NS_PER_SEC

struct link_stats {
    struct link_ask *ask; /* owned */
    bool is_asking;
    uint64_t due_ns;
    struct buf bytes;
    struct mem_arena arena;
    struct hello_stats_answer answer;
    uint64_t heard_ns;     /* 0: never */
    uint64_t reset_wanted; /* tickets */
    uint64_t reset_asked;  /* with the request that is pending; 0: that is for the counters */
    uint64_t reset_done;
};

enum err_code link_stats_create(const char *run_dir, void (*on_wake)(void *owner), void *owner,
                                struct link_stats **out_stats, struct err *err)
{
    struct link_stats *stats = mem_zalloc(1, sizeof(*stats));
    buf_init(&stats->bytes);
    enum err_code code =
        mem_arena_init(&stats->arena, plan_decode_arena_bytes(HELLO_MAX_MESSAGE_BYTES), err);
    if (code == ERR_OK) {
        code = link_ask_create(run_dir, on_wake, owner, &stats->ask, err);
    }
    if (code != ERR_OK) {
        link_stats_destroy(stats);
        return code;
    }
    *out_stats = stats;
    return ERR_OK;
}

void link_stats_destroy(struct link_stats *stats)
{
    if (stats == NULL) {
        return;
    }
    link_ask_destroy(stats->ask);
    buf_fini(&stats->bytes);
    mem_arena_fini(&stats->arena);
    mem_free(stats);
}

/* What cannot be asked or read now is asked again a second later: the figures' age tells. */
static void ask(struct link_stats *stats, uint64_t now_ns)
{
    bool is_reset = stats->reset_wanted > stats->reset_done;
    const struct hello_message request = {.type = is_reset ? HELLO_CACHE_RESET : HELLO_STATS};
    struct err err;
    stats->reset_asked = is_reset ? stats->reset_wanted : 0;
    stats->due_ns = now_ns + EVERY_NS;
    buf_reset(&stats->bytes);
    stats->is_asking = hello_encode(&request, &stats->bytes, &err) == ERR_OK &&
                       link_ask_send(stats->ask, &stats->bytes);
}

/* It could not be done: whoever wanted it hears nothing, and may ask again. */
static void give_up_resets(struct link_stats *stats)
{
    stats->reset_wanted = stats->reset_done;
}

static void take_answer(struct link_stats *stats, const void *bytes, size_t byte_count,
                        uint64_t now_ns)
{
    struct hello_message message;
    struct err err;
    mem_arena_reset(&stats->arena);
    if (hello_decode(bytes, byte_count, &stats->arena, &message, &err) == ERR_OK &&
        message.type == HELLO_STATS_ANSWER) {
        stats->answer = message.as.stats_answer;
        stats->heard_ns = now_ns;
        stats->reset_done = stats->reset_asked > 0 ? stats->reset_asked : stats->reset_done;
    } else if (stats->reset_asked > 0) {
        give_up_resets(stats);
    }
}

void link_stats_poll(struct link_stats *stats, bool is_attached, uint64_t now_ns)
{
    const void *bytes = NULL;
    size_t byte_count = 0;
    switch (link_ask_poll(stats->ask, &bytes, &byte_count)) {
    case LINK_ASK_ANSWERED:
        take_answer(stats, bytes, byte_count, now_ns);
        stats->is_asking = false;
        break;
    case LINK_ASK_FAILED:
        give_up_resets(stats);
        stats->is_asking = false;
        break;
    case LINK_ASK_NONE: stats->is_asking = false; break;
    case LINK_ASK_PENDING: return;
    }
    if (!is_attached) {
        give_up_resets(stats);
    } else if (now_ns >= stats->due_ns || stats->reset_wanted > stats->reset_done) {
        ask(stats, now_ns);
    }
}

void link_stats_reset_cache(struct link_stats *stats, uint64_t ticket)
{
    stats->reset_wanted = ticket;
}

uint64_t link_stats_resets_done(const struct link_stats *stats)
{
    return stats->reset_done;
}

uint64_t link_stats_wake_ns(const struct link_stats *stats, bool is_attached)
{
    return is_attached && !stats->is_asking ? stats->due_ns : UINT64_MAX;
}

uint64_t link_stats_get(const struct link_stats *stats, struct hello_stats_answer *out_answer)
{
    *out_answer = stats->answer;
    return stats->heard_ns;
}
