/* Shared by check.c, check_memory.c and check_text.c only. */
#ifndef WORKER_CHECK_INTERNAL_H
#define WORKER_CHECK_INTERNAL_H

#include <stdint.h>

#include "common/buf.h"
#include "worker/model_config.h"
#include "worker/options.h"
#include "worker/sizes.h"

struct check_options {
#define OPTION(kind, field, ...) OPT_FIELD_##kind(field)
#include "worker/check.def"
#undef OPTION
    const char *model_dir; /* borrowed from argv */
};

struct check {
    struct check_options options;
    struct options worker; /* what bezel-worker would be given: the backend is settled */
    struct model_config config;
    struct sizes sizes;
    struct buf *out;
    struct buf faults; /* owned; one line each */
    uint32_t fault_count;
};

/* One clause, or several lines of one. */
void check_add_fault(struct check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "22.18 GiB", "320.0 MiB", "12,288 B" into text; returns text. */
#define CHECK_TEXT_BYTES 32
const char *check_bytes_text(uint64_t bytes, char text[CHECK_TEXT_BYTES]);
/* "11,907,350,320" */
const char *check_count_text(uint64_t count, char text[CHECK_TEXT_BYTES]);

/* What the frontend says of tokenizer and chat format, or of the file alone where no frontend was named;
 * adds a fault where it refuses them. */
void check_report_text(struct check *check);

/* What the backend takes at which context and what fits; adds a fault where nothing does. */
void check_report_memory(struct check *check);

#endif
