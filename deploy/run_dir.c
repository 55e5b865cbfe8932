#include "deploy/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err_code check(const char *path, struct err *err)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        return err_errno(err, errno, "run directory '%s'", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        return err_set(err, ERR_ARGUMENT, "run directory '%s' is not a directory", path);
    }
    if (info.st_uid != geteuid()) {
        return err_set(err, ERR_ARGUMENT, "run directory '%s' belongs to user %u, not to %u", path,
                       info.st_uid, geteuid());
    }
    if ((info.st_mode & 077) != 0) {
        return err_set(err, ERR_ARGUMENT, "run directory '%s' has mode %04o, must be 0700", path,
                       info.st_mode & 07777);
    }
    if (access(path, R_OK | W_OK | X_OK) != 0) {
        return err_errno(err, errno, "run directory '%s'", path);
    }
    return ERR_OK;
}

/* On the directory itself: no file is left, and none can be replaced meanwhile. */
static enum err_code take_lock(struct run_dir *dir, struct err *err)
{
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return err_errno(err, errno, "run directory '%s'", dir->path);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int failure = errno;
        (void)close(fd); /* a handle only */
        return failure != EWOULDBLOCK
                   ? err_errno(err, failure, "locking run directory '%s'", dir->path)
                   : err_set(err, ERR_BUSY, "run directory '%s' is in use by another bezel serve",
                             dir->path);
    }
    dir->lock_fd = fd;
    return ERR_OK;
}

enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err)
{
    *dir = (struct run_dir){.lock_fd = -1};
    if (path == NULL) {
        (void)snprintf(dir->path, sizeof(dir->path), "/tmp/bezel-XXXXXX"); /* fits */
        if (mkdtemp(dir->path) == NULL) {
            return err_errno(err, errno, "making a run directory in /tmp");
        }
        dir->is_temporary = true;
        return ERR_OK;
    }
    if (strlen(path) >= sizeof(dir->path)) {
        return err_set(err, ERR_ARGUMENT, "run directory has a path of %zu bytes, at most %zu",
                       strlen(path), sizeof(dir->path) - 1);
    }
    (void)snprintf(dir->path, sizeof(dir->path), "%s", path); /* measured */
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return err_errno(err, errno, "making run directory '%s'", path);
    }
    enum err_code code = check(path, err);
    return code == ERR_OK ? take_lock(dir, err) : code;
}

void run_dir_close(struct run_dir *dir)
{
    if (dir->lock_fd >= 0) {
        (void)close(dir->lock_fd); /* a handle only */
        dir->lock_fd = -1;
    }
    DIR *stream = dir->is_temporary ? opendir(dir->path) : NULL;
    if (stream == NULL) {
        return;
    }
    for (;;) {
        struct dirent *entry = readdir(stream); /* NOLINT(concurrency-mt-unsafe): own stream */
        if (entry == NULL) {
            break;
        }
        (void)unlinkat(dirfd(stream), entry->d_name, 0); /* fails for . and .. */
    }
    (void)closedir(stream); /* only read from */
    (void)rmdir(dir->path); /* left behind where a program put a folder into it */
    dir->is_temporary = false;
}
