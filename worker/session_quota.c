/* How two sessions share pages and slots while one frontend hands over to the next.
 *
 * A session alone has everything.  When a second one opens, the elder is told to keep to half the
 * slots, and keeps the pages that its sequences hold and can still need, and room for one full request
 * more, for what its clients still send; in all at most the pool less one full request, but no less
 * of the need than lets one sequence reach its end and the STEPs on their way run.  Of a pool of less
 * than two full requests it keeps half, no less than one that decodes needs, and what the next in its
 * queue needs, as its PINGs say: nobody else can serve that.  The younger one has the rest.  What the
 * elder has not needed for a while moves over: a while, since its frontend may be about to start the
 * next of those that wait, and running ones shall not lose their pages to that.
 *
 * What was granted to the younger one is taken back only for what waits at the elder and fits nowhere
 * else; it keeps what lets one of its sequences reach its end and the STEPs on their way run, so that
 * plans made with the figures it was told stay good.  Until then it is told to admit nothing, and to
 * give up what cannot go on (all slots are withheld). */
#include <stddef.h>

#include "common/num.h"
#include "worker/session_internal.h"

/* What the elder gives back moves over when it was not needed for this long, at most twice as long. */
#define SPARE_NS (100 * 1000000ULL)

enum {
    DECODES_AHEAD = 16 /* decode rows of one sequence that no frontend has outstanding at once */
};

/* What a session's sequences hold and may come to hold. */
struct claims {
    uint64_t owed_pages[RUNNER_FAMILY_COUNT];
    uint32_t largest_pages[RUNNER_FAMILY_COUNT]; /* most that one sequence can still need */
    uint32_t peak_pages[RUNNER_FAMILY_COUNT];    /* most that one holds at its end */
    uint32_t sequences;
};

static void peak_of(const struct session_core *core, uint32_t total_tokens, uint32_t ahead_tokens,
                    uint32_t out_pages[RUNNER_FAMILY_COUNT])
{
    struct account_need peak = account_table_peak(&core->line.geometry, total_tokens, ahead_tokens);
    out_pages[RUNNER_FAMILY_LOCAL] = peak.local_pages;
    out_pages[RUNNER_FAMILY_GLOBAL] = peak.global_pages;
}

static void add_sequence(struct claims *claims, const struct session_core *core,
                         const struct sequence *seq)
{
    bool is_decoding = seq->account.committed_tokens >= seq->prompt_tokens;
    uint32_t peak[RUNNER_FAMILY_COUNT];
    peak_of(core, seq->max_total_tokens,
            is_decoding ? DECODES_AHEAD : core->limits.runner.max_step_tokens, peak);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        uint32_t held = seq_held_pages(seq, (enum runner_family)f);
        uint32_t more = peak[f] > held ? peak[f] - held : 0;
        claims->owed_pages[f] += more;
        claims->peak_pages[f] = num_max(claims->peak_pages[f], peak[f]);
        claims->largest_pages[f] = num_max(claims->largest_pages[f], more);
    }
}

static struct claims claims_of(const struct session *session)
{
    const struct session_core *core = session->core;
    struct claims claims = {.sequences = session->sequence_count};
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        claims.owed_pages[f] = session->held_pages[f];
    }
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        bool is_live = seq->state == SEQ_STATE_WAITING || seq->state == SEQ_STATE_RUNNING;
        if (is_live && seq->session == session) {
            add_sequence(&claims, core, seq);
        }
    }
    for (const struct inbox_entry *entry = session->inbox.first; entry != NULL;
         entry = entry->next) {
        if (!entry->is_malformed && entry->message.type == PLAN_ADMIT) {
            uint32_t peak[RUNNER_FAMILY_COUNT];
            peak_of(core, entry->message.as.admit.max_total, core->limits.runner.max_step_tokens,
                    peak);
            for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
                claims.owed_pages[f] += peak[f];
                claims.peak_pages[f] = num_max(claims.peak_pages[f], peak[f]);
            }
            claims.sequences++;
        }
    }
    return claims;
}

