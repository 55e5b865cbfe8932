/* The compiled cache: one file per tokenizer.json, an image as it lies in memory.
 *
 * Only files and folders that nobody but this user can write are read.  A file is replaced by
 * renaming, never written in place, and read into memory of our own: what was checked cannot change
 * afterwards. */
#include "frontend/tokenizer_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/tokenizer_image.h"
#include "proto/wire.h"

#define TOK_MAX_IMAGE_BYTES (1UL << 30)

enum err_code tok_read_all(int fd, void *bytes, size_t byte_count, struct err *err)
{
    size_t got_bytes = 0;
    while (got_bytes < byte_count) {
        ssize_t got = read(fd, (char *)bytes + got_bytes, byte_count - got_bytes);
        if (got > 0) {
            got_bytes += (size_t)got;
        } else if (got == 0) {
            return err_set(err, ERR_FORMAT, "it ends after %zu of %zu bytes", got_bytes,
                           byte_count);
        } else if (errno != EINTR) {
            return err_errno(err, errno, "read");
        }
    }
    return ERR_OK;
}

static enum err_code write_all(int fd, const unsigned char *bytes, size_t byte_count,
                               struct err *err)
{
    size_t put_bytes = 0;
    while (put_bytes < byte_count) {
        ssize_t put = write(fd, bytes + put_bytes, byte_count - put_bytes);
        if (put >= 0) {
            put_bytes += (size_t)put;
        } else if (errno != EINTR) {
            return err_errno(err, errno, "write");
        }
    }
    return ERR_OK;
}

/* Ours, and writable by nobody else. */
static enum err_code check_owner(const struct stat *status, const char *what, struct err *err)
{
    if (status->st_uid != geteuid()) {
        return err_set(err, ERR_CONFIG, "the cache %s belongs to user %u, not to %u", what,
                       (unsigned)status->st_uid, (unsigned)geteuid());
    }
    if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return err_set(err, ERR_CONFIG, "the cache %s has mode %04o: others can write it", what,
                       (unsigned)(status->st_mode & 07777));
    }
    return ERR_OK;
}

enum err_code tok_cache_open(struct tok_cache *cache, const char *dir, const char *source_path,
                             struct err *err)
{
    *cache = (struct tok_cache){.dir_fd = -1};
    if (mkdir(dir, S_IRWXU) != 0 && errno != EEXIST) {
        return err_errno(err, errno, "mkdir");
    }
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) {
        return err_errno(err, errno, "open");
    }
    struct stat status;
    enum err_code code = fstat(dir_fd, &status) != 0 ? err_errno(err, errno, "fstat")
                                                     : check_owner(&status, "folder", err);
    char *real_path = code == ERR_OK ? realpath(source_path, NULL) : NULL;
    if (code == ERR_OK && real_path == NULL) {
        code = err_errno(err, errno, "realpath");
    }
    if (code != ERR_OK || real_path == NULL) {
        (void)close(dir_fd); /* only read */
        return code;
    }
    (void)snprintf(cache->name, sizeof(cache->name), "tokenizer-%016llx",
                   (unsigned long long)wire_hash_bytes(WIRE_HASH_SEED, real_path,
                                                       strlen(real_path))); /* fits */
    free(real_path);
    cache->dir_fd = dir_fd;
    return ERR_OK;
}

void tok_cache_close(struct tok_cache *cache)
{
    if (cache->dir_fd >= 0) {
        (void)close(cache->dir_fd); /* only read */
    }
    cache->dir_fd = -1;
}

static enum err_code read_image(int fd, size_t image_bytes, struct tokenizer **out_tokenizer,
                                struct err *err)
{
    unsigned char *image = tok_image_alloc(image_bytes);
    if (image == NULL) {
        return err_set(err, ERR_MEMORY, "%zu bytes for the tokenizer", image_bytes);
    }
    enum err_code code = tok_read_all(fd, image, image_bytes, err);
    code = code == ERR_OK ? tok_image_open(image, image_bytes, out_tokenizer, err) : code;
    if (code != ERR_OK) {
        tok_image_free(image, image_bytes);
    }
    return code;
}

enum err_code tok_cache_read(const struct tok_cache *cache, struct tokenizer **out_tokenizer,
                             struct err *err)
{
    int fd = openat(cache->dir_fd, cache->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? err_set(err, ERR_NOT_FOUND, "there is no such file")
                               : err_errno(err, errno, "open");
    }
    struct stat status;
    enum err_code code = ERR_OK;
    if (fstat(fd, &status) != 0) {
        code = err_errno(err, errno, "fstat");
    } else if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size > TOK_MAX_IMAGE_BYTES ||
               (uint64_t)status.st_size < sizeof(struct tok_image_header)) {
        code = err_set(err, ERR_FORMAT, "the cache file is no image: it has %lld bytes",
                       (long long)status.st_size);
    } else {
        code = check_owner(&status, "file", err);
    }
    code = code == ERR_OK ? read_image(fd, (size_t)status.st_size, out_tokenizer, err) : code;
    (void)close(fd); /* only read */
    return code;
}

/* Opens the file that will be renamed, alone: whoever holds its lock while it still bears its name
 * writes it.  *out_fd is -1 where another process does so already. */
static enum err_code open_draft(const struct tok_cache *cache, const char *name, int *out_fd,
                                struct err *err)
{
    *out_fd = -1;
    int fd =
        openat(cache->dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) {
        return err_errno(err, errno, "create");
    }
    struct stat held;
    struct stat named;
    enum err_code code = ERR_OK;
    bool is_mine = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!is_mine && errno != EWOULDBLOCK) {
        code = err_errno(err, errno, "flock");
    } else if (is_mine && fstat(fd, &held) != 0) {
        code = err_errno(err, errno, "fstat");
    } else if (is_mine) {
        is_mine = fstatat(cache->dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                  named.st_ino == held.st_ino && named.st_dev == held.st_dev;
        code = is_mine ? check_owner(&held, "draft", err) : ERR_OK;
    }
    if (code != ERR_OK || !is_mine) {
        (void)close(fd); /* nothing was written */
        return code;
    }
    *out_fd = fd;
    return ERR_OK;
}

enum err_code tok_cache_write(const struct tok_cache *cache, const struct tokenizer *tokenizer,
                              struct err *err)
{
    char draft[sizeof(cache->name) + 8];
    int fd = -1;
    (void)snprintf(draft, sizeof(draft), "%s.draft", cache->name); /* fits */
    enum err_code code = open_draft(cache, draft, &fd, err);
    if (code != ERR_OK || fd < 0) {
        return code;
    }
    if (ftruncate(fd, 0) != 0) {
        code = err_errno(err, errno, "ftruncate");
    }
    code = code == ERR_OK ? write_all(fd, tokenizer->image, tokenizer->image_bytes, err) : code;
    if (code == ERR_OK && renameat(cache->dir_fd, draft, cache->dir_fd, cache->name) != 0) {
        code = err_errno(err, errno, "rename");
    }
    if (code != ERR_OK) {
        (void)unlinkat(cache->dir_fd, draft, 0); /* the first error is the one to report */
    }
    (void)close(fd); /* a lost write shows in the checksum */
    return code;
}
