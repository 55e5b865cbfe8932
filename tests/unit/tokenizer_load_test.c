/* What a tokenizer.json may say, and how everything else is refused: in one line that names it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "frontend/tokenizer.h"
#include "tests/testlib/test.h"

#define NORMALIZER "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}"
#define DECODER                                                                           \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":" \
    "\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}"
#define ADDED "[{\"id\":256,\"content\":\"<pad>\",\"special\":true}]"
/* Ids from 256 on; the byte tokens come before. */
#define VOCAB  "\"<pad>\":256,\"a\":257,\"b\":258,\"ab\":259,\"\u2581\":260,\"\u2581a\":261"
#define MERGES "[\"a b\",[\"\u2581\",\"a\"]]"

/* Members of one file; null ones are the sound ones above, empty ones are left out. */
struct document {
    const char *normalizer;
    const char *pre_tokenizer;
    const char *decoder;
    const char *added;
    const char *type;
    const char *model_extra;
    const char *vocab;
    const char *merges;
    const char *extra;    /* after the model */
    const char *expected; /* null: it loads */
    enum err_code code;
};

static void put_member(struct buf *out, const char *name, const char *value, const char *sound)
{
    const char *text = value == NULL ? sound : value;
    if (text[0] != '\0') {
        buf_printf(out, "\"%s\":%s,", name, text);
    }
}

static void put_document(struct buf *out, const struct document *document)
{
    buf_append_text(out, "{\"version\":\"1.0\",\n");
    put_member(out, "added_tokens", document->added, ADDED);
    put_member(out, "normalizer", document->normalizer, NORMALIZER);
    put_member(out, "pre_tokenizer", document->pre_tokenizer, "null");
    put_member(out, "decoder", document->decoder, DECODER);
    buf_append_text(out, "\"model\":{");
    put_member(out, "type", document->type, "\"BPE\"");
    put_member(out, "byte_fallback", document->model_extra, "true");
    if (document->vocab == NULL || document->vocab[0] != '\0') {
        buf_append_text(out, "\"vocab\":{");
        for (int i = 0; i < 256; i++) {
            buf_printf(out, "\"<0x%02X>\":%d,", i, i);
        }
        buf_printf(out, "%s},", document->vocab == NULL ? VOCAB : document->vocab);
    }
    put_member(out, "merges", document->merges, MERGES);
    buf_printf(out, "\"unk_token\":\"<unk>\"}%s}", document->extra == NULL ? "" : document->extra);
}

struct folder {
    char dir[40];
    char path[64];
};

static void folder_make(struct folder *folder)
{
    (void)snprintf(folder->dir, sizeof(folder->dir), "/tmp/tokenizer_load_test.XXXXXX");
    test_true(mkdtemp(folder->dir) != NULL);
    (void)snprintf(folder->path, sizeof(folder->path), "%s/tokenizer.json", folder->dir);
}

static void folder_remove(const struct folder *folder)
{
    (void)unlink(folder->path); /* a test may not have made it */
    test_true(rmdir(folder->dir) == 0);
}

static void write_file(const char *path, const char *bytes, size_t byte_count)
{
    FILE *file = fopen(path, "wb");
    test_true(file != NULL && fwrite(bytes, 1, byte_count, file) == byte_count);
    test_true(fclose(file) == 0);
}

/* Loads bytes; gives the message behind the path. */
static enum err_code load_bytes(const char *bytes, size_t byte_count, struct tokenizer **out,
                                char message[ERR_MESSAGE_BYTES])
{
    struct folder folder;
    struct err err = {0};
    folder_make(&folder);
    write_file(folder.path, bytes, byte_count);
    enum err_code code = tok_load(folder.path, NULL, out, &err);
    size_t prefix = strlen(folder.path) + 2;
    message[0] = '\0';
    if (code != ERR_OK) {
        test_true(strncmp(err.message, folder.path, prefix - 2) == 0);
        (void)snprintf(message, ERR_MESSAGE_BYTES, "%s", err.message + prefix);
        test_true(strchr(message, '\n') == NULL);
    }
    folder_remove(&folder);
    return code;
}

