#include "worker/record.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file.h"
#include "common/mem.h"
#include "proto/hello.h"
#include "proto/limits.h"
#include "worker/session.h"

enum {
    LINE_BYTES = 512,
    PATH_BYTES = 4096
};

struct entry_bytes {
    uint32_t kind;
    uint32_t byte_count;
    uint64_t time_ns;
    uint64_t epoch;
    uint64_t answers;
};

_Static_assert(sizeof(struct entry_bytes) == 32, "layout of the file");

struct record_writer {
    FILE *file;
    uint64_t start_ns;
    int errno_value; /* of the first failed write */
};

struct record_reader {
    FILE *file;
    unsigned char *bytes; /* owned, of the last entry */
};

uint64_t record_answers(const struct session_stats *stats)
{
    return stats->steps + stats->steps_failed + stats->plans_refused;
}

/* ---- writing ---- */

static void put(struct record_writer *writer, const void *bytes, size_t byte_count)
{
    if (writer->errno_value == 0 && fwrite(bytes, 1, byte_count, writer->file) != byte_count) {
        writer->errno_value = errno;
    }
}

static enum err_code path_failed(const char *path, int errno_value, struct err *err)
{
    enum err_code code = file_open_code(errno_value);
    if (code == ERR_SYSTEM) {
        return err_errno(err, errno_value, "record '%s'", path);
    }
    return err_set(err, code, "record '%s': %s", path, strerrordesc_np(errno_value));
}

/* What made the last worker fail is what a restarted one must not overwrite. */
static enum err_code keep_earlier(const char *path, struct err *err)
{
    struct stat info;
    char old_path[PATH_BYTES];
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
        return ERR_OK; /* a path that cannot be used is the opening's to tell */
    }
    if (snprintf(old_path, sizeof(old_path), "%s.old", path) >= (int)sizeof(old_path)) {
        return err_set(err, ERR_LIMIT, "record '%s' has %zu bytes, at most %d", path, strlen(path),
                       PATH_BYTES - 5);
    }
    return rename(path, old_path) == 0 ? ERR_OK : path_failed(path, errno, err);
}

enum err_code record_writer_open(const char *path, const struct record_header *header,
                                 uint64_t now_ns, struct record_writer **out_writer,
                                 struct err *err)
{
    enum err_code kept = keep_earlier(path, err);
    if (kept != ERR_OK) {
        return kept;
    }
    FILE *file = fopen(path, "wbe");
    if (file == NULL) {
        return path_failed(path, errno, err);
    }
    struct record_writer *writer = mem_zalloc(1, sizeof(*writer));
    writer->file = file;
    writer->start_ns = now_ns;
    (void)fprintf(file,
                  "bezel-record 1 table_hash=%016" PRIx64
                  " vocab_tokens=%u page_tokens=%u max_step_tokens=%u model=%s\n",
                  header->table_hash, header->vocab_tokens, header->page_tokens,
                  header->max_step_tokens, header->model); /* the flush below says */
    if (fflush(file) != 0) {
        int errno_value = errno;
        (void)fclose(file);
        mem_free(writer);
        return err_errno(err, errno_value, "record '%s'", path);
    }
    *out_writer = writer;
    return ERR_OK;
}

void record_write(struct record_writer *writer, const struct record_entry *entry)
{
    const struct entry_bytes head = {
        .kind = htole32((uint32_t)entry->kind),
        .byte_count = htole32(entry->byte_count),
        .time_ns = htole64(entry->time_ns - writer->start_ns),
        .epoch = htole64(entry->epoch),
        .answers = htole64(entry->answers),
    };
    put(writer, &head, sizeof(head));
    if (entry->byte_count > 0) {
        put(writer, entry->bytes, entry->byte_count);
    }
}

void record_flush(struct record_writer *writer)
{
    if (fflush(writer->file) != 0 && writer->errno_value == 0) {
        writer->errno_value = errno;
    }
}

