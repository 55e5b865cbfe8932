#include "frontend/grammar_number.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum {
    WHOLE_DIGITS = 15,
    INTEGER_DIGITS = 18,
    FRACTION_DIGITS = 15,
    EXACT_DIGITS = 15, /* numbers of so many digits differ as doubles, too */
    TEXT_DIGITS = 400
};

/* ---- bounds ---- */

/* Digits of a literal and where its point is, behind the first `point` of them. */
struct literal {
    uint8_t digits[TEXT_DIGITS];
    uint32_t count;
    int32_t point;
};

static void scan_literal(const char *text, struct literal *out, bool *out_is_negative)
{
    bool is_behind = false;
    *out = (struct literal){0};
    *out_is_negative = *text == '-';
    for (text += *text == '-'; *text != '\0' && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.') {
            is_behind = true;
            continue;
        }
        bool is_leading = out->count == 0 && *text == '0';
        if (!is_leading && out->count < TEXT_DIGITS) {
            out->digits[out->count++] = (uint8_t)(*text - '0');
        }
        out->point += is_behind ? 0 : !is_leading;
        out->point -= is_behind && is_leading;
    }
    if (*text != '\0') {
        out->point += (int32_t)strtol(text + 1, NULL, 10); /* a double's: small */
    }
    while (out->count > 0 && out->digits[out->count - 1] == 0) {
        out->count--;
    }
}

static uint8_t digit_at(const struct literal *literal, int32_t index)
{
    return index >= 0 && index < (int32_t)literal->count ? literal->digits[index] : 0;
}

static void fill_whole(const struct literal *literal, struct number_bound *bound)
{
    if (literal->count == 0 || literal->point <= 0) {
        bound->whole_count = 1;
        bound->whole[0] = 0;
        return;
    }
    if (literal->point > (int32_t)NUMBER_MAX_WHOLE) {
        bound->is_huge = true;
        return;
    }
    bound->whole_count = (uint32_t)literal->point;
    for (uint32_t i = 0; i < bound->whole_count; i++) {
        bound->whole[i] = digit_at(literal, (int32_t)i);
    }
}

enum err_code number_bound_read(const struct json_t *value, bool is_exclusive,
                                struct number_bound *out_bound, struct err *err)
{
    struct buf text;
    struct literal literal;
    buf_init(&text);
    if (json_kind(value) == JSON_KIND_BIG_INTEGER) {
        buf_append_text(&text, json_number_text(value));
    } else {
        json_put_value(&text, value);
    }
    *out_bound = (struct number_bound){.is_given = true, .is_exclusive = is_exclusive};
    scan_literal(buf_text(&text), &literal, &out_bound->is_negative);
    buf_fini(&text);
    fill_whole(&literal, out_bound);
    int32_t decimals = (int32_t)literal.count - literal.point;
    if (literal.count > 0 && decimals > (int32_t)NUMBER_MAX_FRACTION) {
        return err_set(err, ERR_LIMIT, "a bound has %d decimals, at most %u", (int)decimals,
                       NUMBER_MAX_FRACTION);
    }
    if (literal.count > 0 && decimals > 0 && !out_bound->is_huge) {
        out_bound->fraction_count = (uint32_t)decimals;
        for (int32_t i = 0; i < decimals; i++) {
            out_bound->fraction[i] = digit_at(&literal, literal.point + i);
        }
    }
    if (literal.count == 0) {
        out_bound->is_negative = false; /* -0 is 0 */
    }
    return ERR_OK;
}

static int compare_magnitudes(const struct number_bound *a, const struct number_bound *b)
{
    if (a->is_huge || b->is_huge) {
        return (int)a->is_huge - (int)b->is_huge;
    }
    if (a->whole_count != b->whole_count) {
        return a->whole_count < b->whole_count ? -1 : 1;
    }
    int order = memcmp(a->whole, b->whole, a->whole_count);
    for (uint32_t i = 0; order == 0 && i < NUMBER_MAX_FRACTION; i++) {
        uint8_t left = i < a->fraction_count ? a->fraction[i] : 0;
        uint8_t right = i < b->fraction_count ? b->fraction[i] : 0;
        order = (int)left - (int)right;
    }
    return order;
}

