/* Runs a fuzz target over the files of one corpus folder: replay FOLDER. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

enum {
    PATH_BYTES = 4096,
    INPUT_MAX_BYTES = 1 << 24
};

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = malloc(INPUT_MAX_BYTES);
    int failed = 1;
    if (file == NULL || bytes == NULL) {
        (void)fprintf(stderr, "%s: cannot be read\n", path);
        goto out;
    }
    size_t byte_count = fread(bytes, 1, INPUT_MAX_BYTES, file);
    if (ferror(file) || byte_count == INPUT_MAX_BYTES) {
        (void)fprintf(stderr, "%s: cannot be read, or %d bytes or more\n", path, INPUT_MAX_BYTES);
        goto out;
    }
    /* An exact copy: a read past the end is then seen by a sanitizer. */
    unsigned char *exact = realloc(bytes, byte_count == 0 ? 1 : byte_count);
    bytes = exact == NULL ? bytes : exact;
    failed = LLVMFuzzerTestOneInput(bytes, byte_count) != 0;
out:
    free(bytes);
    if (file != NULL) {
        (void)fclose(file); /* read only */
    }
    return failed;
}

int main(int argc, char **argv)
{
    struct dirent **entries = NULL;
    int count = argc == 2 ? scandir(argv[1], &entries, NULL, alphasort) : -1;
    if (count < 0) {
        (void)fprintf(stderr, "usage: replay FOLDER (of inputs)\n");
        return EXIT_FAILURE;
    }
    unsigned passed = 0;
    unsigned failed = 0;
    for (int i = 0; i < count; i++) {
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof(path), "%s/%s", argv[1], entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') {
            int has_failed = replay_file(path);
            failed += has_failed != 0;
            passed += has_failed == 0;
        }
        free(entries[i]);
    }
    free(entries);
    (void)printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
