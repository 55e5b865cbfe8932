/* Pools and prefix cache against a plain model that knows every chain by its content, keeps who holds
 * it and since when it is idle, and looks at everything for each answer. */
#include "worker/prefix.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/test.h"

/* A page is one token, a token one bit: a chain is a number with a 1 in front of its bits. */
enum {
    MOST_TOKENS = 12,
    CODES = 1 << (MOST_TOKENS + 1),
    SALTS = 2,
    SEQS = 6,
    LANE = 0
};

/* Idle pages of one kind go in the order of rank, then of time. */
struct known {
    bool is_cached;
    uint32_t holders;
    int64_t idle_since;
};

struct chain {
    struct known global;
    struct known local;
    bool is_protected; /* in the last window of some end */
};

struct model {
    struct chain chains[SALTS][CODES];
    uint32_t pages[RUNNER_FAMILY_COUNT];
    uint32_t private_pages[RUNNER_FAMILY_COUNT]; /* held, not cached */
    uint32_t window_pages;
    int64_t latest;
    int64_t earliest;
};

struct seq {
    bool is_open;
    uint32_t salt;
    uint32_t tokens[MOST_TOKENS];
    uint32_t token_count;
    uint32_t done;   /* written */
    uint32_t origin; /* first local page held */
    uint32_t global_pages[MOST_TOKENS];
    uint32_t local_pages[MOST_TOKENS];
    bool is_local_private[MOST_TOKENS];
};

struct world {
    uint64_t random;
    struct pool pools[RUNNER_FAMILY_COUNT];
    struct prefix prefix;
    struct model *model; /* owned */
    struct seq seqs[SEQS];
    uint64_t hits;
    uint64_t hit_pages;
    uint64_t changes_over;
    uint64_t evictions[RUNNER_FAMILY_COUNT];
};

static uint32_t pick(struct world *world, uint32_t bound)
{
    return (uint32_t)(test_random(&world->random) % bound);
}

static uint32_t code_of(const uint32_t *tokens, uint32_t count)
{
    uint32_t code = 1;
    for (uint32_t i = 0; i < count; i++) {
        code = code << 1 | tokens[i];
    }
    return code;
}

/* ---- the plain model ---- */

static bool is_end(const struct model *model, uint32_t salt, uint32_t code)
{
    const struct chain *chains = model->chains[salt];
    bool is_longest = 2 * code >= CODES;
    uint32_t children = is_longest ? 0
                                   : chains[2 * (size_t)code].global.is_cached +
                                         chains[2 * (size_t)code + 1].global.is_cached;
    return chains[code].global.is_cached && children != 1;
}

/* Some end lies less than a window behind it. */
static bool is_protected(const struct model *model, uint32_t salt, uint32_t code)
{
    uint32_t first = code;
    uint32_t count = 1;
    for (uint32_t w = 0; w < model->window_pages && first < CODES; w++) {
        for (uint32_t i = 0; i < count; i++) {
            if (is_end(model, salt, first + i)) {
                return true;
            }
        }
        first *= 2;
        count *= 2;
    }
    return false;
}

/* What an end more or less changes, along the path of code: protection first, deep ones first. */
static void update_path(struct model *model, uint32_t salt, uint32_t code)
{
    for (uint32_t gains = 2; gains-- > 0;) {
        for (uint32_t at = code; at > 1; at /= 2) {
            struct chain *chain = &model->chains[salt][at];
            bool now = chain->global.is_cached && is_protected(model, salt, at);
            if (now == chain->is_protected || now != (gains == 1)) {
                continue;
            }
            chain->is_protected = now;
            chain->local.idle_since = now ? --model->earliest : ++model->latest;
        }
    }
}

static uint32_t held_pages(const struct model *model, enum runner_family family)
{
    uint32_t held = model->private_pages[family];
    for (uint32_t salt = 0; salt < SALTS; salt++) {
        for (uint32_t code = 0; code < CODES; code++) {
            const struct chain *chain = &model->chains[salt][code];
            const struct known *known =
                family == RUNNER_FAMILY_LOCAL ? &chain->local : &chain->global;
            held += known->holders > 0;
        }
    }
    return held;
}

