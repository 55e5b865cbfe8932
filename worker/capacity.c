#include "worker/capacity.h"

#include "common/num.h"
#include "proto/account.h"

static struct account_geometry geometry_of(const struct capacity_wish *wish)
{
    return (struct account_geometry){
        .page_tokens = wish->page_tokens,
        .window_tokens = wish->window_tokens,
        .max_step_tokens = wish->max_step_tokens,
    };
}

/* Pages of a sequence that decodes at the end of total_tokens, one token per step in flight. */
static struct account_need one_request(const struct capacity_wish *wish, uint32_t total_tokens)
{
    struct account_geometry geometry = geometry_of(wish);
    return account_peak(&geometry, total_tokens, wish->pipeline_depth);
}

/* Local pages that prompt segments in flight take beyond what their sequences keep. */
static uint32_t segment_pages(const struct capacity_wish *wish, uint32_t total_tokens)
{
    uint32_t tokens = num_min(wish->max_step_tokens, total_tokens);
    return wish->pipeline_depth * num_ceil_div(tokens, wish->page_tokens);
}

void capacity_one_request(const struct capacity_wish *wish, uint32_t total_tokens,
                          uint32_t out_pages[RUNNER_FAMILY_COUNT], uint32_t *out_segment_pages)
{
    struct account_need one = one_request(wish, total_tokens);
    out_pages[RUNNER_FAMILY_LOCAL] = one.local_pages;
    out_pages[RUNNER_FAMILY_GLOBAL] = one.global_pages;
    *out_segment_pages = segment_pages(wish, total_tokens);
}

enum err_code capacity_plan(const struct capacity_wish *wish,
                            uint32_t out_pages[RUNNER_FAMILY_COUNT], struct err *err)
{
    uint32_t tokens = num_min(wish->max_context_tokens, CAPACITY_DEFAULT_CONTEXT_TOKENS);
    struct account_need one = one_request(wish, tokens);
    uint64_t one_bytes = one.local_pages * wish->page_bytes[RUNNER_FAMILY_LOCAL] +
                         one.global_pages * wish->page_bytes[RUNNER_FAMILY_GLOBAL];
    uint32_t extra_pages = segment_pages(wish, tokens);
    uint64_t extra_bytes = extra_pages * wish->page_bytes[RUNNER_FAMILY_LOCAL];
    uint64_t memory_bytes = wish->memory_bytes;
    if (memory_bytes == 0) {
        memory_bytes = extra_bytes + wish->slots * one_bytes;
        if (wish->takes_all || memory_bytes > wish->available_bytes) {
            memory_bytes = wish->available_bytes;
        }
    }
    bool is_explicit =
        wish->pages[RUNNER_FAMILY_LOCAL] != 0 && wish->pages[RUNNER_FAMILY_GLOBAL] != 0;
    if (!is_explicit && memory_bytes < extra_bytes + one_bytes) {
        return err_set(err, ERR_CONFIG,
                       "%llu MB for both page pools, one sequence of %u tokens takes %llu MB: "
                       "%slower --max-context-tokens",
                       (unsigned long long)(memory_bytes >> 20), tokens,
                       (unsigned long long)((extra_bytes + one_bytes + (1U << 20) - 1) >> 20),
                       wish->memory_bytes != 0 ? "raise --kv-memory-mb or " : "");
    }
    /* In thousandths of a sequence: pages need not stop at a whole one. */
    uint64_t share = is_explicit ? 0 : (memory_bytes - extra_bytes) * 1000 / one_bytes;
    uint64_t local = extra_pages + one.local_pages * share / 1000;
    uint64_t global = one.global_pages * share / 1000;
    out_pages[RUNNER_FAMILY_LOCAL] = wish->pages[RUNNER_FAMILY_LOCAL] != 0
                                         ? wish->pages[RUNNER_FAMILY_LOCAL]
                                         : (uint32_t)(local > UINT32_MAX ? UINT32_MAX : local);
    out_pages[RUNNER_FAMILY_GLOBAL] = wish->pages[RUNNER_FAMILY_GLOBAL] != 0
                                          ? wish->pages[RUNNER_FAMILY_GLOBAL]
                                          : (uint32_t)(global > UINT32_MAX ? UINT32_MAX : global);
    return ERR_OK;
}

uint32_t capacity_requests(const struct capacity_wish *wish,
                           const uint32_t pages[RUNNER_FAMILY_COUNT], uint32_t total_tokens)
{
    struct account_need one = one_request(wish, total_tokens);
    uint32_t extra = segment_pages(wish, total_tokens);
    uint32_t local = pages[RUNNER_FAMILY_LOCAL];
    uint32_t by_local = local > extra ? (local - extra) / one.local_pages : 0;
    uint32_t by_global = pages[RUNNER_FAMILY_GLOBAL] / one.global_pages;
    return num_min(num_min(by_local, by_global), wish->slots);
}
