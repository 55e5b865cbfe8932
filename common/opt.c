#include "common/opt.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

enum {
    MAX_FILE_LINE_BYTES = 4096,
    MAX_HELP_NAME_COLUMNS = 34
};

struct target {
    const struct opt_row *rows;
    uint32_t row_count;
    void *options;
    struct opt_store *store;
};

void opt_store_fini(struct opt_store *store)
{
    for (uint32_t i = 0; i < store->text_count; i++) {
        mem_free(store->texts[i]);
    }
    mem_free(store->texts);
    *store = (struct opt_store){0};
}

static const char *keep_text(struct opt_store *store, const char *text)
{
    store->texts = mem_realloc(store->texts, store->text_count + 1, sizeof(store->texts[0]));
    store->texts[store->text_count] = mem_strdup(text);
    return store->texts[store->text_count++];
}

static void *field_of(const struct opt_row *row, void *options)
{
    return (unsigned char *)options + row->offset_bytes;
}

static void store_number(const struct opt_row *row, void *options, double value)
{
    void *field = field_of(row, options);
    switch (row->kind) {
    case OPT_KIND_U32:
    case OPT_KIND_ENUM: *(uint32_t *)field = (uint32_t)value; break;
    case OPT_KIND_U64: *(uint64_t *)field = (uint64_t)value; break;
    case OPT_KIND_F32: *(float *)field = (float)value; break;
    case OPT_KIND_BOOL: *(bool *)field = value != 0; break;
    case OPT_KIND_TEXT: break;
    }
}

void opt_defaults(const struct opt_row *rows, uint32_t row_count, void *options)
{
    for (uint32_t i = 0; i < row_count; i++) {
        if (rows[i].kind == OPT_KIND_TEXT) {
            *(const char **)field_of(&rows[i], options) = rows[i].default_text;
        } else {
            store_number(&rows[i], options, rows[i].default_value);
        }
    }
}

static enum err_code set_integer(const struct opt_row *row, void *options, const char *text,
                                 struct err *err)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool is_integer = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
    if (!is_integer || (double)value < row->min_value || (double)value > row->max_value) {
        return err_set(err, ERR_ARGUMENT, "--%s is '%s', must be an integer from %.0f to %.0f",
                       row->name, text, row->min_value, row->max_value);
    }
    if (row->kind == OPT_KIND_U32) {
        *(uint32_t *)field_of(row, options) = (uint32_t)value;
    } else {
        *(uint64_t *)field_of(row, options) = value;
    }
    return ERR_OK;
}

static enum err_code set_float(const struct opt_row *row, void *options, const char *text,
                               struct err *err)
{
    char *end = NULL;
    double value = strtod(text, &end);
    bool is_number = end != text && *end == '\0' && isfinite(value);
    if (!is_number || value < row->min_value || value > row->max_value) {
        return err_set(err, ERR_ARGUMENT, "--%s is '%s', must be a number from %g to %g", row->name,
                       text, row->min_value, row->max_value);
    }
    store_number(row, options, value);
    return ERR_OK;
}

static enum err_code set_bool(const struct opt_row *row, void *options, const char *text,
                              struct err *err)
{
    bool is_true = strcmp(text, "true") == 0;
    if (!is_true && strcmp(text, "false") != 0) {
        return err_set(err, ERR_ARGUMENT, "--%s is '%s', must be true or false", row->name, text);
    }
    store_number(row, options, is_true);
    return ERR_OK;
}

static enum err_code set_enum(const struct opt_row *row, void *options, const char *text,
                              struct err *err)
{
    struct buf all;
    buf_init(&all);
    for (uint32_t i = 0; row->texts[i] != NULL; i++) {
        if (strcmp(text, row->texts[i]) == 0) {
            store_number(row, options, i);
            buf_fini(&all);
            return ERR_OK;
        }
        buf_printf(&all, "%s%s", i == 0 ? "" : ", ", row->texts[i]);
    }
    enum err_code code = err_set(err, ERR_ARGUMENT, "--%s is '%s', must be one of %s", row->name,
                                 text, buf_text(&all));
    buf_fini(&all);
    return code;
}

