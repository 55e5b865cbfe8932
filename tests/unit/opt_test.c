#include "common/opt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/testlib/test.h"

enum colour {
    RED,
    GREEN
};
static const char *const colours[] = {"red", "green", NULL};

#define OPTIONS                                                                     \
    OPTION(TEXT, config, "config", NULL, 1, 4095, "FILE", "read options from FILE") \
    OPTION(U32, port, "port", 8000, 1, 65535, "PORT", "listen here")                \
    OPTION(U64, bytes, "bytes", 1048576, 0, 1e15, "BYTES", "how many")              \
    OPTION(F32, share, "share", 0.9, 0.05, 1, "X", "part of it")                    \
    OPTION(BOOL, graphs, "graphs", true, 0, 1, "", "run without")                   \
    OPTION(BOOL, deterministic, "deterministic", false, 0, 1, "", "fix the shapes") \
    OPTION(TEXT, host, "host", "127.0.0.1", 1, 8, "HOST", "address")                \
    OPTION(ENUM, colour, "colour", RED, colours, 0, "NAME", "red or green")         \
    OPTION(TEXT, inject, "inject", NULL, 0, 64, "STAGE:N", NULL)

struct options {
#define OPTION(kind, field, ...) OPT_FIELD_##kind(field)
    OPTIONS
#undef OPTION
};

static const struct opt_row rows[] = {
#define OPTION(kind, field, ...) OPT_ROW_##kind(struct options, field, __VA_ARGS__)
    OPTIONS
#undef OPTION
};

enum {
    ROW_COUNT = sizeof(rows) / sizeof(rows[0]),
    MAX_ARGS = 16
};

struct run {
    struct options options;
    struct opt_store store;
    const char *positional[2];
    uint32_t positional_count;
    bool help;
    struct err err;
    enum err_code code;
};

/* Splits line at spaces into an argument vector; '_' stands for a space inside one. */
static struct run parse(const char *line)
{
    struct run run = {0};
    char copy[512];
    char program[] = "program";
    char *argv[MAX_ARGS] = {program};
    int argc = 1;
    (void)snprintf(copy, sizeof(copy), "%s", line);
    char *rest = copy;
    for (char *word = strsep(&rest, " "); word != NULL; word = strsep(&rest, " ")) {
        if (word[0] != '\0') {
            argv[argc++] = word;
        }
    }
    struct opt_arguments arguments = {argc,     argv, run.positional, 2, &run.positional_count,
                                      &run.help};
    opt_defaults(rows, ROW_COUNT, &run.options);
    run.code = opt_parse(rows, ROW_COUNT, &run.options, &run.store, &arguments, &run.err);
    run.positional[0] = run.positional_count > 0 ? "seen" : NULL; /* copy dies here */
    return run;
}

static void test_defaults_and_every_kind(void)
{
    struct run run = parse("");
    test_ok(run.code, &run.err);
    test_eq_u64(run.options.port, 8000);
    test_eq_u64(run.options.bytes, 1048576);
    test_true(run.options.share == 0.9F);
    test_true(run.options.graphs && !run.options.deterministic);
    test_eq_str(run.options.host, "127.0.0.1");
    test_true(run.options.inject == NULL);
    opt_store_fini(&run.store);

    run = parse("--port 1 --bytes=1000000000000000 --share 0.5 --no-graphs --deterministic "
                "--host=::1 --colour green --inject stage:3 --port 2");
    test_ok(run.code, &run.err);
    test_eq_u64(run.options.port, 2);
    test_eq_u64(run.options.bytes, 1000000000000000);
    test_true(run.options.share == 0.5F);
    test_true(!run.options.graphs && run.options.deterministic);
    test_eq_str(run.options.host, "::1");
    test_eq_u64(run.options.colour, GREEN);
    test_eq_str(run.options.inject, "stage:3");
    opt_store_fini(&run.store);

    run = parse("--graphs=false --deterministic=true");
    test_true(!run.options.graphs && run.options.deterministic);
    opt_store_fini(&run.store);
}

static void test_positional_and_help(void)
{
    struct run run = parse("a --port 3 -- --port");
    test_ok(run.code, &run.err);
    test_eq_u64(run.positional_count, 2);
    test_eq_u64(run.options.port, 3);
    test_true(!run.help);
    opt_store_fini(&run.store);
    run = parse("--help");
    test_ok(run.code, &run.err);
    test_true(run.help);
    opt_store_fini(&run.store);
}

