#include "tests/testlib/core_front.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

#define ALL_SENT UINT64_MAX

static uint32_t pick(struct front *front, uint32_t bound)
{
    return (uint32_t)(test_random(&front->random) % bound);
}

static bool chance(struct front *front, uint32_t percent)
{
    return pick(front, 100) < percent;
}

struct front_step *front_step_at(struct front *front, uint32_t index)
{
    return &front->steps[(front->step_first + index) % FRONT_MAX_STEPS];
}

static const struct front_step *step_at(const struct front *front, uint32_t index)
{
    return &front->steps[(front->step_first + index) % FRONT_MAX_STEPS];
}

uint32_t front_launched(const struct front *front, const struct front_seq *seq,
                        uint64_t up_to_msg_seq)
{
    uint32_t launched = seq->committed_tokens;
    for (uint32_t i = 0; i < front->step_count; i++) {
        const struct front_step *step = step_at(front, i);
        if (step->msg_seq > up_to_msg_seq || step->is_rejected) {
            continue;
        }
        for (uint32_t r = 0; r < step->row_count; r++) {
            launched += step->rows[r].seq == seq ? step->rows[r].count : 0;
        }
    }
    return launched;
}

/* Rows that are launched for sure took pages up to their own ends. */
static uint32_t reserved(const struct front *front, const struct front_seq *seq,
                         uint64_t up_to_msg_seq)
{
    uint32_t end_tokens = num_max(seq->floor_tokens, front_launched(front, seq, up_to_msg_seq));
    for (uint32_t i = 0; i < front->step_count; i++) {
        const struct front_step *step = step_at(front, i);
        for (uint32_t r = 0; r < step->row_count && !step->is_rejected; r++) {
            if (step->rows[r].seq == seq) {
                end_tokens = num_max(end_tokens, step->rows[r].end_tokens);
            }
        }
    }
    return end_tokens;
}

struct account front_account(const struct front *front, const struct front_seq *seq,
                             uint64_t up_to_msg_seq)
{
    struct account account = {0};
    struct account_need need;
    struct err err;
    account.launched_tokens = 0;
    /* Built from nothing: take everything, then let the window go. */
    uint32_t end_tokens = reserved(front, seq, up_to_msg_seq);
    uint32_t launched = front_launched(front, seq, up_to_msg_seq);
    test_ok(account_need(&account, &front->geometry, end_tokens, &need, &err), &err);
    account_launch(&account, &need, end_tokens);
    account_unlaunch(&account, end_tokens - launched);
    (void)account_commit(&account, &front->geometry, seq->committed_tokens);
    test_true(account_check(&account, &front->geometry));
    return account;
}

static bool is_live(const struct front_seq *seq)
{
    return seq->is_admitted && !seq->is_closed && !seq->is_released && !seq->is_cancelled;
}

void front_init(struct front *front, struct core_rig *rig, const struct front_options *options,
                const struct session_quota *quota)
{
    memset(front, 0, sizeof(*front));
    front->rig = rig;
    front->options = *options;
    front->random = options->seed;
    front->geometry = (struct account_geometry){
        .page_tokens = options->limits.page_tokens,
        .window_tokens = options->limits.window_tokens,
        .max_step_tokens = options->limits.max_step_tokens,
    };
    front->seqs = mem_zalloc(FRONT_MAX_SEQS, sizeof(*front->seqs));
    rig_open(rig, &front->session, quota);
}

static void free_seqs(struct front *front)
{
    for (uint32_t i = 0; i < front->seq_count; i++) {
        mem_free(front->seqs[i].tokens);
    }
    memset(front->seqs, 0, FRONT_MAX_SEQS * sizeof(*front->seqs));
    front->seq_count = 0;
    front->first_open = 0;
}

void front_fini(struct front *front)
{
    rig_close(&front->session);
    free_seqs(front);
    mem_free(front->seqs);
}

