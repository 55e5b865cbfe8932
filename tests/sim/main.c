/* sim: random worlds until enough steps were run, or one list of events again.
 *
 * usage: sim [--seed N] [--steps M] [--no-shrink] [--trace]     worlds N, N + 1, ... until M steps
 *        sim --replay FILE [--trace] [--here]
 *
 * A world that fails is named by its seed; its events are shrunk and left in sim-SEED.events.
 * --here runs in this process, for a debugger.  Exit 0 passed, 1 failed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "tests/sim/child.h"
#include "tests/sim/sim.h"

#define SHRINK_NS     (30 * CLOCK_NS_PER_SEC)
#define COVERED_STEPS 200000 /* after so many everything has to have been reached */
#define SHOWN_EVENTS  60

struct arguments {
    uint64_t seed;
    uint64_t steps;
    const char *replay;
    bool shrinks;
    bool is_traced;
    bool is_here;
};

static const char *const event_texts[EVENT_COUNT] = {
#define EVENT(NAME, text, weight) [EVENT_##NAME] = text,
#include "tests/sim/events.def"
#undef EVENT
};

static const char *const cover_texts[COVER_COUNT] = {
#define COVER(NAME, text) [COVER_##NAME] = text,
#include "tests/sim/coverage.def"
#undef COVER
};

static uint64_t number(const char *text)
{
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0') {
        (void)fprintf(stderr, "sim: '%s' is not a number\n", text);
        exit(2);
    }
    return value;
}

static struct arguments parse(int argc, char **argv)
{
    struct arguments arguments = {.seed = 1, .steps = 200000, .shrinks = true};
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--seed") == 0 && has_value) {
            arguments.seed = number(argv[++i]);
        } else if (strcmp(argv[i], "--steps") == 0 && has_value) {
            arguments.steps = number(argv[++i]);
        } else if (strcmp(argv[i], "--replay") == 0 && has_value) {
            arguments.replay = argv[++i];
        } else if (strcmp(argv[i], "--no-shrink") == 0) {
            arguments.shrinks = false;
        } else if (strcmp(argv[i], "--trace") == 0) {
            arguments.is_traced = true;
        } else if (strcmp(argv[i], "--here") == 0) {
            arguments.is_here = true;
        } else {
            (void)fprintf(stderr, "sim: unknown or incomplete option '%s'\n", argv[i]);
            exit(2);
        }
    }
    return arguments;
}

static void write_events(FILE *file, const struct world *world, const struct report *report,
                         uint32_t most)
{
    (void)fprintf(file, "seed %" PRIu64 "\n", world->seed);
    for (uint32_t i = 0; i < report->event_count && i < most; i++) {
        (void)fprintf(file, "%s %" PRIu64 "\n", event_texts[report->events[i].kind],
                      report->events[i].random);
    }
}

static void tell_failure(struct child_runner *runner, const struct world *world, bool shrinks)
{
    struct report *report = runner->report;
    char text[REPORT_TEXT_BYTES];
    world_describe(world, text, sizeof(text));
    printf("seed %" PRIu64 " failed after %u events: %s\n  (%s)\n", world->seed,
           report->event_count, report->failure, text);
    if (!shrinks) {
        return;
    }
    child_shrink(runner, world, SHRINK_NS);
    printf("%u of them are enough: %s\n", report->event_count, report->failure);
    write_events(stdout, world, report, SHOWN_EVENTS);
    char name[64];
    (void)snprintf(name, sizeof(name), "sim-%" PRIu64 ".events", world->seed); /* fits */
    FILE *file = fopen(name, "w");
    if (file == NULL) {
        printf("cannot write %s\n", name);
        return;
    }
    write_events(file, world, report, UINT32_MAX);
    (void)fclose(file); /* a cut file is seen when it is read */
    printf("run again by: sim --replay %s --trace\n", name);
}

