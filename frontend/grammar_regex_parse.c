/* An expression into an automaton over code points.  A counted repetition reads its operand again for
 * each copy, which the bound on nodes keeps short. */
#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/grammar_regex_internal.h"

enum {
    MAX_DEPTH = 64,
    MAX_COUNT = 100000
};

struct part {
    uint32_t from;
    uint32_t to;
};

static enum err_code parse_choice(struct regex *regex, struct part *out_part);

enum err_code regex_fail(struct regex *regex, enum err_code code, const char *what)
{
    return err_set(regex->err, code, "regular expression, byte %zu: %s", regex->used_bytes, what);
}

uint32_t regex_node(struct regex *regex)
{
    if (regex->node_count == regex->node_cap) {
        regex->node_cap = regex->node_cap == 0 ? 64 : regex->node_cap * 2;
        regex->first_edge = mem_realloc(regex->first_edge, regex->node_cap, sizeof(uint32_t));
    }
    regex->first_edge[regex->node_count] = UINT32_MAX;
    return regex->node_count++;
}

void regex_edge(struct regex *regex, uint32_t from, const struct regex_edge *edge)
{
    if (regex->edge_count == regex->edge_cap) {
        regex->edge_cap = regex->edge_cap == 0 ? 128 : regex->edge_cap * 2;
        regex->edges = mem_realloc(regex->edges, regex->edge_cap, sizeof(regex->edges[0]));
    }
    regex->edges[regex->edge_count] = *edge;
    regex->edges[regex->edge_count].next = regex->first_edge[from];
    regex->first_edge[from] = regex->edge_count++;
}

static void nothing(struct regex *regex, uint32_t from, uint32_t to)
{
    regex_edge(regex, from, &(struct regex_edge){.kind = REGEX_EDGE_NOTHING, .to = to});
}

enum err_code regex_take_char(struct regex *regex, uint32_t *out_char)
{
    size_t char_bytes =
        utf8_decode(regex->at + regex->used_bytes, regex->byte_count - regex->used_bytes, out_char);
    if (char_bytes == 0) {
        return regex_fail(regex, ERR_ARGUMENT, "not UTF-8");
    }
    regex->used_bytes += char_bytes;
    return ERR_OK;
}

static bool has_next(const struct regex *regex, const char *text)
{
    size_t text_bytes = strlen(text);
    return regex->byte_count - regex->used_bytes >= text_bytes &&
           memcmp(regex->at + regex->used_bytes, text, text_bytes) == 0;
}

/* The ranges from first on as one edge. */
static struct part chars_part(struct regex *regex, uint32_t first)
{
    struct part part = {regex_node(regex), regex_node(regex)};
    regex_edge(regex, part.from,
               &(struct regex_edge){.kind = REGEX_EDGE_CHARS,
                                    .to = part.to,
                                    .first_range = first,
                                    .range_count = regex->range_count - first});
    return part;
}

static struct part edge_part(struct regex *regex, enum regex_edge_kind kind)
{
    struct part part = {regex_node(regex), regex_node(regex)};
    regex_edge(regex, part.from, &(struct regex_edge){.kind = kind, .to = part.to});
    return part;
}

/* Behind "(?": what groups may begin with. */
static enum err_code skip_group_head(struct regex *regex)
{
    if (has_next(regex, ":")) {
        regex->used_bytes++;
        return ERR_OK;
    }
    bool is_behind = has_next(regex, "<=") || has_next(regex, "<!");
    if (is_behind || has_next(regex, "=") || has_next(regex, "!")) {
        return regex_fail(regex, ERR_UNSUPPORTED, "look-around is not served");
    }
    if (has_next(regex, "P<") || has_next(regex, "<")) {
        while (regex->used_bytes < regex->byte_count && regex->at[regex->used_bytes] != '>') {
            regex->used_bytes++;
        }
        if (regex->used_bytes < regex->byte_count) {
            regex->used_bytes++;
            return ERR_OK;
        }
    }
    return regex_fail(regex, ERR_UNSUPPORTED, "this kind of group is not served");
}

static enum err_code parse_group(struct regex *regex, struct part *out_part)
{
    enum err_code code = ERR_OK;
    if (has_next(regex, "?")) {
        regex->used_bytes++;
        code = skip_group_head(regex);
    }
    if (!code && ++regex->depth > MAX_DEPTH) {
        code = regex_fail(regex, ERR_LIMIT, "groups nest deeper than 64");
    }
    if (!code) {
        code = parse_choice(regex, out_part);
    }
    if (!code && !has_next(regex, ")")) {
        code = regex_fail(regex, ERR_ARGUMENT, "a group is not closed");
    }
    regex->used_bytes++;
    regex->depth--;
    return code;
}

static enum err_code parse_atom(struct regex *regex, struct part *out_part)
{
    uint32_t c = 0;
    uint32_t first = regex->range_count;
    if (regex->node_count > REGEX_MAX_NODES) {
        return regex_fail(regex, ERR_LIMIT, "more than 40000 nodes: use smaller counts");
    }
    enum err_code code = regex_take_char(regex, &c);
    if (code) {
        return code;
    }
    switch (c) {
    case '(': return parse_group(regex, out_part);
    case '^': *out_part = edge_part(regex, REGEX_EDGE_BEGIN); return ERR_OK;
    case '$': *out_part = edge_part(regex, REGEX_EDGE_END); return ERR_OK;
    case '*':
    case '+':
    case '?': return regex_fail(regex, ERR_ARGUMENT, "nothing to repeat");
    case '.':
        regex_add_range(regex, '\n', '\n');
        regex_add_range(regex, '\r', '\r'); /* no line's end in either dialect */
        regex_add_range(regex, 0x2028, 0x2029);
        regex_invert(regex, first);
        break;
    case '[': code = regex_parse_class(regex); break;
    case '\\': code = regex_parse_escape(regex, false); break;
    default: regex_add_range(regex, c, c); break; /* foreign */
    }
    if (!code) {
        *out_part = chars_part(regex, first);
    }
    return code;
}

