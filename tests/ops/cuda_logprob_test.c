/* Log probabilities, ranks and best tokens on cuda against the cpu twin.
 *
 * Tokens, ranks and ids are exact.  Log probabilities are held to 2^-16 + 2^-23 of themselves from
 * the value in f64: a thread adds up to 256 exponentials in f32, each off by units in the last place,
 * and the result is one f32. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/test.h"

#define SEED        103
#define SUM_ERROR   0x1p-16
#define LAST_PLACE  0x1p-23
#define LABEL_BYTES 96

struct logprob_case {
    uint32_t vocab;
    uint32_t rows;
    struct twin_buffer logits;
    struct twin_buffer wanted;  /* [rows] struct k_logprob_row */
    struct twin_buffer records; /* [rows]; the host's is the twin's */
};

static void open_rig(struct cuda_rig *rig, uint32_t vocab, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = 64,
        .max_rows = 64,
        .slots = 16,
        .max_context_tokens = 1024,
        .hidden_elems = 64,
        .max_linear_out_elems = 64,
        .heads = 2,
        .max_head_dim = 256,
        .max_kv_heads = 1,
        .vocab_tokens = vocab,
    };
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

static struct k_logprob_row *wanted_at(const struct logprob_case *at, uint32_t row)
{
    return (struct k_logprob_row *)at->wanted.host + row;
}

static uint16_t *logits_at(const struct logprob_case *at, uint32_t row)
{
    return (uint16_t *)at->logits.host + (uint64_t)row * at->vocab;
}

/* Rows that want nothing, one pair, some, the most there are and more; targets at both ends, none,
 * and anywhere.  Records in another order than rows. */
static void want_at_random(const struct logprob_case *at, uint64_t *random)
{
    static const uint32_t wants[] = {2, 21, 0, 6, 1, 40, 11};
    for (uint32_t row = 0; row < at->rows; row++) {
        uint32_t kind = twin_random_below(random, 6);
        uint32_t anywhere = twin_random_below(random, at->vocab);
        *wanted_at(at, row) = (struct k_logprob_row){
            .target = kind == 0   ? K_NONE
                      : kind == 1 ? 0
                      : kind == 2 ? at->vocab - 1
                                  : anywhere,
            .want = wants[twin_random_below(random, TWIN_COUNT_OF(wants))],
            .record = at->rows - 1 - row,
        };
    }
    twin_write(&at->wanted);
}

static void case_init(struct logprob_case *at, uint32_t vocab, uint32_t rows, uint64_t *random)
{
    uint64_t elems = (uint64_t)rows * vocab;
    *at = (struct logprob_case){.vocab = vocab, .rows = rows};
    at->logits = twin_in(twin_random_bf16(elems, 5.0, random), elems * sizeof(uint16_t));
    at->wanted = twin_in(mem_zalloc(rows, sizeof(struct k_logprob_row)),
                         rows * sizeof(struct k_logprob_row));
    at->records = twin_out(rows * sizeof(struct k_logprob));
    want_at_random(at, random);
}

static void case_fini(struct logprob_case *at)
{
    twin_free(&at->logits);
    twin_free(&at->wanted);
    twin_free(&at->records);
}

static struct k_logprobs_args args_of(const struct logprob_case *at, uint32_t rows,
                                      bool is_on_device)
{
    return (struct k_logprobs_args){
        .logits = is_on_device ? at->logits.device : at->logits.host,
        .row_count = rows,
        .vocab_tokens = at->vocab,
        .rows = is_on_device ? at->wanted.device : at->wanted.host,
        .records = is_on_device ? at->records.device : at->records.host,
    };
}

static void run_device(struct cuda_rig *rig, const struct logprob_case *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_logprobs_args args = args_of(at, rows, true);
    test_ok(k_cuda_ops()->logprobs(rig->k, &args, &err), &err);
}

