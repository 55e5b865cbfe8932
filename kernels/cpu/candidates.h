/* Tokens ordered by value, best first, lower id first on ties.  Included by kernels/cpu only. */
#ifndef KERNELS_CPU_CANDIDATES_H
#define KERNELS_CPU_CANDIDATES_H

#include <stdint.h>

struct k_candidate {
    float value;
    uint32_t id;
};

/* Moves the best `want` of count candidates to the front, in order; the others follow in any
 * order.  In place, count log want steps; want <= count. */
void k_candidates_order(struct k_candidate *candidates, uint32_t count, uint32_t want);

#endif
