/* One sequence: its tokens, its pages in both families, and its frontiers, which nothing else
 * writes.
 *
 *   WAITING --seq_launch--> RUNNING --seq_stop--> STOPPED      (WAITING may stop too)
 *
 *   WAITING  admitted, nothing launched yet: no pages but those of a reused prefix
 *   RUNNING  pages cover exactly what the account says; committed <= launched
 *   STOPPED  rows are empty; pages stay until no launched row is left, then seq_drop_pages
 *
 * Full pages that are committed are in the prefix cache, which others share at once; the sequence
 * holds the cache's own page of each, so where somebody was first with the same tokens it changes
 * over to that one.  Pages that the device's table does not name yet go with its next row.
 *
 * A sequence lives in its slot from seq_open to seq_close.  It outlives RELEASE (`released`) while
 * launched rows still name it.  Executor thread only. */
#ifndef WORKER_SEQUENCE_H
#define WORKER_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/account.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "worker/pool.h"
#include "worker/prefix.h"
#include "worker/runner.h"

struct session;

enum seq_state {
    SEQ_STATE_FREE, /* no sequence in this slot */
    SEQ_STATE_WAITING,
    SEQ_STATE_RUNNING,
    SEQ_STATE_STOPPED,
};

/* Pages of one family in order of position; logical page i is at [i % cap]. */
struct seq_pages {
    uint32_t *at; /* owned, [cap] */
    uint32_t cap;
    uint32_t unplaced_first; /* logical pages that the device's table lacks: first .. end - 1 */
    uint32_t unplaced_end;
};

struct sequence {
    enum seq_state state;
    uint32_t slot;
    uint64_t seq_id;
    struct session *session; /* borrowed: outlives its sequences */
    uint32_t lane;           /* of the pools' counts */
    uint64_t writer;         /* marks the pages it writes: differs for every sequence ever opened */
    bool released;           /* RELEASE or the end of the session: goes when no row is launched */
    uint64_t owed_msg_seq;   /* of the CANCEL whose FINISHED is not pushed yet; 0: none */
    uint32_t launched_rows;  /* rows in steps in flight */
    uint32_t held_tokens;    /* of the launched tokens, those of rows known to be held */
    bool prompt_was_held;    /* the row that ends the prompt was, and no prompt row since: decode
                                rows planned before that was known are held too */
    uint64_t plan_mark;      /* last plan that named it: finds a second row in the same plan */

    uint32_t *tokens; /* owned, [max_total_tokens] */
    uint32_t token_count;
    uint32_t prompt_tokens;
    uint32_t max_total_tokens;
    uint32_t logprob_pairs;        /* best tokens asked for with each token */
    uint32_t prompt_logprob_pairs; /* the same with each prompt token */
    bool wants_logprobs;
    bool wants_prompt_logprobs;
    bool is_constrained;

    uint64_t cache_salt;
    uint32_t cacheable_pages; /* pages from the front that the prefix cache may take */
    uint32_t chain_pages;     /* of those, in it: the first so many global pages are its nodes */

    struct account account;
    struct seq_pages pages[RUNNER_FAMILY_COUNT];
};

/* Where a sequence goes, and what bounds its page lists. */
struct seq_home {
    struct session *session;
    uint64_t writer;
    uint32_t lane;
    uint32_t slot;
    uint32_t page_tokens;
    uint32_t
        cut_tokens; /* not 0: shapes are pinned, and only whole cuts of the prompt are cached */
    uint32_t most_local_pages; /* resident at once, with every step in flight at its largest */
};

/* Fill an empty slot from a checked ADMIT.  Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code seq_open(struct sequence *seq, const struct seq_home *home,
                                     const struct plan_admit *admit, struct err *err);

/* Empty the slot; pages must be gone. */
void seq_close(struct sequence *seq);

/* Position of the first token of its next row as the device will see it: the launched frontier
 * less the rows that are known to be held. */
uint32_t seq_device_position(const struct sequence *seq);

/* The longest prefix in the cache, of at most most_tokens, that its prompt can begin with, in pages;
 * nothing changes.  out_pages: what its lane would hold more. */
uint32_t seq_find_prefix(struct sequence *seq, const struct prefix *prefix, uint32_t most_tokens,
                         uint32_t out_pages[RUNNER_FAMILY_COUNT]);

/* Begin behind that prefix.  WAITING, right behind seq_find_prefix, page_count at most its answer. */
void seq_reuse_prefix(struct sequence *seq, const struct account_geometry *geometry,
                      struct prefix *prefix, uint32_t page_count);

/* Pages that a row of row_tokens needs.  Errors: ERR_INTERNAL. */
ERR_NODISCARD enum err_code seq_need(const struct sequence *seq,
                                     const struct account_geometry *geometry, uint32_t row_tokens,
                                     struct account_need *out_need, struct err *err);

/* A row of row_tokens was launched.  need pages were granted to it: page i of a family is
 * reserved_page(first_reserved[family] + i) of that family's pool, taken before pool_commit. */
void seq_launch(struct sequence *seq, const struct account_need *need,
                const struct pool pools[RUNNER_FAMILY_COUNT],
                const uint32_t first_reserved[RUNNER_FAMILY_COUNT], uint32_t row_tokens);

/* A launched row was held: the frontier goes back, the pages stay. */
void seq_unlaunch(struct sequence *seq, uint32_t row_tokens);

/* The device's tables name every page. */
void seq_place(struct sequence *seq);

/* A launched row completed: full pages go into the cache, local pages that fell out of the window
 * back to their pool.  Takes the pages that its lane holds no more from held_pages. */
void seq_commit(struct sequence *seq, const struct account_geometry *geometry,
                struct prefix *prefix, uint32_t row_tokens,
                uint32_t held_pages[RUNNER_FAMILY_COUNT]);

/* What it has put into the cache is not to be trusted: forget it, as far as nobody else goes on from
 * there. */
void seq_distrust(struct sequence *seq, struct prefix *prefix);

/* The token sampled at position token_count; room up to max_total_tokens. */
void seq_append(struct sequence *seq, uint32_t token);

void seq_stop(struct sequence *seq);

/* Give every page back.  STOPPED, no launched row.  Takes the pages that its lane holds no more from
 * held_pages. */
void seq_drop_pages(struct sequence *seq, struct pool pools[RUNNER_FAMILY_COUNT],
                    uint32_t held_pages[RUNNER_FAMILY_COUNT]);

/* Its pages count for no lane any more. */
void seq_leave_lane(struct sequence *seq, struct pool pools[RUNNER_FAMILY_COUNT]);

/* Resident pages of a family. */
uint32_t seq_held_pages(const struct sequence *seq, enum runner_family family);

/* The page that holds position, which must be resident. */
uint32_t seq_page_at(const struct sequence *seq, enum runner_family family,
                     const struct account_geometry *geometry, uint32_t position);

/* Errors: ERR_INTERNAL: state, frontiers, token count or account do not fit together. */
ERR_NODISCARD enum err_code seq_check(const struct sequence *seq,
                                      const struct account_geometry *geometry, struct err *err);

#endif