static void run_twin(const struct logprob_case *at, uint32_t rows)
{
    struct err err = {0};
    struct k_stream *twin = twin_stream(at->vocab, 0.0F);
    const struct k_logprobs_args args = args_of(at, rows, false);
    memset(at->records.host, 0xff, at->records.bytes);
    test_ok(k_cpu_ops()->logprobs(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static double log_sum(const struct logprob_case *at, uint32_t row)
{
    double sum = 0.0;
    for (uint32_t v = 0; v < at->vocab; v++) {
        sum += exp((double)k_f32_from_bf16(logits_at(at, row)[v]));
    }
    return log(sum);
}

static bool is_close(const struct logprob_case *at, uint32_t row, uint32_t token, float got)
{
    double exact = (double)k_f32_from_bf16(logits_at(at, row)[token]) - log_sum(at, row);
    return fabs((double)got - exact) <= SUM_ERROR + LAST_PLACE * fabs(exact);
}

/* The record with its log probabilities blanked: all else is compared by its bits, what was not
 * written included. */
static struct k_logprob blanked(const struct k_logprob *record)
{
    struct k_logprob out = *record;
    bool is_written = record->token != K_NONE;
    if (is_written) {
        out.logprob = 0.0F;
        for (uint32_t i = 0; i < record->pair_count && i < K_MAX_LOGPROBS; i++) {
            out.logprobs[i] = 0.0F;
        }
    }
    return out;
}

static bool agrees(const struct logprob_case *at, uint32_t row, const struct k_logprob *got)
{
    const struct k_logprob_row *wanted = wanted_at(at, row);
    const struct k_logprob *want = (const struct k_logprob *)at->records.host + wanted->record;
    const struct k_logprob got_blanked = blanked(got);
    const struct k_logprob want_blanked = blanked(want);
    unsigned char got_bits[sizeof(got_blanked)];
    unsigned char want_bits[sizeof(want_blanked)];
    memcpy(got_bits, &got_blanked, sizeof(got_bits));
    memcpy(want_bits, &want_blanked, sizeof(want_bits));
    if (memcmp(got_bits, want_bits, sizeof(got_bits)) != 0) {
        return false;
    }
    bool has_values = wanted->want != 0 && wanted->target != K_NONE;
    if (has_values && !is_close(at, row, got->token, got->logprob)) {
        return false;
    }
    /* One exact value is enough: the others differ from it by what bf16 logits differ by. */
    for (uint32_t i = 0; has_values && i < got->pair_count; i++) {
        double between = (double)k_f32_from_bf16(logits_at(at, row)[got->ids[i]]) -
                         (double)k_f32_from_bf16(logits_at(at, row)[got->token]);
        double found = (double)got->logprobs[i] - (double)got->logprob;
        if (!(fabs(found - between) <= 1e-5)) {
            return false;
        }
    }
    return true;
}

static void fail_record(const struct logprob_case *at, uint32_t row, const struct k_logprob *got,
                        const char *label)
{
    const struct k_logprob_row *wanted = wanted_at(at, row);
    const struct k_logprob *want = (const struct k_logprob *)at->records.host + wanted->record;
    uint32_t i = 0;
    while (i + 1 < K_MAX_LOGPROBS && got->ids[i] == want->ids[i] &&
           fabsf(got->logprobs[i] - want->logprobs[i]) < 1e-5F) {
        i++;
    }
    test_fail(__FILE__, __LINE__,
              "%s: row %u of %u, vocabulary %u, target %u, want %u: got token %u logprob %.9g rank "
              "%u pairs %u, twin token %u logprob %.9g rank %u pairs %u; pair %u got %u %.9g, twin "
              "%u %.9g",
              label, row, at->rows, at->vocab, wanted->target, wanted->want, got->token,
              (double)got->logprob, got->rank, got->pair_count, want->token, (double)want->logprob,
              want->rank, want->pair_count, i, got->ids[i], (double)got->logprobs[i], want->ids[i],
              (double)want->logprobs[i]);
}

static void check(const struct logprob_case *at, uint32_t rows, const char *label)
{
    struct k_logprob *got = twin_read(&at->records, at->records.bytes, label);
    run_twin(at, rows);
    for (uint32_t row = 0; row < at->rows; row++) {
        const struct k_logprob *record = got + wanted_at(at, row)->record;
        if (row < rows ? !agrees(at, row, record) : record->token != K_NONE) {
            fail_record(at, row, record, label);
        }
    }
    mem_free(got);
}

static void check_vocabulary(uint32_t vocab, const uint32_t *row_counts, uint32_t count_count)
{
    uint64_t random = SEED + vocab;
    struct cuda_rig rig;
    struct logprob_case at;
    open_rig(&rig, vocab, true);
    case_init(&at, vocab, row_counts[count_count - 1], &random);
    for (uint32_t i = 0; i < count_count; i++) {
        char label[LABEL_BYTES];
        (void)snprintf(label, sizeof(label), "logprobs of %u rows", row_counts[i]);
        want_at_random(&at, &random);
        twin_poison(&at.records);
        run_device(&rig, &at, row_counts[i]);
        cuda_rig_wait(&rig);
        check(&at, row_counts[i], label);
    }
    case_fini(&at);
    cuda_rig_close(&rig);
}

static void test_small_vocabularies(void)
{
    static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9, 10,
                                          11, 12, 13, 14, 15, 16, 17, 33, 64};
    static const uint32_t vocabs[] = {2048, 512, 1000, 1023, 1025, 31, 5};
    for (uint32_t i = 0; i < TWIN_COUNT_OF(vocabs); i++) {
        check_vocabulary(vocabs[i], row_counts, TWIN_COUNT_OF(row_counts));
    }
}

static void test_the_whole_vocabulary(void)
{
    static const uint32_t row_counts[] = {1, 3, 16, 33};
    check_vocabulary(262144, row_counts, cuda_rig_is_stand_in() ? 2 : 4);
}

/* A softmax so sharp that one token has it all, and one where all are equal: ties rank by id. */
static void test_sharp_and_flat_rows(void)
{
    enum {
        VOCAB = 3000,
        ROWS = 6
    };
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct logprob_case at;
    open_rig(&rig, VOCAB, true);
    case_init(&at, VOCAB, ROWS, &random);
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t v = 0; v < VOCAB; v++) {
            logits_at(&at, row)[v] =
                row % 2 == 0 ? k_bf16_from_f32(1.25F) : k_bf16_from_f32(v == 2222 ? 30.0F : -30.0F);
        }
        *wanted_at(&at, row) =
            (struct k_logprob_row){.target = row < 2 ? 2222 : 7 * row, .want = 21, .record = row};
    }
    twin_write(&at.logits);
    twin_write(&at.wanted);
    twin_poison(&at.records);
    run_device(&rig, &at, ROWS);
    cuda_rig_wait(&rig);
    check(&at, ROWS, "sharp and flat");
    struct k_logprob *got = twin_read(&at.records, at.records.bytes, "sharp and flat");
    test_eq_u64(got[0].rank, 2223);
    test_eq_u64(got[1].rank, 1);
    test_eq_u64(got[2].ids[19], 19);
    mem_free(got);
    case_fini(&at);
    cuda_rig_close(&rig);
}

