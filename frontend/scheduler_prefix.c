/* Requests that begin alike, before the worker has what they share.
 *
 * What an ADMIT can reuse is what is computed by then.  When several requests with one prefix arrive
 * together, the first computes it; the others wait for that instead of computing it beside the first,
 * which would take longer for each of them. */
#include <string.h>

#include "common/num.h"
#include "frontend/scheduler_internal.h"

/* Fewer are computed at once rather than waited for, but by choices of one prompt. */
#define MIN_SHARED_PAGES 4U

/* Tokens from the front that the prompt of req and what other has so far have in common, in what the
 * worker reuses: whole pages before the last token of the prompt, whole cuts where it has cuts. */
static uint32_t shared_tokens(const struct sched_limits *limits, const struct req *req,
                              const struct req *other)
{
    uint32_t page = limits->geometry.page_tokens;
    uint32_t most = num_min(req->admit.prompt.count - 1, other->token_count);
    uint32_t shared = 0;
    if (req->admit.cache_salt != other->admit.cache_salt) {
        return 0;
    }
    while (shared + page <= most &&
           memcmp(req->tokens + shared, other->tokens + shared, page * sizeof(*req->tokens)) == 0) {
        shared += page;
    }
    return shared / num_max(page, limits->cut_tokens) * num_max(page, limits->cut_tokens);
}

/* Its prompt, up to the answers of its last rows. */
static bool is_computing(const struct req *req)
{
    bool is_running = req->state == REQ_STATE_ADMITTING || req->state == REQ_STATE_PROMPT ||
                      req->state == REQ_STATE_DECODE;
    return is_running && req->account.committed_tokens < req->admit.prompt.count;
}

/* Still computes, ahead of req, what they share. */
static bool leads(const struct req *leader, const struct req *req, uint32_t shared)
{
    return is_computing(leader) && !sched_goes_before(leader, req) &&
           leader->account.committed_tokens < shared;
}

/* What some running request has computed of the prompt of req. */
static uint32_t covered_tokens(const struct sched *sched, const struct req *req)
{
    uint32_t covered = 0;
    for (const struct req *other = sched->running.first; other != NULL; other = other->next) {
        if (other->account.committed_tokens > covered) {
            uint32_t shared = shared_tokens(&sched->limits, req, other);
            covered = num_max(covered, num_min(shared, other->account.committed_tokens));
        }
    }
    return covered;
}

static uint32_t least_tokens(const struct sched *sched, const struct req *leader,
                             const struct req *req)
{
    bool is_choice = req->group != 0 && req->group == leader->group;
    return (is_choice ? 1 : MIN_SHARED_PAGES) * sched->limits.geometry.page_tokens;
}

bool sched_awaits_prefix(const struct sched *sched, struct req *req)
{
    if (!sched->limits.has_prefix_cache || req->admit.prompt_logprobs != 0 ||
        req->preemptions > 0 || req->overtaken >= SCHED_MAX_OVERTAKES) {
        return false;
    }
    const struct req *leader =
        req->leader_seq_id == 0 ? NULL : sched_find_sequence(sched, req->leader_seq_id);
    if (leader != NULL && leads(leader, req, req->leader_tokens)) {
        return true;
    }
    req->leader_seq_id = 0;
    uint32_t covered = covered_tokens(sched, req);
    for (leader = sched->running.first; leader != NULL; leader = leader->next) {
        uint32_t shared = is_computing(leader) ? shared_tokens(&sched->limits, req, leader) : 0;
        if (shared >= covered + least_tokens(sched, leader, req) && leads(leader, req, shared)) {
            req->leader_seq_id = leader->admit.seq_id;
            req->leader_tokens = shared;
            return true;
        }
    }
    return false;
}