/* Reads a list of events; the seed of its world. */
static uint64_t read_events(const char *path, struct report *report)
{
    FILE *file = fopen(path, "r");
    uint64_t seed = 0;
    char text[32];
    uint64_t value;
    if (file == NULL || fscanf(file, "seed %" SCNu64, &seed) != 1) {
        (void)fprintf(stderr, "sim: '%s' is not a list of events\n", path);
        exit(2);
    }
    while (fscanf(file, "%31s %" SCNu64, text, &value) == 2 &&
           report->event_count < REPORT_MAX_EVENTS) {
        uint32_t kind = 0;
        while (kind < EVENT_COUNT && strcmp(event_texts[kind], text) != 0) {
            kind++;
        }
        if (kind == EVENT_COUNT) {
            (void)fprintf(stderr, "sim: '%s': no event '%s'\n", path, text);
            exit(2);
        }
        report->events[report->event_count++] =
            (struct event){.random = value, .kind = (enum event_kind)kind};
    }
    (void)fclose(file); /* read to its end */
    return seed;
}

static int run_replay(struct child_runner *runner, const struct arguments *arguments)
{
    struct report *report = runner->report;
    struct world world;
    world_init(&world, read_events(arguments->replay, report));
    if (arguments->is_here) {
        report->stays = true;
        run_world(&world, report, true);
    } else if (!child_run(runner, &world, true)) {
        printf("%s\n0 passed, 1 failed, 0 skipped\n", report->failure);
        return 1;
    }
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}

/* What was never reached, though there was time enough. */
static uint32_t tell_covered(const struct report *report)
{
    uint32_t missing = 0;
    for (uint32_t i = 0; i < COVER_COUNT; i++) {
        printf("%10" PRIu64 "  %s\n", report->covered[i], cover_texts[i]);
        missing += report->covered[i] == 0;
    }
    return report->steps >= COVERED_STEPS ? missing : 0;
}

/* Of the worlds and of this process. */
static double processor_seconds(void)
{
    struct rusage self;
    struct rusage children;
    (void)getrusage(RUSAGE_SELF, &self);         /* cannot fail */
    (void)getrusage(RUSAGE_CHILDREN, &children); /* likewise */
    time_t seconds = self.ru_utime.tv_sec + self.ru_stime.tv_sec + children.ru_utime.tv_sec +
                     children.ru_stime.tv_sec;
    long micros = self.ru_utime.tv_usec + self.ru_stime.tv_usec + children.ru_utime.tv_usec +
                  children.ru_stime.tv_usec;
    return (double)seconds + (double)micros / 1e6;
}

static int run_worlds(struct child_runner *runner, const struct arguments *arguments)
{
    struct report *report = runner->report;
    uint64_t worlds = 0;
    while (report->steps < arguments->steps) {
        struct world world;
        world_init(&world, arguments->seed + worlds++);
        report->event_count = 0;
        if (arguments->is_here) {
            report->stays = true;
            run_world(&world, report, false);
        } else if (!child_run(runner, &world, false)) {
            tell_failure(runner, &world, arguments->shrinks);
            printf("0 passed, 1 failed, 0 skipped\n");
            return 1;
        }
    }
    uint32_t missing = tell_covered(report);
    printf("%" PRIu64 " steps in %" PRIu64
           " worlds, %.0f per second of processor time; %u kinds of "
           "events never came\n",
           report->steps, worlds, (double)report->steps / processor_seconds(), missing);
    printf("%u passed, %u failed, 0 skipped\n", missing == 0 ? 2 : 1, missing == 0 ? 0 : 1);
    return missing == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse(argc, argv);
    struct child_runner runner;
    child_runner_init(&runner);
    runner.report->is_traced = arguments.is_traced;
    int status = arguments.replay != NULL ? run_replay(&runner, &arguments)
                                          : run_worlds(&runner, &arguments);
    child_runner_fini(&runner);
    return status;
}