static const struct document documents[] = {
    {.expected = NULL},
    {.pre_tokenizer =
         "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"invert\":false,\"behavior\":\"Mer"
         "gedWithPrevious\"}"},
    {.pre_tokenizer = ""},
    {.added = ""},
    {.model_extra = "true,\"dropout\":0.0,\"ignore_merges\":false,\"end_of_word_suffix\":\"\""},
    /* Added tokens past the vocabulary extend it. */
    {.added = "[{\"id\":262,\"content\":\"<new>\"},{\"id\":263,\"content\":\"<newer>\"}]"},
    {.merges = "[]"},
    {.vocab = VOCAB ",\"a\\u00e9\\ud83d\\ude00\\n\\\"\\\\\\/\\b\\f\\r\\t\":262"},

    {.type = "\"WordPiece\"",
     .expected = "model.type is \"WordPiece\", which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.type = "",
     .expected = "model.type is missing, Gemma's must be there",
     .code = ERR_UNSUPPORTED},
    {.normalizer = "{\"type\":\"NFKC\"}",
     .expected = "normalizer is {\"type\":\"NFKC\"}, which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.normalizer = "",
     .expected = "normalizer is missing, Gemma's must be there",
     .code = ERR_UNSUPPORTED},
    {.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
     .expected =
         "pre_tokenizer is {\"type\":\"ByteLevel\",\"add_prefix_space\":false}, which is not Gem"
         "ma's",
     .code = ERR_UNSUPPORTED},
    {.pre_tokenizer =
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":t"
         "rue},{\"type\":\"Punctuation\"}]}",
     .expected =
         "pre_tokenizer is {\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"indi"
         "vidual_digits\":true},{..., which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"}]}",
     .expected =
         "decoder is {\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"}]}, which i"
         "s not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.model_extra = "false",
     .expected = "model.byte_fallback is false, which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.model_extra = "true,\"dropout\":0.1",
     .expected = "model.dropout is 0.1, which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.model_extra = "true,\"ignore_merges\":true",
     .expected = "model.ignore_merges is true, which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.model_extra = "true,\"continuing_subword_prefix\":\"##\"",
     .expected = "model.continuing_subword_prefix is \"##\", which is not Gemma's",
     .code = ERR_UNSUPPORTED},
    {.model_extra = "true,\"byte_fallback\":true",
     .expected = "model: byte_fallback is there twice",
     .code = ERR_FORMAT},

    {.vocab = "", .expected = "model.vocab: it is missing", .code = ERR_FORMAT},
    {.vocab = "\"a\":257",
     .added = "",
     .expected = "no token has id 256, the last is 257",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":256,\"b\":256",
     .expected = "model.vocab: id 256 belongs to 'a' and to 'b'",
     .code = ERR_FORMAT},
    /* Messages stay on one line. */
    {.vocab = "\"a\\nb\":256,\"\\u007f\":256",
     .expected = "model.vocab: id 256 belongs to 'a?b' and to '?'",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":256,\"a\":257",
     .added = "",
     .expected = "'a' has the ids 256 and 257",
     .code = ERR_FORMAT},
    {.vocab = "\"\":256", .expected = "model.vocab: token 256 is empty", .code = ERR_FORMAT},
    {.vocab = "\"a\":1048576",
     .expected = "model.vocab: the number at byte 3223 exceeds 1048575",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":256.0",
     .expected = "model.vocab: the number at byte 3223 is not a plain integer",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":0256",
     .expected = "model.vocab: the number at byte 3223 is not a plain integer",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":-1",
     .expected = "model.vocab: byte 3223 is 0x2d where a non-negative integer must be",
     .code = ERR_FORMAT},
    {.vocab = "\"a\":256,",
     .expected = "model.vocab: byte 3227 is 0x7d where another element after the comma must be",
     .code = ERR_FORMAT},
    {.vocab = "\"a\" 256",
     .expected = "model.vocab: byte 3223 is 0x32 where a colon must be",
     .code = ERR_FORMAT},
    {.vocab = "\"\\ud800\":256",
     .expected = "model.vocab: the escape before byte 3226 is a lone surrogate",
     .code = ERR_FORMAT},
    {.vocab = "\"\\ud800\\u0041\":256",
     .expected = "model.vocab: the escape before byte 3232 is a lone surrogate",
     .code = ERR_FORMAT},
    {.vocab = "\"\\u00g0\":256",
     .expected = "model.vocab: byte 3224 is 0x67 where a hexadecimal digit must be",
     .code = ERR_FORMAT},
    {.vocab = "\"\\x\":256",
     .expected = "model.vocab: byte 3221 is 0x78 where an escape must be",
     .code = ERR_FORMAT},
    {.vocab = "\"\xff\":256",
     .expected = "model.vocab: the string at byte 3220 is not UTF-8",
     .code = ERR_FORMAT},
    {.vocab = "\"a\nb\":256",
     .expected = "byte 3588 is 0x0a where the end of a string must be",
     .code = ERR_FORMAT},

    {.added = "{}", .expected = "added_tokens is an object, not an array", .code = ERR_FORMAT},
    {.added = "[1]",
     .expected = "added_tokens[0] is an integer, not an object",
     .code = ERR_FORMAT},
    {.added = "[{\"id\":256}]",
     .expected = "added_tokens[0].content is not a string",
     .code = ERR_FORMAT},
    {.added = "[{\"id\":256,\"content\":\"\"}]",
     .expected = "added_tokens[0].content is empty",
     .code = ERR_FORMAT},
    {.added = "[{\"id\":256,\"content\":\"<pad>\",\"lstrip\":true}]",
     .expected = "added_tokens[0].lstrip is true, only false is served",
     .code = ERR_UNSUPPORTED},
    {.added = "[{\"id\":256,\"content\":\"<pad>\",\"normalized\":true}]",
     .expected = "added_tokens[0].normalized is true, only false is served",
     .code = ERR_UNSUPPORTED},
    {.added = "[{\"id\":257,\"content\":\"<pad>\"}]",
     .expected = "id 257 belongs to 'a' and to '<pad>'",
     .code = ERR_FORMAT},
    {.added = "[{\"id\":256,\"content\":\"<pad>\"},{\"id\":256,\"content\":\"<pad>\"}]",
     .expected = "added_tokens[1] has id 256 again",
     .code = ERR_FORMAT},
    {.added = "[{\"id\":0,\"content\":\"<0x00>\"}]",
     .expected = "the byte token <0x00> is an added token",
     .code = ERR_UNSUPPORTED},

    {.merges = "", .expected = "model.merges: it is missing", .code = ERR_FORMAT},
    {.merges = "{}",
     .expected = "model.merges: byte 0 is 0x7b where an array must be",
     .code = ERR_FORMAT},
    {.merges = "[\"ab\"]",
     .expected = "model.merges: merge 0 is not two words",
     .code = ERR_FORMAT},
    {.merges = "[\"a b b\"]",
     .expected = "model.merges: merge 0 is not two words",
     .code = ERR_FORMAT},
    {.merges = "[\"\"]", .expected = "model.merges: merge 0 is not two words", .code = ERR_FORMAT},
    {.merges = "[[\"a\"]]", .expected = "model.merges: merge 0 is not a pair", .code = ERR_FORMAT},
    {.merges = "[[]]", .expected = "model.merges: merge 0 is not a pair", .code = ERR_FORMAT},
    {.merges = "[[\"a\",\"b\",\"b\"]]",
     .expected = "model.merges: merge 0 is not a pair",
     .code = ERR_FORMAT},
    {.merges = "[[1,\"b\"]]",
     .expected = "model.merges: byte 2 is 0x31 where a string must be",
     .code = ERR_FORMAT},
    {.merges = "[\"a b\",\"a x\"]",
     .expected = "model.merges: merge 1: 'x' is not in the vocabulary",
     .code = ERR_FORMAT},
    {.merges = "[\"b a\"]",
     .expected = "model.merges: merge 0: 'ba' is not in the vocabulary",
     .code = ERR_FORMAT},
    {.merges = "[\"a b\",\"a b\"]",
     .expected = "model.merges: merge 1 repeats merge 0",
     .code = ERR_FORMAT},
    /* Special tokens cannot come out of ordinary text. */
    {.vocab = VOCAB ",\"<pad\":262,\">\":263",
     .merges = "[\"<pad >\"]",
     .expected = "model.merges: merge 0: '<pad>' is a special or byte token",
     .code = ERR_UNSUPPORTED},
    {.merges = "[\"<0x41> a\"]",
     .expected = "model.merges: merge 0: '<0x41>' is a special or byte token",
     .code = ERR_UNSUPPORTED},
    {.merges = "[\"a b\"",
     .expected = "byte 3680 is 0x7d where a value must be",
     .code = ERR_FORMAT},

    {.extra = ",\"model\":{}", .expected = "model is there twice", .code = ERR_FORMAT},
    {.extra = "}}",
     .expected = "byte 3695 is 0x7d where the end of the file must be",
     .code = ERR_FORMAT},
};