void front_restart(struct front *front, const struct session_quota *quota)
{
    rig_close(&front->session);
    free_seqs(front);
    front->step_first = 0;
    front->step_count = 0;
    front->figures = (struct result_figures){0};
    front->pending_refusal = 0;
    front->after = 0;
    front->ping_nonce = 0;
    front->pong_nonce = 0;
    rig_open(front->rig, &front->session, quota);
}

uint32_t front_alive(const struct front *front)
{
    uint32_t alive = 0;
    for (uint32_t i = front->first_open; i < front->seq_count; i++) {
        alive += !front->seqs[i].is_released;
    }
    return alive;
}

static struct front_seq *new_seq(struct front *front, const uint32_t *prompt, uint32_t prompt_count,
                                 uint32_t max_total)
{
    struct front_seq *seq = &front->seqs[front->seq_count++];
    *seq = (struct front_seq){.tokens = mem_zalloc(max_total, sizeof(*seq->tokens))};
    memcpy(seq->tokens, prompt, prompt_count * sizeof(*prompt));
    seq->token_count = prompt_count;
    seq->admit = rig_plain_admit(front->seq_count, seq->tokens, prompt_count, max_total);
    seq->next_prompt_logprob = 1;
    return seq;
}

/* One of three texts, or what a sequence here has said so far; then its own way from some place on. */
static void shared_prompt(struct front *front, uint32_t *prompt, uint32_t prompt_count)
{
    uint32_t vocab = front->options.limits.vocab_tokens;
    uint64_t text = pick(front, 3);
    uint32_t same = chance(front, 30) ? prompt_count : pick(front, prompt_count + 1);
    for (uint32_t i = 0; i < same; i++) {
        uint64_t random = text * 100003 + i;
        prompt[i] = (uint32_t)(test_random(&random) % vocab);
    }
    uint32_t open = front->seq_count - front->first_open;
    if (open > 0 && chance(front, 50)) {
        const struct front_seq *said = &front->seqs[front->first_open + pick(front, open)];
        memcpy(prompt, said->tokens, num_min(prompt_count, said->token_count) * sizeof(*prompt));
    }
}

bool front_admit(struct front *front)
{
    if (front->seq_count == FRONT_MAX_SEQS || front_alive(front) >= front->options.most_alive) {
        return false;
    }
    const struct front_options *options = &front->options;
    uint32_t vocab = options->limits.vocab_tokens;
    uint32_t prompt_count = 1 + pick(front, options->most_prompt);
    uint32_t *prompt = mem_zalloc(prompt_count, sizeof(*prompt));
    for (uint32_t i = 0; i < prompt_count; i++) {
        prompt[i] = pick(front, vocab);
    }
    if (options->shares_prefixes) {
        shared_prompt(front, prompt, prompt_count);
    }
    uint32_t max_total = prompt_count + 1 + pick(front, options->most_output);
    struct front_seq *seq = new_seq(front, prompt, prompt_count, max_total);
    mem_free(prompt);
    seq->admit.seed = test_random(&front->random);
    seq->admit.min_tokens = chance(front, 30) ? pick(front, 20) : 0;
    seq->admit.ignore_eos = chance(front, 20);
    seq->admit.logprobs = chance(front, 15) ? 1 + pick(front, 21) : 0;
    seq->admit.prompt_logprobs = chance(front, 8) ? 1 + pick(front, 12) : 0;
    seq->admit.cache_salt = options->shares_prefixes && chance(front, 20) ? 77 : 0;
    seq->admit.constrained = options->is_constrained && chance(front, 40);
    seq->stop_id = pick(front, vocab);
    seq->admit.stop_ids = (struct wire_u32_array){.at = &seq->stop_id, .count = 1};
    rig_admit(&front->session, &seq->admit);
    return true;
}

