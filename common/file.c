#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum err_code file_open_code(int errno_value)
{
    switch (errno_value) {
    case ENOENT:
    case ENOTDIR: return ERR_NOT_FOUND;
    case EACCES:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
    case EPERM: return ERR_CONFIG;
    default: /* foreign */ return ERR_SYSTEM;
    }
}

enum err_code file_open(const char *path, int *out_fd, uint64_t *out_bytes, struct err *err)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        enum err_code code = file_open_code(errno);
        if (code == ERR_SYSTEM) {
            return err_errno(err, errno, "opening '%s'", path);
        }
        return code == ERR_NOT_FOUND
                   ? err_set(err, code, "there is no file '%s'", path)
                   : err_set(err, code, "opening '%s': %s", path, strerrordesc_np(errno));
    }
    enum err_code code = ERR_OK;
    if (fstat(fd, &status) != 0) {
        code = err_errno(err, errno, "reading '%s'", path);
    } else if (!S_ISREG(status.st_mode)) {
        code = err_set(err, ERR_CONFIG, "'%s' is not a regular file", path);
    }
    if (code != ERR_OK) {
        (void)close(fd); /* only read from */
        return code;
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)status.st_size;
    return ERR_OK;
}
