/* Objects and lists. */
#include <string.h>

#include "common/mem.h"
#include "frontend/grammar_schema_internal.h"

enum {
    MAX_INDENT = 24,
    MAX_NAME_CHARS = 64,             /* of names that a tool call makes up */
    MAX_REQUIRED = NET_MAX_NODES / 8 /* so many distinct names fill a network */
};

/* Nothing, a space, or a new line with its indentation. */
static uint32_t make_space(struct net *net)
{
    uint32_t start = net_node(net);
    uint32_t end = net_node(net);
    net_end(net, end);
    net_symbols(net, start, ' ', ' ', end);
    uint32_t at = net_symbol(net, start, '\n');
    for (uint32_t i = 0; i < MAX_INDENT; i++) {
        net_nothing(net, at, end);
        at = net_symbol(net, at, ' ');
    }
    net_nothing(net, at, end);
    return start;
}

uint32_t schema_put_space(struct schema *schema, uint32_t from)
{
    struct net *net = schema->net;
    if (schema->style == SCHEMA_STYLE_CALL) {
        return from;
    }
    if (schema->space == 0) {
        schema->space = make_space(net);
    }
    uint32_t to = net_node(net);
    net_call(net, from, schema->space, to);
    net_nothing(net, from, to);
    return to;
}

static bool is_bare(const char *name)
{
    static const char bare[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$";
    return name[0] != '\0' && strspn(name, bare) == strlen(name);
}

uint32_t schema_put_name(struct schema *schema, uint32_t from, const char *name)
{
    struct net *net = schema->net;
    if (schema->style == SCHEMA_STYLE_CALL) {
        bool is_quoted = !is_bare(name);
        from = is_quoted ? schema_put_quote(schema, from) : from;
        from = net_text(net, from, name, strlen(name));
        from = is_quoted ? schema_put_quote(schema, from) : from;
        return net_symbol(net, from, ':');
    }
    struct buf quoted;
    buf_init(&quoted);
    json_put_text(&quoted, name, strlen(name));
    from = net_text(net, from, buf_text(&quoted), quoted.used_bytes);
    buf_fini(&quoted);
    return schema_put_space(schema, net_symbol(net, from, ':'));
}

/* ---- objects ---- */

struct members {
    const struct json_t *properties; /* null: none named */
    const struct json_t *required;
    const struct json_t *more; /* schema of other members; null: there are none */
    bool has_more;             /* with more null: of any value */
    uint32_t first;            /* no member yet: the next may be the one at hand or one behind it */
    uint32_t later;            /* the same behind a member */
};

static bool is_required(const struct members *members, const char *name)
{
    for (size_t i = 0; members->required != NULL && i < json_count(members->required); i++) {
        if (strcmp(json_text(json_element(members->required, i), NULL), name) == 0) {
            return true;
        }
    }
    return false;
}

static enum err_code read_members(struct schema *schema, const struct schema_at *at,
                                  struct members *out)
{
    *out = (struct members){.properties = json_member(at->value, "properties"),
                            .required = json_member(at->value, "required")};
    const struct json_t *more = json_member(at->value, "additionalProperties");
    if (out->properties != NULL && json_kind(out->properties) != JSON_KIND_OBJECT) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "properties must be an object");
    }
    if (out->required != NULL && json_kind(out->required) != JSON_KIND_ARRAY) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "required must be a list of strings");
    }
    if (out->required != NULL && json_count(out->required) > MAX_REQUIRED) {
        return schema_fail(schema, at->path, ERR_LIMIT, "%zu names are required, at most %u may be",
                           json_count(out->required), MAX_REQUIRED);
    }
    for (size_t i = 0; out->required != NULL && i < json_count(out->required); i++) {
        if (json_kind(json_element(out->required, i)) != JSON_KIND_TEXT) {
            return schema_fail(schema, at->path, ERR_ARGUMENT,
                               "required must be a list of strings");
        }
    }
    bool is_flag = more != NULL && json_kind(more) == JSON_KIND_BOOL;
    out->has_more = more == NULL ? out->properties == NULL : !is_flag || json_bool(more);
    out->more = is_flag ? NULL : more;
    return ERR_OK;
}

/* The value at `from`, of a schema or, where that is null, of any. */
static enum err_code put_member_value(struct schema *schema, const struct schema_at *at,
                                      uint32_t *out_to)
{
    return at->value == NULL ? schema_put_rule(schema, at, out_to)
                             : schema_put_value(schema, at, out_to);
}

