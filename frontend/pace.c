#include "frontend/pace.h"

/* Units in which the terms weigh about the same in a usual mixed step. */
#define TOKEN_UNIT 64.0
#define PAIR_UNIT  (64.0 * 8192.0)

/* Part of the error that one step corrects: all of it at first, this much in the end. */
#define SETTLED_STEPS 4U

/* Believed at once whatever was expected, so that nothing is learned too small for ever. */
#define SURE_NS 1e6

/* Until then a slow step is believed: nothing better is known. */
#define TRUSTED_STEPS 3U

void pace_add(struct pace_load *load, uint32_t start, uint32_t count)
{
    load->tokens += count;
    load->pairs += (uint64_t)count * start + (uint64_t)count * count / 2;
}

double pace_cost_ns(const struct pace *pace, const struct pace_load *load)
{
    return pace->token_ns * (double)load->tokens + pace->pair_ns * (double)load->pairs;
}

static double at_least_zero(double value)
{
    return value > 0.0 ? value : 0.0;
}

void pace_observe(struct pace *pace, const struct pace_load *load, uint64_t took_ns)
{
    double expected_ns = pace->fixed_ns + pace_cost_ns(pace, load);
    double took = (double)took_ns;
    double most_ns = 2.0 * expected_ns + SURE_NS;
    if (pace->observed_steps >= TRUSTED_STEPS && took > most_ns) {
        took = most_ns;
    }
    pace->observed_steps += pace->observed_steps < SETTLED_STEPS;
    double tokens = (double)load->tokens / TOKEN_UNIT;
    double pairs = (double)load->pairs / PAIR_UNIT;
    double weight = 1.0 + tokens * tokens + pairs * pairs;
    double part = (took - expected_ns) / weight / (double)pace->observed_steps;
    pace->fixed_ns = at_least_zero(pace->fixed_ns + part);
    pace->token_ns = at_least_zero(pace->token_ns + part * tokens / TOKEN_UNIT);
    pace->pair_ns = at_least_zero(pace->pair_ns + part * pairs / PAIR_UNIT);
}

double pace_room_ns(const struct pace *pace, uint64_t target_ns)
{
    double target = (double)target_ns;
    double room = target - pace->fixed_ns;
    return room > target / 4.0 ? room : target / 4.0;
}

uint32_t pace_fit(const struct pace *pace, uint32_t start, double room_ns)
{
    if (pace->observed_steps == 0 || room_ns <= 0.0) {
        return 0;
    }
    double token_ns = pace->token_ns + pace->pair_ns * (double)start;
    if (token_ns <= 0.0) {
        return UINT32_MAX;
    }
    double count = room_ns / token_ns;
    /* once more with the position of its middle */
    count = room_ns / (token_ns + pace->pair_ns * count / 2.0);
    return count < (double)UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}
