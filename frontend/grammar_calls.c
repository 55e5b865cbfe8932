#include "frontend/grammar_calls.h"

#include <string.h>

#include "common/json.h"
#include "frontend/grammar_schema.h"

/* "name" and "parameters" of a tool, which may stand in "function" or in the tool itself. */
struct function {
    const char *name;
    size_t name_bytes;
    const struct json_t *parameters; /* null: it takes none */
};

static bool read_function(const struct json_t *tool, struct function *out)
{
    const struct json_t *inner = json_member(tool, "function");
    const struct json_t *at = inner != NULL ? inner : tool;
    const struct json_t *name = json_member(at, "name");
    if (name == NULL || json_kind(name) != JSON_KIND_TEXT) {
        return false;
    }
    out->name = json_text(name, &out->name_bytes);
    out->parameters = json_member(at, "parameters");
    if (out->parameters != NULL && json_kind(out->parameters) == JSON_KIND_NULL) {
        out->parameters = NULL;
    }
    return true;
}

static enum err_code put_arguments(struct schema *schema, struct net *net, uint32_t from,
                                   const struct function *function, uint32_t *out_to,
                                   struct err *err)
{
    if (function->parameters == NULL || json_count(function->parameters) == 0) {
        *out_to = net_text(net, from, "{}", 2);
        return ERR_OK;
    }
    enum err_code code = schema_put(schema, from, function->parameters, out_to, err);
    return code ? err_wrap(err, "tools: %.60s", function->name) : ERR_OK;
}

static enum err_code put_function(struct schema *schema, struct net *net, uint32_t from,
                                  const struct function *function, uint32_t *out_to,
                                  struct err *err)
{
    static const char head[] = "call:";
    uint32_t at = net_symbol(net, from, GRAMMAR_CALL_OPEN);
    at = net_text(net, at, head, sizeof(head) - 1);
    at = net_text(net, at, function->name, function->name_bytes);
    enum err_code code = put_arguments(schema, net, at, function, &at, err);
    if (!code) {
        *out_to = net_symbol(net, at, GRAMMAR_CALL_CLOSE);
    }
    return code;
}

/* A network of one call of any function that may be called. */
static enum err_code put_call(struct schema *schema, struct net *net,
                              const struct grammar_source *source, uint32_t start, struct err *err)
{
    uint32_t end = net_node(net);
    bool has_any = false;
    net_end(net, end);
    for (size_t i = 0; i < json_count(source->tools); i++) {
        struct function function = {0};
        if (!read_function(json_element(source->tools, i), &function)) {
            return err_set(err, ERR_ARGUMENT, "tools: element %zu has no function with a name", i);
        }
        if (source->tool != NULL && strcmp(source->tool, function.name) != 0) {
            continue;
        }
        uint32_t to = 0;
        enum err_code code = put_function(schema, net, start, &function, &to, err);
        if (code) {
            return code;
        }
        net_nothing(net, to, end);
        has_any = true;
    }
    if (!has_any) {
        return err_set(err, ERR_ARGUMENT, "tools: there is no function '%.60s'",
                       source->tool != NULL ? source->tool : "");
    }
    return ERR_OK;
}

enum err_code grammar_put_calls(struct net *net, const struct grammar_source *source, uint32_t from,
                                uint32_t *out_to, struct err *err)
{
    struct schema *schema = schema_create(net, SCHEMA_STYLE_CALL);
    uint32_t start = net_node(net);
    enum err_code code = put_call(schema, net, source, start, err);
    if (!code) {
        code = schema_finish(schema, err);
    }
    uint32_t count = source->has_one_call ? 1 : GRAMMAR_MAX_CALLS;
    uint32_t end = net_node(net);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t behind = net_node(net);
        net_call(net, from, start, behind);
        net_nothing(net, behind, end);
        from = behind;
    }
    *out_to = end;
    schema_destroy(schema);
    return code;
}
