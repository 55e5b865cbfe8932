#include "proto/result.h"

#include <string.h>

#include "tests/testlib/test.h"

static struct result_record record_of(enum result_kind kind)
{
    return (struct result_record){.kind = (uint16_t)kind, .epoch = 1, .msg_seq = 2};
}

static void test_good_records(void)
{
    struct err err;
    struct result_record record = record_of(RESULT_TOKEN);
    record.flags = RESULT_TOKEN_LAST;
    test_ok(result_check(&record, &err), &err);
    record = record_of(RESULT_LOGPROBS);
    record.flags = RESULT_LOGPROBS_PROMPT;
    record.as.logprobs.first_index = 18;
    record.as.logprobs.pair_count = 2;
    test_ok(result_check(&record, &err), &err);
    record = record_of(RESULT_FINISHED);
    record.as.finished.reason = RESULT_FINISH_LENGTH;
    test_ok(result_check(&record, &err), &err);
    record = record_of(RESULT_REFUSED);
    record.as.refused.code = ERR_PAGES;
    test_ok(result_check(&record, &err), &err);
    record = record_of(RESULT_FAILED);
    record.as.failed.code = ERR_SEQUENCE;
    test_ok(result_check(&record, &err), &err);
    static const enum result_kind plain[] = {RESULT_ADMITTED, RESULT_STEP_DONE, RESULT_STATE,
                                             RESULT_PONG};
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        record = record_of(plain[i]);
        test_ok(result_check(&record, &err), &err);
    }
}

static void refuse(const struct result_record *record, const char *text)
{
    struct err err;
    test_eq_u64(result_check(record, &err), ERR_FORMAT);
    if (strstr(err.message, text) == NULL) {
        test_fail(__FILE__, __LINE__, "'%s', want '%s'", err.message, text);
    }
}

static void test_bad_records_are_refused_by_name(void)
{
    struct result_record record = record_of((enum result_kind)0);
    refuse(&record, "kind: 0");
    record = record_of((enum result_kind)10);
    refuse(&record, "kind: 10");
    record = record_of(RESULT_TOKEN);
    record.flags = 2;
    refuse(&record, "flags: 0x2");
    record = record_of(RESULT_LOGPROBS);
    record.as.logprobs.pair_count = 10;
    refuse(&record, "pair_count: 10, at most 9");
    record.as.logprobs.pair_count = 3;
    record.as.logprobs.first_index = 18;
    refuse(&record, "first_index: 18");
    record.as.logprobs.first_index = UINT32_MAX;
    refuse(&record, "first_index");
    record = record_of(RESULT_FINISHED);
    refuse(&record, "reason: 0");
    record.as.finished.reason = 4;
    refuse(&record, "reason: 4");
    record = record_of(RESULT_REFUSED);
    refuse(&record, "refused.code: 0");
    record.as.refused.code = ERR_PLAN;
    memset(record.as.refused.text, 'x', sizeof(record.as.refused.text));
    refuse(&record, "refused.text: no end");
    record = record_of(RESULT_FAILED);
    record.as.failed.code = ERR_CODE_COUNT;
    refuse(&record, "failed.code");
    record = record_of(RESULT_PONG);
    record.flags = 1;
    refuse(&record, "flags");
}

static void test_records_per_token(void)
{
    test_eq_u64(result_records_per_token(0), 1);
    test_eq_u64(result_records_per_token(1), 2);
    test_eq_u64(result_records_per_token(9), 2);
    test_eq_u64(result_records_per_token(10), 3);
    test_eq_u64(result_records_per_token(20), 4);
}

static const struct test_case cases[] = {
    TEST(test_good_records),
    TEST(test_bad_records_are_refused_by_name),
    TEST(test_records_per_token),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
