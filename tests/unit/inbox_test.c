#include "worker/inbox.h"

#include <string.h>

#include "tests/testlib/test.h"

static void test_messages_are_copied_whole(void)
{
    struct inbox inbox;
    uint32_t prompt[3] = {4, 5, 6};
    uint32_t stops[1] = {7};
    uint32_t suppressed[2] = {8, 9};
    struct wire_bias bias[1] = {{.token = 3, .bias = 2.5F}};
    struct wire_row rows[2] = {{.seq_id = 1, .start = 2, .count = 3}, {.seq_id = 4}};
    struct plan_message admit = {.type = PLAN_ADMIT, .msg_seq = 1};
    admit.as.admit.prompt = (struct wire_u32_array){.at = prompt, .count = 3};
    admit.as.admit.stop_ids = (struct wire_u32_array){.at = stops, .count = 1};
    admit.as.admit.suppress_ids = (struct wire_u32_array){.at = suppressed, .count = 2};
    admit.as.admit.logit_bias = (struct wire_bias_array){.at = bias, .count = 1};
    struct plan_message step = {.type = PLAN_STEP, .msg_seq = 2};
    step.as.step.rows = (struct wire_row_array){.at = rows, .count = 2};

    inbox_init(&inbox);
    inbox_push(&inbox, &admit);
    inbox_push(&inbox, &step);
    memset(prompt, 0xff, sizeof(prompt));
    memset(stops, 0xff, sizeof(stops));
    memset(suppressed, 0xff, sizeof(suppressed));
    memset(bias, 0xff, sizeof(bias));
    memset(rows, 0xff, sizeof(rows));
    test_eq_u64(inbox.message_count, 2);
    test_eq_u64(inbox.step_count, 1);

    const struct plan_admit *got = &inbox_peek(&inbox)->message.as.admit;
    test_eq_u64(inbox_peek(&inbox)->message.msg_seq, 1);
    test_eq_u64(got->prompt.at[2], 6);
    test_eq_u64(got->stop_ids.at[0], 7);
    test_eq_u64(got->suppress_ids.at[1], 9);
    test_true(got->logit_bias.at[0].token == 3 && got->logit_bias.at[0].bias == 2.5F);
    inbox_pop(&inbox);
    test_eq_u64(inbox_peek(&inbox)->message.as.step.rows.at[0].count, 3);
    test_eq_u64(inbox_peek(&inbox)->message.as.step.rows.at[1].seq_id, 4);
    inbox_pop(&inbox);
    test_true(inbox_peek(&inbox) == NULL);
    test_eq_u64(inbox.byte_count, 0);
    inbox_fini(&inbox);
}

static void test_malformed_messages_keep_their_place(void)
{
    struct inbox inbox;
    struct plan_message ping = {.type = PLAN_PING, .msg_seq = 1};
    struct err why;
    (void)err_set(&why, ERR_FORMAT, "key 9");
    inbox_init(&inbox);
    inbox_push(&inbox, &ping);
    inbox_push_malformed(&inbox, 2, &why);
    test_true(!inbox_peek(&inbox)->is_malformed);
    inbox_pop(&inbox);
    test_true(inbox_peek(&inbox)->is_malformed);
    test_eq_u64(inbox_peek(&inbox)->message.msg_seq, 2);
    test_eq_str(inbox_peek(&inbox)->error.message, "key 9");
    inbox_fini(&inbox);
}

static void test_full_by_count_and_by_bytes(void)
{
    struct inbox inbox;
    struct plan_message ping = {.type = PLAN_PING};
    inbox_init(&inbox);
    for (uint32_t i = 0; i < INBOX_MAX_MESSAGES; i++) {
        test_true(!inbox_is_full(&inbox));
        inbox_push(&inbox, &ping);
    }
    test_true(inbox_is_full(&inbox));
    inbox_pop(&inbox);
    test_true(!inbox_is_full(&inbox));
    inbox_fini(&inbox);

    static uint32_t prompt[PLAN_MAX_PROMPT_TOKENS];
    struct plan_message admit = {.type = PLAN_ADMIT};
    admit.as.admit.prompt = (struct wire_u32_array){.at = prompt, .count = PLAN_MAX_PROMPT_TOKENS};
    uint32_t count = 0;
    inbox_init(&inbox);
    while (!inbox_is_full(&inbox)) {
        inbox_push(&inbox, &admit);
        count++;
    }
    test_true(count >= 8 && count <= 16);
    inbox_fini(&inbox);
}

static void test_blocks_are_used_again(void)
{
    struct inbox inbox;
    struct wire_row row = {.seq_id = 1};
    struct plan_message step = {.type = PLAN_STEP};
    step.as.step.rows = (struct wire_row_array){.at = &row, .count = 1};
    inbox_init(&inbox);
    inbox_push(&inbox, &step);
    const struct inbox_entry *block = inbox_peek(&inbox);
    for (uint32_t i = 0; i < 100; i++) {
        inbox_pop(&inbox);
        inbox_push(&inbox, &step);
        test_true(inbox_peek(&inbox) == block);
    }
    inbox_fini(&inbox);
}

static const struct test_case cases[] = {
    TEST(test_messages_are_copied_whole),
    TEST(test_malformed_messages_keep_their_place),
    TEST(test_full_by_count_and_by_bytes),
    TEST(test_blocks_are_used_again),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
