/* Decimal numbers within bounds, as part of a grammar.
 *
 * Numbers are written without exponent where they have a bound, at most 15 digits before the point
 * (18 of an integer) and 15 behind it.  Comparison is digit by digit, so bounds are exact.  Pure. */
#ifndef FRONTEND_GRAMMAR_NUMBER_H
#define FRONTEND_GRAMMAR_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/grammar_net.h"

struct json_t;

#define NUMBER_MAX_WHOLE    20U
#define NUMBER_MAX_FRACTION 24U

/* One side of a range. */
struct number_bound {
    bool is_given;
    bool is_exclusive;
    bool is_negative;
    bool is_huge; /* more digits before the point than any number here has */
    uint32_t whole_count;
    uint32_t fraction_count;
    uint8_t whole[NUMBER_MAX_WHOLE]; /* digits, no leading zero but for 0 itself */
    uint8_t fraction[NUMBER_MAX_FRACTION];
};

/* value: any JSON number.  Errors: ERR_LIMIT (too many decimals). */
ERR_NODISCARD enum err_code number_bound_read(const struct json_t *value, bool is_exclusive,
                                              struct number_bound *out_bound, struct err *err);

/* The narrower of two lower (upper) bounds is kept in *bound. */
void number_bound_narrow(struct number_bound *bound, const struct number_bound *other,
                         bool is_lower);

/* Appends the numbers of the range to `from`; returns the node behind. */
uint32_t number_put(struct net *net, uint32_t from, const struct number_bound *lower,
                    const struct number_bound *upper, bool is_integer);

#endif