static uint32_t cached_pages(const struct model *model, enum runner_family family, bool idle_only)
{
    uint32_t cached = 0;
    for (uint32_t salt = 0; salt < SALTS; salt++) {
        for (uint32_t code = 0; code < CODES; code++) {
            const struct chain *chain = &model->chains[salt][code];
            const struct known *known =
                family == RUNNER_FAMILY_LOCAL ? &chain->local : &chain->global;
            cached += known->is_cached && (!idle_only || known->holders == 0);
        }
    }
    return cached;
}

static bool goes_before(const struct chain *a, const struct chain *b, enum runner_family family)
{
    if (family == RUNNER_FAMILY_GLOBAL) {
        return a->global.idle_since < b->global.idle_since;
    }
    return a->is_protected != b->is_protected ? b->is_protected
                                              : a->local.idle_since < b->local.idle_since;
}

struct place {
    uint32_t salt;
    uint32_t code;
};

static const struct chain *chain_at(const struct model *model, const struct place *place)
{
    return &model->chains[place->salt][place->code];
}

/* Into the count places that go first, where it belongs; how many there are then. */
static uint32_t insert_place(const struct model *model, enum runner_family family,
                             const struct place *place, uint32_t found, uint32_t count,
                             struct place *places)
{
    uint32_t at = found;
    while (at > 0 &&
           goes_before(chain_at(model, place), chain_at(model, &places[at - 1]), family)) {
        at--;
    }
    if (at >= count) {
        return found;
    }
    found = num_min(found + 1, count);
    memmove(places + at + 1, places + at, (found - at - 1) * sizeof(*places));
    places[at] = *place;
    return found;
}

/* The count idle pages that go first, into out_places. */
static void find_victims(const struct model *model, enum runner_family family, uint32_t count,
                         struct place *out_places)
{
    uint32_t found = 0;
    for (uint32_t salt = 0; salt < SALTS; salt++) {
        for (uint32_t code = 0; code < CODES; code++) {
            const struct place place = {salt, code};
            const struct chain *chain = chain_at(model, &place);
            const struct known *known =
                family == RUNNER_FAMILY_LOCAL ? &chain->local : &chain->global;
            if (known->is_cached && known->holders == 0) {
                found = insert_place(model, family, &place, found, count, out_places);
            }
        }
    }
    test_eq_u64(found, count);
}

static uint32_t evict(struct model *model, enum runner_family family, uint32_t wanted)
{
    struct place places[MOST_TOKENS];
    uint32_t free_pages =
        model->pages[family] - held_pages(model, family) - cached_pages(model, family, true);
    uint32_t count = wanted > free_pages ? wanted - free_pages : 0;
    find_victims(model, family, count, places);
    for (uint32_t i = 0; i < count; i++) {
        struct chain *chain = &model->chains[places[i].salt][places[i].code];
        if (family == RUNNER_FAMILY_LOCAL) {
            chain->local.is_cached = false;
            continue;
        }
        test_true(2 * places[i].code >= CODES || is_end(model, places[i].salt, places[i].code));
        chain->global.is_cached = false;
        chain->local.is_cached = false;
        chain->is_protected = false;
        update_path(model, places[i].salt, places[i].code / 2);
    }
    return count;
}

/* All that nobody holds, ends first. */
static void forget_idle(struct model *model)
{
    for (uint32_t salt = 0; salt < SALTS; salt++) {
        for (uint32_t code = CODES; code-- > 0;) {
            struct chain *chain = &model->chains[salt][code];
            if (chain->global.is_cached && chain->global.holders == 0) {
                chain->global.is_cached = false;
                chain->local.is_cached = false;
                chain->is_protected = false;
                update_path(model, salt, code / 2);
            }
        }
        for (uint32_t code = 0; code < CODES; code++) {
            struct chain *chain = &model->chains[salt][code];
            chain->local.is_cached = chain->local.is_cached && chain->local.holders > 0;
        }
    }
}

static void hold(struct known *known)
{
    known->holders++;
}

static void let_go(struct model *model, struct known *known)
{
    if (--known->holders == 0) {
        known->idle_since = ++model->latest;
    }
}

static uint32_t first_local(const struct model *model, uint32_t pages)
{
    return pages > model->window_pages ? pages - model->window_pages : 0;
}

