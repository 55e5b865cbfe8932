#include "worker/loader.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/num.h"
#include "proto/hello.h"
#include "worker/capacity.h"
#include "worker/forward.h"
#include "worker/loader_internal.h"
#include "worker/runner_cpu.h"

enum {
    PATH_BYTES = 4200,
    SEGMENT_TOKENS = 256, /* with --deterministic; a cpu row's bits never depend on its step */
    SPARE_SLOTS = 16, /* beyond max_slots: an ADMIT need not wait for the last steps of a RELEASE */
};

#define LINE_EVERY_NS     (2 * CLOCK_NS_PER_SEC)
#define REDRAW_EVERY_NS   (100 * CLOCK_NS_PER_MS)
#define WATCHDOG_FLOOR_NS (5 * CLOCK_NS_PER_SEC)

struct progress {
    struct loader_progress to;
    bool is_terminal;
    uint64_t start_ns;
    uint64_t shown_ns;
    uint64_t first_ns; /* of the first call, when first_bytes were there already */
    uint64_t first_bytes;
};

/* Bytes per nanosecond are GB per second. */
static double rate_of(const struct progress *progress, uint64_t done_bytes, uint64_t now_ns)
{
    return now_ns == progress->first_ns ? 0.0
                                        : (double)(done_bytes - progress->first_bytes) /
                                              (double)(now_ns - progress->first_ns);
}

static void on_progress(void *owner, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = owner;
    uint64_t now_ns = clock_now_ns();
    if (progress->to.on_progress != NULL) {
        progress->to.on_progress(progress->to.owner, done_bytes, total_bytes);
    }
    if (progress->first_ns == 0) {
        progress->first_ns = now_ns;
        progress->first_bytes = done_bytes;
    }
    bool is_last = done_bytes == total_bytes;
    uint64_t every_ns = progress->is_terminal ? REDRAW_EVERY_NS : LINE_EVERY_NS;
    if (now_ns - progress->shown_ns < every_ns && !is_last) {
        return;
    }
    progress->shown_ns = now_ns;
    if (progress->is_terminal) {
        (void)fprintf(stderr, "\rloading weights: %llu of %llu MB%s",
                      (unsigned long long)(done_bytes >> 20),
                      (unsigned long long)(total_bytes >> 20), is_last ? "\n" : "");
        return;
    }
    log_info("weights", "loading", "done_mb=%llu total_mb=%llu elapsed_ms=%llu gb_per_s=%.2f",
             (unsigned long long)(done_bytes >> 20), (unsigned long long)(total_bytes >> 20),
             (now_ns - progress->start_ns) / CLOCK_NS_PER_MS,
             rate_of(progress, done_bytes, now_ns));
}

static enum err_code hash_files(const char *model_dir, struct loaded *loaded, struct err *err)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/config.json", model_dir);
    enum err_code code = hello_hash_file(path, &loaded->config_hash, err);
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", model_dir);
    return code == ERR_OK ? hello_hash_file(path, &loaded->tokenizer_hash, err) : code;
}

uint64_t loader_host_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long available_kb = 0;
    char line[128];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %15llu kB", /* NOLINT(cert-err34-c): bounded digits */
                   &available_kb) == 1) {
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file); /* read only */
    }
    return (uint64_t)available_kb << 10;
}

static enum err_code choose_context(const struct options *options,
                                    const struct model_config *config, uint32_t *out_tokens,
                                    struct err *err)
{
    uint32_t model_tokens = num_min(config->max_positions, PLAN_MAX_PROMPT_TOKENS);
    if (options->max_context_tokens > model_tokens) {
        return err_set(err, ERR_CONFIG, "--max-context-tokens %u: the model has at most %u",
                       options->max_context_tokens, model_tokens);
    }
    *out_tokens = options->max_context_tokens == 0 ? model_tokens : options->max_context_tokens;
    return ERR_OK;
}

