/* A whole safetensors file.  In what is accepted every tensor has the bytes that its shape needs,
 * within the file, and can be read. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "worker/safetensors.h"

static void check_tensor(const struct st_set *set, const struct st_tensor *tensor,
                         size_t file_bytes)
{
    char shape[64];
    struct err err;
    uint64_t elem_count = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        elem_count *= tensor->dims[i];
    }
    if (elem_count * st_dtype_bytes(tensor->dtype) != tensor->byte_count ||
        tensor->file_offset + tensor->byte_count > file_bytes ||
        strlen(st_shape_text(tensor, shape, sizeof(shape))) < 2 ||
        st_find(set, tensor->name) != tensor) {
        abort();
    }
    unsigned char *bytes = malloc(tensor->byte_count + 1);
    if (bytes == NULL || st_read(set, tensor, 0, bytes, tensor->byte_count, &err) != ERR_OK ||
        st_read(set, tensor, tensor->byte_count, bytes, 1, &err) != ERR_INTERNAL) {
        abort();
    }
    free(bytes);
}

static void check_file(const char *path, size_t file_bytes)
{
    struct st_set *set = NULL;
    struct err err = {0};
    uint64_t covered_bytes = 0;
    enum err_code code = st_open_file(path, &set, &err);
    if (code != ERR_OK) {
        if ((code != ERR_FORMAT && code != ERR_LIMIT) || err.message[0] == '\0') {
            abort();
        }
        return;
    }
    for (uint32_t i = 0; i < st_count(set); i++) {
        check_tensor(set, st_at(set, i), file_bytes);
        covered_bytes += st_at(set, i)->byte_count;
    }
    if (covered_bytes > file_bytes) {
        abort();
    }
    st_close(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    char path[64];
    int fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, byte_count) != (ssize_t)byte_count) {
        abort();
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    check_file(path, byte_count);
    (void)close(fd); /* memory only */
    return 0;
}