/* Release a running sequence and admit it again with what it has said. */
static void preempt(struct front *front, struct front_seq *seq)
{
    rig_release(&front->session, seq->admit.seq_id);
    seq->is_released = true;
    if (seq->token_count == seq->admit.max_total || front->seq_count == FRONT_MAX_SEQS) {
        return;
    }
    struct front_seq *again = new_seq(front, seq->tokens, seq->token_count, seq->admit.max_total);
    uint64_t seq_id = again->admit.seq_id;
    struct wire_u32_array prompt = again->admit.prompt;
    again->admit = seq->admit;
    again->admit.seq_id = seq_id;
    again->admit.prompt = prompt;
    again->stop_id = seq->stop_id;
    again->admit.stop_ids.at = &again->stop_id;
    rig_admit(&front->session, &again->admit);
    front->stats.resumed++;
}

/* The first row of its sequence among those sent after the figures? */
static bool is_first_claim(const struct front *front, uint32_t step_index, uint32_t row_index)
{
    const struct front_seq *seq = step_at(front, step_index)->rows[row_index].seq;
    for (uint32_t i = 0; i < step_index; i++) {
        const struct front_step *step = step_at(front, i);
        bool is_claim = step->msg_seq > front->figures.applied && !step->is_rejected;
        for (uint32_t r = 0; is_claim && r < step->row_count; r++) {
            if (step->rows[r].seq == seq) {
                return false;
            }
        }
    }
    return true;
}

/* Pages that the prefixes of ADMITs without an answer could pin. */
static void claim_admits(const struct front *front, int64_t out_left[RUNNER_FAMILY_COUNT])
{
    uint32_t page = front->geometry.page_tokens;
    for (uint32_t i = front->first_open; front->options.shares_prefixes && i < front->seq_count;
         i++) {
        const struct front_seq *seq = &front->seqs[i];
        uint32_t whole_pages = (seq->admit.prompt.count - 1) / page;
        if (!seq->is_admitted && !seq->is_closed && seq->admit.prompt_logprobs == 0) {
            out_left[RUNNER_FAMILY_LOCAL] -=
                num_min(whole_pages, num_ceil_div(front->geometry.window_tokens, page));
            out_left[RUNNER_FAMILY_GLOBAL] -= whole_pages;
        }
    }
}

/* Pages that may still be taken: the figures, less what STEPs sent after them need.  Rows of
 * sequences cancelled or released since count too: they may have been launched before that. */
static void pages_left(const struct front *front, int64_t out_left[RUNNER_FAMILY_COUNT])
{
    out_left[RUNNER_FAMILY_LOCAL] = front->figures.local_quota_left_pages;
    out_left[RUNNER_FAMILY_GLOBAL] = front->figures.global_quota_left_pages;
    claim_admits(front, out_left);
    for (uint32_t i = 0; i < front->step_count; i++) {
        const struct front_step *step = step_at(front, i);
        bool is_claim = step->msg_seq > front->figures.applied && !step->is_rejected;
        for (uint32_t r = 0; is_claim && r < step->row_count; r++) {
            if (!is_first_claim(front, i, r)) {
                continue;
            }
            const struct front_seq *seq = step->rows[r].seq;
            struct account known = front_account(front, seq, front->figures.applied);
            struct account sent = front_account(front, seq, ALL_SENT);
            out_left[RUNNER_FAMILY_LOCAL] -=
                sent.local.resident_pages - (int64_t)known.local.resident_pages;
            out_left[RUNNER_FAMILY_GLOBAL] -=
                sent.global.resident_pages - (int64_t)known.global.resident_pages;
        }
    }
}

struct planning {
    struct front_step *step;
    struct wire_row rows[FRONT_MAX_ROWS];
    int64_t left[RUNNER_FAMILY_COUNT];
    uint32_t tokens_left;
};

static bool has_outstanding_row(const struct front *front, const struct front_seq *seq)
{
    return front_launched(front, seq, ALL_SENT) > seq->committed_tokens;
}

