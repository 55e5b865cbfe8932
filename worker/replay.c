#include "worker/replay.h"

#include <inttypes.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "proto/plan.h"
#include "proto/wire.h"
#include "worker/record.h"

enum {
    RING_RECORDS = 1 << 20 /* records are dropped, so the ring is never full */
};

/* What an ADMIT reused when it was recorded, as the first row of its sequence tells. */
struct reuse {
    uint64_t epoch;
    uint64_t msg_seq; /* of the ADMIT */
    uint64_t seq_id;
    uint32_t tokens;
};

struct open {
    uint64_t epoch;
    struct session *session; /* null: free */
    uint32_t next_reuse;     /* where to look for its next ADMIT */
};

struct replay {
    struct replay_options options;
    struct replay_summary summary;
    struct session_core *core;
    struct record_reader *reader;
    struct mem_arena arena;
    uint32_t *mask;     /* owned; all tokens allowed */
    struct buf reuses;  /* struct reuse, one for each ADMIT, in the order of the file */
    struct buf rowless; /* uint32_t: which of them have had no row so far */
    struct open opens[SESSION_MAX_COUNT];
};

uint64_t replay_digest_add(uint64_t digest, uint64_t seq_id, uint32_t position, uint32_t token)
{
    uint64_t hash = wire_hash_u64(WIRE_HASH_SEED, seq_id);
    return digest + wire_hash_u64(hash, (uint64_t)position << 32 | token);
}

/* ---- sink ---- */

static uint32_t on_room(void *context, void *owner, uint32_t wanted)
{
    return RING_RECORDS;
}

static void on_push(void *context, void *owner, const struct result_record *record)
{
    struct replay *replay = context;
    struct replay_summary *summary = &replay->summary;
    switch ((enum result_kind)record->kind) {
    case RESULT_TOKEN:
        summary->tokens++;
        summary->digest = replay_digest_add(summary->digest, record->seq_id,
                                            record->as.token.position, record->as.token.token);
        break;
    case RESULT_FINISHED: summary->finished++; break;
    case RESULT_REFUSED: summary->refused++; break;
    case RESULT_FAILED: summary->failed++; break;
    case RESULT_LOGPROBS:
    case RESULT_ADMITTED:
    case RESULT_STEP_DONE:
    case RESULT_STATE:
    case RESULT_PONG: break;
    }
}

static void on_flush(void *context, void *owner)
{
}

static const uint32_t *on_mask(void *context, void *owner, uint64_t seq_id, uint32_t position)
{
    const struct replay *replay = context;
    return replay->mask;
}

/* What is cached when an ADMIT takes effect depends on how far the steps before it are: never begin
 * behind more than the recorded rows do. */
static uint32_t most_reused(void *context, void *owner, uint64_t msg_seq)
{
    const struct replay *replay = context;
    struct open *open = owner;
    const struct reuse *reuses = (const struct reuse *)(const void *)replay->reuses.at;
    uint32_t count = (uint32_t)(replay->reuses.used_bytes / sizeof(*reuses));
    uint32_t at = open->next_reuse;
    while (at < count && (reuses[at].epoch != open->epoch || reuses[at].msg_seq < msg_seq)) {
        at++;
    }
    open->next_reuse = at;
    return at < count && reuses[at].msg_seq == msg_seq ? reuses[at].tokens : 0;
}

/* ---- what was reused ---- */

static const uint64_t any_seq_id = UINT64_MAX; /* no frontend counts so far */

/* Sequences of a session that wait for their first row do so no more. */
static void note_first_row(struct replay *replay, uint64_t epoch, uint64_t seq_id, uint32_t tokens)
{
    struct reuse *reuses = (void *)replay->reuses.at;
    uint32_t *rowless = (void *)replay->rowless.at;
    uint32_t count = (uint32_t)(replay->rowless.used_bytes / sizeof(*rowless));
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct reuse *reuse = &reuses[rowless[i]];
        if (reuse->epoch == epoch && (seq_id == any_seq_id || reuse->seq_id == seq_id)) {
            reuse->tokens = tokens;
        } else {
            rowless[kept++] = rowless[i];
        }
    }
    buf_truncate(&replay->rowless, kept * sizeof(*rowless));
}

static void note_admit(struct replay *replay, const struct plan_message *message)
{
    const struct reuse reuse = {
        .epoch = message->epoch,
        .msg_seq = message->msg_seq,
        .seq_id = message->as.admit.seq_id,
    };
    uint32_t index = (uint32_t)(replay->reuses.used_bytes / sizeof(reuse));
    buf_append(&replay->reuses, &reuse, sizeof(reuse));
    buf_append(&replay->rowless, &index, sizeof(index));
}

