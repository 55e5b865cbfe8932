/* A real worker and a small client: attach, generate, cancel, release, what is refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

static void test_reference_tokens_from_two_processes(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    struct drive_prompt *prompts = NULL;
    uint32_t count = drive_load_prompts(&prompts);
    struct drive_sequence *sequences = calloc(count, sizeof(*sequences));
    test_true(sequences != NULL);
    for (uint32_t i = 0; i < count; i++) {
        drive_greedy(&sequences[i], prompts[i].ids, prompts[i].count, prompts[i].output_count);
    }
    struct drive drive;
    drive_init(&drive, &rig.client);
    drive_run(&drive, sequences, count);
    for (uint32_t i = 0; i < count; i++) {
        test_eq_u64(sequences[i].token_count, prompts[i].output_count);
        for (uint32_t k = 0; k < prompts[i].output_count; k++) {
            test_eq_u64(sequences[i].tokens[k], prompts[i].output[k]);
        }
    }
    test_eq_u64(drive.refused, 0);
    worker_client_expect_all_free(&rig.client, 5000);
    free(sequences);
    free(prompts);
    worker_rig_close(&rig);
}

struct canceller {
    struct worker_client *client;
    uint64_t seq_id;
    uint32_t after_tokens;
    uint32_t seen_tokens;
};

static void cancel_on_record(void *owner, const struct result_record *record)
{
    struct canceller *canceller = owner;
    if (record->kind == RESULT_TOKEN && record->seq_id == canceller->seq_id &&
        ++canceller->seen_tokens == canceller->after_tokens) {
        const struct plan_message cancel = {.type = PLAN_CANCEL,
                                            .as.cancel = {.seq_id = canceller->seq_id}};
        (void)worker_client_send(canceller->client, &cancel);
    }
}

static void test_cancel_stops_one_and_no_other(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    struct drive_prompt *prompts = NULL;
    (void)drive_load_prompts(&prompts);
    struct drive_sequence *sequences = calloc(3, sizeof(*sequences));
    test_true(sequences != NULL);
    struct drive drive;
    drive_init(&drive, &rig.client);
    uint32_t undisturbed[200];
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            drive_greedy(&sequences[i], prompts[i].ids, prompts[i].count, 200);
            sequences[i].admit.ignore_eos = true;
        }
        struct canceller canceller = {
            .client = &rig.client, .seq_id = drive.next_seq_id + 1, .after_tokens = 5};
        drive.on_record = round == 0 ? NULL : cancel_on_record;
        drive.owner = &canceller;
        drive_run(&drive, sequences, 3);
        test_eq_u64(sequences[0].reason, RESULT_FINISH_LENGTH);
        test_eq_u64(sequences[0].token_count, 200);
        if (round == 0) {
            memcpy(undisturbed, sequences[0].tokens, sizeof(undisturbed));
            test_eq_u64(sequences[1].reason, RESULT_FINISH_LENGTH);
            continue;
        }
        test_true(memcmp(undisturbed, sequences[0].tokens, sizeof(undisturbed)) == 0);
        test_eq_u64(sequences[1].reason, RESULT_FINISH_CANCEL);
        test_true(sequences[1].token_count < 20);
    }
    test_eq_u64(drive.refused, 0);
    worker_client_expect_all_free(&rig.client, 5000);
    free(sequences);
    free(prompts);
    worker_rig_close(&rig);
}

static void test_ping_is_answered_by_the_executor(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    const struct plan_message ping = {.type = PLAN_PING, .as.ping = {.nonce = 0xabcdefULL << 32}};
    for (uint32_t i = 1; i <= 3; i++) {
        (void)worker_client_send(&rig.client, &ping);
        struct result_record pong = worker_client_expect(&rig.client, RESULT_PONG, 5000);
        test_eq_u64(pong.msg_seq, i);
        test_eq_u64(pong.as.pong.nonce, ping.as.ping.nonce);
        test_eq_u64(pong.as.pong.figures.applied, i);
        test_eq_u64(pong.as.pong.figures.local_quota_left_pages, rig.client.welcome.local_pages);
        test_eq_u64(pong.as.pong.figures.global_quota_left_pages, rig.client.welcome.global_pages);
    }
    worker_rig_close(&rig);
}

static void expect_fault(struct worker_client *client, const struct hello_message *request,
                         enum err_code code, const char *text)
{
    struct hello_message answer = worker_client_ask(client, request);
    test_eq_u64(answer.type, HELLO_FAULT);
    test_eq_u64(answer.as.fault.code, code);
    if (strstr(answer.as.fault.text.at, text) == NULL) {
        test_fail(__FILE__, __LINE__, "'%s', want '%s'", answer.as.fault.text.at, text);
    }
}

static void test_what_differs_is_named(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct hello_message hello = {
        .type = HELLO_HELLO,
        .as.hello = {.protocol_version = 77, .table_hash = 0x1234, .name = {"t", 1}},
    };
    expect_fault(&rig.client, &hello, ERR_PROTOCOL, "frontend speaks protocol 77, worker 1");
    hello.as.hello.protocol_version = PROTO_VERSION;
    expect_fault(&rig.client, &hello, ERR_PROTOCOL,
                 "frontend has message tables 0000000000001234, worker ");
    const struct hello_message attach = {
        .type = HELLO_ATTACH,
        .as.attach = {.protocol_version = PROTO_VERSION, .table_hash = 1, .name = {"t", 1}},
    };
    expect_fault(&rig.client, &attach, ERR_PROTOCOL, "message tables 0000000000000001");
    const struct hello_message profile = {.type = HELLO_PROFILE, .as.profile = {.enable = true}};
    expect_fault(&rig.client, &profile, ERR_UNSUPPORTED, "no profiler");
    const struct hello_message turned = {.type = HELLO_PROFILE_ANSWER};
    expect_fault(&rig.client, &turned, ERR_PROTOCOL, "is an answer");
    struct hello_message answer = worker_client_ask_raw(&rig.client, "\xff\xff", 2);
    test_eq_u64(answer.type, HELLO_FAULT);
    test_eq_u64(answer.as.fault.code, ERR_FORMAT);
    test_eq_u64(worker_client_stats(&rig.client).sessions, 0);
    worker_rig_close(&rig);
}

static void test_a_nonce_gets_one_session(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    struct hello_fault fault;
    test_true(worker_client_try_attach(client, 500, &fault));
    uint64_t epoch = client->epoch;
    test_true(worker_client_try_attach(client, 500, &fault));
    test_eq_u64(client->epoch, epoch);
    worker_client_dial(client);
    const struct plan_message ping = {.type = PLAN_PING};
    (void)worker_client_send(client, &ping);
    (void)worker_client_expect(client, RESULT_PONG, 5000);
    test_true(worker_client_try_attach(client, 500, &fault)); /* still the same, in mid-session */
    test_eq_u64(client->epoch, epoch);
    worker_client_detach(client);
    worker_client_attach(client);
    test_true(client->epoch != epoch);
    test_true(!worker_client_try_attach(client, 500, &fault));
    test_eq_u64(fault.code, ERR_STALE);
    test_eq_u64(worker_client_stats(client).sessions, 1);
    worker_rig_close(&rig);
}

