/* A recorded plan stream: what --record writes and --replay reads.
 *
 * File: one line of text
 *   bezel-record 1 table_hash=HEX vocab_tokens=N page_tokens=N max_step_tokens=N model=NAME\n
 * then entries of 32 bytes (little endian) and their payload:
 *   u32 kind (enum record_kind), u32 payload bytes, u64 ns since the start, u64 epoch,
 *   u64 answers (steps committed, failed or refused by then: the sender has seen these at most)
 * A MESSAGE's payload is the message as it came off the plan socket, undecodable ones included. */
#ifndef WORKER_RECORD_H
#define WORKER_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum record_kind {
    RECORD_OPEN = 1,
    RECORD_MESSAGE = 2,
    RECORD_CLOSE = 3,
};

struct record_header {
    uint64_t table_hash;
    uint32_t vocab_tokens;
    uint32_t page_tokens;
    uint32_t max_step_tokens;
    char model[256];
};

struct record_entry {
    enum record_kind kind;
    uint64_t time_ns; /* since the first entry could be written */
    uint64_t epoch;
    uint64_t answers;  /* record_answers of the moment */
    const void *bytes; /* of a MESSAGE; borrowed from the reader until the next entry */
    uint32_t byte_count;
};

struct session_stats;
/* Steps committed, failed or refused so far. */
uint64_t record_answers(const struct session_stats *stats);

/* Writer.  One thread; a failed write is remembered and reported by record_writer_close. */
struct record_writer;

/* A file that is at path already, and not empty, becomes path.old.
 * Errors: ERR_SYSTEM, ERR_NOT_FOUND, ERR_CONFIG (path at fault), ERR_LIMIT (path too long). */
ERR_NODISCARD enum err_code record_writer_open(const char *path, const struct record_header *header,
                                               uint64_t now_ns, struct record_writer **out_writer,
                                               struct err *err);
/* entry->time_ns is a time of the monotonic clock here. */
void record_write(struct record_writer *writer, const struct record_entry *entry);
void record_flush(struct record_writer *writer);
/* Null is fine.  Errors: ERR_SYSTEM (some write failed). */
ERR_NODISCARD enum err_code record_writer_close(struct record_writer *writer, struct err *err);

struct record_reader;

/* Errors: ERR_SYSTEM, ERR_FORMAT (not a record), ERR_PROTOCOL (of another build; names both hashes). */
ERR_NODISCARD enum err_code record_reader_open(const char *path, struct record_header *out_header,
                                               struct record_reader **out_reader, struct err *err);
void record_reader_close(struct record_reader *reader); /* null is fine */

/* *out_is_end at the end of the file.  Errors: ERR_FORMAT (cut or damaged; names the byte),
 * ERR_SYSTEM. */
ERR_NODISCARD enum err_code record_read(struct record_reader *reader,
                                        struct record_entry *out_entry, bool *out_is_end,
                                        struct err *err);

#endif
