/* The memory part of `bezel check`: weights, workspace and pages of one request per context. */
#include <stdio.h>

#include "common/num.h"
#include "worker/check_internal.h"
#include "worker/loader.h"
#include "worker/runner_cpu.h"

struct memory {
    uint64_t free_bytes; /* what pools, workspace and weights must fit into; 0: not known */
    bool is_stated;      /* by --memory-mb */
};

static bool is_cuda(const struct check *check)
{
    return check->worker.backend == OPTIONS_BACKEND_CUDA;
}

/* On a GPU the table of per-layer embeddings lies in the host's memory unless asked otherwise. */
static uint64_t host_bytes(const struct check *check)
{
    return is_cuda(check) && !check->options.ple_on_device ? check->sizes.ple_table_bytes : 0;
}

static uint64_t near_bytes(const struct check *check)
{
    return check->sizes.block_bytes - host_bytes(check);
}

static struct memory find_memory(const struct check *check)
{
    struct memory memory = {.free_bytes = (uint64_t)check->options.memory_mb << 20,
                            .is_stated = check->options.memory_mb != 0};
    if (!memory.is_stated) {
        memory.free_bytes = is_cuda(check) ? loader_cuda_free_bytes() : loader_host_bytes();
    }
    if (is_cuda(check)) {
        memory.free_bytes =
            (uint64_t)((double)memory.free_bytes * (double)check->worker.gpu_memory_utilization);
    }
    return memory;
}

/* What one context takes. */
struct need {
    struct capacity_wish wish;
    uint64_t workspace_bytes;
    uint64_t request_bytes[RUNNER_FAMILY_COUNT]; /* KV of one request at its largest */
    uint64_t together_bytes; /* weights, workspace, the request and its prompt in flight */
};

static uint64_t workspace_of(const struct check *check, const struct runner_limits *limits)
{
    uint64_t bytes = is_cuda(check) ? loader_cuda_workspace_bytes(&check->config, limits) : 0;
    return bytes != 0 ? bytes : runner_cpu_workspace_bytes(&check->config, limits);
}

static struct need need_of(const struct check *check, uint32_t context_tokens)
{
    struct need need = {0};
    struct runner_limits limits;
    uint32_t pages[RUNNER_FAMILY_COUNT];
    uint32_t segment_pages = 0;
    loader_first_limits(&check->worker, &check->config, context_tokens, &limits, &need.wish);
    need.workspace_bytes = workspace_of(check, &limits);
    capacity_one_request(&need.wish, context_tokens, pages, &segment_pages);
    need.together_bytes = near_bytes(check) + need.workspace_bytes +
                          segment_pages * need.wish.page_bytes[RUNNER_FAMILY_LOCAL];
    for (int i = 0; i < RUNNER_FAMILY_COUNT; i++) {
        need.request_bytes[i] = pages[i] * need.wish.page_bytes[i];
        need.together_bytes += need.request_bytes[i];
    }
    return need;
}

/* Requests of the context that the pools hold at once. */
static uint32_t requests_in(const struct check *check, const struct memory *memory,
                            struct need *need, uint32_t context_tokens)
{
    uint32_t pages[RUNNER_FAMILY_COUNT];
    struct err unused;
    uint64_t fixed_bytes = near_bytes(check) + need->workspace_bytes;
    uint64_t left_bytes = memory->free_bytes > fixed_bytes ? memory->free_bytes - fixed_bytes : 0;
    /* On the cpu the loader takes half of what is left; a stated amount is what it may take. */
    need->wish.available_bytes = is_cuda(check) || memory->is_stated ? left_bytes : left_bytes / 2;
    need->wish.takes_all = true;
    if (capacity_plan(&need->wish, pages, &unused) != ERR_OK) {
        return 0;
    }
    return capacity_requests(&need->wish, pages, context_tokens);
}