static int compare_bounds(const struct number_bound *a, const struct number_bound *b)
{
    if (a->is_negative != b->is_negative) {
        return a->is_negative ? -1 : 1;
    }
    int order = compare_magnitudes(a, b);
    return a->is_negative ? -order : order;
}

void number_bound_narrow(struct number_bound *bound, const struct number_bound *other,
                         bool is_lower)
{
    if (!other->is_given) {
        return;
    }
    int order = bound->is_given ? compare_bounds(other, bound) : (is_lower ? 1 : -1);
    if ((is_lower ? order > 0 : order < 0) || (order == 0 && other->is_exclusive)) {
        *bound = *other;
    }
}

static bool is_zero(const struct number_bound *bound)
{
    return !bound->is_huge && bound->whole_count == 1 && bound->whole[0] == 0 &&
           bound->fraction_count == 0;
}

static void add_one(struct number_bound *bound)
{
    uint32_t i = bound->whole_count;
    while (i > 0 && bound->whole[i - 1] == 9) {
        bound->whole[--i] = 0;
    }
    if (i > 0) {
        bound->whole[i - 1]++;
    } else if (bound->whole_count == NUMBER_MAX_WHOLE) {
        bound->is_huge = true;
    } else {
        memmove(bound->whole + 1, bound->whole, bound->whole_count);
        bound->whole[0] = 1;
        bound->whole_count++;
    }
}

/* The nearest integer within: up for a lower bound, down for an upper one. */
static struct number_bound whole_bound(struct number_bound bound, bool is_lower)
{
    if (bound.fraction_count == 0) {
        return bound;
    }
    bound.fraction_count = 0;
    bound.is_exclusive = false;
    if (bound.is_negative != is_lower) {
        add_one(&bound);
    }
    bound.is_negative = bound.is_negative && !is_zero(&bound);
    return bound;
}

/* ---- the network ---- */

/* Numbers without a sign, from lower to upper; either may be null. */
struct magnitudes {
    struct net *net;
    const struct number_bound *lower;
    const struct number_bound *upper;
    bool is_integer;
    uint32_t whole_digits;
    uint32_t to;
    uint32_t free_digits[INTEGER_DIGITS + 1]; /* so many digits more, then a free fraction */
};

enum {
    TIGHT_LOWER = 1, /* equal to the lower bound so far */
    TIGHT_UPPER = 2,
    TIGHTS = 4
};

static void put_digits(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    net_symbols(net, from, '0' + lo, '0' + hi, to);
}

static void put_free_fraction(struct magnitudes *all)
{
    struct net *net = all->net;
    uint32_t at = net_node(net);
    all->free_digits[0] = at;
    net_nothing(net, at, all->to);
    if (all->is_integer) {
        return;
    }
    at = net_symbol(net, at, '.');
    for (uint32_t i = 0; i < FRACTION_DIGITS; i++) {
        uint32_t next = net_node(net);
        put_digits(net, at, 0, 9, next);
        net_nothing(net, next, all->to);
        at = next;
    }
}

static uint32_t free_node(struct magnitudes *all, uint32_t digit_count)
{
    return all->free_digits[digit_count];
}

static bool has_nonzero(const struct number_bound *bound, uint32_t from)
{
    for (uint32_t i = from; i < bound->fraction_count; i++) {
        if (bound->fraction[i] != 0) {
            return true;
        }
    }
    return false;
}

static bool may_end(const struct magnitudes *all, uint32_t tight, uint32_t decimals)
{
    assert((tight & TIGHT_LOWER) == 0 || all->lower != NULL);
    assert((tight & TIGHT_UPPER) == 0 || all->upper != NULL);
    if ((tight & TIGHT_LOWER) != 0 &&
        (has_nonzero(all->lower, decimals) || all->lower->is_exclusive)) {
        return false;
    }
    return (tight & TIGHT_UPPER) == 0 || has_nonzero(all->upper, decimals) ||
           !all->upper->is_exclusive;
}

static uint8_t bound_digit(const struct number_bound *bound, uint32_t index, bool is_fraction)
{
    assert(bound != NULL);
    if (is_fraction) {
        return index < bound->fraction_count ? bound->fraction[index] : 0;
    }
    assert(index < bound->whole_count && bound->whole != NULL);
    return bound->whole[index];
}

