#include "deploy/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/run_path.h"

enum {
    TEMPORARY_TRIES = 3
};

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

static enum err_code open_named(struct run_dir *dir, const char *path, struct err *err)
{
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

/* A worker holds a lock on a file in the directory that it uses. */
static bool has_worker(int dir_fd)
{
    int fd = openat(dir_fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool is_held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    (void)close(fd); /* gives back what was taken to look */
    return is_held;
}

static void remove_dir(const char *path)
{
    DIR *stream = opendir(path);
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
    (void)rmdir(path);      /* left behind where a program put a folder into it */
}

/* Where a killed launcher left a temporary directory that nobody uses any more. */
static void sweep(const char *prefix)
{
    static const char parent[] = "/tmp/";
    DIR *stream = opendir(parent);
    const char *name_prefix = prefix + strlen(parent);
    if (stream == NULL) {
        return;
    }
    for (;;) {
        struct dirent *entry = readdir(stream); /* NOLINT(concurrency-mt-unsafe): own stream */
        if (entry == NULL) {
            break;
        }
        struct run_dir found = {.lock_fd = -1};
        size_t name_bytes = strlen(entry->d_name);
        if (strncmp(entry->d_name, name_prefix, strlen(name_prefix)) != 0 ||
            name_bytes >= sizeof(found.path) - strlen(parent)) {
            continue;
        }
        (void)snprintf(found.path, sizeof(found.path), "%s%.*s", parent, (int)name_bytes,
                       entry->d_name); /* measured */
        if (check(found.path, NULL) == ERR_OK && take_lock(&found, NULL) == ERR_OK) {
            if (!has_worker(found.lock_fd)) {
                remove_dir(found.path);
            }
            (void)close(found.lock_fd); /* a handle only */
        }
    }
    (void)closedir(stream); /* only read from */
}

/* Another launcher's sweep may come between making the directory and locking it. */
static bool is_there(const struct run_dir *dir)
{
    struct stat by_path;
    struct stat by_fd;
    return stat(dir->path, &by_path) == 0 && fstat(dir->lock_fd, &by_fd) == 0 &&
           by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev;
}

static enum err_code open_temporary(struct run_dir *dir, const char *prefix, struct err *err)
{
    for (uint32_t i = 0; i < TEMPORARY_TRIES; i++) {
        (void)snprintf(dir->path, sizeof(dir->path), "%.*sXXXXXX",
                       (int)(sizeof(dir->path) - sizeof("XXXXXX")), prefix); /* fits */
        if (mkdtemp(dir->path) == NULL) {
            return err_errno(err, errno, "making a run directory in /tmp");
        }
        if (take_lock(dir, err) == ERR_OK && is_there(dir)) {
            dir->is_temporary = true;
            return ERR_OK;
        }
        if (dir->lock_fd >= 0) {
            (void)close(dir->lock_fd); /* of a directory that is gone */
            dir->lock_fd = -1;
        }
    }
    return err_set(err, ERR_SYSTEM, "no run directory in /tmp stays");
}

static enum err_code open_default(struct run_dir *dir, struct err *err)
{
    char path[RUN_PATH_BYTES];
    char prefix[RUN_PATH_BYTES];
    run_path_default(path);
    (void)snprintf(prefix, sizeof(prefix), "%.*s-", RUN_PATH_BYTES - 2, path); /* fits */
    sweep(prefix);
    if (open_named(dir, path, NULL) == ERR_OK) {
        if (!has_worker(dir->lock_fd)) {
            return ERR_OK;
        }
        (void)close(dir->lock_fd); /* gives the directory back */
    }
    dir->lock_fd = -1;
    return open_temporary(dir, prefix, err);
}

enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err)
{
    *dir = (struct run_dir){.lock_fd = -1};
    return path == NULL ? open_default(dir, err) : open_named(dir, path, err);
}

void run_dir_close(struct run_dir *dir)
{
    if (dir->is_temporary) {
        remove_dir(dir->path);
        dir->is_temporary = false;
    }
    if (dir->lock_fd >= 0) {
        (void)close(dir->lock_fd); /* a handle only */
        dir->lock_fd = -1;
    }
}