static void report_row(struct check *check, const struct memory *memory, uint32_t context_tokens)
{
    char context[CHECK_TEXT_BYTES];
    char local[CHECK_TEXT_BYTES];
    char global[CHECK_TEXT_BYTES];
    char workspace[CHECK_TEXT_BYTES];
    char together[CHECK_TEXT_BYTES];
    struct need need = need_of(check, context_tokens);
    buf_printf(check->out, "%9s %13s %13s %12s %13s", check_count_text(context_tokens, context),
               check_bytes_text(need.request_bytes[RUNNER_FAMILY_LOCAL], local),
               check_bytes_text(need.request_bytes[RUNNER_FAMILY_GLOBAL], global),
               check_bytes_text(need.workspace_bytes, workspace),
               check_bytes_text(need.together_bytes, together));
    if (memory->free_bytes > 0) {
        buf_printf(check->out, " %9u", requests_in(check, memory, &need, context_tokens));
    }
    buf_append_char(check->out, '\n');
}

static void report_table(struct check *check, const struct memory *memory, uint32_t most_tokens)
{
    static const uint32_t contexts[] = {1024, 8192, 32768, 131072};
    buf_printf(check->out, "%9s %13s %13s %12s %13s%s\n", "context", "sliding KV", "full KV",
               "workspace", "all with one", memory->free_bytes > 0 ? "   at once" : "");
    for (size_t i = 0;
         check->options.context_tokens == 0 && i < sizeof(contexts) / sizeof(contexts[0]); i++) {
        if (contexts[i] < most_tokens) {
            report_row(check, memory, contexts[i]);
        }
    }
    report_row(check, memory, most_tokens);
}

/* Whether bezel serve would start, and with --context whether one request of it fits. */
static void check_fit(struct check *check, const struct memory *memory, uint32_t most_tokens)
{
    bool is_asked = check->options.context_tokens != 0;
    uint32_t tokens =
        is_asked ? most_tokens : num_min(most_tokens, CAPACITY_DEFAULT_CONTEXT_TOKENS);
    struct need need = need_of(check, most_tokens);
    if (memory->free_bytes > 0 && requests_in(check, memory, &need, tokens) == 0) {
        struct need least = need_of(check, tokens);
        char together[CHECK_TEXT_BYTES];
        char free_text[CHECK_TEXT_BYTES];
        check_add_fault(check,
                        "one request of %u tokens takes %s with weights and workspace, %s %s",
                        tokens, check_bytes_text(least.together_bytes, together),
                        check_bytes_text(memory->free_bytes, free_text),
                        memory->is_stated ? "may be taken" : "are free");
    }
}

static void report_backend(const struct check *check, const struct memory *memory)
{
    const struct options *worker = &check->worker;
    char text[CHECK_TEXT_BYTES];
    buf_printf(check->out, "memory     %s: %u sequences at once, steps of %u tokens, pages of %u",
               is_cuda(check) ? "cuda" : "cpu", worker->max_slots, worker->max_step_tokens,
               worker->page_tokens);
    if (memory->free_bytes > 0) {
        buf_printf(check->out, "; %s %s", check_bytes_text(memory->free_bytes, text),
                   memory->is_stated ? "to take" : "free to take");
    }
    buf_append_char(check->out, '\n');
    if (host_bytes(check) > 0) {
        buf_printf(check->out, "           and %s of host memory for the per-layer table\n",
                   check_bytes_text(host_bytes(check), text));
    }
    if (is_cuda(check) && !loader_has_cuda()) {
        buf_append_text(check->out, "           (this build has no CUDA backend: its workspace is "
                                    "given as the cpu's)\n");
    }
}

void check_report_memory(struct check *check)
{
    uint32_t model_tokens = num_min(check->config.max_positions, PLAN_MAX_PROMPT_TOKENS);
    uint32_t context_tokens = check->options.context_tokens;
    if (context_tokens > model_tokens) {
        check_add_fault(check, "--context %u: the model has at most %u", context_tokens,
                        model_tokens);
        return;
    }
    struct memory memory = find_memory(check);
    uint32_t most_tokens = context_tokens != 0 ? context_tokens : model_tokens;
    report_backend(check, &memory);
    report_table(check, &memory, most_tokens);
    check_fit(check, &memory, most_tokens);
}
