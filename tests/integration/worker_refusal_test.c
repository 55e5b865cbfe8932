/* What a worker refuses: stale and malformed messages, gaps, oversized ones, a second pipe, plans
 * that name unknown sequences or want too many pages.  Nothing of it harms what follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

static const struct plan_message ping = {.type = PLAN_PING};

static void expect_healthy(struct worker_client *client)
{
    struct drive drive;
    struct drive_sequence *sequences = worker_rig_sequences(2, 4);
    drive_init(&drive, client);
    drive.next_seq_id = 1000;
    drive_run(&drive, sequences, 2);
    test_eq_u64(sequences[0].token_count, 4);
    test_eq_u64(drive.refused, 0);
    free(sequences);
    worker_client_expect_all_free(client, 5000);
}

static void test_a_stale_epoch_is_dropped_and_counted(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    struct plan_message stale = ping;
    stale.epoch = rig.client.epoch - 1;
    stale.msg_seq = 1;
    worker_client_send_as_is(&rig.client, &stale);
    (void)worker_client_send(&rig.client, &ping);
    struct result_record pong = worker_client_expect(&rig.client, RESULT_PONG, 5000);
    test_eq_u64(pong.msg_seq, 1);
    test_eq_u64(worker_client_stats(&rig.client).messages_stale, 1);
    expect_healthy(&rig.client);
    worker_rig_close(&rig);
}

static void test_a_malformed_message_is_refused_in_its_place(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    (void)worker_client_send(client, &ping);
    worker_client_send_raw(client, "\x94\x02garbage", 9);
    client->msg_seq++;
    (void)worker_client_send(client, &ping);
    struct result_record pong = worker_client_expect(client, RESULT_PONG, 5000);
    test_eq_u64(pong.msg_seq, 1);
    struct result_record refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.msg_seq, 2);
    test_eq_u64(refused.as.refused.code, ERR_FORMAT);
    test_true(strlen(refused.as.refused.text) > 0);
    pong = worker_client_expect(client, RESULT_PONG, 5000);
    test_eq_u64(pong.msg_seq, 3);
    test_eq_u64(worker_client_stats(client).messages_malformed, 1);

    /* It may have been a STEP: those that follow are refused until one knows. */
    const struct wire_row row = {.seq_id = 5};
    struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
    (void)worker_client_send(client, &step);
    refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.as.refused.code, ERR_AFTER_REFUSAL);
    step.as.step.after = 2;
    (void)worker_client_send(client, &step);
    refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.as.refused.code, ERR_NOT_FOUND); /* no such sequence */
    worker_client_detach(client);
    worker_client_attach(client);
    expect_healthy(client);
    worker_rig_close(&rig);
}

static void test_a_gap_ends_the_session(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    (void)worker_client_send(client, &ping);
    client->msg_seq++;
    (void)worker_client_send(client, &ping);
    test_true(worker_client_wait_closed(client, 5000));
    test_true(worker_process_logged(&rig.process, "reason=\"message 3 of epoch"));
    worker_client_detach(client);
    worker_client_attach(client);
    expect_healthy(client);
    worker_rig_close(&rig);
}

static void test_an_oversized_message_ends_the_session(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    char *bytes = calloc(1, PLAN_MAX_MESSAGE_BYTES + 1);
    test_true(bytes != NULL);
    worker_client_send_raw(client, bytes, PLAN_MAX_MESSAGE_BYTES + 1);
    free(bytes);
    test_true(worker_client_wait_closed(client, 5000));
    worker_client_detach(client);
    worker_client_attach(client);
    expect_healthy(client);
    worker_rig_close(&rig);
}