/* The first row of a sequence starts where its reused prefix ends; one that goes without a row reuses
 * nothing that matters. */
static void note_message(struct replay *replay, const struct plan_message *message)
{
    if (message->type == PLAN_ADMIT) {
        note_admit(replay, message);
    } else if (message->type == PLAN_STEP) {
        const struct wire_row_array *rows = &message->as.step.rows;
        for (uint32_t i = 0; i < rows->count; i++) {
            note_first_row(replay, message->epoch, rows->at[i].seq_id, rows->at[i].start);
        }
    } else if (message->type == PLAN_RELEASE) {
        note_first_row(replay, message->epoch, message->as.release.seq_id, 0);
    }
}

/* Reads the whole file once. */
static enum err_code find_reuses(struct replay *replay, struct err *err)
{
    struct record_header header;
    struct record_reader *reader = NULL;
    enum err_code code = record_reader_open(replay->options.path, &header, &reader, err);
    bool is_end = false;
    while (code == ERR_OK && !is_end) {
        struct record_entry entry = {0};
        struct plan_message message;
        struct err why;
        code = record_read(reader, &entry, &is_end, err);
        mem_arena_reset(&replay->arena);
        if (code == ERR_OK && !is_end && entry.kind == RECORD_CLOSE) {
            note_first_row(replay, entry.epoch, any_seq_id, 0);
        }
        if (code == ERR_OK && !is_end && entry.kind == RECORD_MESSAGE &&
            plan_decode(entry.bytes, entry.byte_count, &replay->arena, &message, &why) == ERR_OK) {
            note_message(replay, &message);
        }
    }
    record_reader_close(reader);
    return code;
}

/* ---- feeding ---- */

/* One look; waits for the runner where nothing moved and steps run. */
static enum err_code pump(struct replay *replay, struct session_progress *out_progress,
                          struct err *err)
{
    struct runner *runner = replay->options.runner;
    uint64_t now_ns = clock_now_ns();
    enum err_code code = session_core_advance(replay->core, now_ns, out_progress, err);
    if (code != ERR_OK || out_progress->moved) {
        replay->summary.busy_ns += clock_now_ns() - now_ns;
        return code;
    }
    if (out_progress->steps_in_flight > 0) {
        (void)runner->table->wait(runner, clock_now_ns() + CLOCK_NS_PER_SEC); /* looks again */
    } else if (out_progress->queued_steps > 0) {
        return err_set(err, ERR_INTERNAL, "%u steps wait and none runs",
                       out_progress->queued_steps);
    }
    return ERR_OK;
}

/* The sender knew of `answers` answers; a stream that gives fewer here goes on when all is idle. */
static enum err_code pump_until_due(struct replay *replay, const struct session *session,
                                    uint64_t answers, struct err *err)
{
    struct session_progress progress = {0};
    struct session_stats stats;
    enum err_code code = ERR_OK;
    bool is_due = false;
    do {
        code = pump(replay, &progress, err);
        session_core_stats(replay->core, &stats);
        bool is_idle = !progress.moved && progress.steps_in_flight == 0;
        is_due = progress.queued_steps == 0 && session_can_receive(session) &&
                 (is_idle || record_answers(&stats) >= answers);
    } while (code == ERR_OK && !is_due);
    return code;
}

static enum err_code pump_until_idle(struct replay *replay, struct err *err)
{
    struct session_progress progress = {0};
    enum err_code code = ERR_OK;
    do {
        code = pump(replay, &progress, err);
    } while (code == ERR_OK && (progress.moved || progress.steps_in_flight > 0));
    return code;
}

static struct open *find_open(struct replay *replay, uint64_t epoch)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (replay->opens[i].session != NULL && replay->opens[i].epoch == epoch) {
            return &replay->opens[i];
        }
    }
    return NULL;
}

static enum err_code on_open(struct replay *replay, uint64_t epoch, struct err *err)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (replay->opens[i].session == NULL) {
            replay->summary.sessions++;
            replay->opens[i].epoch = epoch;
            replay->opens[i].next_reuse = 0;
            return session_open(replay->core, epoch, &replay->opens[i], NULL,
                                &replay->opens[i].session, err);
        }
    }
    return err_set(err, ERR_FORMAT, "record opens more than %u sessions", SESSION_MAX_COUNT);
}