static void log_capacity(const struct capacity_wish *wish, const struct runner_limits *limits)
{
    static const uint32_t lengths[] = {1024, 8192, 32768, 131072};
    const uint32_t *pages = limits->pages;
    log_info(
        "capacity", "pools",
        "local_pages=%u local_page_bytes=%llu local_mb=%llu global_pages=%u global_page_bytes=%llu"
        " global_mb=%llu page_tokens=%u",
        pages[RUNNER_FAMILY_LOCAL], (unsigned long long)wish->page_bytes[RUNNER_FAMILY_LOCAL],
        (unsigned long long)(pages[RUNNER_FAMILY_LOCAL] * wish->page_bytes[RUNNER_FAMILY_LOCAL] >>
                             20),
        pages[RUNNER_FAMILY_GLOBAL], (unsigned long long)wish->page_bytes[RUNNER_FAMILY_GLOBAL],
        (unsigned long long)(pages[RUNNER_FAMILY_GLOBAL] * wish->page_bytes[RUNNER_FAMILY_GLOBAL] >>
                             20),
        limits->page_tokens);
    struct buf text;
    buf_init(&text);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        if (lengths[i] < limits->max_context_tokens) {
            buf_printf(&text, "of_%u_tokens=%u ", lengths[i],
                       capacity_requests(wish, pages, lengths[i]));
        }
    }
    log_info("capacity", "requests-at-once", "%sof_%u_tokens=%u slots=%u", buf_text(&text),
             limits->max_context_tokens, capacity_requests(wish, pages, limits->max_context_tokens),
             wish->slots);
    buf_fini(&text);
}

void loader_first_limits(const struct options *options, const struct model_config *config,
                         uint32_t context_tokens, struct runner_limits *out_limits,
                         struct capacity_wish *out_wish)
{
    bool is_cuda = options->backend == OPTIONS_BACKEND_CUDA;
    *out_limits = (struct runner_limits){
        .slots = options->max_slots + num_min(options->max_slots, SPARE_SLOTS),
        .max_step_rows = num_min(options->max_slots, options->max_step_tokens),
        .max_step_tokens = options->max_step_tokens,
        .max_context_tokens = context_tokens,
        .vocab_tokens = config->info.vocab_tokens,
        .window_tokens = config->families[RUNNER_FAMILY_LOCAL].window_tokens,
        .page_tokens = options->page_tokens,
        .pipeline_depth = options->pipeline_depth,
        .segment_tokens = options->deterministic && is_cuda ? SEGMENT_TOKENS : 0,
    };
    *out_wish = (struct capacity_wish){
        .slots = options->max_slots,
        .max_context_tokens = context_tokens,
        .max_step_tokens = options->max_step_tokens,
        .pipeline_depth = options->pipeline_depth,
        .page_tokens = options->page_tokens,
        .window_tokens = out_limits->window_tokens,
        .page_bytes = {forward_page_bytes(config, RUNNER_FAMILY_LOCAL, options->page_tokens),
                       forward_page_bytes(config, RUNNER_FAMILY_GLOBAL, options->page_tokens)},
        .pages = {options->local_pages, options->global_pages},
        .memory_bytes = (uint64_t)options->kv_memory_mb << 20,
        .takes_all = is_cuda,
    };
}

enum err_code loader_choose_limits(const struct options *options, const struct model_config *config,
                                   const struct loader_memory *memory,
                                   struct runner_limits *out_limits, struct err *err)
{
    uint32_t context_tokens = 0;
    struct runner_limits limits;
    struct capacity_wish wish;
    enum err_code code = choose_context(options, config, &context_tokens, err);
    if (code != ERR_OK) {
        return code;
    }
    loader_first_limits(options, config, context_tokens, &limits, &wish);
    wish.available_bytes = memory->available_bytes(memory->context, &limits);
    code = capacity_plan(&wish, limits.pages, err);
    if (code == ERR_OK) {
        log_capacity(&wish, &limits);
        *out_limits = limits;
    }
    return code;
}

static uint64_t available_to_pools(void *context, const struct runner_limits *limits)
{
    (void)context;
    (void)limits;
    return loader_host_bytes() / 2; /* the other half is the host's */
}

static enum err_code open_cpu(const struct options *options, struct inject *inject,
                              const struct weights_progress *progress, struct loaded *loaded,
                              struct err *err)
{
    const struct loader_memory memory = {.available_bytes = available_to_pools};
    struct runner_cpu_options runner_options = {.threads = options->threads, .inject = inject};
    enum err_code code = options->load_format == OPTIONS_LOAD_DUMMY
                             ? weights_make_host(&loaded->config, &loaded->weights, err)
                             : weights_open_host(options->model_dir, &loaded->config, progress,
                                                 &loaded->weights, err);
    code = code == ERR_OK ? loader_choose_limits(options, &loaded->config, &memory,
                                                 &runner_options.limits, err)
                          : code;
    if (code != ERR_OK) {
        return code;
    }
    /* The slowest honest step: every weight times the most tokens, each product 8 ns.  An idle core
     * takes a hundredth of that, but the first step has nothing to be compared with. */
    uint64_t slowest_ns = loaded->weights.block_bytes / 2 * options->max_step_tokens * 8;
    loaded->watchdog_ns = slowest_ns < WATCHDOG_FLOOR_NS ? WATCHDOG_FLOOR_NS : slowest_ns;
    return runner_cpu_create(&loaded->config, &loaded->weights, &runner_options, &loaded->runner,
                             err);
}

