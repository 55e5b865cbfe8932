#include "frontend/api_keys.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sha256.h"

enum {
    FILE_MAX_BYTES = 1 << 20,
    KEYS_MAX = 1000,
    KEY_MIN_BYTES = 8,
    KEY_MAX_BYTES = 512,
};

struct api_key {
    unsigned char digest[SHA256_BYTES];
    bool is_admin;
};

struct api_keys {
    struct api_key *keys; /* owned */
    uint32_t count;
};

/* Where the parser is. */
struct reader {
    const char *path;
    uint32_t line;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static enum err_code check_key(const struct reader *reader, const char *key, size_t key_bytes,
                               struct err *err)
{
    for (size_t i = 0; i < key_bytes; i++) {
        if (key[i] <= ' ' || key[i] > '~') {
            return err_set(err, ERR_CONFIG,
                           "'%s' line %u: byte 0x%02x in a key, only printable ASCII may be",
                           reader->path, reader->line, (unsigned char)key[i]);
        }
    }
    if (key_bytes < KEY_MIN_BYTES || key_bytes > KEY_MAX_BYTES) {
        return err_set(err, ERR_CONFIG, "'%s' line %u: a key of %zu characters, must be %d to %d",
                       reader->path, reader->line, key_bytes, KEY_MIN_BYTES, KEY_MAX_BYTES);
    }
    return ERR_OK;
}

static enum err_code add_key(struct api_keys *keys, const struct reader *reader,
                             const struct api_key *key, struct err *err)
{
    for (uint32_t i = 0; i < keys->count; i++) {
        if (sha256_is_equal(keys->keys[i].digest, key->digest)) {
            return err_set(err, ERR_CONFIG, "'%s' line %u: the key stands in the file twice",
                           reader->path, reader->line);
        }
    }
    if (keys->count == KEYS_MAX) {
        return err_set(err, ERR_LIMIT, "'%s' line %u: more than %d keys", reader->path,
                       reader->line, KEYS_MAX);
    }
    keys->keys = mem_realloc(keys->keys, keys->count + 1, sizeof(keys->keys[0]));
    keys->keys[keys->count++] = *key;
    return ERR_OK;
}

static enum err_code take_line(struct api_keys *keys, const struct reader *reader, const char *text,
                               size_t byte_count, struct err *err)
{
    static const char admin[] = "admin";
    struct api_key key = {0};
    while (byte_count > 0 && is_blank(text[byte_count - 1])) {
        byte_count--;
    }
    while (byte_count > 0 && is_blank(*text)) {
        text++;
        byte_count--;
    }
    if (byte_count == 0 || *text == '#') {
        return ERR_OK;
    }
    size_t key_bytes = 0;
    while (key_bytes < byte_count && !is_blank(text[key_bytes])) {
        key_bytes++;
    }
    size_t at = key_bytes;
    while (at < byte_count && is_blank(text[at])) {
        at++;
    }
    if (at < byte_count) {
        key.is_admin =
            byte_count - at == sizeof(admin) - 1 && memcmp(text + at, admin, byte_count - at) == 0;
        if (!key.is_admin) {
            return err_set(err, ERR_CONFIG, "'%s' line %u: only 'admin' may follow a key",
                           reader->path, reader->line);
        }
    }
    enum err_code code = check_key(reader, text, key_bytes, err);
    if (!code) {
        code = sha256_digest(text, key_bytes, key.digest, err);
    }
    return code ? code : add_key(keys, reader, &key, err);
}

static enum err_code parse(struct api_keys *keys, const char *path, const char *text,
                           size_t byte_count, struct err *err)
{
    struct reader reader = {path, 0};
    const char *end = text + byte_count;
    enum err_code code = ERR_OK;
    while (text < end && !code) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        line_end = line_end ? line_end : end;
        reader.line++;
        code = take_line(keys, &reader, text, (size_t)(line_end - text), err);
        text = line_end + 1;
    }
    if (!code && keys->count == 0) {
        code = err_set(err, ERR_CONFIG, "'%s' holds no key: nobody could use the API", path);
    }
    return code;
}

static enum err_code read_all(int fd, const char *path, char *out, size_t *out_bytes,
                              struct err *err)
{
    size_t used_bytes = 0;
    for (;;) {
        ssize_t got = read(fd, out + used_bytes, FILE_MAX_BYTES + 1 - used_bytes);
        if (got < 0 && errno != EINTR) {
            return err_errno(err, errno, "reading '%s'", path);
        }
        if (got == 0) {
            *out_bytes = used_bytes;
            return ERR_OK;
        }
        used_bytes += got > 0 ? (size_t)got : 0;
        if (used_bytes > FILE_MAX_BYTES) {
            return err_set(err, ERR_LIMIT, "'%s' has more than %d bytes", path, FILE_MAX_BYTES);
        }
    }
}

/* Others who may read it may use the keys. */
static void warn_of_mode(int fd, const char *path)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && (status.st_mode & 077) != 0) {
        char quoted[1024];
        log_warn("keys", "readable_by_others", "path=%s mode=%03o",
                 log_quote(path, quoted, sizeof(quoted)), status.st_mode & 0777);
    }
}

enum err_code api_keys_load(const char *path, struct api_keys **out_keys, struct err *err)
{
    int fd = -1;
    uint64_t file_bytes = 0;
    size_t text_bytes = 0;
    enum err_code code = file_open(path, &fd, &file_bytes, err);
    if (code) {
        return code;
    }
    warn_of_mode(fd, path);
    char *text = mem_zalloc(FILE_MAX_BYTES + 1, 1);
    struct api_keys *keys = mem_zalloc(1, sizeof(*keys));
    code = read_all(fd, path, text, &text_bytes, err);
    if (!code) {
        code = parse(keys, path, text, text_bytes, err);
    }
    explicit_bzero(text, text_bytes);
    mem_free(text);
    (void)close(fd); /* only read from */
    if (code) {
        api_keys_destroy(keys);
        return code;
    }
    *out_keys = keys;
    return ERR_OK;
}

void api_keys_destroy(struct api_keys *keys)
{
    if (!keys) {
        return;
    }
    mem_free(keys->keys);
    mem_free(keys);
}

uint32_t api_keys_count(const struct api_keys *keys)
{
    return keys->count;
}

enum api_key_scope api_keys_find(const struct api_keys *keys, const char *key, size_t key_bytes)
{
    unsigned char digest[SHA256_BYTES];
    struct err err;
    enum api_key_scope scope = API_KEY_UNKNOWN;
    if (sha256_digest(key, key_bytes, digest, &err)) {
        return scope; /* loading would have failed */
    }
    for (uint32_t i = 0; i < keys->count; i++) {
        bool is_it = sha256_is_equal(keys->keys[i].digest, digest);
        enum api_key_scope its = keys->keys[i].is_admin ? API_KEY_ADMIN : API_KEY_USER;
        scope = is_it ? its : scope;
    }
    return scope;
}
