#include "worker/options.h"

#include <stdio.h>
#include <string.h>

#include "tests/testlib/test.h"

enum {
    MAX_ARGS = 12,
    HELP_COLUMNS = 100
};

/* Words of line after the program's name. */
static enum err_code parse(const char *line, struct options *options, struct opt_store *store,
                           struct err *err)
{
    static char copy[512];
    char program[] = "bezel-worker";
    char *argv[MAX_ARGS] = {program};
    int argc = 1;
    char *rest = NULL;
    (void)snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL && argc < MAX_ARGS;
         word = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = word;
    }
    *store = (struct opt_store){0};
    return options_parse(options, store, argc, argv, err);
}

static void test_defaults(void)
{
    struct options options;
    struct opt_store store;
    struct err err;
    test_ok(parse("models/demo", &options, &store, &err), &err);
    test_eq_str(options.model_dir, "models/demo");
    test_eq_u64(options.pipeline_depth, 2);
    test_eq_u64(options.session_timeout_ms, 10000);
    test_eq_u64(options.attach_timeout_ms, 5000);
    test_eq_u64(options.page_tokens, 64);
    test_eq_u64(options.backend, OPTIONS_BACKEND_AUTO);
    test_true(options.record == NULL && options.replay == NULL && options.inject == NULL);
    opt_store_fini(&store);
}

static void test_values(void)
{
    struct options options;
    struct opt_store store;
    struct err err;
    test_ok(
        parse("--run-dir=/run/x --max-slots 3 --record f --device cpu m", &options, &store, &err),
        &err);
    test_eq_str(options.run_dir, "/run/x");
    test_eq_u64(options.max_slots, 3);
    test_eq_str(options.record, "f");
    opt_store_fini(&store);
}

static void test_a_model_is_needed(void)
{
    struct options options;
    struct opt_store store;
    struct err err;
    test_eq_u64(parse("--max-slots 3", &options, &store, &err), ERR_ARGUMENT);
    test_true(strstr(err.message, "no model folder given") != NULL);
    opt_store_fini(&store);
    test_eq_u64(parse("one two", &options, &store, &err), ERR_ARGUMENT);
    opt_store_fini(&store);
    test_ok(parse("--help", &options, &store, &err), &err);
    test_true(options.is_help);
    opt_store_fini(&store);
}

static void test_help_fits_the_screen(void)
{
    struct buf text;
    buf_init(&text);
    options_help(&text);
    for (const char *line = buf_text(&text); *line != '\0';) {
        size_t columns = strcspn(line, "\n");
        if (columns > HELP_COLUMNS) {
            test_fail(__FILE__, __LINE__, "%zu columns: %.60s...", columns, line);
        }
        line += columns + (line[columns] == '\n');
    }
    test_true(strstr(buf_text(&text), "--inject") == NULL);
    buf_fini(&text);
}

static const struct test_case cases[] = {
    TEST(test_defaults),
    TEST(test_values),
    TEST(test_a_model_is_needed),
    TEST(test_help_fits_the_screen),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
