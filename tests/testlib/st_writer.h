/* Writes small safetensors files, right and wrong ones, for tests. */
#ifndef TESTS_TESTLIB_ST_WRITER_H
#define TESTS_TESTLIB_ST_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

/* Tensors are added one after the other; the header is built beside the data. */
struct st_writer {
    struct buf header; /* JSON, without the closing brace */
    struct buf data;
};

void st_writer_init(struct st_writer *writer);
void st_writer_fini(struct st_writer *writer);

/* Appends a tensor; shape is JSON ("[2, 8]").  bytes null: byte_count bytes that differ from place
 * to place. */
void st_writer_add(struct st_writer *writer, const char *name, const char *dtype, const char *shape,
                   const void *bytes, size_t byte_count);

/* The file's bytes into out. */
void st_writer_finish(const struct st_writer *writer, struct buf *out);

void st_write_file(const char *path, const struct buf *bytes);
void st_writer_save(const struct st_writer *writer, const char *path);

/* A fresh folder below /tmp, its path into out_dir; dir_remove deletes it with its plain files. */
#define ST_DIR_BYTES 64
void st_dir_make(char out_dir[ST_DIR_BYTES]);
void st_dir_remove(const char *dir);

#endif
