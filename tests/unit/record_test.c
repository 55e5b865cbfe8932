#include "worker/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/hello.h"
#include "tests/testlib/test.h"

static void write_three(const char *path)
{
    struct record_header header = {.table_hash = hello_table_hash(),
                                   .vocab_tokens = 2048,
                                   .page_tokens = 64,
                                   .max_step_tokens = 512,
                                   .model = "a model"};
    struct record_writer *writer = NULL;
    struct err err;
    test_ok(record_writer_open(path, &header, 1000, &writer, &err), &err);
    const struct record_entry entries[] = {
        {.kind = RECORD_OPEN, .time_ns = 1500, .epoch = 9},
        {.kind = RECORD_MESSAGE,
         .time_ns = 2000,
         .epoch = 9,
         .answers = 3,
         .bytes = "bytes",
         .byte_count = 5},
        {.kind = RECORD_CLOSE, .time_ns = 3000, .epoch = 9, .answers = 4},
    };
    for (size_t i = 0; i < 3; i++) {
        record_write(writer, &entries[i]);
    }
    test_ok(record_writer_close(writer, &err), &err);
}

static void test_what_is_written_is_read(void)
{
    char path[] = "/tmp/bezel-record-XXXXXX";
    int fd = mkstemp(path);
    test_true(fd >= 0);
    (void)close(fd);
    write_three(path);
    struct record_reader *reader = NULL;
    struct record_header header;
    struct record_entry entry;
    bool is_end = false;
    struct err err;
    test_ok(record_reader_open(path, &header, &reader, &err), &err);
    test_eq_u64(header.vocab_tokens, 2048);
    test_eq_u64(header.max_step_tokens, 512);
    test_eq_str(header.model, "a model");
    test_ok(record_read(reader, &entry, &is_end, &err), &err);
    test_eq_u64(entry.kind, RECORD_OPEN);
    test_eq_u64(entry.time_ns, 500);
    test_ok(record_read(reader, &entry, &is_end, &err), &err);
    test_eq_u64(entry.kind, RECORD_MESSAGE);
    test_eq_u64(entry.epoch, 9);
    test_eq_u64(entry.answers, 3);
    test_true(entry.byte_count == 5 && memcmp(entry.bytes, "bytes", 5) == 0);
    test_ok(record_read(reader, &entry, &is_end, &err), &err);
    test_eq_u64(entry.kind, RECORD_CLOSE);
    test_true(!is_end);
    test_ok(record_read(reader, &entry, &is_end, &err), &err);
    test_true(is_end);
    record_reader_close(reader);
    (void)remove(path);
}

/* Every cut of the file: read to the end of some entry, or an error; never more. */
static void test_cut_files_are_errors(void)
{
    char path[] = "/tmp/bezel-record-XXXXXX";
    int fd = mkstemp(path);
    test_true(fd >= 0);
    write_three(path);
    off_t whole = lseek(fd, 0, SEEK_END);
    for (off_t cut = whole; cut-- > 0;) {
        test_true(ftruncate(fd, cut) == 0);
        struct record_reader *reader = NULL;
        struct record_header header;
        struct record_entry entry;
        struct err err;
        bool is_end = false;
        uint32_t count = 0;
        enum err_code code = record_reader_open(path, &header, &reader, &err);
        while (code == ERR_OK && !is_end) {
            code = record_read(reader, &entry, &is_end, &err);
            count += code == ERR_OK && !is_end;
        }
        test_true(count < 3);
        test_true(code == ERR_OK || code == ERR_FORMAT);
        record_reader_close(reader);
    }
    (void)close(fd);
    (void)remove(path);
}

static uint64_t bytes_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static void test_an_earlier_record_is_kept(void)
{
    char path[] = "/tmp/bezel-record-XXXXXX";
    char old_path[sizeof(path) + 4];
    int fd = mkstemp(path);
    test_true(fd >= 0 && write(fd, "earlier", 7) == 7);
    (void)close(fd);
    (void)snprintf(old_path, sizeof(old_path), "%s.old", path);
    write_three(path);
    test_eq_u64(bytes_of(old_path), 7);
    uint64_t record_bytes = bytes_of(path);
    test_true(record_bytes > 7);
    write_three(path);
    test_eq_u64(bytes_of(old_path), record_bytes);
    test_eq_u64(bytes_of(path), record_bytes);
    (void)remove(path);
    (void)remove(old_path);
}

static void test_a_full_disk_is_reported_at_the_end(void)
{
    struct record_header header = {.table_hash = 1};
    struct record_writer *writer = NULL;
    struct err err;
    enum err_code code = record_writer_open("/dev/full", &header, 0, &writer, &err);
    test_eq_u64(code, ERR_SYSTEM);
    test_true(strstr(err.message, "No space left") != NULL);
}

static const struct test_case cases[] = {
    TEST(test_what_is_written_is_read),
    TEST(test_cut_files_are_errors),
    TEST(test_an_earlier_record_is_kept),
    TEST(test_a_full_disk_is_reported_at_the_end),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
