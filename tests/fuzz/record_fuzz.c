/* A file given to --replay.  The first byte says whether the rest is a whole file (0) or what follows
 * a good header: the header holds the hash of this build's tables, which no corpus can keep. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/hello.h"
#include "tests/fuzz/fuzz.h"
#include "worker/record.h"

enum {
    PATH_BYTES = 64
};

static void read_all(const char *path)
{
    struct record_reader *reader = NULL;
    struct record_header header;
    struct err err;
    if (record_reader_open(path, &header, &reader, &err) != ERR_OK) {
        return;
    }
    bool is_end = false;
    uint64_t sum = 0;
    struct record_entry entry;
    while (record_read(reader, &entry, &is_end, &err) == ERR_OK && !is_end) {
        const unsigned char *bytes = entry.bytes;
        for (uint32_t i = 0; i < entry.byte_count; i++) {
            sum += bytes[i];
        }
    }
    record_reader_close(reader);
    if (sum == UINT64_MAX) {
        abort(); /* cannot be: the bytes were read */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    char path[PATH_BYTES];
    int fd = memfd_create("record", MFD_CLOEXEC);
    if (fd < 0 || byte_count == 0) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return 0;
    }
    if (bytes[0] != 0) {
        (void)dprintf(fd,
                      "bezel-record 1 table_hash=%016" PRIx64
                      " vocab_tokens=2048 page_tokens=64 max_step_tokens=512 model=m\n",
                      hello_table_hash());
    }
    if (write(fd, bytes + 1, byte_count - 1) == (ssize_t)byte_count - 1) {
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        read_all(path);
    }
    (void)close(fd);
    return 0;
}
