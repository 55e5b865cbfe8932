/* Norms of query, key and value heads, rotation, and the write of K and V into their page. */
#include <string.h>

#include "common/num.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"

#define TOKENS_PER_ITEM 4

/* In place.  x [head_dim]; cos_sin [2, pairs]; pair i is elements i and i + head_dim / 2. */
static void rotate(uint16_t *x, const uint16_t *cos_sin, uint32_t pairs, uint32_t head_dim)
{
    uint32_t half = head_dim / 2;
    for (uint32_t i = 0; i < pairs; i++) {
        float c = k_f32_from_bf16(cos_sin[i]);
        float s = k_f32_from_bf16(cos_sin[pairs + i]);
        float low = k_f32_from_bf16(x[i]);
        float high = k_f32_from_bf16(x[i + half]);
        x[i] = k_bf16_from_f32(k_round_bf16(low * c) + k_round_bf16(-high * s));
        x[i + half] = k_bf16_from_f32(k_round_bf16(high * c) + k_round_bf16(low * s));
    }
}

static void write_kv(const struct k_qkv_norm_rope_args *args, uint32_t token,
                     const uint16_t *cos_sin)
{
    const struct k_pages *pages = &args->pages;
    uint32_t head_dim = pages->head_dim;
    uint32_t slot = args->tokens.slots[token];
    uint32_t position = args->tokens.positions[token];
    uint32_t page = slot == K_SLOT_NONE ? pages->pages : k_page_of(pages, slot, position);
    uint64_t within = (uint64_t)(position % pages->page_tokens) * head_dim;
    uint32_t row_heads = args->heads + pages->kv_heads * (args->has_v ? 2 : 1);
    const uint16_t *k = args->qkv + ((uint64_t)token * row_heads + args->heads) * head_dim;
    const uint16_t *v = k + (args->has_v ? (uint64_t)pages->kv_heads * head_dim : 0);
    for (uint32_t head = 0; head < pages->kv_heads; head++) {
        uint64_t from = (uint64_t)head * head_dim;
        uint16_t *k_out =
            pages->base + k_page_offset(pages, page, args->kv_layer, 0, head) + within;
        uint16_t *v_out =
            pages->base + k_page_offset(pages, page, args->kv_layer, 1, head) + within;
        k_rmsnorm_row(k + from, args->k_norm, head_dim, args->eps, k_out);
        rotate(k_out, cos_sin, args->rotated_pairs, head_dim);
        k_rmsnorm_row(v + from, NULL, head_dim, args->eps, v_out);
    }
}

static void rope_item(void *context, uint32_t item, uint32_t thread)
{
    (void)thread; /* no scratch */
    const struct k_qkv_norm_rope_args *args = context;
    uint32_t head_dim = args->pages.head_dim;
    uint32_t kv_heads = args->writes_kv ? args->pages.kv_heads * (args->has_v ? 2 : 1) : 0;
    uint32_t row_heads = args->heads + kv_heads;
    uint32_t end = num_min((item + 1) * TOKENS_PER_ITEM, args->tokens.count);
    for (uint32_t t = item * TOKENS_PER_ITEM; t < end; t++) {
        const uint16_t *cos_sin =
            args->cos_sin + (uint64_t)args->tokens.positions[t] * 2 * args->rotated_pairs;
        uint16_t *q = args->qkv + (uint64_t)t * row_heads * head_dim;
        for (uint32_t head = 0; head < args->heads; head++) {
            uint16_t *at = q + (uint64_t)head * head_dim;
            k_rmsnorm_row(at, args->q_norm, head_dim, args->eps, at);
            rotate(at, cos_sin, args->rotated_pairs, head_dim);
        }
        if (args->writes_kv) {
            write_kv(args, t, cos_sin);
        }
    }
}

enum err_code k_cpu_qkv_norm_rope(struct k_stream *stream, const struct k_qkv_norm_rope_args *args,
                                  struct err *err)
{
    if (args->rotated_pairs > args->pages.head_dim / 2) {
        return err_set(err, ERR_SHAPE, "qkv_norm_rope: %u rotated pairs in %u elements of a head",
                       args->rotated_pairs, args->pages.head_dim);
    }
    struct k_qkv_norm_rope_args copy = *args;
    k_threads_run(stream->threads, num_ceil_div(args->tokens.count, TOKENS_PER_ITEM), rope_item,
                  &copy);
    return ERR_OK;
}
