/* A whole JSON file, bounded in size before it is read. */
#include <errno.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"

static enum err_code read_all(int fd, char *at, size_t byte_count, const char *path,
                              struct err *err)
{
    size_t done_bytes = 0;
    while (done_bytes < byte_count) {
        ssize_t got = read(fd, at + done_bytes, byte_count - done_bytes);
        if (got < 0 && errno != EINTR) {
            return err_errno(err, errno, "reading '%s'", path);
        }
        if (got == 0) {
            return err_set(err, ERR_SYSTEM, "'%s' became shorter while it was read", path);
        }
        done_bytes += got > 0 ? (size_t)got : 0;
    }
    return ERR_OK;
}

enum err_code json_parse_file(const char *path, size_t max_bytes, struct json_t **out_value,
                              struct err *err)
{
    char *text = NULL;
    int fd = -1;
    uint64_t file_bytes = 0;
    enum err_code code = file_open(path, &fd, &file_bytes, err);
    if (code != ERR_OK) {
        return code;
    }
    if (file_bytes > max_bytes) {
        code = err_set(err, ERR_LIMIT, "'%s' has %llu bytes, at most %zu", path,
                       (unsigned long long)file_bytes, max_bytes);
        goto out;
    }
    text = mem_try_zalloc((size_t)file_bytes + 1, 1);
    if (text == NULL) {
        code = err_set(err, ERR_MEMORY, "no memory for the %llu bytes of '%s'",
                       (unsigned long long)file_bytes, path);
        goto out;
    }
    code = read_all(fd, text, (size_t)file_bytes, path, err);
    if (code == ERR_OK &&
        json_parse(text, (size_t)file_bytes, JSON_MAX_DEPTH, out_value, err) != ERR_OK) {
        code = err_wrap(err, "'%s'", path);
    }
out:
    mem_free(text);
    (void)close(fd); /* only read from */
    return code;
}
