#include "tests/testlib/cuda_stand_in.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "kernels/philox.h"
#include "tests/testlib/cuda_rig.h"
#include "tests/testlib/test.h"

#define ALIGN_BYTES 256
#define PLANT_BITS  0x10U /* some 10% of a bf16 value */
#define SOFTCAP     30.0F

/* ---- the rig ---- */

bool cuda_rig_is_there(void)
{
    return true;
}

bool cuda_rig_is_stand_in(void)
{
    return true;
}

void cuda_rig_open(struct cuda_rig *rig, const struct k_cuda_shape *shape,
                   bool uses_dependent_launch)
{
    (void)uses_dependent_launch;
    struct err err = {0};
    struct k_cpu_options options = {
        .threads = 1,
        .shape = {.max_in_elems = 21504,
                  .max_context_tokens = shape->max_context_tokens,
                  .max_group_heads = 16,
                  .max_head_dim = shape->max_head_dim,
                  .vocab_tokens = shape->vocab_tokens,
                  .max_experts = shape->experts},
        .softcap = SOFTCAP,
        .is_plain = true,
    };
    *rig = (struct cuda_rig){0};
    test_ok(k_cpu_stream_create(&options, &rig->k, &err), &err);
}

void cuda_rig_close(struct cuda_rig *rig)
{
    k_cpu_stream_destroy(rig->k);
    *rig = (struct cuda_rig){0};
}

void *cuda_rig_alloc(size_t bytes)
{
    void *at = aligned_alloc(ALIGN_BYTES, num_align_up(bytes, ALIGN_BYTES));
    if (at == NULL) {
        test_fail(__FILE__, __LINE__, "out of memory: %zu bytes", bytes);
    }
    return at;
}

void cuda_rig_free(void *at)
{
    free(at);
}

void *cuda_rig_upload(const void *from, size_t bytes)
{
    void *at = cuda_rig_alloc(bytes);
    cuda_rig_write(at, from, bytes);
    return at;
}

