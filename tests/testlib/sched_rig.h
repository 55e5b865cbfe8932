/* The scheduler against the model worker on virtual time: submit, run, look at what was sent and
 * what each request's owner was told. */
#ifndef TESTS_TESTLIB_SCHED_RIG_H
#define TESTS_TESTLIB_SCHED_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/scheduler.h"
#include "tests/testlib/model_worker.h"

#define RIG_MAX_ROWS 64
#define RIG_MS       1000000ULL
#define RIG_LONG_NS  (60000 * RIG_MS) /* of virtual time: anything is over by then */

/* One message the scheduler sent. */
struct rig_sent {
    enum plan_type type;
    uint64_t at_ns;
    uint64_t msg_seq;
    uint64_t seq_id; /* not of STEP */
    uint64_t after;
    uint32_t outstanding; /* plans out, this one included */
    uint32_t row_count;
    uint32_t token_count;
    struct wire_row rows[RIG_MAX_ROWS]; /* the first of them */
};

/* What one request's owner knows. */
struct rig_request {
    uint64_t request_id;
    uint64_t seed;
    uint32_t prompt_count;
    uint32_t max_total;
    uint32_t admitted;
    uint32_t token_count;
    uint32_t pair_count; /* of all tokens */
    uint32_t prompt_logprob_count;
    uint32_t ended; /* FINISHED or FAILED: at most once */
    enum result_finish reason;
    enum err_code code;
    char text[256];
    uint64_t first_token_ns;
    uint64_t last_token_ns;
    uint64_t longest_gap_ns; /* between two tokens */
    uint64_t ended_ns;
    const struct model_options *model; /* borrowed: what its tokens must be; null: not compared */
    bool has_wrong_token;
};

struct rig {
    struct sched *sched;        /* owned */
    struct model_worker *model; /* owned; null while there is none */
    struct model_options model_options;
    struct sched_options sched_options;
    uint64_t now_ns;
    uint64_t next_request_id;
    uint64_t next_epoch;
    struct rig_sent *sent; /* owned */
    uint32_t sent_count;
    uint32_t sent_cap;
    bool keeps_sent; /* false: sent stays empty */
};

/* What most tests begin with: a small worker with steps of 10 ms, a queue of 64. */
struct model_options rig_model_options(void);
struct sched_options rig_sched_options(void);

/* model_options' limits are what the worker says; attached at once. */
void rig_init(struct rig *rig, const struct model_options *model_options,
              const struct sched_options *sched_options);
void rig_init_default(struct rig *rig);
void rig_fini(struct rig *rig);

void rig_attach(struct rig *rig);
/* The worker is gone, with everything on its way. */
void rig_detach(struct rig *rig);

/* Fill a request of prompt_count tokens that asks for output_count. */
struct engine_request rig_engine_request(struct rig_request *request, uint32_t prompt_count,
                                         uint32_t output_count, uint64_t seed);

enum err_code rig_submit(struct rig *rig, struct rig_request *request,
                         const struct engine_request *engine_request, struct err *err);
/* The same with a plain request; fails the test on an error. */
void rig_add(struct rig *rig, struct rig_request *request, uint32_t prompt_count,
             uint32_t output_count);
void rig_cancel(struct rig *rig, const struct rig_request *request);

/* Run until the time; every record is handed over when it is due.  Fails the test when the worker
 * saw a plan that should not be, or the bookkeeping is off. */
void rig_run_to(struct rig *rig, uint64_t until_ns);
/* Run until nothing is waiting or running; fails the test after limit_ns of virtual time. */
void rig_run_idle(struct rig *rig, uint64_t limit_ns);

/* Messages of a type sent so far, and the index-th of them. */
uint32_t rig_count_sent(const struct rig *rig, enum plan_type type);
const struct rig_sent *rig_nth_sent(const struct rig *rig, enum plan_type type, uint32_t index);

/* The request ended once, by length, with the right output_count tokens. */
void rig_check_length(const struct rig_request *request, uint32_t output_count);
/* The worker holds no sequence and no page. */
void rig_check_all_returned(const struct rig *rig);

struct sched_stats rig_stats(const struct rig *rig);
struct model_stats rig_model_stats(const struct rig *rig);

#endif
