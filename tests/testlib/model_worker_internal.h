/* State shared by model_worker.c (messages, time) and model_worker_step.c (rows, pages, tokens). */
#ifndef TESTS_TESTLIB_MODEL_WORKER_INTERNAL_H
#define TESTS_TESTLIB_MODEL_WORKER_INTERNAL_H

#include "tests/testlib/model_worker.h"

enum model_state {
    MODEL_RUNNING = 1,
    MODEL_STOPPED,
};

struct model_seq {
    struct model_seq *next;
    uint64_t seq_id;
    enum model_state state;
    struct plan_admit admit; /* arrays in storage */
    void *storage;           /* owned */
    uint32_t launched;
    uint32_t committed;
    uint32_t local_held;
    uint32_t global_held;
};

struct model_row {
    uint64_t seq_id;
    uint32_t count; /* tokens */
    bool is_decode;
};

/* A message on its way or in the queue; a STEP also while it runs. */
struct model_message {
    struct model_message *next;
    struct plan_message plan; /* arrays in storage */
    void *storage;            /* owned */
    uint64_t due_ns;
    uint64_t end_ns;
    uint64_t took_ns;
    uint32_t token_count;
    uint64_t step_index; /* 1-based, of those launched */
    bool fails;
    enum err_code refused;  /* answered by REFUSED in its turn; ERR_OK: runs */
    struct model_row *rows; /* owned: of a launched STEP */
};

struct model_record {
    struct model_record *next;
    uint64_t due_ns;
    struct result_record record;
};

struct model_list {
    struct model_message *first;
    struct model_message *last;
};

struct model_worker {
    struct model_options options;
    uint64_t epoch; /* 0: no session */
    uint64_t next_msg_seq;
    uint64_t applied;
    uint64_t refused_seq; /* STEPs are refused until one names it; 0 none */
    uint64_t admit_count;
    uint64_t step_count;
    uint64_t launch_count;
    uint32_t local_quota;
    uint32_t global_quota;
    uint64_t busy_until_ns;
    uint32_t in_flight_count;
    bool is_dead;
    bool is_stalled;
    struct model_list arriving;        /* owned, by due_ns */
    struct model_list queued;          /* owned: arrived, not applied */
    struct model_list in_flight;       /* owned: launched */
    struct model_record *record_first; /* owned */
    struct model_record *record_last;
    struct model_seq *seqs; /* owned */
    struct model_stats stats;
    char violation[256];
};

void model_violate(struct model_worker *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool model_is_hit(const struct model_worker *model, enum model_fault_kind kind, uint64_t passage);
void model_append(struct model_list *list, struct model_message *message);
struct model_message *model_take_first(struct model_list *list);
void model_free_message(struct model_message *message);
void model_push_record(struct model_worker *model, const struct result_record *record,
                       uint64_t now_ns);

/* model_worker_step.c */
struct result_figures model_figures(const struct model_worker *model);
/* The token that a sequence samples at a position of its output. */
uint32_t model_pick(const struct model_worker *model, const struct model_seq *seq,
                    uint32_t position);
struct model_seq *model_find(const struct model_worker *model, uint64_t seq_id);
void model_give_back(struct model_worker *model, struct model_seq *seq, uint32_t local_pages,
                     uint32_t global_pages);
void model_stop_sequence(struct model_worker *model, struct model_seq *seq,
                         enum result_finish reason, uint64_t now_ns);
void model_push_refused(struct model_worker *model, const struct plan_message *plan,
                        enum err_code code, uint64_t now_ns);
/* Both take the message into flight. */
void model_refuse_step(struct model_worker *model, struct model_message *step, enum err_code code,
                       uint64_t now_ns);
void model_launch_step(struct model_worker *model, struct model_message *step, uint64_t now_ns);
void model_complete_step(struct model_worker *model, uint64_t now_ns);

#endif
