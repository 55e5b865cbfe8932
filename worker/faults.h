/* Faults found in one file or checkpoint, collected so that all are told at once in one line.
 *
 * The line holds the count and as many faults as fit; the rest are counted.  One thread. */
#ifndef WORKER_FAULTS_H
#define WORKER_FAULTS_H

#include <stdint.h>

#include "common/err.h"

struct faults {
    uint32_t count;
    uint32_t shown_count;
    unsigned used_bytes;
    char text[ERR_MESSAGE_BYTES];
    struct err first; /* of those noted as errors */
    /* Sees every clause, also those that the line has no room for; may be null. */
    void (*on_fault)(void *owner, const char *clause);
    void *owner;
};

/* One short clause about one thing: "lm_head.weight is F32, must be BF16". */
void faults_add(struct faults *faults, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An error as a fault; ERR_OK is none.  Returns code, so that a caller can stop there. */
enum err_code faults_note(struct faults *faults, enum err_code code, const struct err *err);

/* As faults_result, with the code of the first noted error, and a single one as it is. */
ERR_NODISCARD enum err_code faults_noted(const struct faults *faults, const char *what,
                                         struct err *err);

/* ERR_OK where there are none; otherwise "<count> <what>s: <fault>; <fault>; and <n> more";
 * what is a singular. */
ERR_NODISCARD enum err_code faults_result(const struct faults *faults, enum err_code code,
                                          const char *what, struct err *err);

#endif
