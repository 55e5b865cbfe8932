/* Tokenizer: time to load, and megabytes per second of one core for several texts.
 *
 * Arguments: path of a tokenizer.json, cache directory (optional), text files (optional). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/utf8.h"
#include "frontend/tokenizer.h"

enum {
    TEXT_BYTES = 4 << 20,
    ROUND_COUNT = 3,
};

/* Processor time of this thread: what a core gives, however busy the machine is. */
static double thread_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void measure(const struct tokenizer *tokenizer, const char *name, const struct buf *text)
{
    double best_s = 0;
    size_t token_count = 0;
    for (int round = 0; round < ROUND_COUNT; round++) {
        struct tok_ids ids = {0};
        double start_s = thread_seconds();
        tok_encode(tokenizer, text->at, text->used_bytes, TOK_SPECIAL_AS_TEXT, &ids);
        double one_s = thread_seconds() - start_s;
        best_s = round == 0 || one_s < best_s ? one_s : best_s;
        token_count = ids.count;
        tok_ids_fini(&ids);
    }
    (void)printf("%-28s %8zu tokens %8.1f ms %7.1f MB/s\n", name, token_count, best_s * 1e3,
                 (double)text->used_bytes / 1e6 / best_s);
}

static void measure_repeated(const struct tokenizer *tokenizer, const char *name, const char *unit)
{
    struct buf text;
    buf_init(&text);
    while (text.used_bytes + strlen(unit) <= TEXT_BYTES) {
        buf_append_text(&text, unit);
    }
    measure(tokenizer, name, &text);
    buf_fini(&text);
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

/* Code points of one range, evenly drawn. */
static void measure_random(const struct tokenizer *tokenizer, const char *name, uint32_t first,
                           uint32_t count)
{
    struct buf text;
    buf_init(&text);
    uint64_t state = 1;
    while (text.used_bytes < TEXT_BYTES) {
        char bytes[4];
        buf_append(&text, bytes, utf8_encode(first + random_next(&state) % count, bytes));
    }
    measure(tokenizer, name, &text);
    buf_fini(&text);
}

/* Characters of an alphabet, evenly drawn: text without spaces or borders of words. */
static void measure_alphabet(const struct tokenizer *tokenizer, const char *name,
                             const char *alphabet)
{
    struct buf text;
    buf_init(&text);
    uint64_t state = 3;
    while (text.used_bytes < TEXT_BYTES) {
        buf_append_char(&text, alphabet[random_next(&state) % strlen(alphabet)]);
    }
    measure(tokenizer, name, &text);
    buf_fini(&text);
}

/* Words of random tokens: text with the vocabulary's own statistics. */
static void measure_vocabulary(const struct tokenizer *tokenizer)
{
    struct buf text;
    buf_init(&text);
    uint64_t state = 2;
    while (text.used_bytes < TEXT_BYTES) {
        uint32_t id = random_next(&state) % tok_vocab_count(tokenizer);
        uint32_t byte_count = 0;
        const char *bytes = tok_bytes(tokenizer, id, &byte_count);
        if (!tok_is_special(tokenizer, id) && !tok_is_byte(tokenizer, id)) {
            buf_append(&text, bytes, byte_count);
        }
    }
    measure(tokenizer, "random vocabulary entries", &text);
    buf_fini(&text);
}

static void measure_file(const struct tokenizer *tokenizer, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)fprintf(stderr, "%s: cannot be opened\n", path);
        return;
    }
    struct buf text;
    buf_init(&text);
    char chunk[8192];
    size_t got = 0;
    while ((got = fread(chunk, 1, sizeof(chunk), file)) > 0) {
        buf_append(&text, chunk, got);
    }
    (void)fclose(file); /* only read */
    measure(tokenizer, path, &text);
    buf_fini(&text);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: tokenizer_bench TOKENIZER_JSON [CACHE_DIR [TEXT...]]\n");
        return EXIT_FAILURE;
    }
    const char *cache_dir = argc > 2 && argv[2][0] != '\0' ? argv[2] : NULL;
    struct tokenizer *tokenizer = NULL;
    struct err err;
    for (int round = 0; round < ROUND_COUNT; round++) {
        tok_destroy(tokenizer);
        uint64_t start_ns = clock_now_ns();
        double start_s = thread_seconds();
        if (tok_load(argv[1], cache_dir, &tokenizer, &err) != ERR_OK) {
            (void)fprintf(stderr, "%s\n", err.message);
            return EXIT_FAILURE;
        }
        (void)printf("load %d: %.1f ms, %.1f ms of processor time\n", round + 1,
                     (double)(clock_now_ns() - start_ns) / 1e6, (thread_seconds() - start_s) * 1e3);
    }
    measure_repeated(tokenizer, "English sentence",
                     "The quick brown fox jumps over the lazy dog, and 42 others follow it.\n");
    measure_repeated(tokenizer, "C code",
                     "    for (size_t i = 0; i < count; i++) {\n"
                     "        total_bytes += parts[i]->byte_count;\n    }\n");
    measure_repeated(tokenizer, "Chinese sentence",
                     "\u6a21\u578b\u5728\u4e00\u53f0\u673a\u5668\u4e0a\u8fd0\u884c\u3002");
    measure_repeated(tokenizer, "one letter", "a");
    measure_repeated(tokenizer, "one space", " ");
    measure_repeated(tokenizer, "newlines", "\n");
    measure_repeated(tokenizer, "two letters", "ab");
    measure_repeated(tokenizer, "equals signs", "=");
    measure_repeated(tokenizer, "one word without spaces", "the");
    measure_repeated(tokenizer, "emoji", "\U0001f600");
    measure_random(tokenizer, "random lower case", 'a', 26);
    measure_alphabet(tokenizer, "random vowels", "aeiou");
    measure_alphabet(tokenizer, "random frequent letters", "etaoinshrdlu");
    measure_alphabet(tokenizer, "random a and b", "ab");
    measure_alphabet(tokenizer, "random hexadecimal", "0123456789abcdef");
    measure_alphabet(tokenizer, "random base64",
                     "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    measure_random(tokenizer, "random ASCII", 0x20, 95);
    measure_random(tokenizer, "random Chinese", 0x4e00, 0x5000);
    measure_random(tokenizer, "random Cyrillic", 0x400, 0x100);
    measure_vocabulary(tokenizer);
    for (int i = 3; i < argc; i++) {
        measure_file(tokenizer, argv[i]);
    }
    tok_destroy(tokenizer);
    return EXIT_SUCCESS;
}