/* One member that is the next; it may be passed over where it is not required. */
static enum err_code put_member(struct schema *schema, const struct schema_at *at, const char *name,
                                bool may_lack, struct members *members)
{
    struct net *net = schema->net;
    uint32_t begin = net_node(net);
    uint32_t next_first = net_node(net);
    uint32_t next_later = net_node(net);
    net_nothing(net, members->first, begin);
    net_nothing(net, schema_put_space(schema, net_symbol(net, members->later, ',')), begin);
    struct schema_at value = *at;
    value.from = schema_put_name(schema, begin, name);
    uint32_t behind = 0;
    enum err_code code = put_member_value(schema, &value, &behind);
    if (code) {
        return code;
    }
    net_nothing(net, behind, next_later);
    if (may_lack) {
        net_nothing(net, members->first, next_first);
        net_nothing(net, members->later, next_later);
    }
    members->first = next_first;
    members->later = next_later;
    return ERR_OK;
}

/* Names that other members may not have. */
static uint32_t excluded_names(struct schema *schema, const struct members *members)
{
    struct body_names *names = &schema->net->names;
    uint32_t root = body_names_root(names);
    struct json_iter iter;
    if (members->properties != NULL) {
        json_iter_start(&iter, members->properties);
        while (json_iter_next(&iter)) {
            body_names_add(names, root, iter.key, strlen(iter.key));
        }
    }
    for (size_t i = 0; members->required != NULL && i < json_count(members->required); i++) {
        size_t byte_count;
        const char *name = json_text(json_element(members->required, i), &byte_count);
        body_names_add(names, root, name, byte_count);
    }
    return root;
}

/* Any number of members of other names. */
static enum err_code put_more(struct schema *schema, const struct schema_at *at,
                              const struct members *members)
{
    struct net *net = schema->net;
    bool is_json = schema->style == SCHEMA_STYLE_JSON;
    struct body body = {.kind = is_json ? BODY_JSON : BODY_NAME,
                        .min_chars = is_json ? 0 : 1,
                        .max_chars = is_json ? BODY_ANY : MAX_NAME_CHARS,
                        .names = excluded_names(schema, members)};
    uint32_t begin = net_node(net);
    net_nothing(net, members->first, begin);
    net_nothing(net, schema_put_space(schema, net_symbol(net, members->later, ',')), begin);
    uint32_t behind = is_json ? schema_put_quote(schema, begin) : begin;
    behind = net_body(net, behind, &body);
    behind = is_json ? schema_put_quote(schema, behind) : behind;
    struct schema_path path = {at->path, "additionalProperties"};
    struct schema_at value = {.value = members->more,
                              .path = &path,
                              .types = SCHEMA_ANY,
                              .from = net_symbol(net, behind, ':')};
    value.from = schema_put_space(schema, value.from);
    enum err_code code = put_member_value(schema, &value, &behind);
    if (!code) {
        net_nothing(net, behind, members->later);
    }
    return code;
}

static enum err_code put_named(struct schema *schema, const struct schema_at *at,
                               struct members *members)
{
    struct json_iter iter;
    if (members->properties == NULL) {
        return ERR_OK;
    }
    struct schema_path up = {at->path, "properties"};
    json_iter_start(&iter, members->properties);
    while (!schema->net->is_full && json_iter_next(&iter)) { /* net_seal tells when it is */
        struct schema_path path = {&up, iter.key};
        struct schema_at value = {.value = iter.value, .path = &path, .types = SCHEMA_ANY};
        enum err_code code =
            put_member(schema, &value, iter.key, !is_required(members, iter.key), members);
        if (code) {
            return code;
        }
    }
    return ERR_OK;
}

/* Names that are required and have no schema of their own. */
static enum err_code put_required(struct schema *schema, const struct schema_at *at,
                                  struct members *members)
{
    struct schema_path path = {at->path, "required"};
    for (size_t i = 0; members->required != NULL && i < json_count(members->required); i++) {
        const char *name = json_text(json_element(members->required, i), NULL);
        if (members->properties != NULL && json_member(members->properties, name) != NULL) {
            continue;
        }
        if (!members->has_more && json_member(at->value, "additionalProperties") != NULL) {
            return schema_fail(schema, at->path, ERR_ARGUMENT,
                               "'%.60s' is required, but no property and no other is allowed",
                               name);
        }
        struct schema_at value = {.value = members->more, .path = &path, .types = SCHEMA_ANY};
        enum err_code code = put_member(schema, &value, name, false, members);
        if (code) {
            return code;
        }
    }
    return ERR_OK;
}

