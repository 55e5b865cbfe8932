/* What a checkpoint folder declares about token ids and sampling, for both processes: config.json
 * and generation_config.json in the spellings that transformers has written over time.
 *
 * The frontend takes stop ids, suppressed ids and sampling defaults from here, the worker the ids
 * that a prompt may not hold.  The network itself is the worker's (worker/model_config.h).  A plain
 * value, read-only after loading; any thread. */
#ifndef COMMON_CHECKPOINT_H
#define COMMON_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct json_t;

#define CHECKPOINT_MAX_VOCAB_TOKENS (1U << 20)
#define CHECKPOINT_MAX_FILE_BYTES   (1U << 20) /* of config.json; published ones are below 10 KiB */
#define CHECKPOINT_MAX_IDS          256
#define CHECKPOINT_MAX_EOS_IDS      16
#define CHECKPOINT_NO_ID            0xffffffffU

/* Defaults where generation_config.json says nothing are off (1, 0, 1), as in transformers. */
struct checkpoint_sampling {
    bool do_sample; /* false: greedy unless a request says otherwise */
    float temperature;
    uint32_t top_k; /* 0 is off */
    float top_p;    /* 1 is off */
};

struct checkpoint_info {
    uint32_t vocab_tokens;
    uint32_t bos_id; /* CHECKPOINT_NO_ID where not declared, as pad_id */
    uint32_t pad_id;
    /* Of generation_config.json, else of config.json, else of its text_config. */
    uint32_t eos_ids[CHECKPOINT_MAX_EOS_IDS];
    uint32_t eos_count;
    uint32_t suppress_ids[CHECKPOINT_MAX_IDS]; /* never sampled */
    uint32_t suppress_count;
    /* Placeholders and brackets of other modalities (image, audio, video, boi, eoi, boa, eoa): a
     * text prompt may not hold them.  Those outside the vocabulary are left out, as are suppressed
     * ids outside it. */
    uint32_t modality_ids[16];
    uint32_t modality_count;
    struct checkpoint_sampling sampling;
};

/* Reads model_dir/config.json and, where it exists, model_dir/generation_config.json.
 * Errors: ERR_NOT_FOUND (no such folder or no config.json), ERR_FORMAT (not JSON), ERR_CONFIG (names
 * key, value and limit), ERR_SYSTEM. */
ERR_NODISCARD enum err_code checkpoint_load_info(const char *model_dir,
                                                 struct checkpoint_info *out_info, struct err *err);

/* The same from parsed files; generation may be null. */
ERR_NODISCARD enum err_code checkpoint_read_info(const struct json_t *config,
                                                 const struct json_t *generation,
                                                 struct checkpoint_info *out_info, struct err *err);

/* An object of a file with the prefix for messages about its keys. */
struct checkpoint_object {
    const struct json_t *json; /* borrowed */
    const char *path;          /* "text_config", or "" at the root */
};

/* config's text_config where it has one, config itself where it is a text model's. */
struct checkpoint_object checkpoint_text_config(const struct json_t *config);

/* Parses both files of a folder; *out_generation is null where there is none.  The caller releases
 * both.  Errors as checkpoint_load_info. */
ERR_NODISCARD enum err_code checkpoint_parse_files(const char *model_dir,
                                                   struct json_t **out_config,
                                                   struct json_t **out_generation, struct err *err);

/* A member as an integer within [min_value, max_value]; 128.0 counts as 128.  Absent and null
 * leave *out_value alone and are no error: set the default before.
 * Errors: ERR_CONFIG, naming path.key, value and limits. */
ERR_NODISCARD enum err_code checkpoint_get_u32(const struct checkpoint_object *object,
                                               const char *key, uint32_t min_value,
                                               uint32_t max_value, uint32_t *out_value,
                                               struct err *err);

bool checkpoint_is_modality(const struct checkpoint_info *info, uint32_t token_id);

#endif