/* The same record to the bit, at every place of batches of every size. */
static void test_a_row_is_the_same_in_every_batch(void)
{
    enum {
        VOCAB = 5000
    };
    uint64_t random = SEED + 1;
    struct cuda_rig rig;
    struct logprob_case source;
    struct k_logprob alone = {0};
    open_rig(&rig, VOCAB, true);
    case_init(&source, VOCAB, 1, &random);
    *wanted_at(&source, 0) = (struct k_logprob_row){.target = 1234, .want = 21, .record = 0};
    for (uint32_t rows = 1; rows <= 33; rows += rows < 17 ? 1 : 16) {
        struct logprob_case at;
        uint32_t place = (rows * 5 + 2) % rows;
        case_init(&at, VOCAB, rows, &random);
        memcpy(logits_at(&at, place), source.logits.host, source.logits.bytes);
        *wanted_at(&at, place) = *wanted_at(&source, 0);
        wanted_at(&at, place)->record = at.rows - 1 - place;
        twin_write(&at.logits);
        twin_write(&at.wanted);
        run_device(&rig, &at, rows);
        cuda_rig_wait(&rig);
        struct k_logprob *got = twin_read(&at.records, at.records.bytes, "a canary");
        const struct k_logprob *own = got + wanted_at(&at, place)->record;
        alone = rows == 1 ? *own : alone;
        twin_check_equal("a canary", own, &alone, 1, sizeof(alone));
        if (rows == 1) {
            check(&at, rows, "the canary alone");
        }
        mem_free(got);
        case_fini(&at);
    }
    case_fini(&source);
    cuda_rig_close(&rig);
}

