/* A small frontend of its own for tests: control socket, plan socket, result ring, mask area.
 *
 * Every call fails the running test on what it does not expect; no call waits without a deadline. */
#ifndef TESTS_TESTLIB_WORKER_CLIENT_H
#define TESTS_TESTLIB_WORKER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/mem.h"
#include "common/ring.h"
#include "common/shm.h"
#include "proto/hello.h"
#include "proto/mask.h"
#include "proto/plan.h"
#include "proto/result.h"

struct worker_client_sockets;

struct worker_client {
    struct worker_client_sockets *sockets; /* owned */
    char control_url[128];
    struct mem_arena arena;       /* of the last control answer */
    struct hello_welcome welcome; /* texts not kept */
    uint64_t epoch;
    uint64_t msg_seq; /* of the last message sent */
    char plan_url[256];
    char segment_name[64];
    struct shm_segment segment;
    struct ring_consumer ring;
    struct mask_area masks;
    size_t mask_offset_bytes;
};

/* Opens the control socket and asks HELLO until the worker is ready. */
void worker_client_open(struct worker_client *client, const char *run_dir);
/* The same, but returns at the first answer, whatever the state. */
void worker_client_open_early(struct worker_client *client, const char *run_dir);
void worker_client_close(struct worker_client *client);

/* One request and its answer, borrowed until the next.  Raw: bytes as they are. */
struct hello_message worker_client_ask(struct worker_client *client,
                                       const struct hello_message *request);
struct hello_message worker_client_ask_raw(struct worker_client *client, const void *bytes,
                                           size_t byte_count);
struct hello_stats_answer worker_client_stats(struct worker_client *client);

/* Sends ATTACH with that nonce and keeps the answer; false when it is FAULT (*out_fault). */
bool worker_client_try_attach(struct worker_client *client, uint64_t nonce,
                              struct hello_fault *out_fault);
/* Maps the segment and dials the plan socket. */
void worker_client_dial(struct worker_client *client);
/* Both, with a fresh nonce, retrying while the worker says busy. */
void worker_client_attach(struct worker_client *client);
/* Leaves the session: closes the pipe and unmaps. */
void worker_client_detach(struct worker_client *client);

/* Fills in epoch and the next msg_seq, and returns it. */
uint64_t worker_client_send(struct worker_client *client, const struct plan_message *message);
/* As it is: for stale epochs and gaps.  A message for a pipe that is closed goes nowhere. */
void worker_client_send_as_is(struct worker_client *client, const struct plan_message *message);
void worker_client_send_raw(struct worker_client *client, const void *bytes, size_t byte_count);

/* The next record, checked; false when none comes within wait_ms. */
bool worker_client_try_pop(struct worker_client *client, uint32_t wait_ms,
                           struct result_record *out_record);
/* Pops until one of that kind comes and returns it; fails the test after wait_ms. */
struct result_record worker_client_expect(struct worker_client *client, enum result_kind kind,
                                          uint32_t wait_ms);

/* True when the plan pipe is closed within wait_ms. */
bool worker_client_wait_closed(struct worker_client *client, uint32_t wait_ms);

/* Dials a plan socket that has its pipe; true when that pipe is closed within wait_ms.  client has
 * only its control socket. */
bool worker_client_second_pipe_is_closed(struct worker_client *client, const char *plan_url,
                                         uint32_t wait_ms);

/* Waits until every page is free and no sequence lives, seen over STATS. */
void worker_client_expect_all_free(struct worker_client *client, uint32_t wait_ms);

#endif
