#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/hello.h"
#include "proto/plan.h"
#include "tests/testlib/test.h"
#include "tests/testlib/wire_samples.h"

/* Bytes with their count, from a string literal. */
struct bytes {
    const char *at;
    size_t count;
};
#define BYTES(text)            \
    {                          \
        text, sizeof(text) - 1 \
    }

static enum err_code decode_plan(const void *bytes, size_t byte_count,
                                 struct plan_message *out_message, struct mem_arena *arena,
                                 struct err *err)
{
    test_ok(mem_arena_init(arena, plan_decode_arena_bytes(byte_count), err), err);
    return plan_decode(bytes, byte_count, arena, out_message, err);
}

static void test_every_plan_survives_a_round_trip(void)
{
    for (uint32_t i = 0; i < WIRE_SAMPLES_PLAN_COUNT; i++) {
        const struct plan_message *message = &wire_samples_plan(i)->message;
        struct buf bytes, want, got;
        struct mem_arena arena;
        struct plan_message decoded;
        struct err err;
        buf_init(&bytes);
        buf_init(&want);
        buf_init(&got);
        test_ok(plan_encode(message, &bytes, &err), &err);
        test_ok(decode_plan(bytes.at, bytes.used_bytes, &decoded, &arena, &err), &err);
        plan_dump(message, &want);
        plan_dump(&decoded, &got);
        test_eq_str(buf_text(&got), buf_text(&want));
        for (size_t cut = 0; cut < bytes.used_bytes; cut++) {
            arena.used_bytes = 0;
            test_eq_u64(plan_decode(bytes.at, cut, &arena, &decoded, &err), ERR_FORMAT);
        }
        mem_arena_fini(&arena);
        buf_fini(&bytes);
        buf_fini(&want);
        buf_fini(&got);
    }
}

static void test_every_hello_survives_a_round_trip(void)
{
    for (uint32_t i = 0; i < WIRE_SAMPLES_HELLO_COUNT; i++) {
        const struct hello_message *message = &wire_samples_hello(i)->message;
        struct buf bytes, want, got;
        struct mem_arena arena;
        struct hello_message decoded;
        struct err err;
        buf_init(&bytes);
        buf_init(&want);
        buf_init(&got);
        test_ok(hello_encode(message, &bytes, &err), &err);
        test_ok(mem_arena_init(&arena, plan_decode_arena_bytes(bytes.used_bytes), &err), &err);
        test_ok(hello_decode(bytes.at, bytes.used_bytes, &arena, &decoded, &err), &err);
        hello_dump(message, &want);
        hello_dump(&decoded, &got);
        test_eq_str(buf_text(&got), buf_text(&want));
        for (size_t cut = 0; cut < bytes.used_bytes; cut++) {
            mem_arena_reset(&arena);
            test_eq_u64(hello_decode(bytes.at, cut, &arena, &decoded, &err), ERR_FORMAT);
        }
        mem_arena_fini(&arena);
        buf_fini(&bytes);
        buf_fini(&want);
        buf_fini(&got);
    }
}

/* CANCEL of sequence 10 in epoch 5, message 4, in every spelling of its numbers. */
static void test_integers_of_any_width_are_the_same_number(void)
{
    static const struct bytes spellings[] = {
        BYTES("\x94\x03\x05\x04\x81\x01\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xcc\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xcd\x00\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xce\x00\x00\x00\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xcf\x00\x00\x00\x00\x00\x00\x00\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xd0\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xd1\x00\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xd2\x00\x00\x00\x0a"),
        BYTES("\x94\x03\x05\x04\x81\x01\xd3\x00\x00\x00\x00\x00\x00\x00\x0a"),
        BYTES("\xdc\x00\x04\x03\x05\x04\xde\x00\x01\xcc\x01\x0a"),
        BYTES("\xdd\x00\x00\x00\x04\x03\x05\x04\xdf\x00\x00\x00\x01\x01\x0a"),
    };
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        struct mem_arena arena;
        struct plan_message message;
        struct err err;
        test_ok(decode_plan(spellings[i].at, spellings[i].count, &message, &arena, &err), &err);
        test_eq_u64(message.type, PLAN_CANCEL);
        test_eq_u64(message.epoch, 5);
        test_eq_u64(message.msg_seq, 4);
        test_eq_u64(message.as.cancel.seq_id, 10);
        mem_arena_fini(&arena);
    }
}

