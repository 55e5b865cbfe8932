#include "worker/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "worker/executor.h"
#include "worker/link.h"
#include "worker/run_dir.h"
#include "worker/segment.h"

enum {
    OLD_NONCES = 8, /* remembered after their sessions */
    NAME_BYTES = 64,
    QUOTED_BYTES = 256,
};

/* How long an ATTACH waits for the session before it: a killed frontend's pipe is closed by then. */
#define ATTACH_WAIT_NS (250 * CLOCK_NS_PER_MS)

struct entry {
    uint64_t epoch; /* 0: free */
    uint64_t nonce;
    char name[NAME_BYTES];
    struct segment segment;
    struct link_plan *plan;  /* owned */
    struct run_dir *run_dir; /* borrowed */
};

struct attach_table {
    struct entry entries[SESSION_MAX_COUNT];
    uint64_t old_nonces[OLD_NONCES];
    uint32_t old_count; /* ever; the circle's index */
    uint64_t next_epoch;
};

struct attach_table *attach_table_create(uint64_t instance_id)
{
    struct attach_table *table = mem_zalloc(1, sizeof(*table));
    /* Epochs of one worker start elsewhere than those of the one before. */
    table->next_epoch = (instance_id >> 40 << 20) + 1;
    return table;
}

static void close_entry(struct entry *entry)
{
    link_plan_close(entry->plan);
    segment_close(&entry->segment);
    run_dir_forget_segment(entry->run_dir, entry->name);
    *entry = (struct entry){0};
}

void attach_table_destroy(struct attach_table *table)
{
    if (table == NULL) {
        return;
    }
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (table->entries[i].epoch != 0) {
            close_entry(&table->entries[i]);
        }
    }
    mem_free(table);
}

static enum err_code open_entry(struct entry *entry, const struct attach_options *options,
                                struct err *err)
{
    const struct segment_options segment_options = {
        .name = entry->name,
        .epoch = entry->epoch,
        .ring_records = options->ring_records,
        .masks = options->masks,
    };
    const struct link_plan_options plan_options = {
        .run_dir = options->run_dir->path,
        .epoch = entry->epoch,
        .on_event = executor_wake,
        .owner = options->executor,
    };
    enum err_code code = run_dir_note_segment(options->run_dir, entry->name, err);
    if (code != ERR_OK) {
        return code;
    }
    code = segment_open(&entry->segment, &segment_options, err);
    if (code != ERR_OK) {
        run_dir_forget_segment(options->run_dir, entry->name);
        return code;
    }
    code = link_plan_open(&plan_options, &entry->plan, err);
    if (code != ERR_OK) {
        segment_close(&entry->segment);
        run_dir_forget_segment(options->run_dir, entry->name);
    }
    return code;
}

static void fill_answer(const struct entry *entry, const struct attach_options *options,
                        struct hello_attached *out_answer)
{
    const char *url = link_plan_url(entry->plan);
    *out_answer = (struct hello_attached){
        .instance_id = options->instance_id,
        .epoch = entry->epoch,
        .plan_url = {url, (uint32_t)strlen(url)},
        .segment_name = {entry->name, (uint32_t)strlen(entry->name)},
        .segment_bytes = entry->segment.shm.byte_count,
        .mask_offset_bytes = entry->segment.mask_offset_bytes,
        .mask_words = options->masks.words,
    };
}

static struct entry *find_nonce(struct attach_table *table, uint64_t nonce)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (table->entries[i].epoch != 0 && table->entries[i].nonce == nonce) {
            return &table->entries[i];
        }
    }
    return NULL;
}

static bool is_old_nonce(const struct attach_table *table, uint64_t nonce)
{
    for (uint32_t i = 0; i < OLD_NONCES && i < table->old_count; i++) {
        if (table->old_nonces[i] == nonce) {
            return true;
        }
    }
    return false;
}

static struct entry *find_free(struct attach_table *table)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (table->entries[i].epoch == 0) {
            return &table->entries[i];
        }
    }
    return NULL;
}

enum err_code attach_begin(struct attach_table *table, const struct attach_options *options,
                           const struct hello_attach *request, struct hello_attached *out_answer,
                           struct err *err)
{
    attach_close_ended(table, options->executor);
    struct entry *entry = find_nonce(table, request->nonce);
    if (entry != NULL) {
        fill_answer(entry, options, out_answer);
        return ERR_OK;
    }
    if (is_old_nonce(table, request->nonce)) {
        return err_set(err, ERR_STALE, "the session of nonce %" PRIu64 " is over", request->nonce);
    }
    entry = find_free(table);
    if (entry == NULL) {
        return err_set(err, ERR_BUSY, "%u sessions are alive, at most %u", SESSION_MAX_COUNT,
                       SESSION_MAX_COUNT);
    }
    *entry = (struct entry){
        .epoch = table->next_epoch++,
        .nonce = request->nonce,
        .run_dir = options->run_dir,
    };
    (void)snprintf(entry->name, sizeof(entry->name), "/bezel-%d-%" PRIu64, getpid(), entry->epoch);
    enum err_code code = open_entry(entry, options, err);
    if (code != ERR_OK) {
        *entry = (struct entry){0};
        return code;
    }
    const struct executor_attach attach = {entry->epoch, entry->plan, &entry->segment};
    code = executor_attach(options->executor, &attach, clock_now_ns() + ATTACH_WAIT_NS, err);
    if (code != ERR_OK) {
        close_entry(entry);
        return code;
    }
    char quoted[QUOTED_BYTES];
    log_info("session", "attached", "epoch=%" PRIu64 " name=%s", entry->epoch,
             log_quote(request->name.at, quoted, sizeof(quoted)));
    fill_answer(entry, options, out_answer);
    return ERR_OK;
}

void attach_close_ended(struct attach_table *table, struct executor *executor)
{
    struct executor_attach ended;
    while (executor_try_take_ended(executor, &ended)) {
        for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
            struct entry *entry = &table->entries[i];
            if (entry->epoch == ended.epoch) {
                table->old_nonces[table->old_count++ % OLD_NONCES] = entry->nonce;
                close_entry(entry);
            }
        }
    }
}

uint32_t attach_alive_count(const struct attach_table *table)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        count += table->entries[i].epoch != 0;
    }
    return count;
}
