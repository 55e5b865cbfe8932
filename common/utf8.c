#include "common/utf8.h"

#include <string.h>

/* Allowed values of the second byte depend on the first (Unicode table 3-7); later ones are always
 * 80..BF. */
struct lead {
    uint8_t byte_count; /* 0: not a lead byte */
    uint8_t second_min;
    uint8_t second_max;
};

static struct lead lead_of(unsigned char first)
{
    if (first < 0x80) {
        return (struct lead){1, 0, 0};
    }
    if (first < 0xc2 || first > 0xf4) {
        return (struct lead){0, 0, 0};
    }
    if (first < 0xe0) {
        return (struct lead){2, 0x80, 0xbf};
    }
    if (first < 0xf0) {
        return (struct lead){3, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf};
    }
    return (struct lead){4, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf};
}

/* Bytes at text that fit lead, at most its length. */
static size_t matching_bytes(const unsigned char *text, size_t byte_count, struct lead lead)
{
    size_t matched = 1;
    if (byte_count > 1 && lead.byte_count > 1) {
        matched += text[1] >= lead.second_min && text[1] <= lead.second_max;
    }
    while (matched >= 2 && matched < lead.byte_count && matched < byte_count &&
           (text[matched] & 0xc0) == 0x80) {
        matched++;
    }
    return matched;
}

size_t utf8_decode(const char *text, size_t byte_count, uint32_t *out_code_point)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (byte_count == 0) {
        return 0;
    }
    struct lead lead = lead_of(bytes[0]);
    if (lead.byte_count == 0 || matching_bytes(bytes, byte_count, lead) != lead.byte_count) {
        return 0;
    }
    if (lead.byte_count == 1) {
        *out_code_point = bytes[0];
        return 1;
    }
    uint32_t code_point = bytes[0] & (0x7fu >> lead.byte_count);
    for (size_t i = 1; i < lead.byte_count; i++) {
        code_point = code_point << 6 | (bytes[i] & 0x3fu);
    }
    *out_code_point = code_point;
    return lead.byte_count;
}

size_t utf8_encode(uint32_t code_point, char out[4])
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    size_t byte_count = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = byte_count - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3f));
        code_point >>= 6;
    }
    out[0] = (char)((0xf00u >> byte_count) | code_point);
    return byte_count;
}

bool utf8_is_valid(const char *text, size_t byte_count)
{
    const uint64_t high_bits = 0x8080808080808080ULL;
    size_t at = 0;
    while (at < byte_count) {
        uint64_t eight;
        if (byte_count - at >= sizeof(eight)) {
            memcpy(&eight, text + at, sizeof(eight));
            if ((eight & high_bits) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        uint32_t code_point;
        size_t sequence_bytes = utf8_decode(text + at, byte_count - at, &code_point);
        if (sequence_bytes == 0) {
            return false;
        }
        at += sequence_bytes;
    }
    return true;
}

size_t utf8_complete_prefix(const char *text, size_t byte_count)
{
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= byte_count; back++) {
        size_t start = byte_count - back;
        struct lead lead = lead_of(bytes[start]);
        if (lead.byte_count > back && matching_bytes(bytes + start, back, lead) == back) {
            return start;
        }
        if ((bytes[start] & 0xc0) != 0x80) {
            break;
        }
    }
    return byte_count;
}
