/* Tool declarations: JSON Schema in Gemma's notation, with the templates' own selection of keywords
 * and their order.  Keywords that are not selected are dropped. */
#include <string.h>

#include "frontend/chat_internal.h"

struct schema {
    struct chat_prompt *prompt;
    struct err *err;
};

static enum err_code put_properties(const struct schema *schema, const struct json_t *properties,
                                    bool skips_keywords, const struct chat_path *path);

static bool is_keyword(const char *key)
{
    static const char *const keywords[] = {"description", "type", "properties", "required",
                                           "nullable"};
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (strcmp(keywords[i], key) == 0) {
            return true;
        }
    }
    return false;
}

static void upper_ascii(struct buf *text)
{
    for (size_t i = 0; i < text->used_bytes; i++) {
        if (text->at[i] >= 'a' && text->at[i] <= 'z') {
            text->at[i] = (char)(text->at[i] - 32);
        }
    }
}

/* Names of types are ASCII words; others would need more of Python than is worth having. */
static enum err_code check_type_text(const struct schema *schema, const struct json_t *value,
                                     const struct chat_path *path)
{
    size_t byte_count = 0;
    const char *text = json_text(value, &byte_count);
    for (size_t i = 0; i < byte_count; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c > 0x7e || c == '\'' || c == '"' || c == '\\') {
            return chat_refuse(schema->err, ERR_ARGUMENT, path,
                               "is not the name of a type: byte %zu is 0x%02x", i, c);
        }
    }
    return ERR_OK;
}

/* Python's str(value).upper(): a list prints as ['STRING', 'NULL']. */
static enum err_code type_text(const struct schema *schema, const struct json_t *value,
                               const struct chat_path *path, struct buf *out)
{
    enum err_code code = ERR_OK;
    if (value == NULL) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_ARRAY) {
        code = chat_is_text(value) ? check_type_text(schema, value, path) : ERR_OK;
        code = code == ERR_OK ? chat_str(out, value, path, schema->err) : code;
        upper_ascii(out);
        return code;
    }
    buf_append_char(out, '[');
    for (size_t i = 0; i < json_count(value) && code == ERR_OK; i++) {
        const struct json_t *element = json_element(value, i);
        struct chat_path here = {.up = path, .index = i};
        const char *quote = chat_is_text(element) ? "'" : "";
        code = chat_is_text(element) ? check_type_text(schema, element, &here) : ERR_OK;
        buf_append_text(out, i == 0 ? "" : ", ");
        buf_append_text(out, quote);
        code = code == ERR_OK ? chat_str(out, element, &here, schema->err) : code;
        buf_append_text(out, quote);
    }
    buf_append_char(out, ']');
    upper_ascii(out);
    return code;
}

/* str(value) as ordinary text. */
static enum err_code put_str(const struct schema *schema, const struct json_t *value,
                             const struct chat_path *path)
{
    struct buf text;
    buf_init(&text);
    enum err_code code = chat_str(&text, value, path, schema->err);
    chat_put_text(schema->prompt, buf_text(&text), text.used_bytes);
    buf_fini(&text);
    return code;
}

static enum err_code put_quoted_str(const struct schema *schema, const struct json_t *value,
                                    const struct chat_path *path)
{
    chat_put_control(schema->prompt, "<|\"|>");
    enum err_code code = put_str(schema, value, path);
    chat_put_control(schema->prompt, "<|\"|>");
    return code;
}

/* required:["a","b"], from an array. */
static enum err_code put_required(const struct schema *schema, const struct json_t *required,
                                  const struct chat_path *up)
{
    struct chat_path path = {.up = up, .key = "required"};
    if (json_kind(required) != JSON_KIND_ARRAY) {
        return chat_refuse_kind(schema->err, &path, required, "an array");
    }
    enum err_code code = ERR_OK;
    chat_put_literal(schema->prompt, "required:[");
    for (size_t i = 0; i < json_count(required) && code == ERR_OK; i++) {
        struct chat_path here = {.up = &path, .index = i};
        chat_put_literal(schema->prompt, i == 0 ? "" : ",");
        code = put_quoted_str(schema, json_element(required, i), &here);
    }
    chat_put_literal(schema->prompt, "]");
    return code;
}

