/* Any JSON text.  What is accepted is written again; that text must be accepted too and come out
 * the same a second time, so that nothing is lost between reader and writer. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/fuzz/fuzz.h"

enum {
    DEPTH = 32
};

static void write_again(const char *text, size_t byte_count, struct buf *out)
{
    struct err err;
    struct json_t *value;
    if (json_parse(text, byte_count, DEPTH, &value, &err) != ERR_OK) {
        abort();
    }
    json_put_value(out, value);
    json_release(value);
}

static void check_accepted(const char *text, size_t byte_count)
{
    struct buf first;
    struct buf second;
    buf_init(&first);
    buf_init(&second);
    write_again(text, byte_count, &first);
    write_again(first.at, first.used_bytes, &second);
    if (first.used_bytes != second.used_bytes ||
        memcmp(first.at, second.at, first.used_bytes) != 0) {
        abort();
    }
    buf_fini(&first);
    buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct err err;
    struct json_t *value = NULL;
    enum err_code code = json_parse((const char *)bytes, byte_count, DEPTH, &value, &err);
    if (code == ERR_OK) {
        json_release(value);
        check_accepted((const char *)bytes, byte_count);
    } else if ((code != ERR_FORMAT && code != ERR_LIMIT) || value != NULL) {
        abort();
    }
    return 0;
}
