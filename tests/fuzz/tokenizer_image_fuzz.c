/* A compiled tokenizer with patches: groups of 4 bytes of place and 4 of value, over a sound image of
 * a small vocabulary, its checksum made right again.  Whatever then opens must stay within itself
 * while it encodes, and must give no special id for ordinary text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "frontend/tokenizer_source.h"
#include "proto/wire.h"
#include "tests/fuzz/fuzz.h"

#define GROUP_BYTES 8

static const char sample[] =
    "ab aab<pad>\u2581b\u00e9\U0001f600 bbbaab<new>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbb\n<0x41>";

static const char head[] =
    "{\"added_tokens\":[{\"id\":256,\"content\":\"<pad>\",\"special\":true},{\"id\":264,\"content\":"
    "\"<new>\",\"special\":false}],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\" \"},\"content\":\"\u2581\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
    "\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
    "{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{";

static const char tail[] =
    "\"<pad>\":256,\"a\":257,\"b\":258,\"ab\":259,\"\u2581\":260,\"\u2581ab\":"
    "261,\"aa\":262,\"aaaa\":263},\"merges\":[\"a b\",\"a a\",\"\u2581 ab\","
    "\"aa aa\"]}}";

static struct tokenizer *sound_tokenizer(void)
{
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    struct err err;
    const struct tok_source_key key = {0};
    buf_init(&text);
    buf_append_text(&text, head);
    for (int i = 0; i < 256; i++) {
        buf_printf(&text, "\"<0x%02X>\":%d,", i, i);
    }
    buf_append_text(&text, tail);
    if (tok_source_compile(text.at, text.used_bytes, &key, &tokenizer, &err) != ERR_OK) {
        abort();
    }
    buf_fini(&text);
    return tokenizer;
}

static void use(const struct tokenizer *tokenizer)
{
    for (int special = TOK_SPECIAL_AS_TEXT; special <= TOK_SPECIAL_PARSE; special++) {
        struct tok_ids ids = {0};
        tok_encode(tokenizer, sample, sizeof(sample) - 1, (enum tok_special)special, &ids);
        uint64_t sum = 0;
        for (size_t i = 0; i < ids.count; i++) {
            uint32_t byte_count = 0;
            const char *at = tok_bytes(tokenizer, ids.at[i], &byte_count);
            if (at == NULL ||
                (special == TOK_SPECIAL_AS_TEXT && tok_is_special(tokenizer, ids.at[i]))) {
                abort();
            }
            sum += wire_hash_bytes(WIRE_HASH_SEED, at, byte_count); /* reads every byte */
        }
        if (sum == 1) {
            abort(); /* keeps the reads */
        }
        tok_ids_fini(&ids);
    }
    (void)tok_find(tokenizer, "<pad>");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static struct tokenizer *sound; /* made once: it is only copied */
    if (sound == NULL) {
        sound = sound_tokenizer();
    }
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    size_t image_bytes = sound->image_bytes;
    unsigned char *image = tok_image_alloc(image_bytes);
    if (image == NULL) {
        return 0;
    }
    memcpy(image, sound->image, image_bytes);
    for (size_t at = 0; at + GROUP_BYTES <= byte_count; at += GROUP_BYTES) {
        uint32_t place;
        memcpy(&place, bytes + at, sizeof(place));
        place = place % (uint32_t)(image_bytes / 4) * 4;
        memcpy(image + place, bytes + at + sizeof(place), sizeof(place));
    }
    ((struct tok_image_header *)(void *)image)->checksum = tok_image_checksum(image, image_bytes);
    if (tok_image_open(image, image_bytes, &tokenizer, &err) == ERR_OK) {
        use(tokenizer);
        tok_destroy(tokenizer);
    } else {
        tok_image_free(image, image_bytes);
    }
    return 0;
}