/* Two sessions at most: each is told its share, and each gets the other's when that one ends. */
static void test_two_sessions_share_and_a_third_is_refused(void)
{
    struct worker_rig rig;
    struct worker_client younger;
    struct worker_client third;
    struct hello_fault fault;
    const struct plan_message ping = {.type = PLAN_PING};
    worker_rig_open(&rig, NULL);
    worker_client_open(&younger, rig.process.run_dir);
    worker_client_open(&third, rig.process.run_dir);
    worker_client_attach(&rig.client);
    (void)worker_client_send(&rig.client, &ping);
    struct result_record pong = worker_client_expect(&rig.client, RESULT_PONG, 5000);
    test_eq_u64(pong.as.pong.figures.global_quota_left_pages, rig.client.welcome.global_pages);
    test_eq_u64(pong.as.pong.figures.slots_withheld, 0);
    worker_client_attach(&younger);
    test_true(!worker_client_try_attach(&third, 900, &fault));
    test_eq_u64(fault.code, ERR_BUSY);
    test_true(strncmp(fault.text.at, "2 sessions are alive, at most 2", fault.text.byte_count) ==
              0);
    struct result_record state = worker_client_expect(&rig.client, RESULT_STATE, 5000);
    uint32_t elders = state.as.state.figures.global_quota_left_pages;
    test_true(elders > 0 && elders < rig.client.welcome.global_pages);
    (void)worker_client_send(&younger, &ping);
    pong = worker_client_expect(&younger, RESULT_PONG, 5000);
    test_eq_u64(pong.as.pong.figures.global_quota_left_pages + elders,
                rig.client.welcome.global_pages);
    test_eq_u64(pong.as.pong.figures.slots_withheld + state.as.state.figures.slots_withheld,
                rig.client.welcome.slots);
    worker_client_detach(&rig.client);
    state = worker_client_expect(&younger, RESULT_STATE, 5000);
    test_eq_u64(state.as.state.figures.global_quota_left_pages, younger.welcome.global_pages);
    test_eq_u64(state.as.state.figures.slots_withheld, 0);
    worker_client_attach(&third);
    worker_client_close(&third);
    worker_client_close(&younger);
    worker_rig_close(&rig);
}