static void test_documents(void)
{
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        struct buf text;
        struct tokenizer *tokenizer = NULL;
        char message[ERR_MESSAGE_BYTES];
        buf_init(&text);
        put_document(&text, &documents[i]);
        enum err_code code = load_bytes(text.at, text.used_bytes, &tokenizer, message);
        test_eq_str(message, documents[i].expected == NULL ? "" : documents[i].expected);
        test_eq_u64(code, documents[i].code);
        tok_destroy(tokenizer);
        buf_fini(&text);
    }
}

static void test_no_model(void)
{
    struct tokenizer *tokenizer = NULL;
    char message[ERR_MESSAGE_BYTES];
    test_eq_u64(load_bytes("{}", 2, &tokenizer, message), ERR_FORMAT);
    test_eq_str(message, "it has no member 'model'");
    test_eq_u64(load_bytes("", 0, &tokenizer, message), ERR_FORMAT);
    test_eq_str(message, "the text ends at byte 0 where an object must follow");
    test_eq_u64(load_bytes("[]", 2, &tokenizer, message), ERR_FORMAT);
    test_eq_str(message, "byte 0 is 0x5b where an object must be");
}

static void test_a_byte_token_is_missing(void)
{
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    char message[ERR_MESSAGE_BYTES];
    buf_init(&text);
    put_document(&text, &(struct document){0});
    char *name = strstr(text.at, "<0x7F>");
    test_true(name != NULL);
    name[4] = 'f';
    test_eq_u64(load_bytes(text.at, text.used_bytes, &tokenizer, message), ERR_UNSUPPORTED);
    test_eq_str(message, "the vocabulary lacks the byte token <0x7F>");
    buf_fini(&text);
}