/* Most that the STEPs which its frontend has outstanding can take of a family. */
static uint32_t step_pages(const struct session *session, uint32_t sequences)
{
    const struct runner_limits *runner = &session->core->limits.runner;
    uint32_t rows = num_min(sequences, runner->max_step_rows);
    uint32_t steps = num_max(runner->pipeline_depth, session->most_steps);
    return steps * (num_ceil_div(runner->max_step_tokens, runner->page_tokens) + rows);
}

/* What the sequences of an elder have and need at least, so that one of them can end and the STEPs on
 * their way run. */
static uint64_t least_pages(const struct session *elder, const struct claims *claims,
                            enum runner_family family)
{
    uint32_t steps = step_pages(elder, claims->sequences);
    uint64_t least =
        (uint64_t)elder->held_pages[family] + num_max(claims->largest_pages[family], steps);
    return least < claims->owed_pages[family] ? least : claims->owed_pages[family];
}

/* Kept whatever the elder's sequences need. */
static uint32_t floor_of_elder(const struct session_core *core, uint32_t full_request,
                               enum runner_family family)
{
    uint32_t all = core->line.pools[family].page_count;
    if (full_request <= all - full_request) {
        return full_request;
    }
    uint32_t decoding[RUNNER_FAMILY_COUNT];
    peak_of(core, core->limits.runner.max_context_tokens, DECODES_AHEAD, decoding);
    uint32_t half = all - all / 2;
    return family == RUNNER_FAMILY_LOCAL ? num_max(half, num_min(decoding[family], all)) : half;
}

/* What one request of a session needs, running or next in its queue, to reach its end when all
 * others have made room; no more than there is. */
static uint32_t lone_pages(const struct session *session, const struct claims *claims,
                           enum runner_family family)
{
    uint32_t pages = num_max(session->waiting_pages[family], claims->peak_pages[family]);
    return num_min(pages, session->core->line.pools[family].page_count);
}

static uint32_t pages_of_elder(const struct session *elder, const struct claims *claims,
                               enum runner_family family)
{
    const struct session_core *core = elder->core;
    uint32_t all = core->line.pools[family].page_count;
    uint32_t full[RUNNER_FAMILY_COUNT];
    peak_of(core, core->limits.runner.max_context_tokens, core->limits.runner.max_step_tokens,
            full);
    uint32_t full_request = num_min(full[family], all);
    uint32_t most = all - full_request;
    uint64_t owed = claims->owed_pages[family];
    uint64_t least = least_pages(elder, claims, family);
    uint64_t pages = owed + full_request < most ? owed + full_request : most;
    pages = pages > least ? pages : least;
    uint32_t floor = floor_of_elder(core, full_request, family);
    pages = pages > floor ? pages : floor;
    uint32_t lone = lone_pages(elder, claims, family);
    pages = pages > lone ? pages : lone;
    return pages < all ? (uint32_t)pages : all;
}

/* The open sessions that share; returns how many there are.  One that leaves is the elder, though its
 * session may have begun anew. */
static uint32_t find_sharing(const struct session_core *core, struct session **out_elder,
                             struct session **out_younger)
{
    uint32_t count = 0;
    *out_elder = NULL;
    *out_younger = NULL;
    for (uint32_t i = 0; i < core->session_count; i++) {
        struct session *session = core->sessions[i];
        if (session->is_open && !session->has_own_quota) {
            *(count == 0 ? out_elder : out_younger) = session;
            count++;
        }
    }
    if (count == 2 && (*out_younger)->is_leaving && !(*out_elder)->is_leaving) {
        struct session *first = *out_elder;
        *out_elder = *out_younger;
        *out_younger = first;
    }
    return count;
}

/* What the elder does not need now. */
static struct session_share spare_of(const struct session *elder, const struct claims *claims)
{
    const struct session_core *core = elder->core;
    struct session_share spare = {0};
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        spare.pages[f] =
            core->line.pools[f].page_count - pages_of_elder(elder, claims, (enum runner_family)f);
    }
    uint32_t taken = num_min(claims->sequences, core->slots);
    spare.slots = num_min(core->slots / 2, core->slots - taken);
    return spare;
}

static struct session_share at_least(const struct session_share *a, const struct session_share *b)
{
    struct session_share least = {.slots = num_min(a->slots, b->slots)};
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        least.pages[f] = num_min(a->pages[f], b->pages[f]);
    }
    return least;
}

