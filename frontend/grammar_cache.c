#include "frontend/grammar_cache.h"

#include <pthread.h>
#include <string.h>

#include "common/mem.h"
#include "common/sha256.h"
#include "frontend/grammar_vocab.h"

enum {
    MAX_GRAMMARS = 512
};

struct entry {
    struct entry *next;      /* used less lately */
    struct grammar *grammar; /* counted */
    char key[SHA256_HEX_BYTES];
};

struct grammar_cache {
    const struct tokenizer *tokenizer; /* borrowed */
    struct grammar_markers markers;
    size_t max_bytes;

    pthread_mutex_t vocab_mutex; /* guards vocab until it is made; then it does not change */
    struct vocab *vocab;         /* owned */

    pthread_mutex_t mutex; /* guards everything below */
    struct entry *first;   /* owned; most lately used */
    struct grammar_cache_stats stats;
};

struct grammar_cache *grammar_cache_create(const struct tokenizer *tokenizer,
                                           const struct grammar_markers *markers, size_t max_bytes)
{
    struct grammar_cache *cache = mem_zalloc(1, sizeof(*cache));
    cache->tokenizer = tokenizer;
    cache->markers = *markers;
    cache->max_bytes = max_bytes;
    (void)pthread_mutex_init(&cache->vocab_mutex, NULL); /* cannot fail on Linux */
    (void)pthread_mutex_init(&cache->mutex, NULL);
    return cache;
}

void grammar_cache_destroy(struct grammar_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    while (cache->first != NULL) {
        struct entry *entry = cache->first;
        cache->first = entry->next;
        grammar_release(entry->grammar);
        mem_free(entry);
    }
    vocab_destroy(cache->vocab);
    (void)pthread_mutex_destroy(&cache->vocab_mutex);
    (void)pthread_mutex_destroy(&cache->mutex);
    mem_free(cache);
}

static const struct vocab *vocab_of(struct grammar_cache *cache)
{
    (void)pthread_mutex_lock(&cache->vocab_mutex);
    if (cache->vocab == NULL) {
        cache->vocab = vocab_create(cache->tokenizer);
    }
    const struct vocab *vocab = cache->vocab;
    (void)pthread_mutex_unlock(&cache->vocab_mutex);
    return vocab;
}

/* The mutex is held.  Null where there is none; else counted for the caller, and first now. */
static struct grammar *find(struct grammar_cache *cache, const char *key)
{
    for (struct entry **at = &cache->first; *at != NULL; at = &(*at)->next) {
        struct entry *entry = *at;
        if (memcmp(entry->key, key, sizeof(entry->key)) == 0) {
            *at = entry->next;
            entry->next = cache->first;
            cache->first = entry;
            grammar_acquire(entry->grammar);
            return entry->grammar;
        }
    }
    return NULL;
}

/* The mutex is held.  All behind what fits go, but never the first. */
static void trim(struct grammar_cache *cache)
{
    struct entry **at = &cache->first->next;
    size_t bytes = grammar_bytes(cache->first->grammar);
    uint32_t count = 1;
    for (; *at != NULL && count < MAX_GRAMMARS; at = &(*at)->next, count++) {
        size_t more = grammar_bytes((*at)->grammar);
        if (bytes + more > cache->max_bytes) {
            break;
        }
        bytes += more;
    }
    while (*at != NULL) {
        struct entry *entry = *at;
        *at = entry->next;
        grammar_release(entry->grammar);
        mem_free(entry);
    }
    cache->stats.grammars = count;
    cache->stats.bytes = bytes;
}

static void insert(struct grammar_cache *cache, const char *key, struct grammar *grammar)
{
    struct entry *entry = mem_zalloc(1, sizeof(*entry));
    memcpy(entry->key, key, sizeof(entry->key));
    entry->grammar = grammar;
    grammar_acquire(grammar);
    entry->next = cache->first;
    cache->first = entry;
}

enum err_code grammar_cache_get(struct grammar_cache *cache, const struct grammar_source *source,
                                struct grammar **out_grammar, struct err *err)
{
    char key[SHA256_HEX_BYTES];
    struct buf text;
    buf_init(&text);
    grammar_source_key(source, &text);
    enum err_code code = sha256_hex(text.at, text.used_bytes, key, err);
    buf_fini(&text);
    if (code) {
        return code;
    }
    (void)pthread_mutex_lock(&cache->mutex);
    struct grammar *found = find(cache, key);
    cache->stats.hits += found != NULL;
    cache->stats.misses += found == NULL;
    if (found != NULL) {
        trim(cache); /* they grow while they are used */
    }
    (void)pthread_mutex_unlock(&cache->mutex);
    if (found != NULL) {
        *out_grammar = found;
        return ERR_OK;
    }
    struct grammar *made = NULL;
    code = grammar_create(source, &cache->markers, cache->tokenizer, vocab_of(cache), &made, err);
    if (code) {
        return code;
    }
    (void)pthread_mutex_lock(&cache->mutex);
    found = find(cache, key); /* another thread may have been faster */
    if (found == NULL) {
        insert(cache, key, made);
        trim(cache);
    }
    (void)pthread_mutex_unlock(&cache->mutex);
    if (found != NULL) {
        grammar_release(made);
    }
    *out_grammar = found != NULL ? found : made;
    return ERR_OK;
}

void grammar_cache_get_stats(struct grammar_cache *cache, struct grammar_cache_stats *out_stats)
{
    (void)pthread_mutex_lock(&cache->mutex);
    *out_stats = cache->stats;
    (void)pthread_mutex_unlock(&cache->mutex);
}
