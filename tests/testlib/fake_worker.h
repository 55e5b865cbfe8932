/* A worker process in all but the device: control socket, plan socket and ring around the model
 * worker (tests/testlib/model_worker.h).  Runs on two threads of its own; serves one session at a
 * time, a second ATTACH is answered ERR_BUSY. */
#ifndef TESTS_TESTLIB_FAKE_WORKER_H
#define TESTS_TESTLIB_FAKE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "tests/testlib/model_worker.h"

struct fake_worker;

struct fake_options {
    const char *run_dir; /* borrowed during fake_start */
    struct model_options model;
    uint64_t load_ns;         /* answers LOADING for so long after the start */
    uint64_t table_hash_flip; /* xor on our table hash: another version */
    uint32_t busy_attaches;   /* so many ATTACH are answered ERR_BUSY first */
    /* A token is about to become visible; may be null.  Executor thread, must not call back. */
    void (*on_token)(void *owner, uint64_t seed, uint32_t position, uint64_t now_ns);
    /* A CANCEL or RELEASE has come off the socket at at_ns (a request that leaves before it is admitted
     * is only released); may be null.  Likewise. */
    void (*on_cancel)(void *owner, uint64_t seed, uint64_t at_ns);
    void *owner;
    bool exits_when_dead; /* MODEL_FAULT_DIE ends the process by _exit; else the sockets close */
};

struct fake_stats {
    uint64_t hellos;
    uint64_t attaches; /* sessions begun */
    uint64_t pings;
    uint64_t resets; /* of the prefix cache, asked for and refused */
    bool is_dead;
    bool has_session;
    struct model_stats model; /* of the present session, or the last */
    char violation[256];
};

/* Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code fake_start(const struct fake_options *options,
                                       struct fake_worker **out_worker, struct err *err);

/* Closes everything at once, as a killed process would.  Null is fine. */
void fake_stop(struct fake_worker *worker);

/* Any thread. */
void fake_get_stats(struct fake_worker *worker, struct fake_stats *out_stats);

/* The executor does nothing until fake_thaw, as if stopped; the control socket answers. */
void fake_freeze(struct fake_worker *worker);
void fake_thaw(struct fake_worker *worker);

#endif