/* The type of an array's items: one name or a list of names, each wrapped. */
static enum err_code put_items_type(const struct schema *schema, const struct json_t *type,
                                    const struct chat_path *up)
{
    struct chat_path path = {.up = up, .key = "type"};
    struct buf text;
    enum err_code code = ERR_OK;
    chat_put_literal(schema->prompt, "type:");
    buf_init(&text);
    if (chat_is_text(type)) {
        code = type_text(schema, type, &path, &text);
        chat_put_quoted(schema->prompt, buf_text(&text), text.used_bytes);
    } else if (json_kind(type) == JSON_KIND_ARRAY) {
        chat_put_literal(schema->prompt, "[");
        for (size_t i = 0; i < json_count(type) && code == ERR_OK; i++) {
            struct chat_path here = {.up = &path, .index = i};
            chat_put_literal(schema->prompt, i == 0 ? "" : ",");
            buf_reset(&text);
            code = type_text(schema, json_element(type, i), &here, &text);
            chat_put_quoted(schema->prompt, buf_text(&text), text.used_bytes);
        }
        chat_put_literal(schema->prompt, "]");
    } else {
        code = chat_refuse_kind(schema->err, &path, type, "a string or an array");
    }
    buf_fini(&text);
    return code;
}

static enum err_code put_items_member(const struct schema *schema, const struct chat_entry *entry,
                                      const struct chat_path *path)
{
    if (strcmp(entry->key, "properties") == 0) {
        struct chat_path here = {.up = path, .key = entry->key};
        enum err_code code = ERR_OK;
        chat_put_literal(schema->prompt, "properties:{");
        if (json_kind(entry->value) == JSON_KIND_OBJECT) {
            code = put_properties(schema, entry->value, false, &here);
        }
        chat_put_literal(schema->prompt, "}");
        return code;
    }
    if (strcmp(entry->key, "required") == 0) {
        return put_required(schema, entry->value, path);
    }
    if (strcmp(entry->key, "type") == 0) {
        return put_items_type(schema, entry->value, path);
    }
    chat_put_literal(schema->prompt, entry->key);
    chat_put_literal(schema->prompt, ":");
    chat_put_value(schema->prompt, entry->value, true);
    return ERR_OK;
}

static enum err_code put_items(const struct schema *schema, const struct json_t *items,
                               const struct chat_path *up)
{
    struct chat_path path = {.up = up, .key = "items"};
    struct chat_sorted sorted;
    enum err_code code = ERR_OK;
    bool is_first = true;
    chat_put_literal(schema->prompt, "items:{");
    chat_sorted_init(&sorted, items);
    for (size_t i = 0; i < sorted.count && code == ERR_OK; i++) {
        if (!chat_is_null(sorted.entries[i].value)) {
            chat_put_literal(schema->prompt, is_first ? "" : ",");
            is_first = false;
            code = put_items_member(schema, &sorted.entries[i], &path);
        }
    }
    chat_sorted_fini(&sorted);
    chat_put_literal(schema->prompt, "}");
    return code;
}

/* Properties of an object: its own, or whatever else it has where it names none. */
static enum err_code put_object(const struct schema *schema, const struct json_t *value,
                                const struct chat_path *path)
{
    const struct json_t *properties = chat_member(value, "properties");
    bool has_properties = properties != NULL && json_kind(properties) == JSON_KIND_OBJECT;
    struct chat_path here = {.up = path, .key = "properties"};
    chat_put_literal(schema->prompt, "properties:{");
    enum err_code code = put_properties(schema, has_properties ? properties : value,
                                        !has_properties, has_properties ? &here : path);
    chat_put_literal(schema->prompt, "}");
    const struct json_t *required = chat_member(value, "required");
    if (code == ERR_OK && chat_is_truthy(required)) {
        chat_put_literal(schema->prompt, ",");
        code = put_required(schema, required, path);
    }
    return code;
}

