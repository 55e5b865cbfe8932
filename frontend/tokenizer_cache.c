/* From a path to a tokenizer. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"
#include "frontend/tokenizer_internal.h"

/* The whole file; *out_bytes is freed by mem_free. */
static enum err_code read_source(int fd, size_t byte_count, char **out_bytes, struct err *err)
{
    char *bytes = mem_try_zalloc(byte_count, 1);
    if (bytes == NULL) {
        return err_set(err, ERR_MEMORY, "%zu bytes for the file", byte_count);
    }
    size_t got_bytes = 0;
    while (got_bytes < byte_count) {
        ssize_t got = read(fd, bytes + got_bytes, byte_count - got_bytes);
        if (got > 0) {
            got_bytes += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            mem_free(bytes);
            return got == 0 ? err_set(err, ERR_FORMAT, "it shrank to %zu bytes while being read",
                                      got_bytes)
                            : err_errno(err, errno, "read");
        }
    }
    *out_bytes = bytes;
    return ERR_OK;
}

static enum err_code open_source(const char *path, int *out_fd, struct stat *out_status,
                                 struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? err_set(err, ERR_NOT_FOUND, "there is no such file")
                               : err_errno(err, errno, "open");
    }
    enum err_code code = ERR_OK;
    if (fstat(fd, out_status) != 0) {
        code = err_errno(err, errno, "fstat");
    } else if (!S_ISREG(out_status->st_mode)) {
        code = err_set(err, ERR_FORMAT, "it is not a regular file");
    } else if ((uint64_t)out_status->st_size > TOK_MAX_FILE_BYTES) {
        code = err_set(err, ERR_LIMIT, "it has %lld bytes, at most %lu",
                       (long long)out_status->st_size, TOK_MAX_FILE_BYTES);
    }
    if (code != ERR_OK) {
        (void)close(fd); /* only read */
        return code;
    }
    *out_fd = fd;
    return ERR_OK;
}

void tok_cache_key(const struct stat *status, struct tok_source_key *out_key)
{
    const uint64_t second_ns = 1000000000;
    *out_key = (struct tok_source_key){
        .device = status->st_dev,
        .inode = status->st_ino,
        .byte_count = (uint64_t)status->st_size,
        .mtime_ns =
            (uint64_t)status->st_mtim.tv_sec * second_ns + (uint64_t)status->st_mtim.tv_nsec,
        .ctime_ns =
            (uint64_t)status->st_ctim.tv_sec * second_ns + (uint64_t)status->st_ctim.tv_nsec,
    };
}

static enum err_code compile(const char *text, size_t byte_count, const struct tok_source_key *key,
                             struct tokenizer **out_tokenizer, struct err *err)
{
    struct tok_source source;
    unsigned char *image = NULL;
    size_t image_bytes = 0;
    enum err_code code = tok_source_parse(text, byte_count, &source, err);
    if (code != ERR_OK) {
        return code;
    }
    code = tok_image_build(&source, &image, &image_bytes, err);
    tok_source_fini(&source);
    if (code != ERR_OK) {
        return code;
    }
    tok_image_seal(image, key);
    code = tok_image_open(image, image_bytes, out_tokenizer, err);
    if (code != ERR_OK) {
        tok_image_free(image, image_bytes);
    }
    return code;
}

enum err_code tok_load(const char *path, const char *cache_dir, struct tokenizer **out_tokenizer,
                       struct err *err)
{
    int fd = -1;
    struct stat status;
    char *bytes = NULL;
    enum err_code code = open_source(path, &fd, &status, err);
    if (code != ERR_OK) {
        return err_wrap(err, "%s", path);
    }
    struct tok_source_key key;
    tok_cache_key(&status, &key);
    size_t byte_count = (size_t)status.st_size;
    code = read_source(fd, byte_count, &bytes, err);
    if (code != ERR_OK) {
        goto out;
    }
    code = compile(bytes, byte_count, &key, out_tokenizer, err);
out:
    mem_free(bytes);
    (void)close(fd); /* only read */
    return code == ERR_OK ? ERR_OK : err_wrap(err, "%s", path);
}
