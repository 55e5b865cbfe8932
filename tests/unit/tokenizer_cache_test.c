/* The compiled cache: damage is found, other files are noticed, writers may race. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <dirent.h>

#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/tokenizer.h"
#include "tests/testlib/test.h"

#define SAMPLE_TEXT "c\nd\nThe cat <|turn> sat, \u4f60\u597d on a mat.\n\n\n"

/* A folder with a copy of the demo tokenizer and a cache folder inside. */
struct place {
    char dir[48];
    char source[80];
    char cache_dir[80];
    char cache_path[400]; /* the one file in it, once there */
};

static void read_file(const char *path, struct buf *out)
{
    FILE *file = fopen(path, "rb");
    test_true(file != NULL);
    char chunk[8192];
    size_t got = 0;
    buf_reset(out);
    while ((got = fread(chunk, 1, sizeof(chunk), file)) > 0) {
        buf_append(out, chunk, got);
    }
    (void)fclose(file); /* only read */
}

static void write_file(const char *path, const struct buf *bytes)
{
    FILE *file = fopen(path, "wb");
    test_true(file != NULL && fwrite(bytes->at, 1, bytes->used_bytes, file) == bytes->used_bytes);
    test_true(fclose(file) == 0);
}

static void place_make(struct place *place)
{
    struct buf bytes;
    *place = (struct place){0};
    (void)snprintf(place->dir, sizeof(place->dir), "/tmp/tokenizer_cache_test.XXXXXX");
    test_true(mkdtemp(place->dir) != NULL);
    (void)snprintf(place->source, sizeof(place->source), "%s/tokenizer.json", place->dir);
    (void)snprintf(place->cache_dir, sizeof(place->cache_dir), "%s/cache", place->dir);
    buf_init(&bytes);
    read_file(TEST_DEMO_MODEL_DIR "/tokenizer.json", &bytes);
    write_file(place->source, &bytes);
    buf_fini(&bytes);
}

/* Files in the cache folder; remembers the last one's path. */
static size_t count_files(struct place *place)
{
    struct dirent **entries = NULL;
    int entry_count = scandir(place->cache_dir, &entries, NULL, alphasort);
    size_t count = 0;
    for (int i = 0; i < entry_count; i++) {
        if (entries[i]->d_name[0] != '.') {
            (void)snprintf(place->cache_path, sizeof(place->cache_path), "%s/%s", place->cache_dir,
                           entries[i]->d_name);
            count++;
        }
        free(entries[i]);
    }
    free(entries);
    return count;
}

static void place_remove(struct place *place)
{
    while (count_files(place) > 0) {
        test_true(unlink(place->cache_path) == 0);
    }
    (void)rmdir(place->cache_dir); /* a test may not have made it */
    test_true(unlink(place->source) == 0 && rmdir(place->dir) == 0);
}

static void load_ids(const struct place *place, const char *cache_dir, struct tok_ids *ids)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    test_ok(tok_load(place->source, cache_dir, &tokenizer, &err), &err);
    ids->count = 0;
    tok_encode(tokenizer, SAMPLE_TEXT, strlen(SAMPLE_TEXT), TOK_SPECIAL_PARSE, ids);
    tok_destroy(tokenizer);
}

static void check_load(const struct place *place, const struct tok_ids *want)
{
    struct tok_ids got = {0};
    load_ids(place, place->cache_dir, &got);
    test_eq_u64(got.count, want->count);
    test_true(memcmp(got.at, want->at, got.count * sizeof(*got.at)) == 0);
    tok_ids_fini(&got);
}

static void test_cache_is_written_and_read(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct stat status;
    place_make(&place);
    load_ids(&place, NULL, &want);
    check_load(&place, &want);
    test_eq_u64(count_files(&place), 1);
    test_true(stat(place.cache_path, &status) == 0);
    test_eq_u64(status.st_mode & 07777, 0600);
    test_true(stat(place.cache_dir, &status) == 0);
    test_eq_u64(status.st_mode & 07777, 0700);
    check_load(&place, &want);
    test_eq_u64(count_files(&place), 1);
    tok_ids_fini(&want);
    place_remove(&place);
}

/* A damaged file is not used, and replaced by a sound one. */
static void check_damaged(struct place *place, const struct buf *damaged, const struct buf *sound,
                          const struct tok_ids *want)
{
    struct buf after;
    buf_init(&after);
    write_file(place->cache_path, damaged);
    check_load(place, want);
    read_file(place->cache_path, &after);
    test_eq_u64(after.used_bytes, sound->used_bytes);
    /* Behind the header, which holds times, the bytes are those of the first writing. */
    test_true(memcmp(after.at + 512, sound->at + 512, sound->used_bytes - 512) == 0);
    buf_fini(&after);
}

