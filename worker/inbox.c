#include "worker/inbox.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "common/mem.h"

/* Enough for the largest STEP. */
#define COMMON_BYTES (sizeof(struct inbox_entry) + PLAN_MAX_ROWS * sizeof(struct wire_row))

void inbox_init(struct inbox *inbox)
{
    *inbox = (struct inbox){0};
}

static void free_list(struct inbox_entry *entry)
{
    while (entry != NULL) {
        struct inbox_entry *next = entry->next;
        mem_free(entry);
        entry = next;
    }
}

void inbox_fini(struct inbox *inbox)
{
    free_list(inbox->first);
    free_list(inbox->spare);
    *inbox = (struct inbox){0};
}

bool inbox_is_full(const struct inbox *inbox)
{
    return inbox->message_count >= INBOX_MAX_MESSAGES || inbox->byte_count >= INBOX_MAX_BYTES;
}

static struct inbox_entry *take_block(struct inbox *inbox, size_t array_bytes)
{
    size_t byte_count = sizeof(struct inbox_entry) + array_bytes;
    struct inbox_entry *entry = inbox->spare;
    if (byte_count <= COMMON_BYTES && entry != NULL) {
        inbox->spare = entry->next;
    } else {
        byte_count = byte_count <= COMMON_BYTES ? COMMON_BYTES : byte_count;
        entry = mem_zalloc(1, byte_count);
        entry->byte_count = byte_count;
    }
    return entry;
}

static void append(struct inbox *inbox, struct inbox_entry *entry)
{
    entry->next = NULL;
    if (inbox->last == NULL) {
        inbox->first = entry;
    } else {
        inbox->last->next = entry;
    }
    inbox->last = entry;
    inbox->message_count++;
    inbox->step_count += !entry->is_malformed && entry->message.type == PLAN_STEP;
    inbox->byte_count += entry->byte_count;
}

/* Copies count elements to *tail and moves it on; the copy's address. */
static const void *copy_array(unsigned char **tail, const void *from, size_t count,
                              size_t elem_bytes)
{
    unsigned char *at = *tail;
    size_t byte_count = count * elem_bytes;
    if (byte_count > 0) {
        memcpy(at, from, byte_count);
    }
    *tail += byte_count;
    return at;
}

static size_t array_bytes_of(const struct plan_message *message)
{
    switch (message->type) {
    case PLAN_ADMIT: {
        const struct plan_admit *admit = &message->as.admit;
        uint64_t words =
            (uint64_t)admit->prompt.count + admit->stop_ids.count + admit->suppress_ids.count;
        return words * sizeof(uint32_t) + admit->logit_bias.count * sizeof(struct wire_bias);
    }
    case PLAN_STEP: return message->as.step.rows.count * sizeof(struct wire_row);
    case PLAN_CANCEL:
    case PLAN_RELEASE:
    case PLAN_PING: return 0;
    }
    assert(false);
    return 0;
}

void inbox_push(struct inbox *inbox, const struct plan_message *message)
{
    struct inbox_entry *entry = take_block(inbox, array_bytes_of(message));
    entry->is_malformed = false;
    entry->message = *message;
    unsigned char *tail = (unsigned char *)(entry + 1);
    if (message->type == PLAN_STEP) {
        struct wire_row_array *rows = &entry->message.as.step.rows;
        rows->at = copy_array(&tail, rows->at, rows->count, sizeof(*rows->at));
    } else if (message->type == PLAN_ADMIT) {
        struct plan_admit *admit = &entry->message.as.admit;
        struct wire_u32_array *arrays[] = {&admit->prompt, &admit->stop_ids, &admit->suppress_ids};
        for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
            arrays[i]->at =
                copy_array(&tail, arrays[i]->at, arrays[i]->count, sizeof(*arrays[i]->at));
        }
        admit->logit_bias.at = copy_array(&tail, admit->logit_bias.at, admit->logit_bias.count,
                                          sizeof(*admit->logit_bias.at));
    }
    append(inbox, entry);
}

void inbox_push_malformed(struct inbox *inbox, uint64_t msg_seq, const struct err *why)
{
    struct inbox_entry *entry = take_block(inbox, 0);
    entry->is_malformed = true;
    entry->message = (struct plan_message){.msg_seq = msg_seq};
    entry->error = *why;
    append(inbox, entry);
}

const struct inbox_entry *inbox_peek(const struct inbox *inbox)
{
    return inbox->first;
}

void inbox_pop(struct inbox *inbox)
{
    struct inbox_entry *entry = inbox->first;
    assert(entry != NULL);
    inbox->first = entry->next;
    if (inbox->first == NULL) {
        inbox->last = NULL;
    }
    inbox->message_count--;
    inbox->step_count -= !entry->is_malformed && entry->message.type == PLAN_STEP;
    inbox->byte_count -= entry->byte_count;
    if (entry->byte_count == COMMON_BYTES) {
        entry->next = inbox->spare;
        inbox->spare = entry;
    } else {
        mem_free(entry);
    }
}
