#include "worker/seq_index.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"

void seq_index_init(struct seq_index *index, uint32_t most_alive)
{
    uint32_t cap = 8;
    while (cap < 2 * (uint64_t)most_alive) {
        cap *= 2;
    }
    *index = (struct seq_index){
        .entries = mem_zalloc(cap, sizeof(*index->entries)),
        .entry_cap = cap,
        .ranges = mem_zalloc(SEQ_INDEX_MAX_RANGES + 1, sizeof(*index->ranges)),
    };
}

void seq_index_fini(struct seq_index *index)
{
    mem_free(index->entries);
    mem_free(index->ranges);
    *index = (struct seq_index){0};
}

static uint32_t home_of(const struct seq_index *index, uint64_t seq_id)
{
    return (uint32_t)((seq_id * 0x9e3779b97f4a7c15ULL) >> 32) & (index->entry_cap - 1);
}

/* The entry of seq_id, or the empty one where it would go. */
static uint32_t locate(const struct seq_index *index, uint64_t seq_id)
{
    uint32_t at = home_of(index, seq_id);
    while (index->entries[at].slot_plus_one != 0 && index->entries[at].seq_id != seq_id) {
        at = (at + 1) & (index->entry_cap - 1);
    }
    return at;
}

bool seq_index_find(const struct seq_index *index, uint64_t seq_id, uint32_t *out_slot)
{
    const struct seq_index_entry *entry = &index->entries[locate(index, seq_id)];
    if (entry->slot_plus_one == 0) {
        return false;
    }
    *out_slot = entry->slot_plus_one - 1;
    return true;
}

/* The first range that ends at or after seq_id; range_count when there is none. */
static uint32_t range_at_or_after(const struct seq_index *index, uint64_t seq_id)
{
    uint32_t low = 0;
    uint32_t high = index->range_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (index->ranges[middle].last < seq_id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool seq_index_was_used(const struct seq_index *index, uint64_t seq_id)
{
    uint32_t at = range_at_or_after(index, seq_id);
    return at < index->range_count && index->ranges[at].first <= seq_id;
}

static void remove_range(struct seq_index *index, uint32_t at)
{
    index->range_count--;
    memmove(&index->ranges[at], &index->ranges[at + 1],
            (index->range_count - at) * sizeof(index->ranges[0]));
}

static void note_used(struct seq_index *index, uint64_t seq_id)
{
    uint32_t at = range_at_or_after(index, seq_id);
    bool joins_after = at < index->range_count && index->ranges[at].first - 1 == seq_id;
    bool joins_before = at > 0 && index->ranges[at - 1].last + 1 == seq_id;
    if (joins_after && joins_before) {
        index->ranges[at - 1].last = index->ranges[at].last;
        remove_range(index, at);
    } else if (joins_after) {
        index->ranges[at].first = seq_id;
    } else if (joins_before) {
        index->ranges[at - 1].last = seq_id;
    } else {
        memmove(&index->ranges[at + 1], &index->ranges[at],
                (index->range_count - at) * sizeof(index->ranges[0]));
        index->ranges[at] = (struct seq_index_range){.first = seq_id, .last = seq_id};
        index->range_count++;
    }
    if (index->range_count > SEQ_INDEX_MAX_RANGES) {
        index->ranges[0].last = index->ranges[1].last;
        remove_range(index, 1);
    }
}

void seq_index_add(struct seq_index *index, uint64_t seq_id, uint32_t slot)
{
    assert(!seq_index_was_used(index, seq_id));
    assert(2 * index->entry_count < index->entry_cap);
    index->entries[locate(index, seq_id)] =
        (struct seq_index_entry){.seq_id = seq_id, .slot_plus_one = slot + 1};
    index->entry_count++;
    note_used(index, seq_id);
}

void seq_index_remove(struct seq_index *index, uint64_t seq_id)
{
    uint32_t mask = index->entry_cap - 1;
    uint32_t hole = locate(index, seq_id);
    assert(index->entries[hole].slot_plus_one != 0);
    index->entry_count--;
    /* Pull back every later entry of the run that may sit at the hole. */
    for (uint32_t at = (hole + 1) & mask; index->entries[at].slot_plus_one != 0;
         at = (at + 1) & mask) {
        uint32_t home = home_of(index, index->entries[at].seq_id);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            index->entries[hole] = index->entries[at];
            hole = at;
        }
    }
    index->entries[hole] = (struct seq_index_entry){0};
}