static void test_damage_is_found(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct buf sound;
    uint64_t state = 3;
    place_make(&place);
    load_ids(&place, place.cache_dir, &want);
    test_eq_u64(count_files(&place), 1);
    buf_init(&sound);
    read_file(place.cache_path, &sound);
    /* Every byte of the header, and bytes from everywhere. */
    for (size_t i = 0; i < 700; i++) {
        struct buf damaged;
        size_t at = i < 400 ? i : test_random(&state) % sound.used_bytes;
        buf_init(&damaged);
        buf_append(&damaged, sound.at, sound.used_bytes);
        damaged.at[at] = (char)(damaged.at[at] ^ (1 << test_random(&state) % 8));
        check_damaged(&place, &damaged, &sound, &want);
        buf_fini(&damaged);
    }
    static const size_t lengths[] = {0, 1, 100, 500, 4096, 100000};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct buf damaged;
        buf_init(&damaged);
        buf_append(&damaged, sound.at, lengths[i]);
        check_damaged(&place, &damaged, &sound, &want);
        buf_reset(&damaged);
        buf_append(&damaged, sound.at, sound.used_bytes);
        buf_append(&damaged, sound.at, lengths[i]);
        check_damaged(&place, &damaged, &sound, &want);
        buf_fini(&damaged);
    }
    buf_fini(&sound);
    tok_ids_fini(&want);
    place_remove(&place);
}

/* Same size, same modification time, other content. */
static void test_another_file_is_noticed(void)
{
    struct place place;
    struct tok_ids before = {0};
    struct tok_ids after = {0};
    struct tok_ids want = {0};
    struct stat status;
    struct buf bytes;
    place_make(&place);
    load_ids(&place, place.cache_dir, &before);
    test_true(stat(place.source, &status) == 0);
    buf_init(&bytes);
    read_file(place.source, &bytes);
    char *first = strstr(bytes.at, "\"c\":");
    char *second = strstr(bytes.at, "\"d\":");
    test_true(first != NULL && second != NULL);
    first[1] = 'd';
    second[1] = 'c';
    write_file(place.source, &bytes);
    const struct timespec times[2] = {status.st_atim, status.st_mtim};
    test_true(utimensat(AT_FDCWD, place.source, times, 0) == 0);
    load_ids(&place, place.cache_dir, &after);
    load_ids(&place, NULL, &want);
    test_eq_u64(after.count, want.count);
    test_true(memcmp(after.at, want.at, want.count * sizeof(*want.at)) == 0);
    test_true(after.count != before.count ||
              memcmp(after.at, before.at, after.count * sizeof(*after.at)) != 0);
    buf_fini(&bytes);
    tok_ids_fini(&want);
    tok_ids_fini(&after);
    tok_ids_fini(&before);
    place_remove(&place);
}

/* The same bytes in a file with other times: taken over, and the times noted. */
static void test_a_touched_file_is_known_again(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct buf before;
    struct buf after;
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    place_make(&place);
    load_ids(&place, place.cache_dir, &want);
    test_eq_u64(count_files(&place), 1);
    buf_init(&before);
    buf_init(&after);
    read_file(place.cache_path, &before);
    test_true(utimensat(AT_FDCWD, place.source, times, 0) == 0);
    check_load(&place, &want);
    read_file(place.cache_path, &after);
    test_eq_u64(after.used_bytes, before.used_bytes);
    test_true(memcmp(after.at, before.at, after.used_bytes) != 0);
    buf_fini(&after);
    buf_fini(&before);
    tok_ids_fini(&want);
    place_remove(&place);
}

static void test_folder_that_others_can_write(void)
{
    struct place place;
    struct tok_ids want = {0};
    place_make(&place);
    load_ids(&place, NULL, &want);
    test_true(mkdir(place.cache_dir, 0700) == 0 && chmod(place.cache_dir, 0777) == 0);
    check_load(&place, &want);
    test_eq_u64(count_files(&place), 0);
    tok_ids_fini(&want);
    place_remove(&place);
}

static void test_file_that_others_can_write(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct stat status;
    place_make(&place);
    load_ids(&place, place.cache_dir, &want);
    test_eq_u64(count_files(&place), 1);
    test_true(chmod(place.cache_path, 0666) == 0);
    check_load(&place, &want);
    test_eq_u64(count_files(&place), 1);
    test_true(stat(place.cache_path, &status) == 0);
    test_eq_u64(status.st_mode & 07777, 0600);
    tok_ids_fini(&want);
    place_remove(&place);
}

