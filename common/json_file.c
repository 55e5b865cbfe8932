/* A whole JSON file, bounded in size before it is read. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
    enum err_code code;
    char *text = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? err_set(err, ERR_NOT_FOUND, "no file '%s'", path)
                               : err_errno(err, errno, "opening '%s'", path);
    }
    if (fstat(fd, &info) != 0) {
        code = err_errno(err, errno, "reading '%s'", path);
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        code = err_set(err, ERR_CONFIG, "'%s' is not a regular file", path);
        goto out;
    }
    if ((uint64_t)info.st_size > max_bytes) {
        code = err_set(err, ERR_LIMIT, "'%s' has %lld bytes, at most %zu", path,
                       (long long)info.st_size, max_bytes);
        goto out;
    }
    text = mem_try_zalloc((size_t)info.st_size + 1, 1);
    if (text == NULL) {
        code = err_set(err, ERR_MEMORY, "no memory for the %lld bytes of '%s'",
                       (long long)info.st_size, path);
        goto out;
    }
    code = read_all(fd, text, (size_t)info.st_size, path, err);
    if (code == ERR_OK &&
        json_parse(text, (size_t)info.st_size, JSON_MAX_DEPTH, out_value, err) != ERR_OK) {
        code = err_wrap(err, "'%s'", path);
    }
out:
    mem_free(text);
    (void)close(fd); /* only read from */
    return code;
}