static uint32_t model_find(const struct model *model, uint32_t salt, const uint32_t *tokens,
                           uint32_t count)
{
    for (uint32_t pages = count; pages > 0; pages--) {
        bool is_hit = true;
        for (uint32_t i = 1; i <= pages; i++) {
            const struct chain *chain = &model->chains[salt][code_of(tokens, i)];
            bool wants_local = i > first_local(model, pages);
            is_hit = is_hit && chain->global.is_cached && (!wants_local || chain->local.is_cached);
        }
        if (is_hit) {
            return pages;
        }
    }
    return 0;
}

/* ---- both, side by side ---- */

static void compare(struct world *world)
{
    struct err err;
    test_ok(prefix_check(&world->prefix, &err), &err);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        enum runner_family family = (enum runner_family)f;
        test_ok(pool_check(&world->pools[f], &err), &err);
        test_eq_u64(pool_available(&world->pools[f]),
                    world->model->pages[f] - held_pages(world->model, family));
        test_eq_u64(world->pools[f].idle_count, cached_pages(world->model, family, true));
        test_eq_u64(world->prefix.stats.cached_pages[f], cached_pages(world->model, family, false));
        test_eq_u64(world->prefix.stats.evicted_pages[f] >= world->evictions[f], true);
    }
}

/* Often what another says, for a while. */
static void write_tokens(struct world *world, struct seq *seq)
{
    seq->token_count = 1 + pick(world, MOST_TOKENS);
    const struct seq *other = &world->seqs[pick(world, SEQS)];
    uint32_t same = pick(world, 3) == 0 ? 0 : pick(world, MOST_TOKENS + 1);
    uint32_t kind = pick(world, 3); /* few chains, so that they meet */
    for (uint32_t i = 0; i < seq->token_count; i++) {
        seq->tokens[i] = i < same ? other->tokens[i] : kind == 2 ? pick(world, 2) : kind;
    }
}

static void begin(struct world *world, struct seq *seq)
{
    uint32_t nodes[MOST_TOKENS];
    struct model *model = world->model;
    write_tokens(world, seq);
    seq->is_open = true;
    seq->salt = pick(world, 4) == 0;
    uint32_t pages =
        prefix_find(&world->prefix, seq->salt, seq->tokens, seq->token_count - 1, nodes);
    test_eq_u64(pages, model_find(model, seq->salt, seq->tokens, seq->token_count - 1));
    seq->origin = first_local(model, pages);
    test_eq_u64(prefix_first_local(&world->prefix, pages), seq->origin);
    for (uint32_t i = 0; i < pages; i++) {
        struct chain *chain = &model->chains[seq->salt][code_of(seq->tokens, i + 1)];
        seq->global_pages[i] = nodes[i];
        (void)pool_share(&world->pools[RUNNER_FAMILY_GLOBAL], nodes[i], LANE);
        hold(&chain->global);
        if (i >= seq->origin) {
            seq->local_pages[i] = world->prefix.nodes[nodes[i]].local_page;
            seq->is_local_private[i] = false;
            (void)pool_share(&world->pools[RUNNER_FAMILY_LOCAL], seq->local_pages[i], LANE);
            hold(&chain->local);
        }
    }
    seq->done = pages;
    world->hits += pages > 0;
    world->hit_pages += pages;
}

static void release_local(struct world *world, struct seq *seq, uint32_t i)
{
    struct chain *chain = &world->model->chains[seq->salt][code_of(seq->tokens, i + 1)];
    (void)pool_release(&world->pools[RUNNER_FAMILY_LOCAL], seq->local_pages[i], LANE);
    if (seq->is_local_private[i]) {
        world->model->private_pages[RUNNER_FAMILY_LOCAL]--;
    } else {
        let_go(world->model, &chain->local);
    }
}

static void end(struct world *world, struct seq *seq)
{
    for (uint32_t i = seq->done; i-- > seq->origin;) {
        release_local(world, seq, i);
    }
    for (uint32_t i = seq->done; i-- > 0;) {
        struct chain *chain = &world->model->chains[seq->salt][code_of(seq->tokens, i + 1)];
        (void)pool_release(&world->pools[RUNNER_FAMILY_GLOBAL], seq->global_pages[i], LANE);
        let_go(world->model, &chain->global);
    }
    seq->is_open = false;
}

