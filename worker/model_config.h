/* The network that config.json describes, in every spelling: multimodal wrapper or flat text
 * config, per_layer_config or global_* keys, rope_parameters or rope_theta.
 *
 * Everything a Gemma 4 text model can have is parsed and checked here, what this build cannot run
 * included: model_config_check_supported is the one place that says no.  A plain value, read-only
 * after loading; any thread. */
#ifndef WORKER_MODEL_CONFIG_H
#define WORKER_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/checkpoint.h"
#include "common/err.h"
#include "worker/runner.h"

struct json_t;

#define MODEL_MAX_LAYERS             128
#define MODEL_MAX_HIDDEN_ELEMS       32768
#define MODEL_MAX_INTERMEDIATE_ELEMS 262144
#define MODEL_MAX_HEADS              256
#define MODEL_MAX_HEAD_DIM           512
#define MODEL_MAX_EXPERTS            1024
#define MODEL_MAX_POSITIONS          (1U << 20)
#define MODEL_ELEM_MULTIPLE          8 /* every row of every matrix is a whole number of 16 bytes */
#define MODEL_HEAD_DIM_MULTIPLE      16 /* what the attention operators take */

/* Frequencies of one family.  Pair i is dims (i, i + head_dim/2):
 *   inv_freq[i] = 1 / (theta^(2i / exponent_dim) * factor)   i <  rotated_pairs
 *                 0                                           i >= rotated_pairs (passes through)
 * Source: Gemma 4 config `rope_parameters`. */
struct model_rope {
    double theta;
    double factor;
    uint32_t exponent_dim; /* the whole head_dim, also where only some pairs rotate */
    uint32_t rotated_pairs;
};

/* Attention geometry of a family: every layer of one family has the same, because its KV pages are
 * of one shape.  RUNNER_FAMILY_LOCAL: sliding window; RUNNER_FAMILY_GLOBAL: full attention. */
struct model_family {
    uint32_t layers;
    uint32_t kv_layers; /* layers that own KV: slots of a page; layers - kv_layers share */
    uint32_t head_dim;
    uint32_t kv_heads;
    uint32_t window_tokens; /* keys a query sees, itself included; 0: all */
    struct model_rope rope;
};

struct model_layer {
    enum runner_family family;
    uint32_t head_dim; /* as the family's, as are kv_heads, window_tokens and rope */
    uint32_t kv_heads;
    uint32_t window_tokens;
    struct model_rope rope;
    uint32_t intermediate_elems; /* of the dense MLP */
    bool k_eq_v;                 /* no v_proj: the raw k projection is the value's input */
    bool owns_kv;
    uint32_t kv_source_layer; /* whose K and V this layer reads; its own index where owns_kv */
    uint32_t kv_slot;         /* index of that layer among its family's owners: 0 .. kv_layers-1 */
};

struct model_config {
    struct checkpoint_info info; /* vocabulary and token ids */
    uint32_t hidden_elems;
    uint32_t heads; /* query heads, every layer */
    uint32_t max_positions;
    float rms_eps;
    float softcap;     /* of the final logits; 0: none */
    bool tied_lm_head; /* the output matrix is the embedding */

    /* Per-layer embeddings; 0: none. */
    uint32_t ple_elems;
    uint32_t ple_vocab_tokens;

    /* Mixture of experts beside the dense MLP, in every layer; 0 experts: none. */
    uint32_t experts;
    uint32_t top_experts;
    uint32_t expert_intermediate_elems;

    char quant_method[32]; /* of quantization_config; "" where there is none */

    struct model_family families[RUNNER_FAMILY_COUNT];
    uint32_t layer_count;
    struct model_layer layers[MODEL_MAX_LAYERS];
};

/* Reads model_dir/config.json and generation_config.json.  Errors: those of checkpoint_load_info
 * (ERR_CONFIG names key, value and limit), ERR_UNSUPPORTED (not a Gemma 4 text model); several
 * faults are in one line. */
ERR_NODISCARD enum err_code model_config_load(const char *model_dir,
                                              struct model_config *out_config, struct err *err);

/* The same from parsed files; generation may be null. */
ERR_NODISCARD enum err_code model_config_read(const struct json_t *config,
                                              const struct json_t *generation,
                                              struct model_config *out_config, struct err *err);

/* As model_config_load; on_fault sees each fault that can be told without the others.  Returns how
 * many: with none *out_config is written. */
uint32_t model_config_check(const char *model_dir, struct model_config *out_config,
                            void (*on_fault)(void *owner, const char *clause), void *owner);

/* ERR_UNSUPPORTED with one line saying what of a valid config this build cannot run. */
ERR_NODISCARD enum err_code model_config_check_supported(const struct model_config *config,
                                                         struct err *err);

#endif