struct recording {
    struct cuda_rig *rig;
    const struct logprob_case *at;
};

static void record(void *context)
{
    const struct recording *recording = context;
    run_device(recording->rig, recording->at, recording->at->rows);
}

/* Captured where every row may ask; replayed where others do. */
static void test_a_graph_of_a_bucket(void)
{
    static const uint32_t row_counts[] = {1, 8, 16};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(row_counts); i++) {
        uint64_t random = SEED + 2;
        struct cuda_rig rig;
        struct logprob_case at;
        open_rig(&rig, 2048, i % 2 == 0);
        case_init(&at, 2048, row_counts[i / 2], &random);
        struct recording recording = {&rig, &at};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < 3; turn++) {
            want_at_random(&at, &random);
            wanted_at(&at, at.rows - 1)->want = turn + 2;
            wanted_at(&at, at.rows - 1)->target = turn;
            twin_write(&at.wanted);
            twin_poison(&at.records);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            check(&at, at.rows, "a graph");
        }
        cuda_rig_graph_free(graph);
        case_fini(&at);
        cuda_rig_close(&rig);
    }
}

/* One change to a record that was right, each of which must be seen. */
static void test_planted_errors_are_seen(void)
{
    uint64_t random = SEED + 3;
    struct cuda_rig rig;
    struct logprob_case at;
    open_rig(&rig, 1000, true);
    case_init(&at, 1000, 1, &random);
    *wanted_at(&at, 0) = (struct k_logprob_row){.target = 77, .want = 6, .record = 0};
    twin_write(&at.wanted);
    run_device(&rig, &at, 1);
    cuda_rig_wait(&rig);
    struct k_logprob *got = twin_read(&at.records, at.records.bytes, "planted");
    run_twin(&at, 1);
    test_true(agrees(&at, 0, got));
    for (uint32_t change = 0; change < 7; change++) {
        struct k_logprob planted = *got;
        planted.token += change == 0 ? 1 : 0;
        planted.logprob += change == 1 ? 5e-5F : 0.0F;
        planted.rank -= change == 2 ? 1 : 0;
        planted.pair_count -= change == 3 ? 1 : 0;
        planted.ids[4] ^= change == 4 ? 1 : 0;
        planted.logprobs[4] += change == 5 ? 1e-4F : 0.0F;
        planted.ids[5] = change == 6 ? 0 : planted.ids[5]; /* beyond the pairs */
        test_true(!agrees(&at, 0, &planted));
    }
    mem_free(got);
    case_fini(&at);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_small_vocabularies),  TEST(test_the_whole_vocabulary),
    TEST(test_sharp_and_flat_rows), TEST(test_a_row_is_the_same_in_every_batch),
    TEST(test_a_graph_of_a_bucket), TEST(test_planted_errors_are_seen),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