/* The page of token i is written: into the cache, or over to who was first. */
static void add_page(struct world *world, struct seq *seq, uint32_t i)
{
    struct model *model = world->model;
    uint32_t code = code_of(seq->tokens, i + 1);
    struct chain *chain = &model->chains[seq->salt][code];
    const struct prefix_page page = {
        .parent = i == 0 ? PREFIX_NO_NODE : seq->global_pages[i - 1],
        .salt = seq->salt,
        .tokens = &seq->tokens[i],
        .global_page = seq->global_pages[i],
        .local_page = seq->local_pages[i],
    };
    uint32_t node = prefix_add(&world->prefix, &page);
    test_eq_u64(node == page.global_page, !chain->global.is_cached);
    if (node != page.global_page) {
        (void)pool_share(&world->pools[RUNNER_FAMILY_GLOBAL], node, LANE);
        (void)pool_release(&world->pools[RUNNER_FAMILY_GLOBAL], page.global_page, LANE);
        seq->global_pages[i] = node;
        world->changes_over++;
    }
    model->private_pages[RUNNER_FAMILY_GLOBAL]--;
    hold(&chain->global);
    if (!chain->global.is_cached) {
        chain->global.is_cached = true;
        update_path(model, seq->salt, code);
    }
    seq->is_local_private[i] = chain->local.is_cached;
    if (!chain->local.is_cached) {
        model->private_pages[RUNNER_FAMILY_LOCAL]--;
        chain->local.is_cached = true;
        hold(&chain->local);
    }
}

/* Everything that a reservation must not change. */
struct snapshot {
    void *at[6]; /* owned */
};

static void *copy_of(const void *at, size_t byte_count)
{
    unsigned char *copy = mem_zalloc(byte_count, 1);
    memcpy(copy, at, byte_count);
    return copy;
}

static void take_snapshot(const struct world *world, struct snapshot *out)
{
    uint32_t nodes = world->pools[RUNNER_FAMILY_GLOBAL].page_count;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct pool *pool = &world->pools[f];
        out->at[2 * (size_t)f] = copy_of(pool->pages, pool->page_count * sizeof(*pool->pages));
        out->at[2 * (size_t)f + 1] = copy_of(pool->free_pages, pool->page_count * sizeof(uint32_t));
    }
    out->at[4] = copy_of(world->prefix.nodes, nodes * sizeof(*world->prefix.nodes));
    out->at[5] = copy_of(world->prefix.buckets, world->prefix.bucket_count * sizeof(uint32_t));
}

static void check_snapshot(const struct world *world, struct snapshot *snapshot)
{
    uint32_t nodes = world->pools[RUNNER_FAMILY_GLOBAL].page_count;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct pool *pool = &world->pools[f];
        test_true(memcmp(snapshot->at[2 * (size_t)f], pool->pages,
                         pool->page_count * sizeof(*pool->pages)) == 0);
        test_true(memcmp(snapshot->at[2 * (size_t)f + 1], pool->free_pages,
                         pool->page_count * sizeof(uint32_t)) == 0);
    }
    test_true(memcmp(snapshot->at[4], world->prefix.nodes, nodes * sizeof(*world->prefix.nodes)) ==
              0);
    test_true(memcmp(snapshot->at[5], world->prefix.buckets,
                     world->prefix.bucket_count * sizeof(uint32_t)) == 0);
    for (uint32_t i = 0; i < 6; i++) {
        mem_free(snapshot->at[i]);
    }
}

/* Reserve both, or neither; false where there are too few pages, or by chance. */
static bool try_reserve(struct world *world, uint32_t count)
{
    struct pool *local = &world->pools[RUNNER_FAMILY_LOCAL];
    struct pool *global = &world->pools[RUNNER_FAMILY_GLOBAL];
    bool fits = count <= pool_available(local) && count <= pool_available(global);
    struct snapshot snapshot;
    take_snapshot(world, &snapshot);
    bool is_reserved = pool_try_reserve(local, count) && pool_try_reserve(global, count);
    test_eq_u64(is_reserved, fits);
    bool goes_on = is_reserved && pick(world, 5) > 0;
    if (!goes_on) {
        pool_rollback(local);
        pool_rollback(global);
    }
    check_snapshot(world, &snapshot); /* a reservation by itself changes nothing either */
    return goes_on;
}

