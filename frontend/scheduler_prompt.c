/* Prompt segments of a STEP: how the prompts that were admitted share its tokens.
 *
 * Half of the tokens go to the first prompt in the order of `running`, so that every prompt comes to
 * its end whatever arrives behind it.  The other half goes to the shortest rest first, so that a short
 * prompt behind long ones has its first token soon; what they leave goes to the first one again.
 *
 * With decode rows in the step the segments may take the time that is left of the inter-token target,
 * and at least a quarter of it: decode rows are in every step, and prompts too.  A prompt that is cut
 * at multiples only (cut_tokens) gets one such piece at least. */
#include <assert.h>
#include <stddef.h>

#include "common/num.h"
#include "frontend/scheduler_internal.h"

/* A shorter piece of a longer prompt is not worth its row. */
#define MIN_PIECE_TOKENS 16U

/* Beside decode rows, while the cost of a step is not known. */
#define FIRST_PIECE_TOKENS 64U

/* Of the next tokens of a prompt, those up to the last place where it may be cut. */
static uint32_t whole_cuts(const struct sched_builder *builder, const struct req *req,
                           uint32_t tokens)
{
    uint32_t cut = num_max(builder->sched->limits.cut_tokens, 1);
    uint32_t start = req->account.launched_tokens;
    uint32_t end = (start + tokens) / cut * cut;
    return end > start ? end - start : 0;
}

/* Tokens that time allows; the first piece of a step is never nothing. */
static uint32_t timely_tokens(const struct sched_builder *builder, const struct req *req)
{
    if (!builder->is_timed) {
        return UINT32_MAX;
    }
    const struct pace *pace = &builder->sched->pace;
    uint32_t tokens = pace_fit(pace, req->account.launched_tokens, builder->room_ns);
    if (builder->load.tokens > 0) {
        return tokens;
    }
    uint32_t least = pace->observed_steps == 0 ? FIRST_PIECE_TOKENS : MIN_PIECE_TOKENS;
    return num_max(num_max(tokens, least), sched_tokens_to_cut(&builder->sched->limits, req));
}

/* Tokens of its next segment, at most `most`; 0: none now. */
static uint32_t segment_of(const struct sched_builder *builder, const struct req *req,
                           uint32_t most)
{
    uint32_t rest = sched_rest_tokens(req);
    uint32_t tokens = num_min(num_min(rest, most), timely_tokens(builder, req));
    tokens = sched_allowed_tokens(builder, req, tokens);
    if (tokens < rest) {
        /* all outstanding segments shall find room in the sliding page table */
        tokens = whole_cuts(builder, req, num_min(tokens, builder->sched->limits.segment_tokens));
    }
    return tokens;
}

static void add(struct sched_builder *builder, struct req *req, uint32_t tokens)
{
    struct pace_load load = {0};
    pace_add(&load, req->account.launched_tokens, tokens);
    builder->load.tokens += load.tokens;
    builder->load.pairs += load.pairs;
    builder->room_ns -= pace_cost_ns(&builder->sched->pace, &load);
    sched_add_row(builder, req, tokens);
}

static struct req *first_prompt(const struct sched_builder *builder)
{
    struct req *req = builder->sched->running.first;
    while (req != NULL && req->state != REQ_STATE_PROMPT) {
        req = req->next;
    }
    return req;
}

static struct req *shortest_prompt(const struct sched_builder *builder)
{
    struct req *shortest = NULL;
    for (struct req *req = builder->sched->running.first; req != NULL; req = req->next) {
        if (req->state == REQ_STATE_PROMPT && req->plan_mark != builder->sched->plan_mark &&
            (shortest == NULL || sched_rest_tokens(req) < sched_rest_tokens(shortest))) {
            shortest = req;
        }
    }
    return shortest;
}

static bool has_room(const struct sched_builder *builder)
{
    bool is_in_time = !builder->is_timed || builder->room_ns > 0.0 || builder->load.tokens == 0;
    return builder->step->row_count + builder->kept_rows < builder->sched->limits.max_step_rows &&
           builder->tokens_left > 0 && is_in_time;
}

/* Shortest rest first, until the step is full. */
static void add_others(struct sched_builder *builder)
{
    for (struct req *req = shortest_prompt(builder); req != NULL && has_room(builder);
         req = shortest_prompt(builder)) {
        req->plan_mark = builder->sched->plan_mark;
        uint32_t tokens = segment_of(builder, req, UINT32_MAX);
        bool is_worth = tokens == sched_rest_tokens(req) || tokens >= MIN_PIECE_TOKENS ||
                        builder->load.tokens == 0;
        if (tokens > 0 && is_worth) {
            add(builder, req, tokens);
        } else if (tokens == 0) {
            sched_note_blocked(builder, req);
        }
    }
}

/* The part that is kept for the first prompt while the others are added. */
struct kept {
    uint32_t tokens;
    double room_ns;
    struct account_need pages;
};

static struct kept keep_half(struct sched_builder *builder, const struct req *first)
{
    struct sched_builder half = *builder;
    half.room_ns /= 2.0;
    uint32_t to_cut = sched_tokens_to_cut(&builder->sched->limits, first);
    uint32_t tokens = segment_of(&half, first, num_max(builder->tokens_left / 2, to_cut));
    struct kept kept = {.tokens = tokens};
    if (tokens > 0) {
        struct pace_load load = {0};
        pace_add(&load, first->account.launched_tokens, tokens);
        kept.room_ns = pace_cost_ns(&builder->sched->pace, &load);
        kept.pages = sched_need(builder->sched, first, tokens);
    }
    return kept;
}

void sched_add_prompt_rows(struct sched_builder *builder, bool has_decode_rows)
{
    struct sched *sched = builder->sched;
    uint64_t target_ns = sched->options.itl_target_ns;
    builder->is_timed = has_decode_rows && target_ns != 0;
    builder->room_ns = builder->is_timed ? pace_room_ns(&sched->pace, target_ns) : 0.0;
    builder->kept_rows = 0;
    builder->kept_tokens = 0;
    struct req *first = has_room(builder) ? first_prompt(builder) : NULL;
    if (first == NULL) {
        return;
    }
    sched->plan_mark++;
    first->plan_mark = sched->plan_mark;
    struct kept kept = keep_half(builder, first);
    if (kept.tokens > 0) {
        builder->tokens_left -= kept.tokens;
        builder->room_ns -= kept.room_ns;
        builder->kept_rows = 1;
        builder->left.local_pages -= kept.pages.local_pages;
        builder->left.global_pages -= kept.pages.global_pages;
        builder->load.tokens += kept.tokens; /* others are not the first piece */
    }
    add_others(builder);
    builder->kept_rows = 0;
    if (kept.tokens == 0) {
        sched_note_blocked(builder, first);
        return;
    }
    builder->tokens_left += kept.tokens;
    builder->room_ns += kept.room_ns;
    builder->left.local_pages += kept.pages.local_pages;
    builder->left.global_pages += kept.pages.global_pages;
    builder->load.tokens -= kept.tokens;
    uint32_t tokens = num_max(segment_of(builder, first, UINT32_MAX), kept.tokens);
    add(builder, first, tokens);
}
