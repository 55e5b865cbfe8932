/* What decides, token by token, which ones a request may have next.
 *
 * The seam between the engine and whatever restricts outputs: allowed ids, bad words, grammars.  The
 * request it is submitted with owns it. */
#ifndef FRONTEND_CONSTRAINT_H
#define FRONTEND_CONSTRAINT_H

#include <stdint.h>

struct constraint {
    /* Fill words[word_count], bit t % 32 of word t / 32 for token t, with the tokens that may come
     * behind output[0..count): all that came so far, in the first call after a preemption too.  Those
     * that end an output are allowed here or they cannot end it.  Engine thread: it holds up every
     * stream, so it takes microseconds. */
    void (*fill)(struct constraint *constraint, const uint32_t *output, uint32_t count,
                 uint32_t *words, uint32_t word_count);
    /* Frees it.  Any thread, once, nothing is called after it. */
    void (*release)(struct constraint *constraint);
};

static inline void constraint_release(struct constraint *constraint)
{
    if (constraint) {
        constraint->release(constraint);
    }
}

#endif