static void test_errors_name_option_value_and_limit(void)
{
    static const char *const table[][2] = {
        {"--port 0", "--port is '0', must be an integer from 1 to 65535"},
        {"--port 65536", "--port is '65536', must be an integer from 1 to 65535"},
        {"--port -1", "--port is '-1', must be an integer from 1 to 65535"},
        {"--port 8x", "--port is '8x', must be an integer from 1 to 65535"},
        {"--port=", "--port is '', must be an integer from 1 to 65535"},
        {"--bytes 99999999999999999999",
         "--bytes is '99999999999999999999', must be an integer from 0 to 1000000000000000"},
        {"--share 2", "--share is '2', must be a number from 0.05 to 1"},
        {"--share nan", "--share is 'nan', must be a number from 0.05 to 1"},
        {"--graphs=maybe", "--graphs is 'maybe', must be true or false"},
        {"--colour blue", "--colour is 'blue', must be one of red, green"},
        {"--host 123456789", "--host has 9 bytes, must have from 1 to 8"},
        {"--host", "--host needs a value"},
        {"--hos x", "unknown option '--hos', see --help"},
        {"--hostx=3", "unknown option '--hostx', see --help"},
        {"--no-port", "unknown option '--no-port', see --help"},
        {"a b c", "unexpected argument 'c', see --help"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct run run = parse(table[i][0]);
        test_true(run.code == ERR_ARGUMENT);
        test_eq_str(run.err.message, table[i][1]);
        opt_store_fini(&run.store);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    test_true(file != NULL);
    test_true(fputs(text, file) >= 0);
    test_true(fclose(file) == 0);
}

static void test_config_file_gives_way_to_command_line(void)
{
    char path[] = "/tmp/opt-test-XXXXXX";
    int fd = mkstemp(path);
    test_true(fd >= 0);
    (void)close(fd);
    char line[128];
    char want[256];
    write_file(path, "# a comment\n\n  port = 9 \nhost=::2\r\ngraphs = false\n");
    (void)snprintf(line, sizeof(line), "--port 7 --config %s", path);
    struct run run = parse(line);
    test_ok(run.code, &run.err);
    test_eq_u64(run.options.port, 7);
    test_eq_str(run.options.host, "::2");
    test_true(!run.options.graphs);
    opt_store_fini(&run.store);

    write_file(path, "port = 9\n\nport = x\n");
    run = parse(line);
    test_true(run.code == ERR_ARGUMENT);
    (void)snprintf(want, sizeof(want),
                   "'%s' line 3: --port is 'x', must be an integer from 1 to 65535", path);
    test_eq_str(run.err.message, want);
    opt_store_fini(&run.store);

    write_file(path, "port 9\n");
    run = parse(line);
    (void)snprintf(want, sizeof(want), "'%s' line 1: 'port 9' is not 'name = value'", path);
    test_eq_str(run.err.message, want);
    opt_store_fini(&run.store);

    (void)unlink(path);
    run = parse(line);
    test_true(run.code == ERR_SYSTEM);
    opt_store_fini(&run.store);
}

static void test_help_shows_defaults_and_hides_tests_option(void)
{
    struct buf out;
    buf_init(&out);
    opt_help(rows, ROW_COUNT, &out);
    test_eq_str(buf_text(&out), "  --config FILE    read options from FILE\n"
                                "  --port PORT      listen here (8000)\n"
                                "  --bytes BYTES    how many (1048576)\n"
                                "  --share X        part of it (0.9)\n"
                                "  --no-graphs      run without\n"
                                "  --deterministic  fix the shapes\n"
                                "  --host HOST      address (127.0.0.1)\n"
                                "  --colour NAME    red or green (red)\n");
    buf_fini(&out);
}

static const struct test_case cases[] = {
    TEST(test_defaults_and_every_kind),
    TEST(test_positional_and_help),
    TEST(test_errors_name_option_value_and_limit),
    TEST(test_config_file_gives_way_to_command_line),
    TEST(test_help_shows_defaults_and_hides_tests_option),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