static enum err_code set_text(const struct opt_row *row, const struct target *target,
                              const char *text, struct err *err)
{
    size_t byte_count = strlen(text);
    if ((double)byte_count < row->min_value || (double)byte_count > row->max_value) {
        return err_set(err, ERR_ARGUMENT, "--%s has %zu bytes, must have from %.0f to %.0f",
                       row->name, byte_count, row->min_value, row->max_value);
    }
    *(const char **)field_of(row, target->options) = keep_text(target->store, text);
    return ERR_OK;
}

static enum err_code set_value(const struct opt_row *row, const struct target *target,
                               const char *text, struct err *err)
{
    switch (row->kind) {
    case OPT_KIND_U32:
    case OPT_KIND_U64: return set_integer(row, target->options, text, err);
    case OPT_KIND_F32: return set_float(row, target->options, text, err);
    case OPT_KIND_BOOL: return set_bool(row, target->options, text, err);
    case OPT_KIND_ENUM: return set_enum(row, target->options, text, err);
    case OPT_KIND_TEXT: return set_text(row, target, text, err);
    }
    return err_set(err, ERR_INTERNAL, "option row '%s' has no kind", row->name);
}

static const struct opt_row *find_row(const struct target *target, const char *name,
                                      size_t name_bytes)
{
    for (uint32_t i = 0; i < target->row_count; i++) {
        const char *row_name = target->rows[i].name;
        if (strncmp(row_name, name, name_bytes) == 0 && row_name[name_bytes] == '\0') {
            return &target->rows[i];
        }
    }
    return NULL;
}

/* One "--..." argument: its row, its value (null: the next argument is), or a --no- form. */
struct argument {
    const struct opt_row *row;
    const char *value;
    bool takes_next;
};

/* row is null where the table has no such option. */
static struct argument classify(const struct target *target, const char *text)
{
    const char *name = text + 2;
    size_t name_bytes = strcspn(name, "=");
    const char *value = name[name_bytes] == '=' ? name + name_bytes + 1 : NULL;
    const struct opt_row *row = find_row(target, name, name_bytes);
    if (row != NULL) {
        bool is_bare_bool = row->kind == OPT_KIND_BOOL && value == NULL;
        return (struct argument){row, is_bare_bool ? "true" : value,
                                 !is_bare_bool && value == NULL};
    }
    if (strncmp(name, "no-", 3) == 0 && value == NULL) {
        row = find_row(target, name + 3, name_bytes - 3);
    }
    bool is_negated = row != NULL && row->kind == OPT_KIND_BOOL;
    return (struct argument){is_negated ? row : NULL, "false", false};
}

static bool is_option(const char *text)
{
    return text[0] == '-' && text[1] == '-' && text[2] != '\0';
}

/* Takes the option at argv[*index] and its value; leaves *index on the last one used.  The first
 * pass reads config files only, the second everything else. */
static enum err_code take_option(const struct target *target, const struct opt_arguments *arguments,
                                 bool is_config_pass, int *index, struct err *err)
{
    const char *text = arguments->argv[*index];
    struct argument argument = classify(target, text);
    if (argument.row == NULL) {
        return err_set(err, ERR_ARGUMENT, "unknown option '%.*s', see --help",
                       (int)strcspn(text, "="), text);
    }
    if (argument.takes_next) {
        if (*index + 1 == arguments->argc) {
            return err_set(err, ERR_ARGUMENT, "--%s needs a value", argument.row->name);
        }
        argument.value = arguments->argv[++*index];
    }
    if (!is_config_pass) {
        return set_value(argument.row, target, argument.value, err);
    }
    if (strcmp(argument.row->name, "config") != 0) {
        return ERR_OK;
    }
    return opt_parse_file(target->rows, target->row_count, target->options, target->store,
                          argument.value, err);
}

static enum err_code walk(const struct target *target, const struct opt_arguments *arguments,
                          bool is_config_pass, struct err *err)
{
    uint32_t positional_count = 0;
    bool options_ended = false;
    bool wants_help = false;
    for (int i = 1; i < arguments->argc; i++) {
        const char *text = arguments->argv[i];
        if (!options_ended && strcmp(text, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0)) {
            wants_help = true;
        } else if (!options_ended && is_option(text)) {
            enum err_code code = take_option(target, arguments, is_config_pass, &i, err);
            if (code != ERR_OK) {
                return code;
            }
        } else if (positional_count == arguments->positional_max) {
            return err_set(err, ERR_ARGUMENT, "unexpected argument '%s', see --help", text);
        } else {
            arguments->positional[positional_count++] = text;
        }
    }
    *arguments->out_positional_count = positional_count;
    *arguments->out_help = wants_help;
    return ERR_OK;
}