/* A row for seq if it can go on and fits. */
static void plan_row(struct front *front, struct planning *planning, struct front_seq *seq)
{
    struct account account = front_account(front, seq, ALL_SENT);
    uint32_t launched = account.launched_tokens;
    uint32_t prompt_count = seq->admit.prompt.count;
    bool is_prompt = launched < prompt_count;
    if (is_prompt && seq->prompt_was_held && has_outstanding_row(front, seq)) {
        return; /* decode rows behind the held one still count as launched */
    }
    if (!is_prompt && launched + 1 >= seq->admit.max_total) {
        return;
    }
    uint32_t count = 1;
    if (is_prompt) {
        count = num_min(prompt_count - launched, planning->tokens_left);
        count = chance(front, 50) ? count : 1 + pick(front, count);
    }
    struct account_need need;
    struct err err;
    test_ok(account_need(&account, &front->geometry, count, &need, &err), &err);
    planning->left[RUNNER_FAMILY_LOCAL] -= need.local_pages;
    planning->left[RUNNER_FAMILY_GLOBAL] -= need.global_pages;
    if (planning->left[RUNNER_FAMILY_LOCAL] < 0 || planning->left[RUNNER_FAMILY_GLOBAL] < 0) {
        if (!planning->step->is_greedy) {
            planning->left[RUNNER_FAMILY_LOCAL] += need.local_pages;
            planning->left[RUNNER_FAMILY_GLOBAL] += need.global_pages;
            return;
        }
    }
    planning->rows[planning->step->row_count] = (struct wire_row){
        .seq_id = seq->admit.seq_id,
        .start = is_prompt ? launched : 0,
        .count = is_prompt ? count : 0,
    };
    planning->step->rows[planning->step->row_count++] = (struct front_row){
        .seq = seq,
        .count = count,
        .is_prompt = is_prompt,
        .samples = !is_prompt || launched + count == prompt_count,
    };
    planning->tokens_left -= count;
}

/* Break a rule that holds for sequences in any state. */
static void spoil(struct front *front, struct planning *planning)
{
    struct front_step *step = planning->step;
    uint32_t at = pick(front, step->row_count);
    struct wire_row *row = &planning->rows[at];
    uint32_t what = pick(front, 3);
    if (what == 0 && step->row_count > 1) {
        row->seq_id = planning->rows[(at + 1) % step->row_count].seq_id;
    } else if (what == 1) {
        row->count = front->options.limits.max_step_tokens + 1;
    } else {
        row->seq_id = front->seq_count + 1000;
    }
    step->is_bad = true;
    step->row_count = 0; /* none of them will run */
}

bool front_plan(struct front *front)
{
    if (front->step_count >= num_min(front->options.most_outstanding, FRONT_MAX_STEPS) ||
        !session_can_receive(front->session.session)) {
        return false;
    }
    struct front_step *step = front_step_at(front, front->step_count);
    *step = (struct front_step){.is_greedy = front->options.overplans && chance(front, 5)};
    struct planning planning = {
        .step = step,
        .tokens_left = 1 + pick(front, front->options.limits.max_step_tokens),
    };
    pages_left(front, planning.left);
    uint32_t open = front->seq_count - front->first_open;
    uint32_t begin = open == 0 ? 0 : pick(front, open);
    uint32_t most_rows = num_min(front->options.limits.max_step_rows, FRONT_MAX_ROWS);
    for (uint32_t i = 0; i < open; i++) {
        struct front_seq *seq = &front->seqs[front->first_open + (begin + i) % open];
        if (planning.tokens_left > 0 && step->row_count < most_rows && is_live(seq) &&
            chance(front, 85)) {
            plan_row(front, &planning, seq);
        }
    }
    uint32_t sent_rows = step->row_count;
    if (front->options.sends_bad_plans && chance(front, 4) && sent_rows > 0) {
        spoil(front, &planning);
    }
    if (sent_rows == 0 && !chance(front, 10)) {
        return false;
    }
    step->after = front->after;
    front->after = 0;
    step->msg_seq = rig_step(&front->session, step->after, planning.rows, sent_rows);
    front->step_count++;
    return true;
}