/* What it began behind when it was recorded is committed by then. */
static enum err_code pump_for_reuse(struct replay *replay, struct open *open, uint64_t msg_seq,
                                    struct err *err)
{
    return most_reused(replay, open, msg_seq) > 0 ? pump_until_idle(replay, err) : ERR_OK;
}

static enum err_code on_message(struct replay *replay, struct open *open,
                                const struct record_entry *entry, struct err *err)
{
    enum err_code code = pump_until_due(replay, open->session, entry->answers, err);
    if (code != ERR_OK) {
        return code;
    }
    replay->summary.messages++;
    mem_arena_reset(&replay->arena);
    struct plan_message message;
    struct err why;
    if (plan_decode(entry->bytes, entry->byte_count, &replay->arena, &message, &why) != ERR_OK) {
        replay->summary.malformed++;
        session_deliver_malformed(open->session, &why);
        return ERR_OK;
    }
    if (message.type == PLAN_ADMIT) {
        code = pump_for_reuse(replay, open, message.msg_seq, err);
    }
    return code == ERR_OK ? session_deliver(open->session, &message, err) : code;
}

static enum err_code on_entry(struct replay *replay, const struct record_entry *entry,
                              struct err *err)
{
    if (entry->kind == RECORD_OPEN) {
        return on_open(replay, entry->epoch, err);
    }
    struct open *open = find_open(replay, entry->epoch);
    if (open == NULL) {
        return err_set(err, ERR_FORMAT, "record: no session of epoch %" PRIu64, entry->epoch);
    }
    if (entry->kind == RECORD_MESSAGE) {
        return on_message(replay, open, entry, err);
    }
    enum err_code code = pump_until_idle(replay, err);
    session_close(open->session);
    open->session = NULL;
    return code;
}

static enum err_code feed(struct replay *replay, struct err *err)
{
    bool is_end = false;
    enum err_code code = ERR_OK;
    while (code == ERR_OK && !is_end) {
        struct record_entry entry = {0};
        code = record_read(replay->reader, &entry, &is_end, err);
        if (code == ERR_OK && !is_end) {
            code = on_entry(replay, &entry, err);
        }
    }
    return code == ERR_OK ? pump_until_idle(replay, err) : code;
}

enum err_code replay_run(const struct replay_options *options, struct replay_summary *out_summary,
                         struct err *err)
{
    struct replay replay = {.options = *options};
    const struct session_sink sink = {
        .context = &replay,
        .room = on_room,
        .push = on_push,
        .flush = on_flush,
        .mask = on_mask,
        .most_reused = most_reused,
    };
    struct record_header header;
    uint32_t vocab_tokens = options->runner->limits.vocab_tokens;
    replay.mask = mem_zalloc(num_ceil_div(vocab_tokens, 32), sizeof(uint32_t));
    memset(replay.mask, 0xff, num_ceil_div(vocab_tokens, 32) * sizeof(uint32_t));
    enum err_code code =
        mem_arena_init(&replay.arena, plan_decode_arena_bytes(PLAN_MAX_MESSAGE_BYTES), err);
    code = code == ERR_OK ? record_reader_open(options->path, &header, &replay.reader, err) : code;
    if (code == ERR_OK && header.vocab_tokens != vocab_tokens) {
        code = err_set(err, ERR_CONFIG, "record is of a model with %u tokens, this one has %u",
                       header.vocab_tokens, vocab_tokens);
    }
    code = code == ERR_OK ? find_reuses(&replay, err) : code;
    if (code == ERR_OK) {
        struct session_limits limits = options->limits;
        limits.ring_records = RING_RECORDS;
        code = session_core_create(options->runner, &limits, &sink, options->inject, &replay.core,
                                   err);
    }
    if (code == ERR_OK) {
        uint64_t start_ns = clock_now_ns();
        code = feed(&replay, err);
        replay.summary.wall_ns = clock_now_ns() - start_ns;
        struct session_stats stats;
        session_core_stats(replay.core, &stats);
        replay.summary.steps = stats.steps;
        replay.summary.device = stats.device;
    }
    if (code == ERR_OK) {
        *out_summary = replay.summary;
    }
    session_core_destroy(replay.core);
    record_reader_close(replay.reader);
    mem_arena_fini(&replay.arena);
    mem_free(replay.mask);
    buf_fini(&replay.reuses);
    buf_fini(&replay.rowless);
    return code;
}
