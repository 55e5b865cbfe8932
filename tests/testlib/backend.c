#include "tests/testlib/backend.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/test.h"

#define PIECE_BYTES (4U << 20)

void backend_fill(struct backend_device *device, void *at, int byte, size_t byte_count)
{
    struct err err = {0};
    const struct stage_allocator *allocator = &device->allocator;
    size_t piece_bytes = byte_count < PIECE_BYTES ? byte_count : PIECE_BYTES;
    unsigned char *piece = mem_zalloc(piece_bytes, 1);
    memset(piece, byte, piece_bytes);
    for (size_t done = 0; done < byte_count; done += piece_bytes) {
        size_t more = byte_count - done < piece_bytes ? byte_count - done : piece_bytes;
        test_ok(allocator->write(allocator->context, (unsigned char *)at + done, piece, more, &err),
                &err);
    }
    mem_free(piece);
}

void backend_pin_limits(struct runner_limits *limits)
{
    uint32_t least_tokens = num_max(BACKEND_PINNED_TOKENS + limits->max_step_rows,
                                    BACKEND_PINNED_TOKENS * limits->pipeline_depth);
    limits->max_step_tokens = num_max(limits->max_step_tokens, least_tokens);
}

void backend_close_runner(struct backend_runner *runner)
{
    runner->runner->table->destroy(runner->runner);
    weights_fini(&runner->weights);
    *runner = (struct backend_runner){0};
}

const struct backend *backend_under_test(void)
{
    uint32_t count = 0;
    return backends_under_test(&count)[0];
}
