#include "tests/testlib/st_writer.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "tests/testlib/test.h"

void st_writer_init(struct st_writer *writer)
{
    buf_init(&writer->header);
    buf_init(&writer->data);
}

void st_writer_fini(struct st_writer *writer)
{
    buf_fini(&writer->header);
    buf_fini(&writer->data);
}

void st_writer_add(struct st_writer *writer, const char *name, const char *dtype, const char *shape,
                   const void *bytes, size_t byte_count)
{
    size_t begin = writer->data.used_bytes;
    buf_append_char(&writer->header, writer->header.used_bytes == 0 ? '{' : ',');
    json_put_text(&writer->header, name, strlen(name));
    buf_printf(&writer->header, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
               dtype, shape, begin, begin + byte_count);
    if (bytes != NULL) {
        buf_append(&writer->data, bytes, byte_count);
        return;
    }
    for (size_t i = 0; i < byte_count; i++) {
        buf_append_char(&writer->data, (char)((begin + i) * 37 % 251));
    }
}

static void append_length(struct buf *out, size_t header_bytes)
{
    for (int i = 0; i < 8; i++) {
        buf_append_char(out, (char)(header_bytes >> (8 * i)));
    }
}

void st_writer_finish(const struct st_writer *writer, struct buf *out)
{
    const char *opening = writer->header.used_bytes == 0 ? "{" : "";
    append_length(out, writer->header.used_bytes + strlen(opening) + 1);
    buf_append_text(out, opening);
    buf_append(out, buf_text(&writer->header), writer->header.used_bytes);
    buf_append_char(out, '}');
    buf_append(out, buf_text(&writer->data), writer->data.used_bytes);
}

void st_write_file(const char *path, const struct buf *bytes)
{
    FILE *file = fopen(path, "wb");
    test_true(file != NULL);
    size_t written = fwrite(buf_text(bytes), 1, bytes->used_bytes, file);
    test_true(fclose(file) == 0 && written == bytes->used_bytes);
}

void st_writer_save(const struct st_writer *writer, const char *path)
{
    struct buf bytes;
    buf_init(&bytes);
    st_writer_finish(writer, &bytes);
    st_write_file(path, &bytes);
    buf_fini(&bytes);
}

void st_dir_make(char out_dir[ST_DIR_BYTES])
{
    (void)snprintf(out_dir, ST_DIR_BYTES, "/tmp/bezel_test_XXXXXX");
    test_true(mkdtemp(out_dir) != NULL);
}

static int is_file(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

void st_dir_remove(const char *dir)
{
    struct dirent **entries = NULL;
    int count = scandir(dir, &entries, is_file, NULL);
    test_true(count >= 0);
    for (int i = 0; i < count; i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, entries[i]->d_name);
        test_true(unlink(path) == 0);
        free(entries[i]);
    }
    free(entries);
    test_true(rmdir(dir) == 0);
}
