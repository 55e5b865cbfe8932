#include "frontend/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"

static const double TTFT_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                     20,    40,    80,   160,  640,  2560};
static const double ITL_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                    0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,
                                    2.5,    5,     7.5,    10,    20,   40,    80};
static const double REQUEST_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double TOKENS_bounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                       1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

enum metric_kind {
    METRIC_KIND_COUNTER,
    METRIC_KIND_SECONDS,
    METRIC_KIND_GAUGE,
    METRIC_KIND_HISTOGRAM,
};

struct metric_row {
    const char *name;
    const char *labels;
    const char *help;
    size_t offset_bytes;
    enum metric_kind kind;
    uint32_t bound_count; /* of a histogram */
    const double *bounds;
};

static const struct metric_row rows[] = {
#define COUNTER(member, name, labels, help) \
    {name, labels, help, offsetof(struct metrics, member), METRIC_KIND_COUNTER, 0, NULL},
#define SECONDS(member, name, labels, help) \
    {name, labels, help, offsetof(struct metrics, member), METRIC_KIND_SECONDS, 0, NULL},
#define GAUGE(member, name, labels, help) \
    {name, labels, help, offsetof(struct metrics, member), METRIC_KIND_GAUGE, 0, NULL},
#define HISTOGRAM(member, name, buckets, help)               \
    {name,                                                   \
     "",                                                     \
     help,                                                   \
     offsetof(struct metrics, member),                       \
     METRIC_KIND_HISTOGRAM,                                  \
     sizeof(buckets##_bounds) / sizeof(buckets##_bounds[0]), \
     buckets##_bounds},
#include "frontend/metrics.def"
#undef COUNTER
#undef SECONDS
#undef GAUGE
#undef HISTOGRAM
};

enum {
    ROW_COUNT = sizeof(rows) / sizeof(rows[0])
};

static const struct {
    size_t offset_bytes;
    const double *bounds;
    uint32_t bound_count;
} histograms[METRICS_HISTOGRAM_COUNT] = {
#define COUNTER(member, name, labels, help)
#define SECONDS(member, name, labels, help)
#define GAUGE(member, name, labels, help)
#define HISTOGRAM(member, name, buckets, help)           \
    {offsetof(struct metrics, member), buckets##_bounds, \
     sizeof(buckets##_bounds) / sizeof(buckets##_bounds[0])},
#include "frontend/metrics.def"
#undef COUNTER
#undef SECONDS
#undef GAUGE
#undef HISTOGRAM
};

_Static_assert(sizeof(TTFT_bounds) / sizeof(double) <= METRICS_MAX_BUCKETS &&
                   sizeof(ITL_bounds) / sizeof(double) <= METRICS_MAX_BUCKETS &&
                   sizeof(REQUEST_bounds) / sizeof(double) <= METRICS_MAX_BUCKETS &&
                   sizeof(TOKENS_bounds) / sizeof(double) <= METRICS_MAX_BUCKETS,
               "a histogram has room for its buckets");

void metrics_observe(struct metrics *metrics, enum metrics_histogram_id id, double value)
{
    struct metrics_histogram *histogram =
        (struct metrics_histogram *)(void *)((char *)metrics + histograms[id].offset_bytes);
    uint32_t bucket = 0;
    while (bucket < histograms[id].bound_count && value > histograms[id].bounds[bucket]) {
        bucket++;
    }
    histogram->counts[bucket]++;
    histogram->count++;
    histogram->sum += value;
}

/* The format escapes these three and takes every other byte as it is. */
static void put_label(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n') {
            buf_append_text(out, "\\n");
            continue;
        }
        if (*value == '"' || *value == '\\') {
            buf_append_char(out, '\\');
        }
        buf_append_char(out, *value);
    }
    buf_append_char(out, '"');
}

struct page {
    struct buf *out;
    const char *label; /* model_name="...", borrowed */
};

/* vLLM counts by engine, of which there is one here. */
static const char *engine_label(const struct metric_row *row)
{
    return strncmp(row->name, "vllm:", 5) == 0 ? ",engine=\"0\"" : "";
}

static void put_name(const struct page *page, const struct metric_row *row, const char *suffix,
                     const char *extra_label)
{
    const char *labels = row->labels;
    buf_printf(page->out, "%s%s{%s%s%s%s%s%s} ", row->name, suffix, page->label, engine_label(row),
               labels[0] ? "," : "", labels, extra_label[0] ? "," : "", extra_label);
}

static void put_histogram(const struct page *page, const struct metric_row *row,
                          const struct metrics_histogram *histogram)
{
    uint64_t below = 0;
    for (uint32_t i = 0; i <= row->bound_count; i++) {
        char label[40] = "le=\"+Inf\"";
        if (i < row->bound_count) {
            (void)snprintf(label, sizeof(label), "le=\"%g\"", row->bounds[i]); /* fits */
        }
        below += histogram->counts[i];
        put_name(page, row, "_bucket", label);
        buf_printf(page->out, "%llu\n", (unsigned long long)below);
    }
    put_name(page, row, "_sum", "");
    json_put_f64(page->out, histogram->sum);
    buf_append_char(page->out, '\n');
    put_name(page, row, "_count", "");
    buf_printf(page->out, "%llu\n", (unsigned long long)histogram->count);
}

static void put_value(const struct page *page, const struct metrics *metrics,
                      const struct metric_row *row)
{
    const char *at = (const char *)metrics + row->offset_bytes;
    switch (row->kind) {
    case METRIC_KIND_COUNTER: {
        uint64_t count = 0;
        memcpy(&count, at, sizeof(count));
        put_name(page, row, "", "");
        buf_printf(page->out, "%llu\n", (unsigned long long)count);
        break;
    }
    case METRIC_KIND_SECONDS:
    case METRIC_KIND_GAUGE: {
        double value = 0;
        memcpy(&value, at, sizeof(value));
        put_name(page, row, "", "");
        json_put_f64(page->out, value);
        buf_append_char(page->out, '\n');
        break;
    }
    case METRIC_KIND_HISTOGRAM:
        put_histogram(page, row, (const struct metrics_histogram *)(const void *)at);
        break;
    }
}

void metrics_render(const struct metrics *metrics, const char *model_name, struct buf *out)
{
    static const char *const kind_texts[] = {"counter", "counter", "gauge", "histogram"};
    struct buf label;
    buf_init(&label);
    put_label(&label, "model_name", model_name);
    struct page page = {out, buf_text(&label)};
    const char *last_name = "";
    for (uint32_t i = 0; i < ROW_COUNT; i++) {
        const struct metric_row *row = &rows[i];
        if (strcmp(row->name, last_name) != 0) {
            buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name,
                       kind_texts[row->kind]);
            last_name = row->name;
        }
        put_value(&page, metrics, row);
    }
    buf_fini(&label);
}