static void test_link_is_not_followed(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct stat status;
    place_make(&place);
    load_ids(&place, place.cache_dir, &want);
    test_eq_u64(count_files(&place), 1);
    test_true(unlink(place.cache_path) == 0 && symlink(place.source, place.cache_path) == 0);
    check_load(&place, &want);
    test_true(lstat(place.cache_path, &status) == 0 && S_ISREG(status.st_mode));
    check_load(&place, &want);
    tok_ids_fini(&want);
    place_remove(&place);
}

static void test_unusable_folder_is_no_error(void)
{
    struct place place;
    struct tok_ids want = {0};
    struct tok_ids got = {0};
    place_make(&place);
    load_ids(&place, NULL, &want);
    load_ids(&place, place.source, &got); /* a file, not a folder */
    test_eq_u64(got.count, want.count);
    load_ids(&place, "/no/such/folder/at/all", &got);
    test_eq_u64(got.count, want.count);
    tok_ids_fini(&got);
    tok_ids_fini(&want);
    place_remove(&place);
}

/* One process of the race: removes the cache now and then, loads, compares. */
static int racer(struct place *place, const struct tok_ids *want, uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < 15; i++) {
        struct tokenizer *tokenizer = NULL;
        struct tok_ids got = {0};
        struct err err = {0};
        if (test_random(&state) % 3 == 0 && count_files(place) > 0 &&
            unlink(place->cache_path) != 0 && errno != ENOENT) {
            return EXIT_FAILURE;
        }
        if (tok_load(place->source, place->cache_dir, &tokenizer, &err) != ERR_OK) {
            return EXIT_FAILURE;
        }
        tok_encode(tokenizer, SAMPLE_TEXT, strlen(SAMPLE_TEXT), TOK_SPECIAL_PARSE, &got);
        bool is_same =
            got.count == want->count && memcmp(got.at, want->at, got.count * sizeof(*got.at)) == 0;
        tok_ids_fini(&got);
        tok_destroy(tokenizer);
        if (!is_same) {
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

static void test_writers_race(void)
{
    enum {
        RACER_COUNT = 6
    };
    struct place place;
    struct tok_ids want = {0};
    pid_t children[RACER_COUNT];
    place_make(&place);
    load_ids(&place, NULL, &want);
    for (int i = 0; i < RACER_COUNT; i++) {
        children[i] = fork();
        test_true(children[i] >= 0);
        if (children[i] == 0) {
            _exit(racer(&place, &want, (uint64_t)i));
        }
    }
    for (int i = 0; i < RACER_COUNT; i++) {
        int status = 0;
        test_true(waitpid(children[i], &status, 0) == children[i]);
        test_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    check_load(&place, &want);
    test_eq_u64(count_files(&place), 1);
    check_load(&place, &want);
    tok_ids_fini(&want);
    place_remove(&place);
}

static double thread_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The promises for the official file, in processor time: a busy machine does not break them. */
static void test_official_file_times(void)
{
    enum {
        TEXT_BYTES = 4 << 20
    };
    struct place place;
    struct err err = {0};
    if (!test_times_count()) {
        test_skip("limits on time hold with --times");
    }
    place_make(&place);
    for (int round = 0; round < 2; round++) {
        struct tokenizer *tokenizer = NULL;
        double start_s = thread_seconds();
        test_ok(tok_load(TEST_OFFICIAL_TOKENIZER, place.cache_dir, &tokenizer, &err), &err);
        double load_s = thread_seconds() - start_s;
        (void)printf("load %d: %.0f ms\n", round + 1, load_s * 1e3);
        test_true(load_s < (round == 0 ? 2.0 : 0.1));
        if (round == 1) {
            char *text = mem_zalloc(TEXT_BYTES, 1);
            struct tok_ids ids = {0};
            memset(text, 'a', TEXT_BYTES);
            start_s = thread_seconds();
            tok_encode(tokenizer, text, TEXT_BYTES, TOK_SPECIAL_AS_TEXT, &ids);
            double encode_s = thread_seconds() - start_s;
            (void)printf("4 MB of one letter: %.0f ms\n", encode_s * 1e3);
            test_true(TEXT_BYTES / encode_s > 5e6);
            tok_ids_fini(&ids);
            mem_free(text);
        }
        tok_destroy(tokenizer);
    }
    place_remove(&place);
}

static const struct test_case cases[] = {
    TEST(test_cache_is_written_and_read),
    TEST(test_damage_is_found),
    TEST(test_another_file_is_noticed),
    TEST(test_a_touched_file_is_known_again),
    TEST(test_folder_that_others_can_write),
    TEST(test_file_that_others_can_write),
    TEST(test_link_is_not_followed),
    TEST(test_unusable_folder_is_no_error),
    TEST(test_writers_race),
    TEST(test_official_file_times),
};

int main(int argc, char **argv)
{
    log_init("tokenizer_cache_test", LOG_LEVEL_ERROR);
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