static void extend(struct world *world, struct seq *seq)
{
    struct model *model = world->model;
    uint32_t count = num_min(1 + pick(world, 5), seq->token_count - seq->done);
    if (count == 0 || !try_reserve(world, count)) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        seq->local_pages[seq->done + i] = pool_reserved_page(&world->pools[RUNNER_FAMILY_LOCAL], i);
        seq->global_pages[seq->done + i] =
            pool_reserved_page(&world->pools[RUNNER_FAMILY_GLOBAL], i);
    }
    prefix_commit_pools(&world->prefix, LANE);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        world->evictions[f] += evict(model, (enum runner_family)f, count);
        model->private_pages[f] += count;
    }
    for (uint32_t i = 0; i < count; i++) {
        add_page(world, seq, seq->done + i);
    }
    seq->done += count;
    uint32_t origin = first_local(model, seq->done);
    for (uint32_t i = origin; i-- > seq->origin;) {
        release_local(world, seq, i);
    }
    seq->origin = num_max(seq->origin, origin);
}

static void open_world(struct world *world, uint64_t seed)
{
    struct err err;
    memset(world, 0, sizeof(*world));
    world->random = seed;
    world->model = mem_zalloc(1, sizeof(*world->model));
    world->model->window_pages = 1 + pick(world, 5);
    const struct prefix_options options = {
        .page_tokens = 1,
        .window_tokens = world->model->window_pages,
        .hash_seed = seed,
        .is_on = true,
    };
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        world->model->pages[f] = 12 + pick(world, 40);
        test_ok(pool_init(&world->pools[f], world->model->pages[f], &err), &err);
    }
    test_ok(prefix_init(&world->prefix, world->pools, &options, &err), &err);
}

static void close_world(struct world *world)
{
    for (uint32_t i = 0; i < SEQS; i++) {
        if (world->seqs[i].is_open) {
            end(world, &world->seqs[i]);
        }
    }
    compare(world);
    prefix_fini(&world->prefix);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        test_eq_u64(pool_available(&world->pools[f]), world->pools[f].page_count);
        test_eq_u64(world->pools[f].lane_pages[LANE], 0);
        pool_fini(&world->pools[f]);
    }
    mem_free(world->model);
}

static void test_random_chains_are_kept_and_given_up_as_the_plain_model_says(void)
{
    uint64_t hits = 0;
    uint64_t changes_over = 0;
    uint64_t evictions[RUNNER_FAMILY_COUNT] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world world;
        open_world(&world, seed);
        for (uint32_t op = 0; op < 400; op++) {
            struct seq *seq = &world.seqs[pick(&world, SEQS)];
            if (pick(&world, 60) == 0) {
                prefix_reset(&world.prefix);
                forget_idle(world.model);
                test_eq_u64(world.pools[RUNNER_FAMILY_GLOBAL].idle_count, 0);
                test_eq_u64(world.pools[RUNNER_FAMILY_LOCAL].idle_count, 0);
            } else if (!seq->is_open) {
                begin(&world, seq);
            } else if (pick(&world, 5) > 0) {
                extend(&world, seq);
            } else {
                end(&world, seq);
            }
            compare(&world);
        }
        hits += world.hits;
        changes_over += world.changes_over;
        evictions[RUNNER_FAMILY_LOCAL] += world.evictions[RUNNER_FAMILY_LOCAL];
        evictions[RUNNER_FAMILY_GLOBAL] += world.evictions[RUNNER_FAMILY_GLOBAL];
        close_world(&world);
    }
    test_true(hits > 500);
    test_true(changes_over > 200);
    test_true(evictions[RUNNER_FAMILY_LOCAL] > 500);
    test_true(evictions[RUNNER_FAMILY_GLOBAL] > 500);
}

/* The first page of `other`, a younger node in the same bucket, gets the key of `seq`'s: which is still
 * found for what it holds. */