static void test_logprobs_of_prompt_and_output(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    static const uint32_t prompt[] = {2, 300, 301, 302, 303};
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 1,
                                                    .prompt = {prompt, 5},
                                                    .output_start = 5,
                                                    .max_total = 6,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1,
                                                    .logprobs = 21,
                                                    .prompt_logprobs = 3}};
    (void)worker_client_send(client, &admit);
    (void)worker_client_expect(client, RESULT_ADMITTED, 5000);
    const struct wire_row row = {.seq_id = 1, .start = 0, .count = 5};
    const struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
    uint64_t step_seq = worker_client_send(client, &step);
    uint32_t prompt_records = 0;
    uint32_t output_pairs = 0;
    struct result_record record;
    do {
        test_true(worker_client_try_pop(client, 5000, &record));
        if (record.kind == RESULT_LOGPROBS && (record.flags & RESULT_LOGPROBS_PROMPT) != 0) {
            prompt_records++;
            test_eq_u64(record.as.logprobs.position, prompt_records);
            test_eq_u64(record.as.logprobs.token, prompt[prompt_records]);
            test_eq_u64(record.as.logprobs.pair_count, 2);
        } else if (record.kind == RESULT_LOGPROBS) {
            test_eq_u64(record.as.logprobs.first_index, output_pairs);
            output_pairs += record.as.logprobs.pair_count;
        } else if (record.kind == RESULT_TOKEN) {
            test_eq_u64(record.as.token.rank, 1);
            test_true(record.as.token.logprob <= 0);
        }
        test_eq_u64(record.msg_seq, step_seq);
    } while (record.kind != RESULT_STEP_DONE);
    test_eq_u64(prompt_records, 4);
    test_eq_u64(output_pairs, 20);
    worker_rig_close(&rig);
}

/* A constrained row is held while its mask is missing and sampled once it is there. */
static void test_a_mask_decides_what_is_sampled(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    static const uint32_t prompt[] = {2, 300, 301};
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 9,
                                                    .prompt = {prompt, 3},
                                                    .output_start = 3,
                                                    .max_total = 5,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1,
                                                    .constrained = true}};
    (void)worker_client_send(client, &admit);
    (void)worker_client_expect(client, RESULT_ADMITTED, 5000);
    uint32_t *mask = calloc(client->masks.geometry.words, sizeof(uint32_t));
    test_true(mask != NULL);
    mask[777 / 32] = 1U << (777 % 32);
    struct wire_row row = {.seq_id = 9, .start = 0, .count = 3};
    const struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
    mask_write(&client->masks, 0, 9, 3, mask);
    (void)worker_client_send(client, &step);
    struct result_record token = worker_client_expect(client, RESULT_TOKEN, 5000);
    test_eq_u64(token.as.token.token, 777);
    (void)worker_client_expect(client, RESULT_STEP_DONE, 5000);
    row = (struct wire_row){.seq_id = 9};
    (void)worker_client_send(client, &step);
    struct result_record held = worker_client_expect(client, RESULT_STEP_DONE, 5000);
    test_eq_u64(held.as.step_done.held_rows, 1);
    mask[777 / 32] = 0;
    mask[2000 / 32] = 1U << (2000 % 32);
    mask_write(&client->masks, 0, 9, 4, mask);
    (void)worker_client_send(client, &step);
    token = worker_client_expect(client, RESULT_TOKEN, 5000);
    test_eq_u64(token.as.token.token, 2000);
    test_eq_u64(token.as.token.position, 4);
    free(mask);
    worker_rig_close(&rig);
}

/* CPU time over a second with a session attached and nothing to do. */
static void test_an_idle_worker_uses_no_cpu(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    const struct plan_message ping = {.type = PLAN_PING};
    (void)worker_client_send(&rig.client, &ping);
    (void)worker_client_expect(&rig.client, RESULT_PONG, 5000);
    uint64_t before_ns = worker_process_cpu_ns(&rig.process);
    struct result_record record;
    test_true(!worker_client_try_pop(&rig.client, 1000, &record)); /* a second passes */
    uint64_t used_ns = worker_process_cpu_ns(&rig.process) - before_ns;
    if (used_ns > 10000000) {
        test_fail(__FILE__, __LINE__, "%llu us of CPU in an idle second",
                  (unsigned long long)used_ns / 1000);
    }
    worker_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_reference_tokens_from_two_processes),
    TEST(test_cancel_stops_one_and_no_other),
    TEST(test_ping_is_answered_by_the_executor),
    TEST(test_what_differs_is_named),
    TEST(test_a_nonce_gets_one_session),
    TEST(test_two_sessions_share_and_a_third_is_refused),
    TEST(test_logprobs_of_prompt_and_output),
    TEST(test_a_mask_decides_what_is_sampled),
    TEST(test_an_idle_worker_uses_no_cpu),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