enum err_code record_writer_close(struct record_writer *writer, struct err *err)
{
    if (writer == NULL) {
        return ERR_OK;
    }
    record_flush(writer);
    int errno_value = writer->errno_value;
    if (fclose(writer->file) != 0 && errno_value == 0) {
        errno_value = errno;
    }
    mem_free(writer);
    return errno_value == 0 ? ERR_OK : err_errno(err, errno_value, "record is incomplete");
}

/* ---- reading ---- */

static enum err_code parse_header(const char *path, const char *line,
                                  struct record_header *out_header, struct err *err)
{
    struct record_header header = {0};
    unsigned version = 0;
    int found = sscanf(line, /* NOLINT(cert-err34-c): the count is checked, values are compared */
                       "bezel-record %9u table_hash=%16" SCNx64
                       " vocab_tokens=%9u page_tokens=%9u max_step_tokens=%9u model=%255[^\n]",
                       &version, &header.table_hash, &header.vocab_tokens, &header.page_tokens,
                       &header.max_step_tokens, header.model);
    if (found < 6 || version != 1) {
        return err_set(err, ERR_FORMAT, "'%s' is no plan record of version 1", path);
    }
    if (header.table_hash != hello_table_hash()) {
        return err_set(err, ERR_PROTOCOL,
                       "'%s' has message tables %016" PRIx64 ", this worker %016" PRIx64, path,
                       header.table_hash, hello_table_hash());
    }
    *out_header = header;
    return ERR_OK;
}

enum err_code record_reader_open(const char *path, struct record_header *out_header,
                                 struct record_reader **out_reader, struct err *err)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return err_errno(err, errno, "record '%s'", path);
    }
    char line[LINE_BYTES] = {0};
    enum err_code code = ERR_OK;
    if (fgets(line, sizeof(line), file) == NULL || strchr(line, '\n') == NULL) {
        code = err_set(err, ERR_FORMAT, "'%s' is no plan record of version 1", path);
    } else {
        code = parse_header(path, line, out_header, err);
    }
    if (code != ERR_OK) {
        (void)fclose(file); /* read only */
        return code;
    }
    struct record_reader *reader = mem_zalloc(1, sizeof(*reader));
    reader->file = file;
    *out_reader = reader;
    return ERR_OK;
}

void record_reader_close(struct record_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    (void)fclose(reader->file); /* read only */
    mem_free(reader->bytes);
    mem_free(reader);
}

static enum err_code bad_entry(const struct record_reader *reader, const char *what,
                               struct err *err)
{
    return err_set(err, ERR_FORMAT, "record, byte %ld: %s", ftell(reader->file), what);
}

enum err_code record_read(struct record_reader *reader, struct record_entry *out_entry,
                          bool *out_is_end, struct err *err)
{
    struct entry_bytes head;
    size_t got_bytes = fread(&head, 1, sizeof(head), reader->file);
    if (ferror(reader->file)) {
        return err_errno(err, errno, "record");
    }
    *out_is_end = got_bytes == 0;
    if (got_bytes == 0) {
        return ERR_OK;
    }
    uint32_t kind = le32toh(head.kind);
    uint32_t byte_count = le32toh(head.byte_count);
    if (got_bytes < sizeof(head) || kind < RECORD_OPEN || kind > RECORD_CLOSE ||
        byte_count > PLAN_MAX_MESSAGE_BYTES || (kind != RECORD_MESSAGE && byte_count > 0)) {
        return bad_entry(reader, "damaged entry", err);
    }
    /* The entry's own size: a read past it is then seen by a sanitizer. */
    mem_free(reader->bytes);
    reader->bytes = mem_zalloc(byte_count, 1);
    if (fread(reader->bytes, 1, byte_count, reader->file) != byte_count) {
        return bad_entry(reader, "the file ends within an entry", err);
    }
    *out_entry = (struct record_entry){
        .kind = (enum record_kind)kind,
        .time_ns = le64toh(head.time_ns),
        .epoch = le64toh(head.epoch),
        .answers = le64toh(head.answers),
        .bytes = reader->bytes,
        .byte_count = byte_count,
    };
    return ERR_OK;
}