/* The part of a property that depends on its type; *has_part where something was put. */
static enum err_code put_by_type(const struct schema *schema, const struct json_t *value,
                                 const char *type, bool *has_part, const struct chat_path *path)
{
    const struct json_t *choices = chat_member(value, "enum");
    const struct json_t *items = chat_member(value, "items");
    const char *comma = *has_part ? "," : "";
    enum err_code code = ERR_OK;
    if (strcmp(type, "STRING") == 0 && chat_is_truthy(choices)) {
        chat_put_literal(schema->prompt, comma);
        chat_put_literal(schema->prompt, "enum:");
        chat_put_value(schema->prompt, choices, true);
        *has_part = true;
    } else if (strcmp(type, "ARRAY") == 0 && items != NULL &&
               json_kind(items) == JSON_KIND_OBJECT && json_count(items) > 0) {
        chat_put_literal(schema->prompt, comma);
        code = put_items(schema, items, path);
        *has_part = true;
    }
    if (code == ERR_OK && chat_is_truthy(chat_member(value, "nullable"))) {
        chat_put_literal(schema->prompt, *has_part ? "," : "");
        chat_put_literal(schema->prompt, "nullable:true");
        *has_part = true;
    }
    if (code == ERR_OK && strcmp(type, "OBJECT") == 0) {
        chat_put_literal(schema->prompt, *has_part ? "," : "");
        code = put_object(schema, value, path);
        *has_part = true;
    }
    return code;
}

/* What stands between a property's braces, the closing one included.  A value that is no object
 * has no keywords. */
static enum err_code put_property(const struct schema *schema, const struct json_t *value,
                                  const struct chat_path *path)
{
    struct chat_prompt *prompt = schema->prompt;
    const struct json_t *description = chat_member(value, "description");
    bool has_part = false;
    struct buf type;
    buf_init(&type);
    enum err_code code = ERR_OK;
    if (chat_is_truthy(description)) {
        struct chat_path here = {.up = path, .key = "description"};
        chat_put_literal(prompt, "description:");
        code = put_quoted_str(schema, description, &here);
        has_part = true;
    }
    struct chat_path type_path = {.up = path, .key = "type"};
    code = code == ERR_OK ? type_text(schema, chat_member(value, "type"), &type_path, &type) : code;
    code = code == ERR_OK ? put_by_type(schema, value, buf_text(&type), &has_part, path) : code;
    chat_put_literal(prompt, has_part ? ",type:" : "type:");
    chat_put_quoted(prompt, buf_text(&type), type.used_bytes);
    chat_put_literal(prompt, "}");
    buf_fini(&type);
    return code;
}

static enum err_code put_properties(const struct schema *schema, const struct json_t *properties,
                                    bool skips_keywords, const struct chat_path *path)
{
    struct chat_sorted sorted;
    enum err_code code = ERR_OK;
    bool is_first = true;
    chat_sorted_init(&sorted, properties);
    for (size_t i = 0; i < sorted.count && code == ERR_OK; i++) {
        const struct chat_entry *entry = &sorted.entries[i];
        if (skips_keywords && is_keyword(entry->key)) {
            continue;
        }
        struct chat_path here = {.up = path, .key = entry->key};
        chat_put_literal(schema->prompt, is_first ? "" : ",");
        chat_put_literal(schema->prompt, entry->key);
        chat_put_literal(schema->prompt, ":{");
        is_first = false;
        code = put_property(schema, entry->value, &here);
    }
    chat_sorted_fini(&sorted);
    return code;
}

