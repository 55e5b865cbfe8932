/* Makes a frontend of another version of the message tables: linked with --wrap=hello_table_hash. */
#include "proto/hello.h"

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,readability-identifier-naming): ld names it */
uint64_t __wrap_hello_table_hash(void);

uint64_t __wrap_hello_table_hash(void)
{
    return 0x1234567890abcdefULL;
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,readability-identifier-naming) */
