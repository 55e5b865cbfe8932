#include "worker/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NOTE_BYTES = 96
};

static const char socket_suffix[] = ".ipc";
static const char note_suffix[] = ".segment";

static bool has_suffix(const char *text, const char *suffix)
{
    size_t text_bytes = strlen(text);
    size_t suffix_bytes = strlen(suffix);
    return text_bytes > suffix_bytes && strcmp(text + text_bytes - suffix_bytes, suffix) == 0;
}

static enum err_code check_dir(const char *path, const struct stat *status, struct err *err)
{
    if (!S_ISDIR(status->st_mode)) {
        return err_set(err, ERR_CONFIG, "run dir '%s' is not a directory", path);
    }
    if (status->st_uid != geteuid()) {
        return err_set(err, ERR_CONFIG, "run dir '%s' belongs to user %u, this is user %u", path,
                       status->st_uid, geteuid());
    }
    if ((status->st_mode & 077) != 0) {
        return err_set(err, ERR_CONFIG, "run dir '%s' has mode %04o, want 0700", path,
                       status->st_mode & 07777);
    }
    return ERR_OK;
}

static enum err_code open_dir(struct run_dir *dir, struct err *err)
{
    if (mkdir(dir->path, 0700) != 0 && errno != EEXIST) {
        return err_errno(err, errno, "run dir '%s' cannot be created", dir->path);
    }
    dir->dir_fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->dir_fd < 0 && errno == ENOTDIR) {
        return err_set(err, ERR_CONFIG, "run dir '%s' is not a directory", dir->path);
    }
    struct stat status;
    if (dir->dir_fd < 0 || fstat(dir->dir_fd, &status) != 0) {
        return err_errno(err, errno, "run dir '%s' cannot be opened", dir->path);
    }
    return check_dir(dir->path, &status, err);
}

static enum err_code take_lock(struct run_dir *dir, struct err *err)
{
    dir->lock_fd = openat(dir->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (dir->lock_fd < 0) {
        return err_errno(err, errno, "run dir '%s': lock file", dir->path);
    }
    char text[24] = {0};
    if (flock(dir->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            return err_errno(err, errno, "run dir '%s': lock", dir->path);
        }
        ssize_t got = pread(dir->lock_fd, text, sizeof(text) - 1, 0);
        (void)got; /* the pid is a courtesy */
        return err_set(err, ERR_BUSY, "run dir '%s' is in use by worker process %s", dir->path,
                       text);
    }
    int length = snprintf(text, sizeof(text), "%d", getpid());
    if (ftruncate(dir->lock_fd, 0) != 0 ||
        pwrite(dir->lock_fd, text, (size_t)length, 0) != (ssize_t)length) {
        return err_errno(err, errno, "run dir '%s': lock file cannot be written", dir->path);
    }
    return ERR_OK;
}

static void forget_note(const struct run_dir *dir, const char *note)
{
    char name[NOTE_BYTES];
    (void)snprintf(name, sizeof(name), "/%.*s", (int)(strlen(note) - strlen(note_suffix)), note);
    (void)shm_unlink(name);               /* gone already, as a rule */
    (void)unlinkat(dir->dir_fd, note, 0); /* the next start tries again */
}

/* Only under the lock: nobody else uses these names then. */
static void remove_leftovers(const struct run_dir *dir)
{
    int fd = openat(dir->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (entries == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    struct dirent *entry = NULL;
    while ((entry = readdir(entries)) != NULL) { /* NOLINT(concurrency-mt-unsafe): own stream */
        if (has_suffix(entry->d_name, socket_suffix)) {
            (void)unlinkat(dir->dir_fd, entry->d_name, 0); /* listening will say if it stays */
        } else if (has_suffix(entry->d_name, note_suffix)) {
            forget_note(dir, entry->d_name);
        }
    }
    (void)closedir(entries);
}

enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err)
{
    *dir = (struct run_dir){.dir_fd = -1, .lock_fd = -1};
    if (strlen(path) >= sizeof(dir->path)) {
        return err_set(err, ERR_CONFIG, "run dir '%s' has %zu characters, at most %zu", path,
                       strlen(path), sizeof(dir->path) - 1);
    }
    (void)snprintf(dir->path, sizeof(dir->path), "%s", path); /* measured above */
    enum err_code code = open_dir(dir, err);
    code = code == ERR_OK ? take_lock(dir, err) : code;
    if (code != ERR_OK) {
        if (dir->lock_fd >= 0) {
            (void)close(dir->lock_fd);
            dir->lock_fd = -1; /* the sockets are another worker's: leave them */
        }
        run_dir_close(dir);
        return code;
    }
    remove_leftovers(dir);
    return ERR_OK;
}

static void note_name(const char *name, char out[NOTE_BYTES])
{
    (void)snprintf(out, NOTE_BYTES, "%s%s", name[0] == '/' ? name + 1 : name, note_suffix);
}

enum err_code run_dir_note_segment(const struct run_dir *dir, const char *name, struct err *err)
{
    char note[NOTE_BYTES];
    note_name(name, note);
    int fd = openat(dir->dir_fd, note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return err_errno(err, errno, "run dir '%s': %s", dir->path, note);
    }
    (void)close(fd);
    return ERR_OK;
}

void run_dir_forget_segment(const struct run_dir *dir, const char *name)
{
    char note[NOTE_BYTES];
    note_name(name, note);
    (void)unlinkat(dir->dir_fd, note, 0); /* the next start tries again */
}

void run_dir_close(struct run_dir *dir)
{
    if (dir->lock_fd >= 0) {
        remove_leftovers(dir);
        (void)close(dir->lock_fd);
    }
    if (dir->dir_fd >= 0) {
        (void)close(dir->dir_fd);
    }
    dir->dir_fd = -1;
    dir->lock_fd = -1;
}
