/* Makes a frontend of another version of the message tables: linked with --wrap=hello_table_hash. */
#include "proto/hello.h"

uint64_t __wrap_hello_table_hash(void); /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c) */

uint64_t __wrap_hello_table_hash(void) /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c) */
{
    return 0x1234567890abcdefULL;
}
