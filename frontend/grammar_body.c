#include "frontend/grammar_body.h"

#include <assert.h>

#include "common/mem.h"
#include "common/utf8.h"

/* Where within a character a place is. */
enum {
    AT_CHAR,
    NEED_1,
    NEED_2,
    NEED_2_E0,
    NEED_2_ED,
    NEED_3,
    NEED_3_F0,
    NEED_3_F4,
    ESCAPE,
    HEX_4,
    HEX_3_D,
    HEX_3,
    HEX_2,
    HEX_1,
};

enum {
    SUB_BITS = 4,
    CHAR_BITS = 28,
    NAME_SHIFT = SUB_BITS + CHAR_BITS
};

static uint64_t pack(uint32_t sub, uint32_t chars, uint32_t name)
{
    return (uint64_t)name << NAME_SHIFT | (uint64_t)chars << SUB_BITS | sub;
}

static uint32_t sub_of(uint64_t place)
{
    return (uint32_t)place & ((1U << SUB_BITS) - 1);
}

bool body_is_at_char(uint64_t place)
{
    return sub_of(place) == AT_CHAR;
}

uint32_t body_chars(uint64_t place)
{
    return (uint32_t)(place >> SUB_BITS) & ((1U << CHAR_BITS) - 1);
}

uint32_t body_name_at(uint64_t place)
{
    return (uint32_t)(place >> NAME_SHIFT);
}

uint64_t body_start(const struct body *body)
{
    return pack(AT_CHAR, 0, body->names);
}

static uint32_t count_more(const struct body *body, uint32_t chars, uint32_t more)
{
    uint64_t sum = (uint64_t)chars + more;
    if (body->max_chars == BODY_ANY) {
        return (uint32_t)(sum < body->min_chars ? sum : body->min_chars);
    }
    return (uint32_t)sum;
}

uint64_t body_skip(const struct body *body, uint64_t place, uint32_t char_count)
{
    assert(body_is_at_char(place));
    uint32_t chars = count_more(body, body_chars(place), char_count);
    if (body->max_chars != BODY_ANY && chars > body->max_chars) {
        return BODY_DEAD;
    }
    return pack(AT_CHAR, chars, char_count == 0 ? body_name_at(place) : 0);
}

static bool is_between(uint8_t byte, uint8_t lo, uint8_t hi)
{
    return byte >= lo && byte <= hi;
}

static bool is_hex(uint8_t byte)
{
    return is_between(byte, '0', '9') || is_between(byte | 0x20, 'a', 'f');
}

/* The first byte of a character that is more than one byte long; AT_CHAR where it is none. */
static uint32_t lead(uint8_t byte)
{
    switch (byte) {
    case 0xe0: return NEED_2_E0;
    case 0xed: return NEED_2_ED;
    case 0xf0: return NEED_3_F0;
    case 0xf4: return NEED_3_F4;
    default: break; /* foreign */
    }
    if (is_between(byte, 0xc2, 0xdf)) {
        return NEED_1;
    }
    if (is_between(byte, 0xe1, 0xef)) {
        return NEED_2;
    }
    return is_between(byte, 0xf1, 0xf3) ? NEED_3 : AT_CHAR;
}

/* One-byte characters that need no escape. */
static bool is_single(enum body_kind kind, uint8_t byte)
{
    switch (kind) {
    case BODY_JSON: return is_between(byte, 0x20, 0x7f) && byte != '"' && byte != '\\';
    case BODY_PLAIN: return is_between(byte, 0x20, 0x7f) || byte == '\n' || byte == '\t';
    case BODY_NAME:
        return is_between(byte | 0x20, 'a', 'z') || is_between(byte, '0', '9') || byte == '_';
    case BODY_KINDS: break;
    }
    return false;
}

#define DEAD_SUB UINT32_MAX

static uint32_t first_byte(const struct body *body, uint8_t byte)
{
    if (byte < 0x80) {
        if (is_single(body->kind, byte)) {
            return AT_CHAR;
        }
        bool may_escape = body->kind == BODY_JSON && body->names == 0;
        return byte == '\\' && may_escape ? ESCAPE : DEAD_SUB;
    }
    uint32_t sub = body->kind == BODY_NAME ? AT_CHAR : lead(byte);
    return sub == AT_CHAR ? DEAD_SUB : sub;
}

static uint32_t escaped(uint8_t byte)
{
    switch (byte) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return AT_CHAR;
    case 'u': return HEX_4;
    default: break; /* foreign */
    }
    return DEAD_SUB;
}

