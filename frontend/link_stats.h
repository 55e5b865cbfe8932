/* The worker's counters, and resets of its prefix cache: the counters are asked for once a second while
 * a session is attached, over a control socket
 * of its own, so that a worker slow to answer delays nothing else.  Engine thread only; nothing
 * blocks but link_stats_destroy. */
#ifndef FRONTEND_LINK_STATS_H
#define FRONTEND_LINK_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/hello.h"

struct link_stats;

/* Arguments and errors: those of link_ask_create. */
ERR_NODISCARD enum err_code link_stats_create(const char *run_dir, void (*on_wake)(void *owner),
                                              void *owner, struct link_stats **out_stats,
                                              struct err *err);
void link_stats_destroy(struct link_stats *stats); /* null is fine */

/* Does what is due.  is_attached: ask on. */
void link_stats_poll(struct link_stats *stats, bool is_attached, uint64_t now_ns);

/* When link_stats_poll is due without on_wake; UINT64_MAX never. */
uint64_t link_stats_wake_ns(const struct link_stats *stats, bool is_attached);

/* Have the worker's prefix cache reset; ticket is higher than the last one.  Forgotten where no session
 * is attached, or the worker does not answer. */
void link_stats_reset_cache(struct link_stats *stats, uint64_t ticket);
/* The highest ticket whose reset is done. */
uint64_t link_stats_resets_done(const struct link_stats *stats);

/* The last answer and when it came; 0: there was none. */
uint64_t link_stats_get(const struct link_stats *stats, struct hello_stats_answer *out_answer);

#endif
