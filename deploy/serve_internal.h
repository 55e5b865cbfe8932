/* The launcher's insides, shared by serve.c (the loop), serve_setup.c (what it is made of) and
 * serve_reload.c (one frontend handing over to the next), and by nothing else. */
#ifndef DEPLOY_SERVE_INTERNAL_H
#define DEPLOY_SERVE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/launcher_socket.h"
#include "deploy/child.h"
#include "deploy/options.h"
#include "deploy/run_dir.h"

enum {
    SERVE_PATH_BYTES = 4096
};

#define SERVE_KILL_GRACE_NS (2 * CLOCK_NS_PER_SEC) /* beyond the drain timeout */

enum serve_phase {
    SERVE_RUNNING,
    SERVE_DRAINING,
    SERVE_STOPPING,
    SERVE_DONE,
};

/* A reload from its request to its answer. */
struct reload {
    bool is_running;
    bool is_adopted; /* the old frontend died meanwhile: the new one is the frontend already */
    int client_fd;   /* owned; who asked and waits; -1 nobody */
    uint64_t deadline_ns;
    char reason[LAUNCHER_TEXT_BYTES]; /* the new frontend's own, once it has told one */
    bool is_within_line;              /* the rest of that is still to be read */
};

struct serve {
    const struct options *options; /* borrowed */
    struct run_dir run_dir;
    int listen_fd; /* owned, as all fds here; closed when a drain begins */
    int signal_fd;
    int lifeline_read_fd;
    int lifeline_write_fd;
    int ready_fd; /* read end of the running frontend's pipe; -1 once it has spoken */
    int next_ready_fd;
    int control_fd; /* launcher.sock */
    int asking_fd;  /* a client that has not said yet what it wants; -1 none */
    uint64_t asking_until_ns;
    char worker_path[SERVE_PATH_BYTES];
    char frontend_path[SERVE_PATH_BYTES];
    struct options_argv worker_argv;
    struct options_argv frontend_argv;
    struct options_argv successor_argv;
    struct child worker;
    struct child frontend; /* the one that accepts connections */
    struct child next;     /* of a reload, until it is ready */
    struct child leaving;  /* the one before, which serves what it holds */
    uint64_t leave_deadline_ns;
    struct reload reload;
    bool frontend_is_ready;
    bool was_ready; /* once, by any frontend */
    bool has_terminal;
    enum serve_phase phase;
    uint64_t deadline_ns; /* of DRAINING and STOPPING */
    int exit_code;
};

/* serve.c */

/* Starts child, a frontend, on the listening socket.  *out_ready_fd: the end of its pipe to read; -1
 * after an error. */
ERR_NODISCARD enum err_code serve_start_frontend(const struct serve *serve, struct child *child,
                                                 int *out_ready_fd, uint64_t now_ns,
                                                 struct err *err);

/* serve_setup.c */

ERR_NODISCARD enum err_code serve_open_all(struct serve *serve, struct err *err);
void serve_close_all(struct serve *serve);
void serve_close_fd(int *fd);

/* serve_reload.c */

/* Starts a new frontend beside the running one.  client_fd: taken, answered when all is over; -1. */
void serve_reload_begin(struct serve *serve, int client_fd, uint64_t now_ns);

/* The new frontend's pipe is readable. */
void serve_reload_on_ready(struct serve *serve);

/* The new frontend, or the leaving one, has ended. */
void serve_reload_on_next_end(struct serve *serve, uint64_t now_ns);
void serve_reload_on_leaving_end(struct serve *serve, uint64_t now_ns);

/* The frontend has ended and is reaped: the new one, where there is one, takes its place at once. */
void serve_reload_adopt(struct serve *serve);

/* An adopted frontend is ready, or has ended: answers who waits. */
void serve_reload_on_adopted(struct serve *serve, bool is_ready);

/* Gives up a running reload, whoever waits for it is told why. */
void serve_reload_abandon(struct serve *serve, const char *why);

/* Deadlines of the new and the leaving one. */
uint64_t serve_reload_next_ns(const struct serve *serve);
void serve_reload_tick(struct serve *serve, uint64_t now_ns);

/* launcher.sock: a client has come, or says what it wants. */
void serve_reload_on_client(struct serve *serve, uint64_t now_ns);
void serve_reload_on_request(struct serve *serve, uint64_t now_ns);

#endif