/* The largest ADMIT that fits the bounds, of a prompt that is too long for the model. */
static void test_the_longest_prompt_is_refused_by_its_limit(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    uint32_t *ids = calloc(PLAN_MAX_PROMPT_TOKENS, sizeof(*ids));
    test_true(ids != NULL);
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 1,
                                                    .prompt = {ids, PLAN_MAX_PROMPT_TOKENS},
                                                    .output_start = PLAN_MAX_PROMPT_TOKENS,
                                                    .max_total = PLAN_MAX_PROMPT_TOKENS + 1,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1}};
    (void)worker_client_send(client, &admit);
    struct result_record refused = worker_client_expect(client, RESULT_REFUSED, 10000);
    test_eq_u64(refused.seq_id, 1);
    test_true(strstr(refused.as.refused.text, "1048577") != NULL ||
              strstr(refused.as.refused.text, "1048576") != NULL);
    free(ids);
    expect_healthy(client);
    worker_rig_close(&rig);
}

static void test_the_plan_socket_serves_one_pipe(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    (void)worker_client_send(client, &ping);
    (void)worker_client_expect(client, RESULT_PONG, 5000);

    struct worker_client intruder;
    worker_client_open(&intruder, rig.process.run_dir);
    test_true(worker_client_second_pipe_is_closed(&intruder, client->plan_url, 5000));

    /* Someone who speaks no nng at all. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    test_true(strlen(client->plan_url) < sizeof(address.sun_path));
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s",
                   client->plan_url + strlen("ipc://"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    test_true(fd >= 0);
    test_true(connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
    test_true(write(fd, "GET / HTTP/1.1\r\n\r\n", 18) == 18);
    char answer[64];
    while (read(fd, answer, sizeof(answer)) > 0) { /* until the worker hangs up */
    }
    (void)close(fd);
    expect_healthy(client);
    worker_client_close(&intruder);
    worker_rig_close(&rig);
}

static void test_refused_steps_move_nothing(void)
{
    static const char *const args[] = {"--local-pages", "6", "--global-pages", "8", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    struct worker_client *client = &rig.client;
    worker_client_attach(client);
    uint32_t ids[600];
    for (uint32_t i = 0; i < 600; i++) {
        ids[i] = 300 + i;
    }
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 1,
                                                    .prompt = {ids, 500},
                                                    .output_start = 500,
                                                    .max_total = 510,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1}};
    (void)worker_client_send(client, &admit);
    struct result_record admitted = worker_client_expect(client, RESULT_ADMITTED, 5000);
    test_eq_u64(admitted.as.admitted.figures.global_quota_left_pages, 8);

    struct wire_row row = {.seq_id = 1, .start = 0, .count = 500}; /* 8 local pages of 6 */
    struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
    uint64_t refused_seq = worker_client_send(client, &step);
    (void)worker_client_send(client, &step);
    struct result_record refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.msg_seq, refused_seq);
    test_eq_u64(refused.as.refused.code, ERR_PAGES);
    refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.as.refused.code, ERR_AFTER_REFUSAL);
    struct hello_stats_answer stats = worker_client_stats(client);
    test_eq_u64(stats.local_pages_free + stats.local_pages_cached, 6);
    test_eq_u64(stats.global_pages_free + stats.global_pages_cached, 8);

    row.count = 128;
    step.as.step.after = refused_seq;
    (void)worker_client_send(client, &step);
    struct result_record done = worker_client_expect(client, RESULT_STEP_DONE, 10000);
    test_eq_u64(done.as.step_done.token_count, 128);
    test_eq_u64(done.as.step_done.figures.global_quota_left_pages, 6);
    row = (struct wire_row){.seq_id = 1, .start = 127, .count = 1}; /* not the frontier */
    step.as.step.after = 0;
    (void)worker_client_send(client, &step);
    refused = worker_client_expect(client, RESULT_REFUSED, 5000);
    test_eq_u64(refused.as.refused.code, ERR_PLAN);
    const struct plan_message release = {.type = PLAN_RELEASE, .as.release = {.seq_id = 1}};
    (void)worker_client_send(client, &release);
    worker_client_expect_all_free(client, 5000);
    worker_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_a_stale_epoch_is_dropped_and_counted),
    TEST(test_a_malformed_message_is_refused_in_its_place),
    TEST(test_a_gap_ends_the_session),
    TEST(test_an_oversized_message_ends_the_session),
    TEST(test_the_longest_prompt_is_refused_by_its_limit),
    TEST(test_the_plan_socket_serves_one_pipe),
    TEST(test_refused_steps_move_nothing),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