void cuda_rig_write(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void cuda_rig_read(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void cuda_rig_poison(void *at, size_t bytes)
{
    memset(at, 0xff, bytes);
}

void cuda_rig_repeat(void *at, size_t seed_bytes, size_t bytes)
{
    unsigned char *to = at;
    for (size_t done = seed_bytes; done < bytes; done += seed_bytes) {
        memcpy(to + done, at, bytes - done < seed_bytes ? bytes - done : seed_bytes);
    }
}

void cuda_rig_wait(struct cuda_rig *rig)
{
    (void)rig; /* everything is done where it is enqueued */
}

struct cuda_rig_graph {
    void (*record)(void *context);
    void *context;
};

struct cuda_rig_graph *cuda_rig_capture(struct cuda_rig *rig, void (*record)(void *context),
                                        void *context)
{
    (void)rig;
    struct cuda_rig_graph *graph = mem_zalloc(1, sizeof(*graph));
    *graph = (struct cuda_rig_graph){record, context};
    return graph;
}

void cuda_rig_launch(struct cuda_rig *rig, struct cuda_rig_graph *graph)
{
    (void)rig;
    graph->record(graph->context);
}

void cuda_rig_graph_free(struct cuda_rig_graph *graph)
{
    mem_free(graph);
}

double cuda_rig_replay(struct cuda_rig *rig, void (*record)(void *context), void *context,
                       uint32_t replays)
{
    (void)rig;
    (void)replays;
    record(context);
    return 0.0;
}

/* ---- operators ---- */

/* The last of count elements is wrong where errors are planted. */
static void plant(uint16_t *values, uint64_t count)
{
    if (cuda_stand_in_is_planted && count > 0) {
        values[count - 1] ^= PLANT_BITS;
    }
}

static uint32_t plant_step(void)
{
    return cuda_stand_in_is_planted ? 1 : 0;
}

static enum err_code embed_norm(struct k_stream *stream, const struct k_embed_norm_args *args,
                                struct err *err)
{
    enum err_code code = k_cpu_ops()->embed_norm(stream, args, err);
    plant(args->normed, (uint64_t)args->tokens.count * args->hidden_elems);
    return code;
}

static enum err_code linear(struct k_stream *stream, const struct k_linear_args *args,
                            struct err *err)
{
    enum err_code code = k_cpu_ops()->linear(stream, args, err);
    uint64_t columns = 0;
    for (uint32_t part = 0; part < args->part_count; part++) {
        columns += args->out_elems[part];
    }
    plant(args->out, args->rows * columns);
    plant(args->out, args->feeds_residual_norm ? 1 : 0);
    return code;
}

static enum err_code qkv_norm_rope(struct k_stream *stream, const struct k_qkv_norm_rope_args *args,
                                   struct err *err)
{
    enum err_code code = k_cpu_ops()->qkv_norm_rope(stream, args, err);
    const struct k_pages *pages = &args->pages;
    uint32_t row_heads =
        args->heads + (args->writes_kv ? pages->kv_heads * (args->has_v ? 2 : 1) : 0);
    uint64_t row = (uint64_t)row_heads * pages->head_dim;
    plant(args->qkv, (args->tokens.count - 1) * row + (uint64_t)args->heads * pages->head_dim);
    return code;
}

static enum err_code residual_norm(struct k_stream *stream, const struct k_residual_norm_args *args,
                                   struct err *err)
{
    enum err_code code = k_cpu_ops()->residual_norm(stream, args, err);
    plant(args->normed, (uint64_t)args->rows * args->hidden_elems);
    return code;
}

static enum err_code gate_up(struct k_stream *stream, const struct k_gate_up_args *args,
                             struct err *err)
{
    enum err_code code = k_cpu_ops()->gate_up(stream, args, err);
    plant(args->out, (uint64_t)args->rows * args->intermediate_elems);
    return code;
}

static enum err_code head(struct k_stream *stream, const struct k_head_args *args, struct err *err)
{
    enum err_code code = k_cpu_ops()->head(stream, args, err);
    plant(args->logits, (uint64_t)args->rows * args->vocab_tokens);
    return code;
}

static enum err_code route(struct k_stream *stream, const struct k_route_args *args,
                           struct err *err)
{
    enum err_code code = k_cpu_ops()->route(stream, args, err);
    args->routing.starts[args->experts] += plant_step();
    plant(args->normed, (uint64_t)args->rows * args->hidden_elems);
    return code;
}

static enum err_code expert_gate_up(struct k_stream *stream, const struct k_expert_args *args,
                                    struct err *err)
{
    enum err_code code = k_cpu_ops()->expert_gate_up(stream, args, err);
    plant(args->out, (uint64_t)args->rows * args->top_experts * args->out_elems);
    return code;
}

static enum err_code expert_down(struct k_stream *stream, const struct k_expert_args *args,
                                 struct err *err)
{
    enum err_code code = k_cpu_ops()->expert_down(stream, args, err);
    plant(args->out, (uint64_t)args->rows * args->top_experts * args->out_elems);
    return code;
}

static enum err_code join_norm(struct k_stream *stream, const struct k_join_norm_args *args,
                               struct err *err)
{
    enum err_code code = k_cpu_ops()->join_norm(stream, args, err);
    plant(args->normed, (uint64_t)args->rows * args->hidden_elems);
    return code;
}

static enum err_code ple_inputs(struct k_stream *stream, const struct k_ple_inputs_args *args,
                                struct err *err)
{
    enum err_code code = k_cpu_ops()->ple_inputs(stream, args, err);
    plant(args->inputs, (uint64_t)args->rows * args->layers * args->elems);
    return code;
}

static enum err_code ple_layer(struct k_stream *stream, const struct k_ple_layer_args *args,
                               struct err *err)
{
    enum err_code code = k_cpu_ops()->ple_layer(stream, args, err);
    plant(args->x, (uint64_t)args->rows * args->hidden_elems);
    plant(args->normed, (uint64_t)args->rows * args->hidden_elems);
    return code;
}

static enum err_code open(struct k_stream *stream, const struct k_open_args *args, struct err *err)
{
    enum err_code code = k_cpu_ops()->open(stream, args, err);
    if (code == ERR_OK) {
        args->slots.length[args->slot] += plant_step();
    }
    return code;
}

/* Where a wide step has come to, and the compact one that it is spread from. */
struct wide {
    const struct k_expand_args *from;
    const struct k_expand_args *to;
    struct k_step_counts read;
    struct k_step_counts written;
};

/* A captured step keeps its width: rows that do not live leave tokens of no slot behind. */
static void widen_row(struct wide *wide, uint32_t row_index)
{
    const struct k_expand_args *from = wide->from;
    const struct k_expand_args *to = wide->to;
    const struct k_row *row = &to->rows[row_index];
    bool is_live = to->picks[row_index].outcome == K_OUTCOME_NONE;
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t token = wide->written.tokens + i;
        uint32_t source = wide->read.tokens + i;
        to->ids[token] = is_live ? from->ids[source] : 0;
        to->positions[token] = is_live ? from->positions[source] : i;
        to->token_slots[token] = is_live ? from->token_slots[source] : K_SLOT_NONE;
        if ((row->flags & K_ROW_PROMPT_LOGPROBS) != 0) {
            struct k_logprob_row wanted = {.target = K_NONE, .record = row->first_id + i};
            uint32_t at = wide->written.prompt_logprob_rows++;
            to->prompt_tokens[at] = token;
            to->prompt_logprobs[at] =
                is_live ? from->prompt_logprobs[wide->read.prompt_logprob_rows++] : wanted;
        }
    }
    wide->written.tokens += row->count;
    wide->read.tokens += is_live ? row->count : 0;
    if ((row->flags & K_ROW_SAMPLES) != 0) {
        uint32_t at = wide->written.sample_rows++;
        struct k_sample_row nobody = {.row = K_NONE, .slot = row->slot, .mask_row = K_NONE};
        struct k_logprob_row nothing = {.target = K_NONE, .record = row_index};
        to->sample_tokens[at] = wide->written.tokens - 1;
        to->sample_rows[at] = is_live ? from->sample_rows[wide->read.sample_rows] : nobody;
        to->sample_logprobs[at] = is_live ? from->sample_logprobs[wide->read.sample_rows] : nothing;
        wide->read.sample_rows += is_live ? 1 : 0;
    }
}

static enum err_code expand(struct k_stream *stream, const struct k_expand_args *args,
                            struct err *err)
{
    uint32_t tokens = 1;
    for (uint32_t r = 0; r < args->row_count; r++) {
        tokens += args->rows[r].count;
    }
    struct k_expand_args compact = *args;
    compact.pad_tokens_multiple = 1;
    compact.ids = mem_zalloc(tokens, sizeof(*compact.ids));
    compact.positions = mem_zalloc(tokens, sizeof(*compact.positions));
    compact.token_slots = mem_zalloc(tokens, sizeof(*compact.token_slots));
    compact.sample_rows = mem_zalloc(args->row_count + 1U, sizeof(*compact.sample_rows));
    compact.sample_tokens = mem_zalloc(args->row_count + 1U, sizeof(*compact.sample_tokens));
    compact.sample_logprobs = mem_zalloc(args->row_count + 1U, sizeof(*compact.sample_logprobs));
    compact.prompt_tokens = mem_zalloc(tokens, sizeof(*compact.prompt_tokens));
    compact.prompt_logprobs = mem_zalloc(tokens, sizeof(*compact.prompt_logprobs));
    enum err_code code = k_cpu_ops()->expand(stream, &compact, err);
    struct wide wide = {.from = &compact, .to = args};
    for (uint32_t r = 0; r < args->row_count; r++) {
        widen_row(&wide, r);
    }
    uint32_t multiple = num_max(1, args->pad_tokens_multiple);
    for (uint32_t pad = 0; wide.written.tokens % multiple != 0; pad++) {
        args->ids[wide.written.tokens] = 0;
        args->positions[wide.written.tokens] = pad;
        args->token_slots[wide.written.tokens++] = K_SLOT_NONE;
    }
    wide.written.tokens += plant_step();
    *args->counts = wide.written;
    mem_free(compact.ids);
    mem_free(compact.positions);
    mem_free(compact.token_slots);
    mem_free(compact.sample_rows);
    mem_free(compact.sample_tokens);
    mem_free(compact.sample_logprobs);
    mem_free(compact.prompt_tokens);
    mem_free(compact.prompt_logprobs);
    return code;
}

/* One at a time: rows of nobody are left out. */
static enum err_code sample(struct k_stream *stream, const struct k_sample_args *args,
                            struct err *err)
{
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; code == ERR_OK && i < args->row_count; i++) {
        struct k_sample_args one = *args;
        one.row_count = 1;
        one.rows += i;
        one.logprobs += i;
        one.logits += (uint64_t)i * args->slots.vocab_tokens;
        if (one.rows->row != K_NONE) {
            code = k_cpu_ops()->sample(stream, &one, err);
            one.picks[one.rows->row].token ^= i + 1 == args->row_count ? plant_step() : 0;
        }
    }
    return code;
}

