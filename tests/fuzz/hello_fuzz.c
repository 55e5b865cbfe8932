/* Bytes of the control socket, both directions: a message that is accepted encodes again to one that
 * reads the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/hello.h"
#include "proto/plan.h"
#include "tests/fuzz/fuzz.h"

static void check_accepted(const struct hello_message *message)
{
    struct buf bytes, first, second;
    struct mem_arena arena;
    struct hello_message again;
    struct err err;
    buf_init(&bytes);
    buf_init(&first);
    buf_init(&second);
    if (hello_encode(message, &bytes, &err) != ERR_OK ||
        mem_arena_init(&arena, plan_decode_arena_bytes(bytes.used_bytes), &err) != ERR_OK ||
        hello_decode(bytes.at, bytes.used_bytes, &arena, &again, &err) != ERR_OK) {
        abort();
    }
    hello_dump(message, &first);
    hello_dump(&again, &second);
    if (strcmp(buf_text(&first), buf_text(&second)) != 0) {
        abort();
    }
    mem_arena_fini(&arena);
    buf_fini(&bytes);
    buf_fini(&first);
    buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct mem_arena arena;
    struct hello_message message;
    struct err err;
    if (mem_arena_init(&arena, plan_decode_arena_bytes(byte_count), &err) != ERR_OK) {
        abort();
    }
    enum err_code code = hello_decode(bytes, byte_count, &arena, &message, &err);
    if (code == ERR_OK) {
        check_accepted(&message);
    } else if (code != ERR_FORMAT && code != ERR_LIMIT) {
        abort();
    }
    mem_arena_fini(&arena);
    return 0;
}
