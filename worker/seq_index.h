/* The ids of one session: which slot an id that is alive has, and which ids were ever used.
 *
 * Used ids are kept as ranges, few while ids are given out more or less in order.  Beyond
 * SEQ_INDEX_MAX_RANGES the two lowest ranges become one, which also uses up the ids between them:
 * memory stays bounded and an id is never accepted twice.  Executor thread only. */
#ifndef WORKER_SEQ_INDEX_H
#define WORKER_SEQ_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define SEQ_INDEX_MAX_RANGES 1024

struct seq_index_entry {
    uint64_t seq_id;
    uint32_t slot_plus_one; /* 0: empty */
};

struct seq_index_range {
    uint64_t first;
    uint64_t last;
};

struct seq_index {
    struct seq_index_entry *entries; /* owned, [entry_cap]: open addressing, linear probing */
    uint32_t entry_cap;              /* a power of two, at least twice the most ids alive */
    uint32_t entry_count;
    /* owned, [SEQ_INDEX_MAX_RANGES + 1], ascending, never touching */
    struct seq_index_range *ranges;
    uint32_t range_count;
};

/* Aborts when memory is gone, as mem_zalloc. */
void seq_index_init(struct seq_index *index, uint32_t most_alive);
void seq_index_fini(struct seq_index *index);

bool seq_index_find(const struct seq_index *index, uint64_t seq_id, uint32_t *out_slot);

/* True for an id that is alive or was. */
bool seq_index_was_used(const struct seq_index *index, uint64_t seq_id);

/* The id was not used before and fewer than most_alive are alive. */
void seq_index_add(struct seq_index *index, uint64_t seq_id, uint32_t slot);

/* The id is alive. */
void seq_index_remove(struct seq_index *index, uint64_t seq_id);

#endif