static void settle_u32(uint32_t *value, uint32_t on_cpu, uint32_t on_cuda, bool is_cuda)
{
    *value = *value != 0 ? *value : is_cuda ? on_cuda : on_cpu;
}

void loader_settle_limits(struct options *options)
{
    bool is_cuda = options->backend == OPTIONS_BACKEND_CUDA;
    settle_u32(&options->max_slots, 16, 128, is_cuda);
    settle_u32(&options->max_step_tokens, 512, 2048, is_cuda);
}

enum err_code loader_settle(struct options *options, struct loaded *loaded, struct err *err)
{
    uint32_t devices = loader_cuda_device_count();
    if (options->backend == OPTIONS_BACKEND_AUTO) {
        options->backend = devices > 0 ? OPTIONS_BACKEND_CUDA : OPTIONS_BACKEND_CPU;
    }
    bool is_cuda = options->backend == OPTIONS_BACKEND_CUDA;
    if (is_cuda && !loader_has_cuda()) {
        return err_set(err, ERR_UNSUPPORTED, "--device %s: this build has no CUDA backend",
                       options->device);
    }
    loader_settle_limits(options);
    (void)snprintf(loaded->backend, sizeof(loaded->backend), is_cuda ? "cuda:%u" : "cpu",
                   options->device_index);
    return ERR_OK;
}

/* Faults of the files are told before a device is touched, which may take seconds.  The cpu's loader
 * begins with the same. */
static enum err_code check_tensors(const struct options *options, const struct model_config *config,
                                   struct err *err)
{
    struct st_set *set = NULL;
    uint64_t unused_bytes = 0;
    if (options->backend != OPTIONS_BACKEND_CUDA || options->load_format == OPTIONS_LOAD_DUMMY) {
        return ERR_OK;
    }
    enum err_code code = st_open_folder(options->model_dir, &set, err);
    code = code == ERR_OK ? weights_check(config, set, &unused_bytes, err) : code;
    st_close(set);
    return code == ERR_OK ? code : err_wrap(err, "weights of '%.80s'", options->model_dir);
}

enum err_code loader_open(const struct options *options, struct inject *inject,
                          const struct loader_progress *progress, struct loaded *loaded,
                          struct err *err)
{
    struct progress shown = {
        .to = *progress,
        .is_terminal = isatty(STDERR_FILENO) == 1,
        .start_ns = clock_now_ns(),
        .shown_ns = clock_now_ns(),
    };
    const struct weights_progress weights_progress = {on_progress, &shown};
    enum err_code code = model_config_load(options->model_dir, &loaded->config, err);
    code = code == ERR_OK ? model_config_check_supported(&loaded->config, err) : code;
    uint32_t context_tokens = 0; /* only whether it can be: a wrong one is told before loading */
    code = code == ERR_OK ? choose_context(options, &loaded->config, &context_tokens, err) : code;
    code = code == ERR_OK ? hash_files(options->model_dir, loaded, err) : code;
    code = code == ERR_OK ? check_tensors(options, &loaded->config, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    loaded->limits = (struct session_limits){
        .slots = options->max_slots,
        .ring_records = options->ring_records,
        .modality_ids = loaded->config.info.modality_ids,
        .modality_id_count = loaded->config.info.modality_count,
        .keeps_prefixes = options->prefix_cache,
    };
    if (getrandom(&loaded->limits.hash_seed, sizeof(loaded->limits.hash_seed), 0) !=
        (ssize_t)sizeof(loaded->limits.hash_seed)) {
        return err_set(err, ERR_SYSTEM, "no random number for the prefix cache");
    }
    loaded->watchdog_ns = WATCHDOG_FLOOR_NS;
    code = options->backend == OPTIONS_BACKEND_CUDA
               ? loader_open_cuda(options, inject, &weights_progress, loaded, err)
               : open_cpu(options, inject, &weights_progress, loaded, err);
    if (options->watchdog_ms != 0) {
        loaded->watchdog_ns = options->watchdog_ms * CLOCK_NS_PER_MS;
    }
    return code;
}

void loader_close(struct loaded *loaded)
{
    if (loaded->runner != NULL) {
        loaded->runner->table->destroy(loaded->runner);
        loaded->runner = NULL;
    }
    weights_fini(&loaded->weights);
}