static void test_faulty_messages_are_refused_by_name(void)
{
    static const struct {
        struct bytes bytes;
        enum err_code code;
        const char *text;
    } faults[] = {
        {BYTES(""), ERR_FORMAT, "1 bytes wanted, 0 left"},
        {BYTES("\xc0"), ERR_FORMAT, "0xc0 does not begin an array"},
        {BYTES("\x93\x03\x05\x04"), ERR_FORMAT, "3 parts, want 4"},
        {BYTES("\x94\x63\x05\x04\x80"), ERR_FORMAT, "unknown message type 99"},
        {BYTES("\x94\x00\x05\x04\x80"), ERR_FORMAT, "unknown message type 0"},
        {BYTES("\x94\xcf\x00\x00\x00\x01\x00\x00\x00\x03\x05\x04\x81\x01\x0a"), ERR_FORMAT,
         "unknown message type 4294967299"},
        {BYTES("\x94\x03\x05\x04\x81\x02\x0a"), ERR_FORMAT, "cancel: unknown field 2"},
        {BYTES("\x94\x03\x05\x04\x80"), ERR_FORMAT, "cancel.seq_id: missing"},
        {BYTES("\x94\x03\x05\x04\x82\x01\x0a\x01\x0a"), ERR_FORMAT, "cancel.seq_id: given twice"},
        {BYTES("\x94\x03\x05\x04\x81\x01\x0a\xc0"), ERR_FORMAT, "1 bytes left over"},
        {BYTES("\x94\x03\x05\x04\x91\x0a"), ERR_FORMAT, "does not begin a map"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xc0"), ERR_FORMAT, "0xc0 does not begin an unsigned"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xa1\x31"), ERR_FORMAT, "does not begin an unsigned"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xca\x41\x20\x00\x00"), ERR_FORMAT,
         "does not begin an unsigned"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xff"), ERR_FORMAT, "negative integer"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xd0\xff"), ERR_FORMAT, "negative integer"},
        {BYTES("\x94\x03\x05\x04\x81\x01\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), ERR_FORMAT,
         "negative integer"},
        {BYTES("\x94\x03\x05\x04\xdf\xff\xff\xff\xff\x01\x0a"), ERR_FORMAT, "wanted"},
        /* rows */
        {BYTES("\x94\x02\x05\x04\x82\x01\x00\x02\x91\x92\x01\x02"), ERR_FORMAT, "2 parts"},
        {BYTES("\x94\x02\x05\x04\x82\x01\x00\x02\x91\x93\x01\x02\x00"), ERR_FORMAT,
         "row 0: a segment of 0 tokens"},
        {BYTES("\x94\x02\x05\x04\x82\x01\x00\x02\x91\x93\x01\xcf\x00\x00\x00\x01\x00\x00\x00\x00"
               "\x01"),
         ERR_FORMAT, "does not fit 32 bits"},
        {BYTES("\x94\x02\x05\x04\x82\x01\x00\x02\xdc\x04\x01"), ERR_LIMIT,
         "step.rows: 1025 elements, at most 1024"},
        {BYTES("\x94\x02\x05\x04\x82\x01\x00\x02\xdc\x04\x00\x91\x01"), ERR_FORMAT,
         "1024 elements in 2 bytes"},
        {BYTES("\x94\x01\x05\x04\xde\x00\x15\x02\xdd\x00\x10\x00\x00"), ERR_FORMAT,
         "1048576 elements in 0 bytes"},
        {BYTES("\x94\x01\x05\x04\xde\x00\x15\x0e\x91\x93\x01\xca\x00\x00\x00\x00"), ERR_FORMAT,
         "3 parts, want 2"},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct mem_arena arena;
        struct plan_message message;
        struct err err;
        enum err_code code =
            decode_plan(faults[i].bytes.at, faults[i].bytes.count, &message, &arena, &err);
        if (code != faults[i].code || strstr(err.message, faults[i].text) == NULL) {
            test_fail(__FILE__, __LINE__, "case %zu: %s '%s', want '%s'", i, err_code_text(code),
                      err.message, faults[i].text);
        }
        mem_arena_fini(&arena);
    }
}