/* Of the four digits behind backslash u. */
static uint32_t hex_digit(uint32_t sub, uint8_t byte)
{
    if (!is_hex(byte)) {
        return DEAD_SUB;
    }
    switch (sub) {
    case HEX_4: return (byte | 0x20) == 'd' ? HEX_3_D : HEX_3;
    case HEX_3_D: return is_between(byte, '0', '7') ? HEX_2 : DEAD_SUB; /* d8.. is half a pair */
    case HEX_3: return HEX_2;
    case HEX_2: return HEX_1;
    case HEX_1: return AT_CHAR;
    default: break; /* foreign */
    }
    return DEAD_SUB;
}

static uint32_t later_byte(uint32_t sub, uint8_t byte)
{
    bool is_tail = is_between(byte, 0x80, 0xbf);
    switch (sub) {
    case NEED_1: return is_tail ? AT_CHAR : DEAD_SUB;
    case NEED_2: return is_tail ? NEED_1 : DEAD_SUB;
    case NEED_2_E0: return is_between(byte, 0xa0, 0xbf) ? NEED_1 : DEAD_SUB;
    case NEED_2_ED: return is_between(byte, 0x80, 0x9f) ? NEED_1 : DEAD_SUB;
    case NEED_3: return is_tail ? NEED_2 : DEAD_SUB;
    case NEED_3_F0: return is_between(byte, 0x90, 0xbf) ? NEED_2 : DEAD_SUB;
    case NEED_3_F4: return is_between(byte, 0x80, 0x8f) ? NEED_2 : DEAD_SUB;
    case ESCAPE: return escaped(byte);
    case HEX_4:
    case HEX_3_D:
    case HEX_3:
    case HEX_2:
    case HEX_1: return hex_digit(sub, byte);
    default: break; /* foreign */
    }
    return DEAD_SUB;
}

uint64_t body_next(const struct body *body, const struct body_names *names, uint64_t place,
                   uint8_t byte)
{
    uint32_t sub = sub_of(place);
    uint32_t chars = body_chars(place);
    uint32_t name = body_name_at(place);
    if (sub == AT_CHAR) {
        if (body->max_chars != BODY_ANY && chars >= body->max_chars) {
            return BODY_DEAD;
        }
        sub = first_byte(body, byte);
        chars = count_more(body, chars, 1);
    } else {
        sub = later_byte(sub, byte);
    }
    if (sub == DEAD_SUB) {
        return BODY_DEAD;
    }
    return pack(sub, chars, name == 0 ? 0 : body_name_child(names, name, byte));
}

bool body_can_end(const struct body *body, const struct body_names *names, uint64_t place)
{
    uint32_t name = body_name_at(place);
    return body_is_at_char(place) && body_chars(place) >= body->min_chars &&
           !(name != 0 && names->nodes[name].is_whole);
}

void body_names_fini(struct body_names *names)
{
    mem_free(names->nodes);
    *names = (struct body_names){0};
}

static uint32_t new_name(struct body_names *names, uint8_t byte)
{
    if (names->count == names->cap) {
        names->cap = names->cap == 0 ? 64 : names->cap * 2;
        names->nodes = mem_realloc(names->nodes, names->cap, sizeof(names->nodes[0]));
    }
    if (names->count == 0) {
        names->nodes[names->count++] = (struct body_name){0}; /* no node */
    }
    names->nodes[names->count] = (struct body_name){.byte = byte};
    return names->count++;
}

uint32_t body_names_root(struct body_names *names)
{
    return new_name(names, 0);
}

uint32_t body_name_child(const struct body_names *names, uint32_t node, uint8_t byte)
{
    uint32_t child = names->nodes[node].child;
    while (child != 0 && names->nodes[child].byte != byte) {
        child = names->nodes[child].sibling;
    }
    return child;
}

void body_names_add(struct body_names *names, uint32_t root, const char *text, size_t byte_count)
{
    uint32_t at = root;
    for (size_t i = 0; i < byte_count; i++) {
        uint32_t child = body_name_child(names, at, (uint8_t)text[i]);
        if (child == 0) {
            child = new_name(names, (uint8_t)text[i]);
            names->nodes[child].sibling = names->nodes[at].child;
            names->nodes[at].child = child;
        }
        at = child;
    }
    names->nodes[at].is_whole = true;
}

bool body_is_plain(enum body_kind kind, const char *text, size_t byte_count, uint32_t *out_chars,
                   size_t *out_bytes)
{
    size_t at = 0;
    uint32_t chars = 0;
    while (at < byte_count) {
        uint8_t byte = (uint8_t)text[at];
        uint32_t code_point;
        size_t char_bytes = 1;
        if (byte < 0x80 ? !is_single(kind, byte) : kind == BODY_NAME) {
            break;
        }
        if (byte >= 0x80) {
            char_bytes = utf8_decode(text + at, byte_count - at, &code_point);
            if (char_bytes == 0) {
                break;
            }
        }
        at += char_bytes;
        chars++;
    }
    *out_chars = chars;
    *out_bytes = at;
    return at == byte_count;
}