static struct front_seq *any_seq(struct front *front)
{
    uint32_t open = front->seq_count - front->first_open;
    return open == 0 ? NULL : &front->seqs[front->first_open + pick(front, open)];
}

static void cancel_one(struct front *front)
{
    struct front_seq *seq = any_seq(front);
    if (seq != NULL && !seq->is_released) {
        rig_cancel(&front->session, seq->admit.seq_id);
        seq->is_cancelled = true;
    }
}

static void release_one(struct front *front)
{
    struct front_seq *seq = any_seq(front);
    if (seq == NULL || seq->is_released) {
        return;
    }
    if (is_live(seq) && !front->options.never_cancels) {
        preempt(front, seq);
    } else if (seq->is_closed) {
        rig_release(&front->session, seq->admit.seq_id);
        seq->is_released = true;
    }
}

static void release_closed(struct front *front)
{
    for (uint32_t i = front->first_open; i < front->seq_count; i++) {
        struct front_seq *seq = &front->seqs[i];
        if (seq->is_closed && !seq->is_released && session_can_receive(front->session.session)) {
            rig_release(&front->session, seq->admit.seq_id);
            seq->is_released = true;
        }
    }
    while (front->first_open < front->seq_count && front->seqs[front->first_open].is_released) {
        front->first_open++;
    }
}

/* Nothing fits and nothing is to come: the newest gives way. */
static void unblock(struct front *front)
{
    for (uint32_t i = front->seq_count; i > front->first_open; i--) {
        if (is_live(&front->seqs[i - 1])) {
            preempt(front, &front->seqs[i - 1]);
            return;
        }
    }
}

void front_act(struct front *front)
{
    if (!session_can_receive(front->session.session)) {
        return;
    }
    uint32_t what = pick(front, 100);
    if (what < 15) {
        (void)front_admit(front); /* or there are enough */
    } else if (what < 80) {
        if (!front_plan(front) && front->step_count == 0 && front_is_quiet(front) &&
            !front->options.never_cancels) {
            unblock(front);
        }
    } else if (what < 83 && !front->options.never_cancels) {
        cancel_one(front);
    } else if (what < 86) {
        release_one(front);
    } else if (what < 95) {
        release_closed(front);
    } else if (what < 98) {
        rig_ping(&front->session, ++front->ping_nonce);
    } else if (front->options.sends_bad_plans && front->step_count < FRONT_MAX_STEPS) {
        struct front_step *step = front_step_at(front, front->step_count++);
        *step = (struct front_step){.is_bad = true, .msg_seq = rig_malformed(&front->session)};
    }
}

void front_leave(struct front *front)
{
    for (uint32_t i = front->first_open; i < front->seq_count; i++) {
        struct front_seq *seq = &front->seqs[i];
        if (!seq->is_released) {
            rig_cancel(&front->session, seq->admit.seq_id);
            rig_release(&front->session, seq->admit.seq_id);
            seq->is_cancelled = true;
            seq->is_released = true;
            rig_advance(front->rig);
            rig_read_all(&front->session);
        }
    }
}

bool front_is_quiet(const struct front *front)
{
    return front->step_count == 0 && front->pong_nonce == front->ping_nonce;
}

struct account_need front_held(const struct front *front)
{
    struct account_need held = {0};
    for (uint32_t i = front->first_open; i < front->seq_count; i++) {
        if (is_live(&front->seqs[i])) {
            struct account account = front_account(front, &front->seqs[i], ALL_SENT);
            held.local_pages += account.local.resident_pages;
            held.global_pages += account.global.resident_pages;
        }
    }
    return held;
}

void front_mask(const struct front_options *options, uint64_t seq_id, uint32_t position,
                uint32_t out_mask[FRONT_MASK_WORDS])
{
    uint64_t random = seq_id * 1000003 + position;
    test_true(options->limits.vocab_tokens <= 32 * FRONT_MASK_WORDS);
    for (uint32_t i = 0; i < FRONT_MASK_WORDS; i++) {
        out_mask[i] = (uint32_t)test_random(&random) | 1U;
    }
}