/* Without a type the brace stays open, as in the templates. */
static enum err_code put_parameters(const struct schema *schema, const struct json_t *parameters,
                                    const struct chat_path *up)
{
    struct chat_path path = {.up = up, .key = "parameters"};
    if (json_kind(parameters) != JSON_KIND_OBJECT) {
        return chat_refuse_kind(schema->err, &path, parameters, "an object");
    }
    struct chat_prompt *prompt = schema->prompt;
    enum err_code code = ERR_OK;
    chat_put_literal(prompt, ",parameters:{");
    const struct json_t *properties = json_member(parameters, "properties");
    if (chat_is_truthy(properties)) {
        struct chat_path here = {.up = &path, .key = "properties"};
        if (json_kind(properties) != JSON_KIND_OBJECT) {
            return chat_refuse_kind(schema->err, &here, properties, "an object");
        }
        chat_put_literal(prompt, "properties:{");
        code = put_properties(schema, properties, false, &here);
        chat_put_literal(prompt, "},");
    }
    const struct json_t *required = json_member(parameters, "required");
    if (code == ERR_OK && chat_is_truthy(required)) {
        code = put_required(schema, required, &path);
        chat_put_literal(prompt, ",");
    }
    const struct json_t *type = json_member(parameters, "type");
    if (code == ERR_OK && chat_is_truthy(type)) {
        struct chat_path here = {.up = &path, .key = "type"};
        struct buf text;
        buf_init(&text);
        code = type_text(schema, type, &here, &text);
        chat_put_literal(prompt, "type:");
        chat_put_quoted(prompt, buf_text(&text), text.used_bytes);
        chat_put_literal(prompt, "}");
        buf_fini(&text);
    }
    return code;
}

static enum err_code put_response(const struct schema *schema, const struct json_t *response,
                                  const struct chat_path *up)
{
    struct chat_path path = {.up = up, .key = "response"};
    struct chat_path type_path = {.up = &path, .key = "type"};
    struct chat_prompt *prompt = schema->prompt;
    enum err_code code = ERR_OK;
    chat_put_literal(prompt, ",response:{");
    const struct json_t *description = chat_member(response, "description");
    if (chat_is_truthy(description)) {
        struct chat_path here = {.up = &path, .key = "description"};
        chat_put_literal(prompt, "description:");
        code = put_quoted_str(schema, description, &here);
        chat_put_literal(prompt, ",");
    }
    struct buf type;
    buf_init(&type);
    code =
        code == ERR_OK ? type_text(schema, chat_member(response, "type"), &type_path, &type) : code;
    if (strcmp(buf_text(&type), "OBJECT") == 0) {
        chat_put_literal(prompt, "type:");
        chat_put_quoted(prompt, buf_text(&type), type.used_bytes);
        chat_put_literal(prompt, "}");
    }
    buf_fini(&type);
    return code;
}

enum err_code chat_put_declaration(struct chat_prompt *prompt, const struct json_t *tool,
                                   const struct chat_path *path, struct err *err)
{
    const struct schema schema = {.prompt = prompt, .err = err};
    const struct json_t *function = chat_member(tool, "function");
    struct chat_path function_path = {.up = path, .key = "function"};
    struct chat_path name_path = {.up = &function_path, .key = "name"};
    struct chat_path description_path = {.up = &function_path, .key = "description"};
    if (function == NULL || json_kind(function) != JSON_KIND_OBJECT) {
        return chat_refuse_kind(err, &function_path, function, "an object");
    }
    const struct json_t *name = json_member(function, "name");
    if (!chat_is_text(name)) {
        return chat_refuse_kind(err, &name_path, name, "a string");
    }
    chat_put_literal(prompt, "declaration:");
    enum err_code code = put_str(&schema, name, &name_path);
    chat_put_literal(prompt, "{description:");
    const struct json_t *description = json_member(function, "description");
    if (description == NULL) {
        chat_put_quoted(prompt, "", 0);
    } else if (code == ERR_OK) {
        code = put_quoted_str(&schema, description, &description_path);
    }
    const struct json_t *parameters = json_member(function, "parameters");
    if (code == ERR_OK && chat_is_truthy(parameters)) {
        code = put_parameters(&schema, parameters, &function_path);
    }
    const struct json_t *response = json_member(function, "response");
    if (code == ERR_OK && response != NULL) {
        code = put_response(&schema, response, &function_path);
    }
    chat_put_literal(prompt, "}");
    return code;
}