struct digit_step {
    uint32_t index;
    bool is_fraction;
    uint32_t first;     /* the smallest digit that may stand here at all */
    uint32_t free_node; /* where those go on that are at no bound any more */
};

/* One digit from each node of from; nodes of to are made as needed. */
static void step_digit(struct magnitudes *all, const uint32_t from[TIGHTS],
                       const struct digit_step *step, uint32_t out_to[TIGHTS])
{
    memset(out_to, 0, TIGHTS * sizeof(out_to[0]));
    for (uint32_t tight = 1; tight < TIGHTS; tight++) {
        if (from[tight] == 0) {
            continue;
        }
        uint32_t lo = step->first;
        uint32_t hi = 9;
        uint32_t lower = 10;
        uint32_t upper = 10;
        if ((tight & TIGHT_LOWER) != 0) {
            lower = bound_digit(all->lower, step->index, step->is_fraction);
            lo = lower > lo ? lower : lo;
        }
        if ((tight & TIGHT_UPPER) != 0) {
            upper = bound_digit(all->upper, step->index, step->is_fraction);
            hi = upper;
        }
        for (uint32_t digit = lo; digit <= hi; digit++) {
            uint32_t next =
                (digit == lower ? TIGHT_LOWER : 0U) | (digit == upper ? TIGHT_UPPER : 0U);
            if (next != 0 && out_to[next] == 0) {
                out_to[next] = net_node(all->net);
            }
            put_digits(all->net, from[tight], digit, digit,
                       next == 0 ? step->free_node : out_to[next]);
        }
    }
}

/* Behind the point, `decimals` digits of FRACTION_DIGITS are there: the rest is free. */
static uint32_t free_rest(struct magnitudes *all, uint32_t decimals, uint32_t *nodes)
{
    if (nodes[decimals] == 0) {
        uint32_t at = net_node(all->net);
        nodes[decimals] = at;
        net_nothing(all->net, at, all->to);
        for (uint32_t i = decimals; i < FRACTION_DIGITS; i++) {
            uint32_t next = net_node(all->net);
            put_digits(all->net, at, 0, 9, next);
            net_nothing(all->net, next, all->to);
            nodes[i + 1] = nodes[i + 1] == 0 ? next : nodes[i + 1];
            at = next;
        }
    }
    return nodes[decimals];
}

/* After so many digits more could round to a bound that is excluded: nothing goes on beside it. */
static void end_at_exclusive(const struct magnitudes *all, uint32_t digits, uint32_t at[TIGHTS])
{
    if (digits < EXACT_DIGITS) {
        return;
    }
    for (uint32_t tight = 1; tight < TIGHTS; tight++) {
        const struct number_bound *lower = (tight & TIGHT_LOWER) != 0 ? all->lower : NULL;
        const struct number_bound *upper = (tight & TIGHT_UPPER) != 0 ? all->upper : NULL;
        if ((lower != NULL && lower->is_exclusive) || (upper != NULL && upper->is_exclusive)) {
            at[tight] = 0;
        }
    }
}

static void put_tight_fraction(struct magnitudes *all, uint32_t whole_count,
                               const uint32_t whole[TIGHTS])
{
    uint32_t rests[FRACTION_DIGITS + 2] = {0};
    uint32_t at[TIGHTS] = {0};
    uint32_t decimals = 0;
    uint32_t most = FRACTION_DIGITS;
    for (uint32_t tight = 1; tight < TIGHTS; tight++) {
        if (whole[tight] == 0) {
            continue;
        }
        if (may_end(all, tight, 0)) {
            net_nothing(all->net, whole[tight], all->to);
        }
        at[tight] = all->is_integer ? 0 : net_symbol(all->net, whole[tight], '.');
    }
    while (!all->is_integer && decimals < most) {
        end_at_exclusive(all, whole_count + decimals, at);
        struct digit_step step = {.index = decimals,
                                  .is_fraction = true,
                                  .free_node = free_rest(all, decimals + 1, rests)};
        uint32_t next[TIGHTS];
        step_digit(all, at, &step, next);
        decimals++;
        for (uint32_t tight = 1; tight < TIGHTS; tight++) {
            if (next[tight] != 0 && may_end(all, tight, decimals)) {
                net_nothing(all->net, next[tight], all->to);
            }
        }
        memcpy(at, next, sizeof(at));
    }
}

