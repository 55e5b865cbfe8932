/* What a step costs, learned from the steps that were done, and how many prompt tokens fit beside
 * decode rows without making their owners wait longer than wanted.
 *
 *   ns = fixed + token * (prompt tokens) + pair * (sum over prompt tokens of their positions)
 *
 * fixed is the step with its decode rows alone; pair is attention, which makes a token at a far
 * position dearer than one at the begin.  Each done step moves the three by a part of what they were
 * wrong by, more where a term had more weight in it (normalised least mean squares), so that they
 * follow a batch that grows, a clock that drops, a neighbour that comes.  None is ever negative.  A
 * single slow step counts for at most twice what was expected.  Pure. */
#ifndef FRONTEND_PACE_H
#define FRONTEND_PACE_H

#include <stdint.h>

struct pace {
    double fixed_ns;
    double token_ns;         /* per prompt token */
    double pair_ns;          /* per prompt token and position before it */
    uint32_t observed_steps; /* stops counting when all is settled */
};

/* The prompt part of a step. */
struct pace_load {
    uint64_t tokens;
    uint64_t pairs; /* sum of the tokens' positions */
};

/* A segment of count tokens from start joins. */
void pace_add(struct pace_load *load, uint32_t start, uint32_t count);

/* A step was done. */
void pace_observe(struct pace *pace, const struct pace_load *load, uint64_t took_ns);

/* Time of the prompt part alone. */
double pace_cost_ns(const struct pace *pace, const struct pace_load *load);

/* Time that prompt tokens may take in a step with decode rows, so that the step takes target_ns: what
 * is left of it, but never less than a quarter of it. */
double pace_room_ns(const struct pace *pace, uint64_t target_ns);

/* Tokens of one segment from start that take room_ns, at most UINT32_MAX.  0 while nothing is known. */
uint32_t pace_fit(const struct pace *pace, uint32_t start, double room_ns);

#endif
