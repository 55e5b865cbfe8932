#include "proto/account.h"

#include <assert.h>

#include "common/num.h"

static uint32_t accounted(const struct account_family *family)
{
    return family->origin_pages + family->resident_pages;
}

static uint32_t pages_of(uint64_t tokens, uint32_t page_tokens)
{
    return (uint32_t)((tokens + page_tokens - 1) / page_tokens);
}

uint32_t account_local_origin_pages(const struct account_geometry *geometry,
                                    uint32_t committed_tokens)
{
    if (committed_tokens <= geometry->window_tokens) {
        return 0;
    }
    return (committed_tokens - geometry->window_tokens) / geometry->page_tokens;
}

struct account account_begin(const struct account_geometry *geometry, uint32_t reused_tokens)
{
    assert(reused_tokens % geometry->page_tokens == 0);
    uint32_t pages = reused_tokens / geometry->page_tokens;
    uint32_t origin_pages = account_local_origin_pages(geometry, reused_tokens);
    return (struct account){
        .launched_tokens = reused_tokens,
        .reserved_tokens = reused_tokens,
        .committed_tokens = reused_tokens,
        .local = {.origin_pages = origin_pages, .resident_pages = pages - origin_pages},
        .global = {.resident_pages = pages},
    };
}

enum err_code account_need(const struct account *account, const struct account_geometry *geometry,
                           uint32_t new_tokens, struct account_need *out_need, struct err *err)
{
    uint64_t end_tokens = (uint64_t)account->launched_tokens + new_tokens;
    if (end_tokens > UINT32_MAX) {
        return err_set(err, ERR_INTERNAL, "frontier %u and %u new tokens pass %u",
                       account->launched_tokens, new_tokens, UINT32_MAX);
    }
    if (end_tokens < account->reserved_tokens) {
        end_tokens = account->reserved_tokens;
    }
    uint32_t covering = pages_of(end_tokens, geometry->page_tokens);
    uint32_t local = accounted(&account->local);
    uint32_t global = accounted(&account->global);
    if (covering < local || covering < global) {
        return err_set(err, ERR_INTERNAL,
                       "negative need: %u tokens want %u pages, accounted are %u local, %u global",
                       (uint32_t)end_tokens, covering, local, global);
    }
    *out_need = (struct account_need){
        .local_pages = covering - local,
        .global_pages = covering - global,
    };
    return ERR_OK;
}

void account_launch(struct account *account, const struct account_need *need, uint32_t new_tokens)
{
    assert(new_tokens <= UINT32_MAX - account->launched_tokens);
    account->local.resident_pages += need->local_pages;
    account->global.resident_pages += need->global_pages;
    account->launched_tokens += new_tokens;
    account->reserved_tokens = num_max(account->reserved_tokens, account->launched_tokens);
}

void account_unlaunch(struct account *account, uint32_t new_tokens)
{
    assert(new_tokens <= account->launched_tokens - account->committed_tokens);
    account->launched_tokens -= new_tokens;
}

uint32_t account_commit(struct account *account, const struct account_geometry *geometry,
                        uint32_t tokens)
{
    assert(tokens <= account->launched_tokens - account->committed_tokens);
    account->committed_tokens += tokens;
    uint32_t origin = account_local_origin_pages(geometry, account->committed_tokens);
    uint32_t released = origin - account->local.origin_pages;
    assert(released <= account->local.resident_pages);
    account->local.origin_pages = origin;
    account->local.resident_pages -= released;
    return released;
}

uint32_t account_local_table_pages(const struct account_geometry *geometry)
{
    return num_ceil_div(geometry->window_tokens, geometry->page_tokens) +
           num_ceil_div(geometry->max_step_tokens, geometry->page_tokens) + 2;
}

struct account_need account_peak(const struct account_geometry *geometry, uint32_t total_tokens,
                                 uint32_t step_tokens)
{
    /* At frontier c a segment holds ceil(min(c + step, total) / page) - floor((c - window) / page)
     * local pages; the worst c lies one token short of releasing another page. */
    uint64_t reach_tokens =
        (uint64_t)geometry->window_tokens + step_tokens + geometry->page_tokens - 1;
    if (reach_tokens > total_tokens) {
        reach_tokens = total_tokens;
    }
    return (struct account_need){
        .local_pages = pages_of(reach_tokens, geometry->page_tokens),
        .global_pages = pages_of(total_tokens, geometry->page_tokens),
    };
}

struct account_need account_table_peak(const struct account_geometry *geometry,
                                       uint32_t total_tokens, uint32_t step_tokens)
{
    struct account_need peak = account_peak(geometry, total_tokens, step_tokens);
    peak.local_pages = num_min(peak.local_pages, account_local_table_pages(geometry));
    return peak;
}

bool account_check(const struct account *account, const struct account_geometry *geometry)
{
    uint32_t covering = pages_of(num_max(account->launched_tokens, account->reserved_tokens),
                                 geometry->page_tokens);
    uint32_t local = accounted(&account->local);
    uint32_t global = accounted(&account->global);
    return account->committed_tokens <= account->launched_tokens &&
           account->global.origin_pages == 0 && local == covering && global == covering &&
           account->local.origin_pages ==
               account_local_origin_pages(geometry, account->committed_tokens);
}
