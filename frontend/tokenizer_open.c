/* From a path to a tokenizer: its compiled cache where that is sound and of the same file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/tokenizer_cache.h"
#include "frontend/tokenizer_source.h"
#include "proto/wire.h"

#define SECOND_NS         1000000000ULL
#define TRUSTED_AFTER_NS  (2 * SECOND_NS) /* a change within one tick of a clock could be missed */
#define LOG_MESSAGE_BYTES 300

struct source_file {
    int fd;
    struct tok_source_key key;
    char *bytes; /* owned; null until read */
};

static uint64_t to_ns(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SECOND_NS + (uint64_t)time->tv_nsec;
}

/* Whether two states of a file are the same can be told from these alone, unless it changed just
 * now. */
static struct tok_source_key make_key(const struct stat *status)
{
    struct tok_source_key key = {
        .device = status->st_dev,
        .inode = status->st_ino,
        .byte_count = (uint64_t)status->st_size,
        .mtime_ns = to_ns(&status->st_mtim),
        .ctime_ns = to_ns(&status->st_ctim),
    };
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    if (key.ctime_ns + TRUSTED_AFTER_NS > to_ns(&now)) {
        key.ctime_ns = 0;
    }
    return key;
}

static bool same_key(const struct tok_source_key *a, const struct tok_source_key *b)
{
    return a->device == b->device && a->inode == b->inode && a->byte_count == b->byte_count &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

static enum err_code source_open(struct source_file *source, const char *path, struct err *err)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        enum err_code code = file_open_code(errno);
        if (code == ERR_SYSTEM) {
            return err_errno(err, errno, "open");
        }
        return code == ERR_NOT_FOUND ? err_set(err, code, "there is no such file")
                                     : err_set(err, code, "open: %s", strerrordesc_np(errno));
    }
    enum err_code code = ERR_OK;
    if (fstat(fd, &status) != 0) {
        code = err_errno(err, errno, "fstat");
    } else if (!S_ISREG(status.st_mode)) {
        code = err_set(err, ERR_FORMAT, "it is not a regular file");
    } else if ((uint64_t)status.st_size > TOK_MAX_FILE_BYTES) {
        code = err_set(err, ERR_LIMIT, "it has %lld bytes, at most %lu", (long long)status.st_size,
                       TOK_MAX_FILE_BYTES);
    }
    if (code != ERR_OK) {
        (void)close(fd); /* only read */
        return code;
    }
    *source = (struct source_file){.fd = fd, .key = make_key(&status)};
    return ERR_OK;
}

static void source_close(struct source_file *source)
{
    mem_free(source->bytes);
    (void)close(source->fd); /* only read */
}

static enum err_code source_read(struct source_file *source, struct err *err)
{
    size_t byte_count = (size_t)source->key.byte_count;
    char *bytes = mem_try_zalloc(byte_count, 1);
    if (bytes == NULL) {
        return err_set(err, ERR_MEMORY, "%zu bytes for the file", byte_count);
    }
    source->bytes = bytes;
    enum err_code code = tok_read_all(source->fd, bytes, byte_count, err);
    struct stat status;
    if (code == ERR_OK && fstat(source->fd, &status) != 0) {
        return err_errno(err, errno, "fstat");
    }
    if (code == ERR_OK) {
        struct tok_source_key key = make_key(&status);
        if (!same_key(&key, &source->key)) {
            source->key.ctime_ns = 0; /* it changed under the reading: never trust these times */
        }
    }
    return code;
}

static void log_cache(const char *event, const char *cache_dir, const struct err *err)
{
    char dir[LOG_MESSAGE_BYTES];
    char message[LOG_MESSAGE_BYTES];
    log_warn("tokenizer", event, "dir=%s error=%s", log_quote(cache_dir, dir, sizeof(dir)),
             log_quote(err->message, message, sizeof(message)));
}

/* A sound image from the cache; null where there is none. */
static struct tokenizer *read_cache(const struct tok_cache *cache, const char *cache_dir)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    enum err_code code = tok_cache_read(cache, &tokenizer, &err);
    if (code != ERR_OK && code != ERR_NOT_FOUND) {
        log_cache("cache_ignored", cache_dir, &err);
    }
    return tokenizer;
}

/* Takes ownership of cached, which may be null; the file itself decides. */
static enum err_code load_by_content(struct source_file *source, struct tokenizer *cached,
                                     struct tokenizer **out_tokenizer, struct err *err)
{
    enum err_code code = source_read(source, err);
    if (code == ERR_OK && cached != NULL &&
        cached->header->key.byte_count == source->key.byte_count &&
        cached->header->file_hash ==
            wire_hash_bytes(WIRE_HASH_SEED, source->bytes, (size_t)source->key.byte_count)) {
        tok_image_seal(cached->image, &source->key);
        *out_tokenizer = cached;
        return ERR_OK;
    }
    tok_destroy(cached);
    return code == ERR_OK ? tok_source_compile(source->bytes, (size_t)source->key.byte_count,
                                               &source->key, out_tokenizer, err)
                          : code;
}

static enum err_code load(const char *path, const char *cache_dir, struct source_file *source,
                          struct tokenizer **out_tokenizer, struct err *err)
{
    struct tok_cache cache = {.dir_fd = -1};
    struct err cache_err = {0};
    struct tokenizer *cached = NULL;
    if (cache_dir != NULL && tok_cache_open(&cache, cache_dir, path, &cache_err) != ERR_OK) {
        log_cache("cache_unusable", cache_dir, &cache_err);
    }
    if (cache.dir_fd >= 0) {
        cached = read_cache(&cache, cache_dir);
    }
    if (cached != NULL && source->key.ctime_ns != 0 &&
        same_key(&cached->header->key, &source->key)) {
        tok_cache_close(&cache);
        *out_tokenizer = cached;
        return ERR_OK;
    }
    enum err_code code = load_by_content(source, cached, out_tokenizer, err);
    if (code == ERR_OK && cache.dir_fd >= 0 &&
        tok_cache_write(&cache, *out_tokenizer, &cache_err) != ERR_OK) {
        log_cache("cache_not_written", cache_dir, &cache_err);
    }
    tok_cache_close(&cache);
    return code;
}

enum err_code tok_load(const char *path, const char *cache_dir, struct tokenizer **out_tokenizer,
                       struct err *err)
{
    struct source_file source = {.fd = -1};
    enum err_code code = source_open(&source, path, err);
    if (code == ERR_OK) {
        code = load(path, cache_dir, &source, out_tokenizer, err);
        source_close(&source);
    }
    return code == ERR_OK ? ERR_OK : err_wrap(err, "%s", path);
}