/* The ADMIT sample with the five bytes of its temperature replaced. */
static enum err_code decode_with_temperature(struct bytes value, float *out_temperature,
                                             struct err *err)
{
    struct buf bytes, edited;
    buf_init(&bytes);
    buf_init(&edited);
    test_ok(plan_encode(&wire_samples_plan(0)->message, &bytes, err), err);
    const char *at = memmem(bytes.at, bytes.used_bytes, "\x07\xca\x3f\x33\x33\x33", 6);
    test_true(at != NULL);
    buf_append(&edited, bytes.at, (size_t)(at - bytes.at) + 1);
    buf_append(&edited, value.at, value.count);
    buf_append(&edited, at + 6, bytes.used_bytes - (size_t)(at - bytes.at) - 6);
    struct mem_arena arena;
    struct plan_message message = {0};
    enum err_code code = decode_plan(edited.at, edited.used_bytes, &message, &arena, err);
    *out_temperature = message.as.admit.temperature;
    mem_arena_fini(&arena);
    buf_fini(&bytes);
    buf_fini(&edited);
    return code;
}

static void test_floats_are_finite_and_of_either_width(void)
{
    static const struct bytes halves[] = {BYTES("\xca\x3f\x00\x00\x00"),
                                          BYTES("\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00")};
    static const struct bytes refused[] = {
        BYTES("\xca\x7f\xc0\x00\x00"),                 /* nan */
        BYTES("\xca\x7f\x80\x00\x00"),                 /* inf */
        BYTES("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), /* nan */
        BYTES("\xcb\x48\x00\x00\x00\x00\x00\x00\x00"), /* 2^129 */
        BYTES("\x01"),                                 /* an integer */
    };
    float temperature;
    struct err err;
    for (size_t i = 0; i < sizeof(halves) / sizeof(halves[0]); i++) {
        test_ok(decode_with_temperature(halves[i], &temperature, &err), &err);
        test_true(temperature == 0.5F);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        test_eq_u64(decode_with_temperature(refused[i], &temperature, &err), ERR_FORMAT);
        test_true(strstr(err.message, "admit.temperature: ") != NULL);
    }
}

static void test_encoding_refuses_what_decoding_would(void)
{
    static const struct wire_row many[PLAN_MAX_ROWS + 1];
    static const struct wire_row odd[] = {{.seq_id = 1, .start = 3}};
    struct plan_message step = {
        .type = PLAN_STEP, .epoch = 1, .msg_seq = 1, .as.step.rows = {many, PLAN_MAX_ROWS + 1}};
    struct buf out;
    struct err err;
    buf_init(&out);
    buf_append_text(&out, "kept");
    test_eq_u64(plan_encode(&step, &out, &err), ERR_LIMIT);
    test_eq_str(err.message, "step.rows: 1025 elements, at most 1024");
    step.as.step.rows = (struct wire_row_array){odd, 1};
    test_eq_u64(plan_encode(&step, &out, &err), ERR_LIMIT);
    struct plan_message admit = wire_samples_plan(0)->message;
    admit.as.admit.top_p = NAN;
    test_eq_u64(plan_encode(&admit, &out, &err), ERR_LIMIT);
    test_eq_str(err.message, "admit.top_p: not a finite number");
    admit = wire_samples_plan(0)->message;
    const struct wire_bias infinite = {1, INFINITY};
    admit.as.admit.logit_bias = (struct wire_bias_array){&infinite, 1};
    test_eq_u64(plan_encode(&admit, &out, &err), ERR_LIMIT);
    test_eq_str(buf_text(&out), "kept");
    buf_fini(&out);
}

/* Byte flips, cuts and splices of good messages: never more arena than promised, and whatever is
 * accepted encodes to bytes that decode to the same message. */
static void mutate(struct buf *bytes, uint64_t *random)
{
    uint32_t changes = (uint32_t)(test_random(random) % 4) + 1;
    for (uint32_t i = 0; i < changes && bytes->used_bytes > 0; i++) {
        size_t at = test_random(random) % bytes->used_bytes;
        if (test_random(random) % 8 == 0) {
            buf_truncate(bytes, at);
        } else {
            bytes->at[at] = (char)test_random(random);
        }
    }
}

static void test_mutated_messages(void)
{
    uint64_t random = 0xfade;
    uint32_t accepted = 0;
    for (uint32_t round = 0; round < 60000; round++) {
        struct buf bytes, again, first, second;
        struct mem_arena arena, arena_again;
        struct plan_message message, decoded;
        struct err err;
        buf_init(&bytes);
        uint32_t sample = (uint32_t)(test_random(&random) % WIRE_SAMPLES_PLAN_COUNT);
        test_ok(plan_encode(&wire_samples_plan(sample)->message, &bytes, &err), &err);
        mutate(&bytes, &random);
        enum err_code code = decode_plan(bytes.at, bytes.used_bytes, &message, &arena, &err);
        test_true(code == ERR_OK || code == ERR_FORMAT || code == ERR_LIMIT);
        if (code == ERR_OK) {
            accepted++;
            buf_init(&again);
            buf_init(&first);
            buf_init(&second);
            test_ok(plan_encode(&message, &again, &err), &err);
            test_ok(decode_plan(again.at, again.used_bytes, &decoded, &arena_again, &err), &err);
            plan_dump(&message, &first);
            plan_dump(&decoded, &second);
            test_eq_str(buf_text(&first), buf_text(&second));
            mem_arena_fini(&arena_again);
            buf_fini(&again);
            buf_fini(&first);
            buf_fini(&second);
        }
        mem_arena_fini(&arena);
        buf_fini(&bytes);
    }
    test_true(accepted > 1000);
}

static void test_hash_covers_each_column(void)
{
    struct wire_field field = {"f", 1, WIRE_KIND_U32, 1, 0};
    struct wire_message message = {"m", &field, 1, 1, 4};
    const uint64_t base = wire_hash_message(WIRE_HASH_SEED, &message);
    field.key = 2;
    test_true(wire_hash_message(WIRE_HASH_SEED, &message) != base);
    field.key = 1;
    field.kind = WIRE_KIND_U64;
    test_true(wire_hash_message(WIRE_HASH_SEED, &message) != base);
    field.kind = WIRE_KIND_U32;
    field.max_count = 2;
    test_true(wire_hash_message(WIRE_HASH_SEED, &message) != base);
    field.max_count = 1;
    field.name = "g";
    test_true(wire_hash_message(WIRE_HASH_SEED, &message) != base);
    field.name = "f";
    message.type = 2;
    test_true(wire_hash_message(WIRE_HASH_SEED, &message) != base);
    message.type = 1;
    test_eq_u64(wire_hash_message(WIRE_HASH_SEED, &message), base);
}

static const struct test_case cases[] = {
    TEST(test_every_plan_survives_a_round_trip),
    TEST(test_every_hello_survives_a_round_trip),
    TEST(test_integers_of_any_width_are_the_same_number),
    TEST(test_faulty_messages_are_refused_by_name),
    TEST(test_floats_are_finite_and_of_either_width),
    TEST(test_encoding_refuses_what_decoding_would),
    TEST(test_mutated_messages),
    TEST(test_hash_covers_each_column),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