static enum err_code logprobs(struct k_stream *stream, const struct k_logprobs_args *args,
                              struct err *err)
{
    enum err_code code = k_cpu_ops()->logprobs(stream, args, err);
    for (uint32_t i = args->row_count; cuda_stand_in_is_planted && i-- > 0;) {
        if (args->rows[i].want != 0) {
            args->records[args->rows[i].record].rank += 1;
            args->records[args->rows[i].record].logprob += 1e-3F;
            break;
        }
    }
    return code;
}

static enum err_code advance(struct k_stream *stream, const struct k_advance_args *args,
                             struct err *err)
{
    uint32_t turn = args->turn == NULL ? 0 : *args->turn;
    enum err_code code = k_cpu_ops()->advance(stream, args, err);
    args->slots.length[args->rows[args->row_count - 1].slot] += plant_step();
    if (cuda_stand_in_is_planted && args->stamps != NULL) {
        args->stamps[turn].end_ns = args->stamps[turn].begin_ns - 1;
    }
    return code;
}

const struct k_ops *k_cuda_ops(void)
{
    static const struct k_ops ops = {
        .embed_norm = embed_norm,
        .linear = linear,
        .qkv_norm_rope = qkv_norm_rope,
        .attention = NULL, /* its tests are not rehearsed */
        .residual_norm = residual_norm,
        .gate_up = gate_up,
        .head = head,
        .route = route,
        .expert_gate_up = expert_gate_up,
        .expert_down = expert_down,
        .join_norm = join_norm,
        .ple_inputs = ple_inputs,
        .ple_layer = ple_layer,
        .open = open,
        .expand = expand,
        .sample = sample,
        .logprobs = logprobs,
        .advance = advance,
    };
    return &ops;
}

