/* UTF-8 validation and sequence boundaries. */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Well-formed per Unicode table 3-7: no surrogates, no overlong forms, at most U+10FFFF. */
bool utf8_is_valid(const char *text, size_t byte_count);

/* Bytes of the sequence at text (1 to 4), 0 where it is malformed.  *out_code_point is set
 * otherwise. */
size_t utf8_decode(const char *text, size_t byte_count, uint32_t *out_code_point);

/* Writes 1 to 4 bytes; code_point must be valid. */
size_t utf8_encode(uint32_t code_point, char out[4]);

/* Length of the longest prefix that does not end inside a sequence which more bytes could still
 * complete.  Malformed bytes count as complete. */
size_t utf8_complete_prefix(const char *text, size_t byte_count);

#endif
