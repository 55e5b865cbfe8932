/* Weights of a model: which tensors it needs, in which shapes, and where each lies in memory.
 *
 * One block of memory holds all; the slots point into it.  It is host memory on the cpu backend and
 * may be a device's: weights_load writes through a store.  Slots are read-only after loading; any
 * thread. */
#ifndef WORKER_WEIGHTS_H
#define WORKER_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/model_config.h"
#include "worker/safetensors.h"

#define WEIGHTS_ALIGN_BYTES 256 /* of every tensor's first byte, from the start of the block */

#define GLOBAL(field, name, when, dim0, dim1, dim2)
#define LAYER(field, name, when, dim0, dim1, dim2) const uint16_t *field;
/* Shapes are in weights.def; null: this layer has no such tensor. */
struct weights_layer {
#include "worker/weights.def"
};
#undef GLOBAL
#undef LAYER

#define GLOBAL(field, name, when, dim0, dim1, dim2) const uint16_t *field;
#define LAYER(field, name, when, dim0, dim1, dim2)
struct weights {
#include "worker/weights.def"
    const uint16_t *lm_head; /* [vocab, hidden] bf16; embed_tokens where tied */
    /* [ple vocab, layers * ple elements] bf16; null without.  Last in the block; a loader may put it
     * elsewhere. */
    const uint16_t *ple_embed_tokens;
    struct weights_layer *layers; /* owned, [layer_count] */
    uint32_t layer_count;
    bool ple_is_far;           /* ple_embed_tokens lies in host memory, all else on a device */
    unsigned char *host_block; /* owned; null unless made by a function named host */
    uint64_t block_bytes;
};
#undef GLOBAL
#undef LAYER

/* Where tensors go.  write null: base is host memory and is written in place. */
struct weights_store {
    unsigned char *base; /* what slots are relative to; aligned to WEIGHTS_ALIGN_BYTES */
    uint64_t cap_bytes;
    enum err_code (*write)(void *owner, uint64_t offset_bytes, const void *bytes, size_t byte_count,
                           struct err *err);
    /* Where write wants its next bytes, WEIGHTS_PROGRESS_BYTES of room: saves a copy.  May be null:
     * anywhere. */
    unsigned char *(*buffer)(void *owner);
    void *owner;
};

/* Called on the loading thread, at least every WEIGHTS_PROGRESS_BYTES and at the end. */
#define WEIGHTS_PROGRESS_BYTES (16U << 20)
struct weights_progress {
    void (*on_progress)(void *owner, uint64_t done_bytes, uint64_t total_bytes); /* or null */
    void *owner;
};

/* Are all tensors of the model there, in the right shape and in bf16, and nothing in its layers
 * that the model does not have?  Other modalities' tensors are ignored, as are keys and values of
 * layers that share KV.  *out_bytes: the block that weights_load needs.
 * Errors: ERR_CONFIG, all faulty tensors in one line. */
ERR_NODISCARD enum err_code weights_check(const struct model_config *config,
                                          const struct st_set *set, uint64_t *out_bytes,
                                          struct err *err);

/* Bytes at the end of the block that are the table of per-layer embeddings; 0 without. */
uint64_t weights_ple_table_bytes(const struct model_config *config);

/* The same check: on_fault sees each fault, be they ever so many.  Returns how many. */
uint32_t weights_check_each(const struct model_config *config, const struct st_set *set,
                            void (*on_fault)(void *owner, const char *clause), void *owner);

/* Checks, then fills the store and *out_weights (weights_fini frees it).  Errors: as weights_check,
 * ERR_LIMIT (store too small), and those of st_read and of the store. */
ERR_NODISCARD enum err_code weights_load(const struct model_config *config,
                                         const struct st_set *set,
                                         const struct weights_store *store,
                                         const struct weights_progress *progress,
                                         struct weights *out_weights, struct err *err);

/* Opens the folder's files, checks, takes a host block and loads.  progress may be null.  Errors:
 * also ERR_MEMORY (names the bytes), ERR_NOT_FOUND, ERR_FORMAT. */
ERR_NODISCARD enum err_code weights_open_host(const char *model_dir,
                                              const struct model_config *config,
                                              const struct weights_progress *progress,
                                              struct weights *out_weights, struct err *err);

/* One tensor of a model without a file. */
struct weights_tensor {
    const char *name;      /* as in weights.def: without prefix and layer; a constant */
    uint64_t offset_bytes; /* from the start of the block */
    uint64_t elems;
    uint64_t in_elems; /* of a matrix: its last dimension; 0: a vector (norm weights, scalars) */
};

/* Lays out every tensor that config needs in a block at base, without reading any: *out_weights
 * (weights_fini frees it) points into it and visit, which may be null, sees each.  base null: only
 * measures. */
void weights_lay_out(const struct model_config *config, const unsigned char *base,
                     void (*visit)(void *owner, const struct weights_tensor *tensor), void *owner,
                     struct weights *out_weights);

/* Made-up weights in a host block: seeded values of the config's shapes.  Large matrices share their
 * memory.  Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code weights_make_host(const struct model_config *config,
                                              struct weights *out_weights, struct err *err);

/* Of the block that holds every tensor that config needs. */
uint64_t weights_block_bytes(const struct model_config *config);

void weights_fini(struct weights *weights);

#endif
