/* What the scheduler says and does while two sessions share the worker. */
#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

#define TELL_NS (100 * RIG_MS)

/* What a scheduler without any worker sent. */
struct sent {
    uint32_t counts[PLAN_PING + 1];
    uint64_t last_seq;
    uint64_t seq_id;       /* of the last ADMIT */
    struct plan_ping ping; /* the last */
};

struct share {
    struct sent sent;
    struct sched *sched; /* owned */
    struct hello_welcome welcome;
    struct rig_request request;
    uint64_t now_ns;
};

static void on_send(void *owner, const struct plan_message *message)
{
    struct sent *sent = owner;
    sent->counts[message->type]++;
    sent->last_seq = message->msg_seq;
    if (message->type == PLAN_ADMIT) {
        sent->seq_id = message->as.admit.seq_id;
    } else if (message->type == PLAN_PING) {
        sent->ping = message->as.ping;
    }
}

static void pass(struct share *share, uint64_t ns)
{
    share->now_ns += ns;
    sched_tick(share->sched, share->now_ns);
    test_true(sched_check(share->sched));
}

static void tell(struct share *share, const struct result_record *record)
{
    struct err err;
    test_ok(sched_record(share->sched, record, share->now_ns, &err), &err);
    pass(share, 0);
}

static struct result_figures figures(const struct share *share, uint32_t pages,
                                     uint32_t slots_withheld)
{
    return (struct result_figures){.applied = share->sent.last_seq,
                                   .local_quota_left_pages = pages,
                                   .global_quota_left_pages = pages,
                                   .slots_withheld = slots_withheld};
}

static void setup(struct share *share)
{
    struct sched_options options = rig_sched_options();
    struct err err;
    *share = (struct share){.now_ns = 1000 * RIG_MS, .welcome = model_small_limits()};
    options.pipeline_depth = 1;
    share->sched = sched_create(&options, on_send, &share->sent);
    test_ok(sched_attach(share->sched, &share->welcome, 1, share->now_ns, &err), &err);
}

static void submit(struct share *share, uint64_t request_id, uint32_t prompt_tokens,
                   uint32_t output_tokens)
{
    struct req *req = NULL;
    struct err err;
    struct engine_request wanted =
        rig_engine_request(&share->request, prompt_tokens, output_tokens, 1);
    test_ok(req_create(&wanted, &req, &err), &err);
    req->request_id = request_id;
    test_ok(sched_submit(share->sched, req, share->now_ns, &err), &err);
}

static void expect_ping(const struct share *share, uint32_t count, uint32_t global_pages)
{
    test_eq_u64(share->sent.counts[PLAN_PING], count);
    test_eq_u64(share->sent.ping.waiting_global_pages, global_pages);
}

/* Who is next in the queue, soon, but not again and again; and nobody. */
static void test_what_waits_is_told(void)
{
    struct share share;
    setup(&share);
    expect_ping(&share, 1, 0);
    test_eq_u64(share.sent.ping.most_steps, 1);
    struct result_record pong = {.kind = RESULT_PONG, .msg_seq = 1};
    pong.as.pong.figures = figures(&share, 200, share.welcome.slots); /* no slot is left for it */
    tell(&share, &pong);
    submit(&share, 1, 1000, 600);
    pass(&share, 1);
    test_eq_u64(sched_wake_ns(share.sched), 1000 * RIG_MS + TELL_NS);
    pass(&share, TELL_NS - 2);
    expect_ping(&share, 1, 0);
    pass(&share, 1);
    expect_ping(&share, 2, 100);
    test_eq_u64(share.sent.ping.waiting_local_pages, 21); /* ceil((64 + 256) / 16) + 1 */
    submit(&share, 2, 1000, 1000);                        /* not its turn */
    pass(&share, 2 * TELL_NS);
    expect_ping(&share, 2, 100);
    sched_cancel(share.sched, 1, share.now_ns);
    pass(&share, TELL_NS);
    expect_ping(&share, 3, 125);
    sched_cancel(share.sched, 2, share.now_ns);
    pass(&share, TELL_NS);
    expect_ping(&share, 4, 0);
    test_true(!share.sent.ping.is_leaving);
    sched_set_leaving(share.sched);
    pass(&share, TELL_NS);
    expect_ping(&share, 5, 0);
    test_true(share.sent.ping.is_leaving);
    pass(&share, 3 * TELL_NS);
    expect_ping(&share, 5, 0);
    test_eq_u64(share.sent.counts[PLAN_ADMIT], 0);
    sched_destroy(share.sched, share.now_ns);
}

/* A sequence that has filled its only page: what becomes of it where no other page is left. */
static uint32_t releases_of_blocked(uint32_t slots_withheld)
{
    struct share share;
    setup(&share);
    struct result_record pong = {.kind = RESULT_PONG, .msg_seq = 1};
    pong.as.pong.figures = figures(&share, 2, 0);
    submit(&share, 1, 16, 8);
    tell(&share, &pong);
    struct result_record record = {
        .kind = RESULT_ADMITTED, .seq_id = share.sent.seq_id, .msg_seq = share.sent.last_seq};
    record.as.admitted.figures = figures(&share, 2, 0);
    tell(&share, &record);
    test_eq_u64(share.sent.counts[PLAN_STEP], 1);
    record = (struct result_record){
        .kind = RESULT_TOKEN, .seq_id = share.sent.seq_id, .msg_seq = share.sent.last_seq};
    record.as.token.position = 16;
    tell(&share, &record);
    record = (struct result_record){.kind = RESULT_STEP_DONE, .msg_seq = share.sent.last_seq};
    record.as.step_done.figures = figures(&share, 0, slots_withheld);
    tell(&share, &record);
    test_eq_u64(share.sent.counts[PLAN_STEP], 1);
    uint32_t releases = share.sent.counts[PLAN_RELEASE];
    record = (struct result_record){.kind = RESULT_PONG, .msg_seq = share.sent.last_seq};
    record.as.pong.figures = figures(&share, 3, 0); /* the other has left */
    tell(&share, &record);
    test_eq_u64(share.sent.counts[PLAN_ADMIT], 1 + releases);
    test_eq_u64(share.sent.counts[PLAN_STEP], 2 - releases);
    test_eq_u64(share.request.ended, 0);
    sched_destroy(share.sched, share.now_ns);
    return releases;
}

static void test_a_blocked_one_yields_where_all_slots_are_withheld(void)
{
    const uint32_t slots = model_small_limits().slots;
    test_eq_u64(releases_of_blocked(0), 0);
    test_eq_u64(releases_of_blocked(slots - 1), 0);
    test_eq_u64(releases_of_blocked(slots), 1);
}

static const struct test_case cases[] = {
    TEST(test_what_waits_is_told),
    TEST(test_a_blocked_one_yields_where_all_slots_are_withheld),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
