/* What a constrained output may be: compiled once, then asked token by token which may come next.
 *
 * A grammar is counted and shared: its network is read-only, its automaton and the masks of states
 * that were asked for are guarded by a mutex.  Places of outputs are small and belong to the caller; a
 * place becomes stale when the automaton was emptied for lack of room, and is then found again from
 * the output's tokens.  Any thread. */
#ifndef FRONTEND_GRAMMAR_H
#define FRONTEND_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct grammar;
struct json_t;
struct tokenizer;
struct vocab;

enum grammar_kind {
    GRAMMAR_NONE,   /* calls alone */
    GRAMMAR_OBJECT, /* a JSON object of any members */
    GRAMMAR_SCHEMA, /* JSON under a schema */
    GRAMMAR_REGEX,  /* a text that an expression matches whole */
    GRAMMAR_CHOICE, /* one of some texts */
};

/* All borrowed during a call. */
struct grammar_source {
    enum grammar_kind kind;
    const struct json_t *value; /* schema, or list of choices */
    const char *regex;          /* [regex_bytes] */
    size_t regex_bytes;
    const struct json_t *tools; /* calls are allowed as well; null: none */
    const char *tool;           /* of this function only; null: of any */
    bool has_one_call;          /* at most one */
};

/* Which special tokens markers stand for; TOK_NONE where there is none. */
struct grammar_markers {
    uint32_t quote;
    uint32_t call_open;
    uint32_t call_close;
};

#define GRAMMAR_MAX_CALLS 16U /* in one output */

/* A text that differs where grammars differ. */
void grammar_source_key(const struct grammar_source *source, struct buf *out);

/* vocab and tokenizer are borrowed until the last release; *out_grammar has one count.
 * Errors: those of schema_put and regex_compile, ERR_ARGUMENT (choices, tools, nothing matches),
 * ERR_UNSUPPORTED (markers), ERR_LIMIT. */
ERR_NODISCARD enum err_code grammar_create(const struct grammar_source *source,
                                           const struct grammar_markers *markers,
                                           const struct tokenizer *tokenizer,
                                           const struct vocab *vocab, struct grammar **out_grammar,
                                           struct err *err);
void grammar_acquire(struct grammar *grammar);
void grammar_release(struct grammar *grammar); /* null is fine */

/* At present; the automaton and its masks grow up to some 30 MB. */
size_t grammar_bytes(struct grammar *grammar);

struct grammar_place {
    uint64_t generation; /* 0: no place yet */
    uint32_t state;
};

enum grammar_answer {
    GRAMMAR_FINE,
    GRAMMAR_STALE, /* begin again, take all tokens again */
    GRAMMAR_DEAD,  /* the token cannot come here */
};

struct grammar_place grammar_begin(struct grammar *grammar);
enum grammar_answer grammar_take(struct grammar *grammar, struct grammar_place *place,
                                 const uint32_t *tokens, uint32_t count);

/* words [vocab->words]: the tokens that may come next, without those that end an output;
 * *out_may_end says whether those may. */
enum grammar_answer grammar_mask(struct grammar *grammar, const struct grammar_place *place,
                                 uint32_t *out_words, bool *out_may_end);

const struct vocab *grammar_vocab(const struct grammar *grammar);

#endif
