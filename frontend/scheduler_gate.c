/* What a worker offers, and whether a request may come in. */
#include "common/clock.h"
#include "common/num.h"
#include "frontend/scheduler_internal.h"

#define LIMIT_CHECK(condition, name, value, what)                                            \
    if (!(condition)) {                                                                      \
        return err_set(err, ERR_PROTOCOL, "the worker's %s is %u: %s", name, (value), what); \
    }

static bool fits(const struct sched_limits *limits, uint32_t total_tokens)
{
    struct account_need peak = sched_peak(limits, total_tokens);
    return peak.local_pages <= limits->local_pages && peak.global_pages <= limits->global_pages;
}

/* The peak never falls with the length. */
static uint32_t longest_fit(const struct sched_limits *limits)
{
    uint32_t low = 0;
    uint32_t high = limits->max_context_tokens;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (fits(limits, middle)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

enum err_code sched_read_limits(const struct sched_options *options,
                                const struct hello_welcome *welcome,
                                struct sched_limits *out_limits, struct err *err)
{
    uint32_t page = welcome->page_tokens;
    LIMIT_CHECK(page != 0 && (page & (page - 1)) == 0, "page_tokens", page,
                "a power of two is needed")
    LIMIT_CHECK(welcome->slots != 0 && welcome->slots <= SCHED_MAX_SLOTS, "slots", welcome->slots,
                "1 to 4096 are possible")
    LIMIT_CHECK(welcome->max_step_rows != 0 && welcome->max_step_rows <= PLAN_MAX_ROWS,
                "max_step_rows", welcome->max_step_rows, "1 to 1024 are possible")
    LIMIT_CHECK(welcome->max_step_tokens != 0 && welcome->max_step_tokens <= PLAN_MAX_STEP_TOKENS,
                "max_step_tokens", welcome->max_step_tokens, "1 to 16384 are possible")
    LIMIT_CHECK(welcome->pipeline_depth != 0, "pipeline_depth", welcome->pipeline_depth,
                "at least 1 is needed")
    LIMIT_CHECK(welcome->vocab_tokens != 0, "vocab_tokens", welcome->vocab_tokens,
                "at least 1 is needed")
    LIMIT_CHECK(welcome->window_tokens != 0, "window_tokens", welcome->window_tokens,
                "at least 1 is needed")
    uint32_t depth =
        options->pipeline_depth != 0 ? options->pipeline_depth : welcome->pipeline_depth;
    uint32_t budget = options->max_step_tokens != 0
                          ? num_min(options->max_step_tokens, welcome->max_step_tokens)
                          : welcome->max_step_tokens;
    depth = num_min(depth, SCHED_MAX_DEPTH);
    uint32_t segment = num_max(num_min(depth * budget, welcome->max_step_tokens) / depth, 1);
    LIMIT_CHECK(welcome->segment_tokens <= segment, "segment_tokens", welcome->segment_tokens,
                "steps in flight have less room for a prompt; a larger --max-step-tokens is needed")
    uint64_t quarter_ns = welcome->session_timeout_ms * CLOCK_NS_PER_MS / 4;
    *out_limits = (struct sched_limits){
        .geometry = {.page_tokens = page,
                     .window_tokens = welcome->window_tokens,
                     .max_step_tokens = welcome->max_step_tokens},
        .vocab_tokens = welcome->vocab_tokens,
        .max_context_tokens = welcome->max_context_tokens,
        .local_pages = welcome->local_pages,
        .global_pages = welcome->global_pages,
        .slots = welcome->slots,
        .max_step_rows = welcome->max_step_rows,
        .budget_tokens = budget,
        .depth = depth,
        .peak_step_tokens = num_min(depth * budget, welcome->max_step_tokens),
        .segment_tokens = segment,
        .cut_tokens = welcome->segment_tokens,
        .has_prefix_cache = welcome->prefix_cache,
        .ping_ns = quarter_ns != 0 && quarter_ns < SCHED_PING_NS ? quarter_ns : SCHED_PING_NS,
    };
    out_limits->pool_tokens = longest_fit(out_limits);
    return ERR_OK;
}

/* All but the last have left their prompts behind, which take more local pages. */
uint32_t sched_requests_that_fit(const struct sched_limits *limits, uint32_t total_tokens)
{
    if (total_tokens == 0 || total_tokens > limits->max_context_tokens ||
        !fits(limits, total_tokens)) {
        return 0;
    }
    struct account_need peak = sched_peak(limits, total_tokens);
    struct account_need low = account_peak(&limits->geometry, total_tokens, limits->depth);
    uint32_t low_local = num_min(low.local_pages, peak.local_pages);
    uint32_t by_local = 1 + (limits->local_pages - peak.local_pages) / low_local;
    uint32_t by_global = limits->global_pages / peak.global_pages;
    return num_min(num_min(by_local, by_global), limits->slots);
}

uint64_t sched_waiting_until_ns(const struct sched *sched)
{
    if (sched->is_attached) {
        return UINT64_MAX;
    }
    return sched->was_attached ? sched->lost_ns + sched->options.detached_wait_ns : 0;
}

void sched_get_gate(const struct sched *sched, struct sched_gate *out_gate)
{
    *out_gate = (struct sched_gate){
        .limits = sched->limits,
        .open_until_ns = sched_waiting_until_ns(sched),
        .waiting = sched->queue.waiting.count,
        .running = sched->running.count,
        .max_queue = sched->options.max_queue,
        .retry_after_s = backlog_retry_s(&sched->backlog, sched->queue.waiting_tokens,
                                         sched->queue.waiting.count),
    };
}

static enum err_code check_fit(const struct sched_limits *limits, const struct plan_admit *admit,
                               struct err *err)
{
    if (admit->max_total > limits->max_context_tokens) {
        return err_set(err, ERR_LIMIT,
                       "prompt of %u and output of up to %u tokens make %u, the context is %u",
                       admit->prompt.count, admit->max_total - admit->prompt.count,
                       admit->max_total, limits->max_context_tokens);
    }
    struct account_need peak = sched_peak(limits, admit->max_total);
    if (peak.local_pages > limits->local_pages) {
        return err_set(err, ERR_LIMIT, "%u tokens need %u sliding-window pages, the pool has %u",
                       admit->max_total, peak.local_pages, limits->local_pages);
    }
    if (peak.global_pages > limits->global_pages) {
        return err_set(err, ERR_LIMIT, "%u tokens need %u full-attention pages, the pool has %u",
                       admit->max_total, peak.global_pages, limits->global_pages);
    }
    for (uint32_t i = 0; i < admit->prompt.count; i++) {
        if (admit->prompt.at[i] >= limits->vocab_tokens) {
            return err_set(err, ERR_ARGUMENT, "token %u of the prompt is %u, the vocabulary has %u",
                           i, admit->prompt.at[i], limits->vocab_tokens);
        }
    }
    return ERR_OK;
}

enum err_code sched_gate_check(const struct sched_gate *gate, const struct plan_admit *admit,
                               uint64_t now_ns, struct err *err)
{
    if (now_ns >= gate->open_until_ns) {
        return err_set(err, ERR_CLOSED, "%s",
                       gate->open_until_ns == 0 ? "no worker is ready yet" : "the worker is gone");
    }
    uint32_t can_start =
        gate->running < gate->limits.slots ? gate->limits.slots - gate->running : 0;
    if (gate->waiting >= (uint64_t)gate->max_queue + can_start) {
        return err_set(err, ERR_BUSY, "%u requests wait already, at most %u may", gate->waiting,
                       gate->max_queue);
    }
    return check_fit(&gate->limits, admit, err);
}
