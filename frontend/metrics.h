/* Counters, gauges and histograms, and their text exposition (Prometheus 0.0.4).
 *
 * Loop thread only: what other threads count is copied in before rendering. */
#ifndef FRONTEND_METRICS_H
#define FRONTEND_METRICS_H

#include <stdint.h>

#include "common/buf.h"

#define METRICS_MAX_BUCKETS 24

struct metrics_histogram {
    uint64_t counts[METRICS_MAX_BUCKETS + 1]; /* not cumulated; the last is +Inf */
    uint64_t count;
    double sum;
};

struct metrics {
#define COUNTER(member, name, labels, help)    uint64_t member;
#define SECONDS(member, name, labels, help)    double member;
#define GAUGE(member, name, labels, help)      double member;
#define HISTOGRAM(member, name, buckets, help) struct metrics_histogram member;
#include "frontend/metrics.def"
#undef COUNTER
#undef SECONDS
#undef GAUGE
#undef HISTOGRAM
};

enum metrics_histogram_id {
#define COUNTER(member, name, labels, help)
#define SECONDS(member, name, labels, help)
#define GAUGE(member, name, labels, help)
#define HISTOGRAM(member, name, buckets, help) METRICS_##member,
#include "frontend/metrics.def"
#undef COUNTER
#undef SECONDS
#undef GAUGE
#undef HISTOGRAM
    METRICS_HISTOGRAM_COUNT
};

/* Count one observation: seconds, or tokens. */
void metrics_observe(struct metrics *metrics, enum metrics_histogram_id id, double value);

/* Append the page; every sample carries model_name. */
void metrics_render(const struct metrics *metrics, const char *model_name, struct buf *out);

#endif
