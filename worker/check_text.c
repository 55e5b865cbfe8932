/* The text part of `bezel check`: tokenizer and chat format are asked of the frontend's program. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/err.h"
#include "worker/check_internal.h"

enum {
    PATH_BYTES = 4200,
    ANSWER_BYTES = 4 * ERR_MESSAGE_BYTES
};

/* Runs `frontend --check-text MODEL_DIR` with out_fd as standard output; below 0 where it cannot. */
static pid_t start_frontend(const struct check *check, int out_fd)
{
    char name[] = "bezel-frontend";
    char flag[] = "--check-text";
    char dir[PATH_BYTES];
    char *argv[] = {name, flag, dir, NULL};
    (void)snprintf(dir, sizeof(dir), "%s", check->options.model_dir); /* longer ones do not open */
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(out_fd, STDOUT_FILENO) >= 0) {
            (void)execv(check->options.frontend, argv); /* returns only on failure */
        }
        _exit(EXIT_FAILURE);
    }
    return pid;
}

/* What comes until the end. */
static void read_answer(int fd, char answer[ANSWER_BYTES])
{
    size_t used_bytes = 0;
    ssize_t count = 1;
    while (count > 0 && used_bytes < ANSWER_BYTES - 1) {
        count = read(fd, answer + used_bytes, ANSWER_BYTES - 1 - used_bytes);
        used_bytes += count > 0 ? (size_t)count : 0;
    }
    answer[used_bytes] = '\0';
}

/* A line each. */
static void add_faults(struct check *check, char *answer)
{
    char *rest = NULL;
    for (char *line = strtok_r(answer, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        check_add_fault(check, "%s", line);
    }
}

static void ask_frontend(struct check *check)
{
    int ends[2];
    int status = 0;
    char answer[ANSWER_BYTES];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        check_add_fault(check, "asking the frontend: no pipe");
        return;
    }
    pid_t pid = start_frontend(check, ends[1]);
    (void)close(ends[1]);
    read_answer(ends[0], answer);
    (void)close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || answer[0] == '\0') {
        check_add_fault(check, "'%s' cannot be asked for the tokenizer", check->options.frontend);
    } else if (status != 0) {
        buf_append_text(check->out, "text       see below\n");
        add_faults(check, answer);
    } else {
        buf_printf(check->out, "text       %s", answer);
    }
}

void check_report_text(struct check *check)
{
    char path[PATH_BYTES];
    if (check->options.frontend != NULL) {
        ask_frontend(check);
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", check->options.model_dir);
    buf_printf(check->out, "text       %s\n",
               access(path, R_OK) == 0
                   ? "tokenizer.json is there"
                   : "no tokenizer.json: prompts and answers are token ids only");
}