/* Digits; false where there are none. */
static bool take_count(struct regex *regex, uint32_t *out_count)
{
    size_t start = regex->used_bytes;
    uint32_t count = 0;
    while (regex->used_bytes < regex->byte_count && regex->at[regex->used_bytes] >= '0' &&
           regex->at[regex->used_bytes] <= '9') {
        count = count * 10 + (uint32_t)(regex->at[regex->used_bytes] - '0');
        count = count > MAX_COUNT ? MAX_COUNT : count;
        regex->used_bytes++;
    }
    *out_count = count;
    return regex->used_bytes > start;
}

/* "{m}", "{m,}", "{,n}" or "{m,n}"; a brace that is none of them stands for itself. */
static bool take_braces(struct regex *regex, uint32_t *out_min, uint32_t *out_max)
{
    size_t start = regex->used_bytes;
    regex->used_bytes++;
    bool has_min = take_count(regex, out_min);
    bool has_max = has_min;
    *out_max = *out_min;
    if (has_next(regex, ",")) {
        regex->used_bytes++;
        has_max = take_count(regex, out_max);
        *out_max = has_max ? *out_max : BODY_ANY;
        has_min = has_min || has_max;
    }
    if (has_min && has_next(regex, "}")) {
        regex->used_bytes++;
        return true;
    }
    regex->used_bytes = start;
    return false;
}

static bool take_quantifier(struct regex *regex, uint32_t *out_min, uint32_t *out_max)
{
    *out_min = 0;
    *out_max = BODY_ANY;
    if (has_next(regex, "*")) {
        regex->used_bytes++;
    } else if (has_next(regex, "+")) {
        *out_min = 1;
        regex->used_bytes++;
    } else if (has_next(regex, "?")) {
        *out_max = 1;
        regex->used_bytes++;
    } else {
        return has_next(regex, "{") && take_braces(regex, out_min, out_max);
    }
    return true;
}

/* Copies of the atom that begins at byte start: min of them, then more that may be left out. */
static enum err_code repeat(struct regex *regex, size_t start, uint32_t min, uint32_t max,
                            struct part *part)
{
    size_t behind = regex->used_bytes;
    uint32_t copies = max == BODY_ANY ? (min == 0 ? 1 : min) : max;
    struct part whole = {regex_node(regex), 0};
    whole.to = whole.from;
    uint32_t end = regex_node(regex);
    for (uint32_t i = 0; i < copies; i++) {
        if (i >= min) {
            nothing(regex, whole.to, end);
        }
        if (i > 0) {
            regex->used_bytes = start;
            enum err_code code = parse_atom(regex, part);
            if (code) {
                return code;
            }
        }
        nothing(regex, whole.to, part->from);
        uint32_t next = regex_node(regex);
        nothing(regex, part->to, next);
        if (max == BODY_ANY && i + 1 == copies) {
            nothing(regex, next, part->from);
        }
        whole.to = next;
    }
    nothing(regex, whole.to, end);
    whole.to = end;
    *part = whole;
    regex->used_bytes = behind;
    return ERR_OK;
}

static enum err_code parse_repeat(struct regex *regex, struct part *out_part)
{
    size_t start = regex->used_bytes;
    uint32_t min = 1;
    uint32_t max = 1;
    enum err_code code = parse_atom(regex, out_part);
    if (code || !take_quantifier(regex, &min, &max)) {
        return code;
    }
    if (max < min) {
        return regex_fail(regex, ERR_ARGUMENT, "a count ends before it begins");
    }
    if (has_next(regex, "+")) {
        return regex_fail(regex, ERR_UNSUPPORTED, "possessive counts are not served");
    }
    regex->used_bytes += has_next(regex, "?");
    code = repeat(regex, start, min, max, out_part);
    if (!code && take_quantifier(regex, &min, &max)) {
        code = regex_fail(regex, ERR_ARGUMENT, "a count of a count");
    }
    return code;
}

static enum err_code parse_row(struct regex *regex, struct part *out_part)
{
    struct part row = {regex_node(regex), 0};
    row.to = row.from;
    while (regex->used_bytes < regex->byte_count && !has_next(regex, "|") &&
           !has_next(regex, ")")) {
        struct part part = {0};
        enum err_code code = parse_repeat(regex, &part);
        if (code) {
            return code;
        }
        nothing(regex, row.to, part.from);
        row.to = part.to;
    }
    *out_part = row;
    return ERR_OK;
}

static enum err_code parse_choice(struct regex *regex, struct part *out_part)
{
    struct part choice = {regex_node(regex), regex_node(regex)};
    for (;;) {
        struct part row;
        enum err_code code = parse_row(regex, &row);
        if (code) {
            return code;
        }
        nothing(regex, choice.from, row.from);
        nothing(regex, row.to, choice.to);
        if (!has_next(regex, "|")) {
            *out_part = choice;
            return ERR_OK;
        }
        regex->used_bytes++;
    }
}

enum err_code regex_parse(struct regex *regex, uint32_t *out_from, uint32_t *out_to)
{
    struct part part;
    enum err_code code = parse_choice(regex, &part);
    if (!code && regex->used_bytes < regex->byte_count) {
        code = regex_fail(regex, ERR_ARGUMENT, "a group is closed that was not opened");
    }
    if (!code) {
        *out_from = part.from;
        *out_to = part.to;
    }
    return code;
}