static void grant(struct session *younger, const struct session_share *share)
{
    struct session_share *granted = &younger->granted;
    granted->slots = num_max(granted->slots, share->slots);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        granted->pages[f] = num_max(granted->pages[f], share->pages[f]);
    }
}

/* What the elder lacks for one request to reach its end. */
static void take_back(const struct session *elder, const struct claims *elder_claims,
                      struct session *younger)
{
    uint32_t beside[RUNNER_FAMILY_COUNT];
    younger->is_held_off = false;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        enum runner_family family = (enum runner_family)f;
        beside[f] = elder->core->line.pools[f].page_count - lone_pages(elder, elder_claims, family);
        younger->is_held_off = younger->is_held_off || younger->granted.pages[f] > beside[f];
    }
    if (!younger->is_held_off) {
        return;
    }
    struct claims claims = claims_of(younger);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        uint64_t least = least_pages(younger, &claims, (enum runner_family)f);
        uint32_t granted = younger->granted.pages[f];
        uint32_t kept = least < granted ? (uint32_t)least : granted;
        younger->granted.pages[f] = num_min(granted, num_max(kept, beside[f]));
    }
}

static void reset_share(struct session *session)
{
    session->granted = (struct session_share){0};
    session->spare_since_ns = 0;
    session->is_held_off = false;
}

/* Who was the younger one says that it leaves: the other keeps the pages that it has. */
static void change_roles(struct session *elder, struct session *younger)
{
    const struct session_core *core = elder->core;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        younger->granted.pages[f] = core->line.pools[f].page_count - elder->granted.pages[f];
    }
    younger->granted.slots = core->slots / 2;
    younger->spare = younger->granted;
    younger->spare_since_ns = core->now_ns + 1;
    reset_share(elder);
}

void session_settle_shares(struct session_core *core)
{
    struct session *elder;
    struct session *younger;
    uint32_t count = find_sharing(core, &elder, &younger);
    if (count == 1) {
        reset_share(elder);
    }
    if (count != 2) {
        return;
    }
    if (elder->spare_since_ns != 0) {
        change_roles(elder, younger);
    }
    struct claims claims = claims_of(elder);
    struct session_share spare = spare_of(elder, &claims);
    if (younger->spare_since_ns == 0) { /* it has just opened */
        grant(younger, &spare);
        younger->spare = spare;
        younger->spare_since_ns = core->now_ns + 1;
    }
    younger->spare = at_least(&younger->spare, &spare);
    if (core->now_ns + 1 - younger->spare_since_ns >= SPARE_NS) {
        grant(younger, &younger->spare);
        younger->spare = spare;
        younger->spare_since_ns = core->now_ns + 1;
    }
    take_back(elder, &claims, younger);
}

bool session_can_pin(struct session *session, const uint32_t pages[RUNNER_FAMILY_COUNT])
{
    struct result_figures left = session_figures(session);
    if (pages[RUNNER_FAMILY_LOCAL] > left.local_quota_left_pages ||
        pages[RUNNER_FAMILY_GLOBAL] > left.global_quota_left_pages) {
        return false;
    }
    struct session *elder;
    struct session *younger;
    if (find_sharing(session->core, &elder, &younger) != 2 ||
        (session == younger && !younger->is_held_off)) {
        return true;
    }
    struct claims claims = claims_of(session);
    struct session_share share = session_share_of(session);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        if (pages[f] + least_pages(session, &claims, (enum runner_family)f) > share.pages[f]) {
            return false;
        }
    }
    return true;
}

struct session_share session_share_of(const struct session *session)
{
    const struct session_core *core = session->core;
    struct session_share share = {.slots = core->slots};
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        share.pages[f] =
            session->has_own_quota ? session->quota.pages[f] : core->line.pools[f].page_count;
    }
    struct session *elder;
    struct session *younger;
    if (session->has_own_quota || find_sharing(core, &elder, &younger) != 2) {
        return share;
    }
    if (session == younger) {
        share = younger->granted;
        share.slots = younger->is_held_off ? 0 : share.slots;
        return share;
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        share.pages[f] -= younger->granted.pages[f];
    }
    share.slots -= core->slots / 2; /* at once: whoever it still sends would meet the younger's */
    return share;
}