enum err_code schema_put_members(struct schema *schema, const struct schema_at *at,
                                 uint32_t *out_to)
{
    struct net *net = schema->net;
    struct members members;
    enum err_code code = read_members(schema, at, &members);
    if (code) {
        return code;
    }
    members.first = schema_put_space(schema, net_symbol(net, at->from, '{'));
    members.later = net_node(net);
    code = put_named(schema, at, &members);
    if (!code) {
        code = put_required(schema, at, &members);
    }
    if (!code && members.has_more) {
        code = put_more(schema, at, &members);
    }
    if (!code) {
        uint32_t close = net_node(net);
        net_nothing(net, members.first, close);
        net_nothing(net, schema_put_space(schema, members.later), close);
        *out_to = net_symbol(net, close, '}');
    }
    return code;
}

/* ---- lists ---- */

struct items {
    const struct json_t *first; /* prefixItems; null: none */
    const struct json_t *rest;  /* items; null: any value */
    uint32_t first_count;
    uint32_t min_count;
    uint32_t max_count; /* BODY_ANY: no bound */
};

static enum err_code read_items(struct schema *schema, const struct schema_at *at,
                                struct items *out)
{
    *out = (struct items){.first = json_member(at->value, "prefixItems"),
                          .rest = json_member(at->value, "items"),
                          .max_count = BODY_ANY};
    if (out->first != NULL && json_kind(out->first) != JSON_KIND_ARRAY) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "prefixItems must be a list");
    }
    enum err_code code = schema_read_count(schema, at, "minItems", &out->min_count);
    if (!code) {
        code = schema_read_count(schema, at, "maxItems", &out->max_count);
    }
    out->max_count = out->max_count >= BODY_LIMIT ? BODY_ANY : out->max_count;
    out->first_count = out->first != NULL ? (uint32_t)json_count(out->first) : 0;
    if (!code && out->rest != NULL && json_kind(out->rest) == JSON_KIND_BOOL) {
        bool has_rest = json_bool(out->rest);
        out->rest = NULL;
        if (!has_rest && out->max_count > out->first_count) {
            out->max_count = out->first_count;
        }
    }
    return code;
}

static enum err_code put_item(struct schema *schema, const struct schema_at *at,
                              const struct items *items, uint32_t index, uint32_t from,
                              uint32_t *out_to)
{
    bool is_first = index < items->first_count;
    struct schema_path path = {at->path, is_first ? "prefixItems" : "items"};
    struct schema_at item = {.value = is_first ? json_element(items->first, index) : items->rest,
                             .path = &path,
                             .types = SCHEMA_ANY,
                             .from = from};
    return is_first ? schema_put_value(schema, &item, out_to)
                    : schema_put_rule(schema, &item, out_to);
}

enum err_code schema_put_items(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    struct net *net = schema->net;
    struct items items;
    enum err_code code = read_items(schema, at, &items);
    if (code) {
        return code;
    }
    uint32_t open = schema_put_space(schema, net_symbol(net, at->from, '['));
    uint32_t close = net_node(net);
    if (items.min_count == 0) {
        net_nothing(net, open, close);
    }
    uint32_t last = items.min_count > items.first_count ? items.min_count : items.first_count;
    last = items.max_count == BODY_ANY ? last + 1 : items.max_count;
    uint32_t before = net_node(net); /* an item: not where the list may be closed */
    net_nothing(net, open, before);
    for (uint32_t i = 0; i < last && !net->is_full; i++) {
        uint32_t behind = 0;
        code = put_item(schema, at, &items, i, before, &behind);
        if (code) {
            return code;
        }
        if (i + 1 >= items.min_count) {
            net_nothing(net, schema_put_space(schema, behind), close);
        }
        uint32_t comma = schema_put_space(schema, net_symbol(net, behind, ','));
        if (items.max_count == BODY_ANY && i + 1 == last) {
            net_nothing(net, comma, before); /* over and over */
        }
        before = comma;
    }
    *out_to = net_symbol(net, close, ']');
    return ERR_OK;
}
