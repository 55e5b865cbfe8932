/* Command line and configuration file of bezel-worker (options.def). */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/opt.h"

enum options_backend {
    OPTIONS_BACKEND_AUTO, /* cuda where there is a device, else cpu */
    OPTIONS_BACKEND_CPU,
    OPTIONS_BACKEND_CUDA,
};

enum options_load_format {
    OPTIONS_LOAD_SAFETENSORS,
    OPTIONS_LOAD_DUMMY, /* seeded normal values of the config's shapes: for benchmarks */
};

struct options {
#define OPTION(kind, field, ...) OPT_FIELD_##kind(field)
#include "worker/options.def"
#undef OPTION
    const char *model_dir; /* borrowed from argv */
    enum options_backend backend;
    uint32_t device_index;
    bool is_help; /* --help was given: nothing else is checked */
};

/* Errors: ERR_ARGUMENT (names option, value and limit).  Texts are owned by store, also after an
 * error. */
ERR_NODISCARD enum err_code options_parse(struct options *options, struct opt_store *store,
                                          int argc, char **argv, struct err *err);

/* Every option at its default, no model. */
void options_init(struct options *options);

void options_help(struct buf *out);

/* ERR_ARGUMENT names the option and the value. */
ERR_NODISCARD enum err_code options_check_power_of_two(const char *name, uint32_t value,
                                                       struct err *err);

#endif
