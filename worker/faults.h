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
};

/* One short clause about one thing: "lm_head.weight is F32, must be BF16". */
void faults_add(struct faults *faults, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ERR_OK where there are none; otherwise "<count> <what>s: <fault>; <fault>; and <n> more";
 * what is a singular. */
ERR_NODISCARD enum err_code faults_result(const struct faults *faults, enum err_code code,
                                          const char *what, struct err *err);

#endif
