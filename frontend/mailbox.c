#include "frontend/mailbox.h"

#include <string.h>

#include "common/num.h"

/* An event is stored as the struct, its ids, its logprobs and its text with the zero byte, each
 * part starting at a multiple of 8. */
enum {
    PART_ALIGN_BYTES = 8
};

void mailbox_init(struct mailbox *mailbox, struct loop *loop, void (*run)(struct loop_task *task))
{
    memset(mailbox, 0, sizeof(*mailbox));
    mailbox->task.run = run;
    mailbox->loop = loop;
    (void)pthread_mutex_init(&mailbox->lock, NULL); /* cannot fail with default attributes */
    buf_init(&mailbox->arriving);
    buf_init(&mailbox->taken);
}

void mailbox_fini(struct mailbox *mailbox)
{
    buf_fini(&mailbox->arriving);
    buf_fini(&mailbox->taken);
    (void)pthread_mutex_destroy(&mailbox->lock);
}

static void put_part(struct buf *out, const void *bytes, size_t byte_count)
{
    static const char zeros[PART_ALIGN_BYTES] = {0};
    if (byte_count > 0) {
        buf_append(out, bytes, byte_count);
    }
    buf_append(out, zeros, num_align_up(byte_count, PART_ALIGN_BYTES) - byte_count);
}

void mailbox_put(struct mailbox *mailbox, const struct engine_event *event)
{
    size_t text_bytes = event->text ? strlen(event->text) + 1 : 0;
    (void)pthread_mutex_lock(&mailbox->lock);
    struct buf *out = &mailbox->arriving;
    put_part(out, event, sizeof(*event));
    put_part(out, event->ids, event->pair_count * sizeof(*event->ids));
    put_part(out, event->logprobs, event->pair_count * sizeof(*event->logprobs));
    put_part(out, event->text, text_bytes);
    bool must_post = !mailbox->is_posted;
    mailbox->is_posted = true;
    /* Posted under the lock: once it is free, the loop thread may read the last event and free the
     * mailbox. */
    if (must_post) {
        loop_post(mailbox->loop, &mailbox->task);
    }
    (void)pthread_mutex_unlock(&mailbox->lock);
}

void mailbox_take(struct mailbox *mailbox)
{
    buf_reset(&mailbox->taken);
    mailbox->offset_bytes = 0;
    (void)pthread_mutex_lock(&mailbox->lock);
    struct buf arrived = mailbox->arriving;
    mailbox->arriving = mailbox->taken;
    mailbox->is_posted = false;
    (void)pthread_mutex_unlock(&mailbox->lock);
    mailbox->taken = arrived;
}

static const void *get_part(struct mailbox *mailbox, size_t byte_count)
{
    const void *part = mailbox->taken.at + mailbox->offset_bytes;
    mailbox->offset_bytes += num_align_up(byte_count, PART_ALIGN_BYTES);
    return byte_count > 0 ? part : NULL;
}

bool mailbox_next(struct mailbox *mailbox, struct engine_event *out_event)
{
    if (mailbox->offset_bytes >= mailbox->taken.used_bytes) {
        return false;
    }
    memcpy(out_event, get_part(mailbox, sizeof(*out_event)), sizeof(*out_event));
    out_event->ids = get_part(mailbox, out_event->pair_count * sizeof(*out_event->ids));
    out_event->logprobs = get_part(mailbox, out_event->pair_count * sizeof(*out_event->logprobs));
    if (out_event->text) {
        const char *text = mailbox->taken.at + mailbox->offset_bytes;
        out_event->text = get_part(mailbox, strlen(text) + 1);
    }
    return true;
}
