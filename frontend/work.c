#include "frontend/work.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/mem.h"

enum {
    WORK_NICE = 10 /* a loop thread that wakes up runs before a working one on the same core */
};

struct work_list {
    struct work_item *first;
    struct work_item **last;
};

struct work {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t wake;
    struct work_list small;
    struct work_list large;
    uint32_t item_count; /* queued and running */
    uint32_t item_max;
    uint32_t large_running;
    uint32_t large_max;
    bool is_ending;
    uint32_t thread_count;
    pthread_t threads[]; /* [thread_count] */
};

static void push(struct work_list *list, struct work_item *item)
{
    item->next = NULL;
    *list->last = item;
    list->last = &item->next;
}

static struct work_item *pop(struct work_list *list)
{
    struct work_item *item = list->first;
    if (item) {
        list->first = item->next;
        list->last = list->first ? list->last : &list->first;
    }
    return item;
}

/* The lock is held.  Null when there is nothing this thread may run. */
static struct work_item *take(struct work *work)
{
    struct work_item *item = pop(&work->small);
    if (!item && work->large_running < work->large_max) {
        item = pop(&work->large);
        work->large_running += item != NULL;
    }
    return item;
}

static void *run_thread(void *argument)
{
    struct work *work = argument;
    /* On Linux the priority is the thread's own; refusal leaves the default, which only costs
     * latency. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), WORK_NICE);
    (void)pthread_mutex_lock(&work->lock);
    for (;;) {
        struct work_item *item = take(work);
        if (!item) {
            if (work->is_ending) {
                break;
            }
            (void)pthread_cond_wait(&work->wake, &work->lock);
            continue;
        }
        bool is_large = item->is_large;
        (void)pthread_mutex_unlock(&work->lock);
        item->run(item); /* the item may be gone after this */
        (void)pthread_mutex_lock(&work->lock);
        work->item_count--;
        if (is_large) {
            work->large_running--;
            (void)pthread_cond_signal(&work->wake);
        }
    }
    (void)pthread_mutex_unlock(&work->lock);
    return NULL;
}

enum err_code work_create(uint32_t thread_count, uint32_t item_max, struct work **out_work,
                          struct err *err)
{
    struct work *work = mem_zalloc(1, sizeof(*work) + thread_count * sizeof(work->threads[0]));
    (void)pthread_mutex_init(&work->lock, NULL); /* cannot fail with default attributes */
    (void)pthread_cond_init(&work->wake, NULL);
    work->small.last = &work->small.first;
    work->large.last = &work->large.first;
    work->item_max = item_max;
    work->large_max = thread_count > 1 ? thread_count - 1 : 1;
    for (; work->thread_count < thread_count; work->thread_count++) {
        int status = pthread_create(&work->threads[work->thread_count], NULL, run_thread, work);
        if (status) {
            enum err_code code = err_errno(err, status, "starting work thread %u of %u",
                                           work->thread_count + 1, thread_count);
            work_destroy(work);
            return code;
        }
    }
    *out_work = work;
    return ERR_OK;
}

void work_destroy(struct work *work)
{
    if (!work) {
        return;
    }
    (void)pthread_mutex_lock(&work->lock);
    work->is_ending = true;
    (void)pthread_cond_broadcast(&work->wake);
    (void)pthread_mutex_unlock(&work->lock);
    for (uint32_t i = 0; i < work->thread_count; i++) {
        (void)pthread_join(work->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&work->wake);
    (void)pthread_mutex_destroy(&work->lock);
    mem_free(work);
}

bool work_try_submit(struct work *work, struct work_item *item)
{
    (void)pthread_mutex_lock(&work->lock);
    bool has_room = work->item_count < work->item_max && !work->is_ending;
    if (has_room) {
        work->item_count++;
        push(item->is_large ? &work->large : &work->small, item);
        (void)pthread_cond_signal(&work->wake);
    }
    (void)pthread_mutex_unlock(&work->lock);
    return has_room;
}
