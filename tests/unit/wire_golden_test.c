/* Pins the bytes of every message, the record layout and the table hash to tests/golden/wire/.
 *
 * `wire_golden_test --write` writes the files anew; do that only with a change of the tables, which
 * frontends and workers of different builds then refuse to talk over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "proto/hello.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "tests/testlib/test.h"
#include "tests/testlib/wire_samples.h"

enum {
    PATH_BYTES = 1024,
    GOLDEN_MAX_BYTES = 1 << 16
};

/* name, bytes in hex, dump. */
static void append_case(const char *name, const struct buf *bytes, const struct buf *dump,
                        struct buf *out)
{
    buf_append_text(out, name);
    for (size_t i = 0; i < bytes->used_bytes; i++) {
        buf_printf(out, i % 32 == 0 ? "\n  %02x" : "%02x", (unsigned char)bytes->at[i]);
    }
    buf_printf(out, "\n%s%s\n", dump->used_bytes > 0 ? "  " : "", buf_text(dump));
}

static void render_plans(struct buf *out)
{
    for (uint32_t i = 0; i < WIRE_SAMPLES_PLAN_COUNT; i++) {
        const struct wire_samples_plan *sample = wire_samples_plan(i);
        struct buf bytes, dump;
        struct err err;
        buf_init(&bytes);
        buf_init(&dump);
        test_ok(plan_encode(&sample->message, &bytes, &err), &err);
        plan_dump(&sample->message, &dump);
        append_case(sample->name, &bytes, &dump, out);
        buf_fini(&bytes);
        buf_fini(&dump);
    }
}

static void render_hellos(struct buf *out)
{
    for (uint32_t i = 0; i < WIRE_SAMPLES_HELLO_COUNT; i++) {
        const struct wire_samples_hello *sample = wire_samples_hello(i);
        struct buf bytes, dump;
        struct err err;
        buf_init(&bytes);
        buf_init(&dump);
        test_ok(hello_encode(&sample->message, &bytes, &err), &err);
        hello_dump(&sample->message, &dump);
        append_case(sample->name, &bytes, &dump, out);
        buf_fini(&bytes);
        buf_fini(&dump);
    }
}

static void render_record(struct buf *out)
{
    struct result_record record;
    memset(&record, 0, sizeof(record)); /* what the union leaves unused is written too */
    record.kind = RESULT_LOGPROBS;
    record.flags = RESULT_LOGPROBS_PROMPT;
    record.epoch = 0x1112131415161718ULL;
    record.seq_id = 0x2122232425262728ULL;
    record.msg_seq = 0x3132333435363738ULL;
    record.as.logprobs = (struct result_logprobs){
        .position = 1,
        .token = 2,
        .logprob = -0.5F,
        .rank = 3,
        .first_index = 9,
        .pair_count = 9,
        .ids = {10, 11, 12, 13, 14, 15, 16, 17, 18},
        .logprobs = {-1, -2, -3, -4, -5, -6, -7, -8, -9},
    };
    struct buf bytes, dump;
    buf_init(&bytes);
    buf_init(&dump);
    buf_append(&bytes, &record, sizeof(record));
    append_case("logprobs-record", &bytes, &dump, out);
    memset(&record, 0, sizeof(record));
    record.kind = RESULT_STEP_DONE;
    record.epoch = 1;
    record.msg_seq = 2;
    record.as.step_done = (struct result_step_done){
        .figures = {.applied = 3, .local_quota_left_pages = 4, .global_quota_left_pages = 5},
        .device_ns = 6,
        .row_count = 7,
        .token_count = 8,
        .in_flight = 9,
        .held_rows = 10,
    };
    buf_reset(&bytes);
    buf_append(&bytes, &record, sizeof(record));
    append_case("step-done-record", &bytes, &dump, out);
    buf_fini(&bytes);
    buf_fini(&dump);
}

static void render_hash(struct buf *out)
{
    buf_printf(out, "protocol %d table hash %016llx\n", PROTO_VERSION,
               (unsigned long long)hello_table_hash());
}

static const struct {
    const char *file;
    void (*render)(struct buf *out);
} goldens[] = {
    {"plan.txt", render_plans},
    {"hello.txt", render_hellos},
    {"result.txt", render_record},
    {"hash.txt", render_hash},
};

static void golden_path(size_t index, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/wire/%s", test_golden_dir(), goldens[index].file);
}

static void check_golden(size_t index)
{
    char path[PATH_BYTES];
    golden_path(index, path);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        test_fail(__FILE__, __LINE__, "%s: cannot be opened", path);
    }
    char *text = calloc(1, GOLDEN_MAX_BYTES);
    test_true(text != NULL);
    size_t byte_count = fread(text, 1, GOLDEN_MAX_BYTES - 1, file);
    (void)fclose(file); /* read only */
    test_true(byte_count > 0);
    struct buf out;
    buf_init(&out);
    goldens[index].render(&out);
    test_eq_str(buf_text(&out), text);
    buf_fini(&out);
    free(text);
}

static void test_plan_bytes(void)
{
    check_golden(0);
}

static void test_hello_bytes(void)
{
    check_golden(1);
}

static void test_result_bytes(void)
{
    check_golden(2);
}

static void test_table_hash(void)
{
    check_golden(3);
}

static int write_goldens(void)
{
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        char path[PATH_BYTES];
        golden_path(i, path);
        struct buf out;
        buf_init(&out);
        goldens[i].render(&out);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fwrite(out.at, 1, out.used_bytes, file) != out.used_bytes ||
            fclose(file) != 0) {
            (void)fprintf(stderr, "%s: cannot be written\n", path);
            return EXIT_FAILURE;
        }
        buf_fini(&out);
    }
    return EXIT_SUCCESS;
}

static const struct test_case cases[] = {
    TEST(test_plan_bytes),
    TEST(test_hello_bytes),
    TEST(test_result_bytes),
    TEST(test_table_hash),
};

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--write") == 0) {
        return write_goldens();
    }
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