static void check_equal_keys(struct world *world, const struct seq *seq, const struct seq *other)
{
    struct prefix_node *node = &world->prefix.nodes[other->global_pages[0]];
    uint64_t key = node->key;
    uint32_t found;
    node->key = world->prefix.nodes[seq->global_pages[0]].key;
    test_eq_u64(prefix_find(&world->prefix, seq->salt, seq->tokens, 1, &found), 1);
    test_eq_u64(found, seq->global_pages[0]);
    node->key = key;
}

/* All prompts fall into one bucket, and none is taken for another. */
static void test_equal_hashes_are_told_apart(void)
{
    struct world world;
    struct err err;
    open_world(&world, 3);
    prefix_fini(&world.prefix);
    const struct prefix_options options = {
        .page_tokens = 1, .window_tokens = 4, .hash_seed = 9, .is_on = true};
    test_ok(prefix_init(&world.prefix, world.pools, &options, &err), &err);
    world.prefix.bucket_count = 1; /* the rest of the buckets stays empty */
    world.model->window_pages = 4;
    for (uint32_t i = 0; i < 4; i++) {
        struct seq *seq = &world.seqs[i];
        seq->is_open = true;
        seq->salt = i / 2;
        seq->token_count = 3;
        seq->tokens[0] = i % 2;
        seq->tokens[1] = 1;
        seq->tokens[2] = 0;
        while (seq->done < seq->token_count) {
            extend(&world, seq);
        }
    }
    compare(&world);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t nodes[3];
        test_eq_u64(prefix_find(&world.prefix, i / 2, world.seqs[i].tokens, 3, nodes), 3);
        test_true(memcmp(nodes, world.seqs[i].global_pages, sizeof(nodes)) == 0);
    }
    check_equal_keys(&world, &world.seqs[0], &world.seqs[1]); /* other tokens */
    check_equal_keys(&world, &world.seqs[1], &world.seqs[3]); /* another salt */
    const uint32_t other[] = {1, 0, 0};
    uint32_t nodes[3];
    test_eq_u64(prefix_find(&world.prefix, 1, other, 3, nodes), 1);
    test_eq_u64(prefix_find(&world.prefix, 2, other, 3, nodes), 0);
    close_world(&world);
}

static void test_hits_end_at_cuts(void)
{
    struct world world;
    uint32_t nodes[MOST_TOKENS];
    open_world(&world, 5);
    world.prefix.options.cut_tokens = 4;
    struct seq *seq = &world.seqs[0];
    seq->is_open = true;
    seq->token_count = 11;
    while (seq->done < seq->token_count) {
        extend(&world, seq);
    }
    for (uint32_t count = 0; count <= 11; count++) {
        test_eq_u64(prefix_find(&world.prefix, 0, seq->tokens, count, nodes),
                    (uint64_t)count / 4 * 4);
    }
    close_world(&world);
}

static void test_check_names_what_differs(void)
{
    struct world world;
    struct err err;
    open_world(&world, 7);
    struct seq *seq = &world.seqs[0];
    seq->is_open = true;
    seq->token_count = 5;
    while (seq->done < seq->token_count) {
        extend(&world, seq);
    }
    struct prefix_node *node = &world.prefix.nodes[seq->global_pages[2]];
    node->child_count++;
    test_eq_u64(prefix_check(&world.prefix, &err), ERR_INTERNAL);
    test_true(strstr(err.message, "pages that follow 2 kept, 1 counted") != NULL);
    node->child_count--;
    node->end_count++;
    test_eq_u64(prefix_check(&world.prefix, &err), ERR_INTERNAL);
    test_true(strstr(err.message, "ends of chains") != NULL);
    node->end_count--;
    world.pools[RUNNER_FAMILY_GLOBAL].pages[seq->global_pages[2]].is_cached = false;
    test_eq_u64(prefix_check(&world.prefix, &err), ERR_INTERNAL);
    test_true(strstr(err.message, "cached global page 1 kept, 0 counted") != NULL);
    world.pools[RUNNER_FAMILY_GLOBAL].pages[seq->global_pages[2]].is_cached = true;
    close_world(&world);
}

static const struct test_case cases[] = {
    TEST(test_random_chains_are_kept_and_given_up_as_the_plain_model_says),
    TEST(test_equal_hashes_are_told_apart),
    TEST(test_hits_end_at_cuts),
    TEST(test_check_names_what_differs),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
