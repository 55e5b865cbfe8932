/* Requests to an engine from a test's thread: submit, wait for the end, look at what came. */
#ifndef TESTS_TESTLIB_ENGINE_CLIENT_H
#define TESTS_TESTLIB_ENGINE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/engine.h"

#define CLIENT_MAX_TOKENS 4096

/* One request; events are gathered under a lock of its own. */
struct client;

/* What has come so far; a copy. */
struct client_view {
    uint64_t request_id;
    uint32_t admitted;
    uint32_t token_count;
    uint32_t ended; /* FINISHED or FAILED, and whatever came after */
    enum result_finish reason;
    enum err_code code;
    char text[256];
    bool failed_attached; /* FAILED came while the engine still said that it has a worker */
    uint64_t submitted_ns;
    uint64_t first_token_ns;
    uint64_t ended_ns;
};

struct client *client_create(void);
/* The engine must have ended the request. */
void client_destroy(struct client *client);

/* A greedy request without stop ids; change admit before client_submit. */
struct engine_request client_request(struct client *client, const uint32_t *prompt,
                                     uint32_t prompt_count, uint32_t output_count, uint64_t seed);

enum err_code client_submit(struct client *client, struct engine *engine,
                            const struct engine_request *request, struct err *err);

/* Wait until the request has ended, or has token_count tokens.  False at the deadline. */
bool client_wait_end(struct client *client, uint64_t timeout_ns);
bool client_wait_tokens(struct client *client, uint32_t token_count, uint64_t timeout_ns);

void client_get(struct client *client, struct client_view *out_view);
uint32_t client_token(struct client *client, uint32_t index);

/* Polls the engine's status until the condition holds; false at the deadline. */
bool client_wait_status(struct engine *engine, bool (*holds)(const struct engine_status *status),
                        uint64_t timeout_ns);
bool client_is_ready(const struct engine_status *status);
bool client_is_detached(const struct engine_status *status);
/* Then the counters are final too: the last event comes before they are published. */
bool client_is_idle(const struct engine_status *status);

/* arrived = rejected + finished + failed + waiting + running. */
bool client_adds_up(const struct engine_status *status);

#endif