enum err_code opt_parse(const struct opt_row *rows, uint32_t row_count, void *options,
                        struct opt_store *store, const struct opt_arguments *arguments,
                        struct err *err)
{
    struct target target = {rows, row_count, options, store};
    enum err_code code = walk(&target, arguments, true, err);
    return code != ERR_OK ? code : walk(&target, arguments, false, err);
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t byte_count = strlen(text);
    while (byte_count > 0 && strchr(" \t\r\n", text[byte_count - 1]) != NULL) {
        byte_count--;
    }
    text[byte_count] = '\0';
    return text;
}

static enum err_code parse_line(const struct target *target, char *line, struct err *err)
{
    char *name = trim(line);
    if (name[0] == '\0' || name[0] == '#') {
        return ERR_OK;
    }
    char *equals = strchr(name, '=');
    if (equals == NULL) {
        return err_set(err, ERR_ARGUMENT, "'%s' is not 'name = value'", name);
    }
    *equals = '\0';
    const char *value = trim(equals + 1);
    name = trim(name);
    const struct opt_row *row = find_row(target, name, strlen(name));
    if (row == NULL || strcmp(name, "config") == 0) {
        return err_set(err, ERR_ARGUMENT, "unknown option '%s'", name);
    }
    return set_value(row, target, value, err);
}

enum err_code opt_parse_file(const struct opt_row *rows, uint32_t row_count, void *options,
                             struct opt_store *store, const char *path, struct err *err)
{
    struct target target = {rows, row_count, options, store};
    enum err_code code = ERR_OK;
    char line[MAX_FILE_LINE_BYTES];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return err_errno(err, errno, "opening '%s'", path);
    }
    for (unsigned number = 1; code == ERR_OK && fgets(line, sizeof(line), file) != NULL; number++) {
        code = strlen(line) == sizeof(line) - 1
                   ? err_set(err, ERR_LIMIT, "longer than %d bytes", MAX_FILE_LINE_BYTES - 2)
                   : parse_line(&target, line, err);
        if (code != ERR_OK) {
            code = err_wrap(err, "'%s' line %u", path, number);
        }
    }
    if (code == ERR_OK && ferror(file)) {
        code = err_errno(err, errno, "reading '%s'", path);
    }
    (void)fclose(file); /* only read from */
    return code;
}

static void put_default(const struct opt_row *row, struct buf *out)
{
    switch (row->kind) {
    case OPT_KIND_U32:
    case OPT_KIND_U64: buf_printf(out, " (%.0f)", row->default_value); break;
    case OPT_KIND_F32: buf_printf(out, " (%g)", row->default_value); break;
    case OPT_KIND_ENUM: buf_printf(out, " (%s)", row->texts[(uint32_t)row->default_value]); break;
    case OPT_KIND_TEXT:
        if (row->default_text != NULL && row->default_text[0] != '\0') {
            buf_printf(out, " (%s)", row->default_text);
        }
        break;
    case OPT_KIND_BOOL: break; /* shown as the form that changes it */
    }
}

static int put_name(const struct opt_row *row, char *out, size_t out_bytes)
{
    bool is_on = row->kind == OPT_KIND_BOOL && row->default_value != 0;
    return snprintf(out, out_bytes, "  --%s%s%s%s", is_on ? "no-" : "", row->name,
                    row->unit[0] == '\0' ? "" : " ", row->unit);
}

void opt_help(const struct opt_row *rows, uint32_t row_count, struct buf *out)
{
    char name[128];
    int columns = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        int used = rows[i].help == NULL ? 0 : put_name(&rows[i], name, sizeof(name));
        columns = used > columns && used <= MAX_HELP_NAME_COLUMNS ? used : columns;
    }
    for (uint32_t i = 0; i < row_count; i++) {
        if (rows[i].help == NULL) {
            continue;
        }
        (void)put_name(&rows[i], name, sizeof(name)); /* a longer name is cut */
        buf_printf(out, "%-*s  %s", columns, name, rows[i].help);
        put_default(&rows[i], out);
        buf_append_char(out, '\n');
    }
}