/* Numbers with so many digits before the point. */
static void put_length(struct magnitudes *all, uint32_t from, uint32_t whole_count)
{
    uint32_t tight =
        (all->lower != NULL && whole_count == all->lower->whole_count ? TIGHT_LOWER : 0U) |
        (all->upper != NULL && whole_count == all->upper->whole_count ? TIGHT_UPPER : 0U);
    uint32_t first = whole_count > 1 ? 1 : 0;
    if (tight == 0) {
        put_digits(all->net, from, first, 9, free_node(all, whole_count - 1));
        return;
    }
    uint32_t at[TIGHTS] = {0};
    at[tight] = net_node(all->net);
    net_nothing(all->net, from, at[tight]);
    for (uint32_t i = 0; i < whole_count; i++) {
        struct digit_step step = {.index = i,
                                  .first = i == 0 ? first : 0,
                                  .free_node = free_node(all, whole_count - 1 - i)};
        uint32_t next[TIGHTS];
        step_digit(all, at, &step, next);
        memcpy(at, next, sizeof(at));
    }
    put_tight_fraction(all, whole_count, at);
}

static void put_magnitudes(struct net *net, uint32_t from, struct magnitudes *all)
{
    bool is_beyond =
        all->lower != NULL && (all->lower->is_huge || all->lower->whole_count > all->whole_digits);
    if (all->upper != NULL &&
        (all->upper->is_huge || all->upper->whole_count > all->whole_digits)) {
        all->upper = NULL;
    }
    if (is_beyond || (all->lower != NULL && all->upper != NULL &&
                      compare_magnitudes(all->lower, all->upper) > 0)) {
        return;
    }
    all->net = net;
    put_free_fraction(all);
    for (uint32_t i = 1; i < all->whole_digits; i++) {
        all->free_digits[i] = net_node(net);
        put_digits(net, all->free_digits[i], 0, 9, all->free_digits[i - 1]);
    }
    uint32_t first = all->lower == NULL ? 1 : all->lower->whole_count;
    uint32_t last = all->upper == NULL ? all->whole_digits : all->upper->whole_count;
    for (uint32_t count = first; count <= last; count++) {
        put_length(all, from, count);
    }
}

static void put_exponent(struct net *net, uint32_t from, uint32_t to)
{
    uint32_t letter = net_node(net);
    uint32_t sign = net_node(net);
    uint32_t digit = net_node(net);
    net_symbols(net, from, 'e', 'e', letter);
    net_symbols(net, from, 'E', 'E', letter);
    net_symbols(net, letter, '+', '+', sign);
    net_symbols(net, letter, '-', '-', sign);
    net_nothing(net, letter, sign);
    net_symbols(net, sign, '0', '9', digit);
    net_symbols(net, digit, '0', '9', to);
    net_nothing(net, digit, to);
}

uint32_t number_put(struct net *net, uint32_t from, const struct number_bound *lower,
                    const struct number_bound *upper, bool is_integer)
{
    struct number_bound zero = {.is_given = true, .whole_count = 1, .is_exclusive = true};
    struct number_bound low = is_integer ? whole_bound(*lower, true) : *lower;
    struct number_bound high = is_integer ? whole_bound(*upper, false) : *upper;
    struct magnitudes all = {.is_integer = is_integer,
                             .whole_digits = is_integer ? INTEGER_DIGITS : WHOLE_DIGITS};
    bool has_exponent = !is_integer && !lower->is_given && !upper->is_given;
    uint32_t to = net_node(net);
    all.to = to;
    if (has_exponent) {
        all.to = net_node(net);
        net_nothing(net, all.to, to);
        put_exponent(net, all.to, to);
    }
    if (!high.is_given || !high.is_negative) {
        struct magnitudes positive = all;
        positive.lower = low.is_given && !low.is_negative ? &low : NULL;
        positive.upper = high.is_given ? &high : NULL;
        put_magnitudes(net, from, &positive);
    }
    if (!low.is_given || low.is_negative) {
        struct magnitudes negative = all;
        negative.lower = high.is_given && high.is_negative ? &high : &zero; /* no -0 */
        negative.upper = low.is_given ? &low : NULL;
        put_magnitudes(net, net_symbol(net, from, '-'), &negative);
    }
    return to;
}