static void test_too_many_added_tokens(void)
{
    struct buf added;
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    char message[ERR_MESSAGE_BYTES];
    buf_init(&added);
    buf_init(&text);
    for (int i = 0; i < 1025; i++) {
        buf_printf(&added, "%s{\"id\":%d,\"content\":\"<t%d>\"}", i == 0 ? "[" : ",", 262 + i, i);
    }
    buf_append_text(&added, "]");
    put_document(&text, &(struct document){.added = added.at});
    test_eq_u64(load_bytes(text.at, text.used_bytes, &tokenizer, message), ERR_LIMIT);
    test_eq_str(message, "1025 added tokens, at most 1024");
    buf_fini(&text);
    buf_fini(&added);
}

/* Every prefix of a sound file is refused, and every nesting too deep. */
static void test_truncated_files(void)
{
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    char message[ERR_MESSAGE_BYTES];
    buf_init(&text);
    put_document(&text, &(struct document){0});
    for (size_t count = 0; count < text.used_bytes; count += count < 400 ? 1 : 37) {
        test_eq_u64(load_bytes(text.at, count, &tokenizer, message), ERR_FORMAT);
        test_true(message[0] != '\0');
    }
    buf_reset(&text);
    buf_append_text(&text, "{\"model\":");
    for (int i = 0; i < 100; i++) {
        buf_append_char(&text, '[');
    }
    test_eq_u64(load_bytes(text.at, text.used_bytes, &tokenizer, message), ERR_FORMAT);
    test_eq_str(message, "byte 41 is nested deeper than 32");
    buf_fini(&text);
}

static void test_not_a_file(void)
{
    struct folder folder;
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    char expected[128];
    folder_make(&folder);
    test_eq_u64(tok_load(folder.path, NULL, &tokenizer, &err), ERR_NOT_FOUND);
    (void)snprintf(expected, sizeof(expected), "%s: there is no such file", folder.path);
    test_eq_str(err.message, expected);
    test_eq_u64(tok_load(folder.dir, NULL, &tokenizer, &err), ERR_FORMAT);
    (void)snprintf(expected, sizeof(expected), "%s: it is not a regular file", folder.dir);
    test_eq_str(err.message, expected);
    write_file(folder.path, "", 0);
    test_true(truncate(folder.path, (off_t)300 << 20) == 0);
    test_eq_u64(tok_load(folder.path, NULL, &tokenizer, &err), ERR_LIMIT);
    (void)snprintf(expected, sizeof(expected), "%s: it has 314572800 bytes, at most 268435456",
                   folder.path);
    test_eq_str(err.message, expected);
    folder_remove(&folder);
}

/* Ids of what the small vocabulary can say. */
static void test_loaded_vocabulary(void)
{
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    char message[ERR_MESSAGE_BYTES];
    struct tok_ids ids = {0};
    buf_init(&text);
    put_document(
        &text,
        &(struct document){
            .added =
                "[{\"id\":262,\"content\":\"<new>\",\"special\":true},{\"id\":263,\"content\":\""
                "<new>er\"}]"});
    test_eq_u64(load_bytes(text.at, text.used_bytes, &tokenizer, message), ERR_OK);
    test_eq_u64(tok_vocab_count(tokenizer), 264);
    tok_encode(tokenizer, " ab<new>er<new>c", 16, TOK_SPECIAL_PARSE, &ids);
    static const uint32_t want[] = {260, 259, 263, 262, 'c'};
    test_eq_u64(ids.count, 5);
    test_true(memcmp(ids.at, want, sizeof(want)) == 0);
    test_true(tok_is_special(tokenizer, 262) && !tok_is_special(tokenizer, 263));
    tok_ids_fini(&ids);
    tok_destroy(tokenizer);
    buf_fini(&text);
}

static const struct test_case cases[] = {
    TEST(test_documents),
    TEST(test_no_model),
    TEST(test_a_byte_token_is_missing),
    TEST(test_too_many_added_tokens),
    TEST(test_truncated_files),
    TEST(test_not_a_file),
    TEST(test_loaded_vocabulary),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
