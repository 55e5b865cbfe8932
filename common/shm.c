#include "common/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err_code map(struct shm_segment *segment, int fd, const char *name, size_t byte_count,
                         struct err *err)
{
    void *at = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        return err_errno(err, errno, "mapping %zu bytes of shared memory '%s'", byte_count, name);
    }
    *segment = (struct shm_segment){.at = at, .byte_count = byte_count};
    (void)snprintf(segment->name, sizeof(segment->name), "%s", name); /* length was checked */
    return ERR_OK;
}

static enum err_code check_arguments(const char *name, size_t byte_count, struct err *err)
{
    size_t max_bytes = sizeof(((struct shm_segment *)NULL)->name) - 1;
    if (name[0] != '/' || strlen(name) > max_bytes || byte_count == 0) {
        return err_set(
            err, ERR_ARGUMENT,
            "shared memory '%s' of %zu bytes: needs a name of '/' and at most %zu bytes, "
            "and at least 1 byte",
            name, byte_count, max_bytes);
    }
    return ERR_OK;
}

enum err_code shm_create(struct shm_segment *segment, const char *name, size_t byte_count,
                         struct err *err)
{
    enum err_code code = check_arguments(name, byte_count, err);
    if (code != ERR_OK) {
        return code;
    }
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        return errno == EEXIST ? err_errno(err, errno, "creating shared memory '%s'", name)
                               : err_errno(err, errno, "creating shared memory in /dev/shm");
    }
    int failure;
    do {
        failure = posix_fallocate(fd, 0, (off_t)byte_count);
    } while (failure == EINTR);
    code = failure == 0 ? map(segment, fd, name, byte_count, err)
                        : err_errno(err, failure,
                                    "reserving %zu bytes of shared memory in /dev/shm", byte_count);
    if (code != ERR_OK) {
        (void)shm_unlink(name); /* it was ours a moment ago */
    }
    (void)close(fd); /* the mapping holds the memory */
    return code;
}

enum err_code shm_open_existing(struct shm_segment *segment, const char *name, size_t byte_count,
                                struct err *err)
{
    enum err_code code = check_arguments(name, byte_count, err);
    if (code != ERR_OK) {
        return code;
    }
    struct stat info;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return err_errno(err, errno, "opening shared memory '%s'", name);
    }
    if (fstat(fd, &info) != 0) {
        code = err_errno(err, errno, "reading the size of shared memory '%s'", name);
    } else if ((uintmax_t)info.st_size != byte_count) {
        code = err_set(err, ERR_PROTOCOL, "shared memory '%s' has %jd bytes, expected %zu", name,
                       (intmax_t)info.st_size, byte_count);
    } else {
        code = map(segment, fd, name, byte_count, err);
    }
    (void)close(fd); /* the mapping holds the memory */
    return code;
}

void shm_unlink_name(struct shm_segment *segment)
{
    if (segment->name[0] != '\0') {
        (void)shm_unlink(segment->name); /* the peer may have been first */
        segment->name[0] = '\0';
    }
}

void shm_close(struct shm_segment *segment)
{
    if (segment->at != NULL) {
        shm_unlink_name(segment);
        (void)munmap(segment->at, segment->byte_count); /* fails only for a bad range */
    }
    *segment = (struct shm_segment){0};
}