/* ---- what stands around a product ---- */

static float gelu_of(float x)
{
    float inner = 0.7978845608028654F * (x + 0.044715F * x * x * x);
    return k_round_bf16(0.5F * x * (1.0F + tanhf(inner)));
}

enum err_code k_cuda_geglu(struct k_stream *stream, const uint16_t *gate_up_values, uint32_t rows,
                           uint32_t intermediate_elems, uint16_t *out, struct err *err)
{
    (void)stream;
    (void)err;
    uint64_t inner = intermediate_elems;
    for (uint64_t i = 0; i < rows * inner; i++) {
        const uint16_t *row = gate_up_values + i / inner * 2 * inner;
        float gate = k_f32_from_bf16(row[i % inner]);
        float up = k_f32_from_bf16(row[inner + i % inner]);
        out[i] = k_bf16_from_f32(gelu_of(gate) * up);
    }
    plant(out, rows * inner);
    return ERR_OK;
}

/* NOLINTNEXTLINE(readability-function-size): the backend's own list of parameters */
enum err_code k_cuda_gather(struct k_stream *stream, const uint16_t *x, const uint32_t *token_index,
                            uint32_t rows, uint32_t hidden_elems, uint16_t *out, struct err *err)
{
    (void)stream;
    (void)err;
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(out + (uint64_t)r * hidden_elems, x + (uint64_t)token_index[r] * hidden_elems,
               hidden_elems * sizeof(*out));
    }
    plant(out, (uint64_t)rows * hidden_elems);
    return ERR_OK;
}

enum err_code k_cuda_softcap(struct k_stream *stream, uint16_t *logits, uint32_t rows,
                             uint32_t vocab_tokens, float softcap, struct err *err)
{
    (void)stream;
    (void)err;
    for (uint64_t i = 0; softcap > 0.0F && i < (uint64_t)rows * vocab_tokens; i++) {
        float l = k_round_bf16(k_f32_from_bf16(logits[i]) / softcap);
        logits[i] = k_bf16_from_f32(k_round_bf16(tanhf(l)) * softcap);
    }
    plant(logits, (uint64_t)rows * vocab_tokens);
    return ERR_OK;
}

enum err_code k_cuda_fill_normal(struct CUstream_st *stream, const struct k_cuda_normal *normal,
                                 struct err *err)
{
    (void)stream;
    (void)err;
    for (uint64_t i = 0; i < normal->elems; i++) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, 0};
        struct k_philox words = k_philox(normal->seed, counter);
        const uint32_t *pair = words.words + (i % 4 < 2 ? 0 : 2);
        float u = ((float)pair[0] + 0.5F) * 0x1p-32F;
        float turn = ((float)pair[1] + 0.5F) * 0x1p-32F;
        float radius = sqrtf(-2.0F * logf(u > 1.0F - 0x1p-24F ? 1.0F - 0x1p-24F : u));
        float angle = 6.283185307F * turn;
        normal->out[i] = k_bf16_from_f32(
            normal->mean + normal->sigma * (radius * (i % 2 == 0 ? cosf(angle) : sinf(angle))));
    }
    plant(normal->out, normal->elems);
    return ERR_OK;
}
