/* Checkpoint files in the safetensors format: one file, or shards named by an index.
 *
 * A file is an 8-byte little-endian header length, that many bytes of JSON
 *   {"<name>": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}
 * and the data, which the tensors cover without overlap or hole.  Every field is checked when the
 * set is opened.  Data is read with pread, never mapped: a file cut short later is an error of the
 * read, not a SIGBUS.  A set is read-only after opening; any thread may read. */
#ifndef WORKER_SAFETENSORS_H
#define WORKER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#define ST_MAX_HEADER_BYTES 100000000U /* the limit of the format's reference reader */
#define ST_MAX_TENSORS      1000000U
#define ST_MAX_NAME_BYTES   512U
#define ST_MAX_RANK         8U
#define ST_MAX_SHARDS       1024U

/* ST_DTYPE(name, bytes): as spelt in headers. */
#define ST_DTYPES(ST_DTYPE) \
    ST_DTYPE(BOOL, 1)       \
    ST_DTYPE(U8, 1)         \
    ST_DTYPE(I8, 1)         \
    ST_DTYPE(F8_E4M3, 1)    \
    ST_DTYPE(F8_E5M2, 1)    \
    ST_DTYPE(U16, 2)        \
    ST_DTYPE(I16, 2)        \
    ST_DTYPE(F16, 2)        \
    ST_DTYPE(BF16, 2)       \
    ST_DTYPE(U32, 4)        \
    ST_DTYPE(I32, 4)        \
    ST_DTYPE(F32, 4)        \
    ST_DTYPE(U64, 8)        \
    ST_DTYPE(I64, 8)        \
    ST_DTYPE(F64, 8)

enum st_dtype {
#define ST_DTYPE(name, bytes) ST_DTYPE_##name,
    ST_DTYPES(ST_DTYPE)
#undef ST_DTYPE
    ST_DTYPE_COUNT
};

const char *st_dtype_text(enum st_dtype dtype);
uint32_t st_dtype_bytes(enum st_dtype dtype);

struct st_tensor {
    char *name; /* owned by the header or set it came from */
    enum st_dtype dtype;
    uint32_t rank;
    uint64_t dims[ST_MAX_RANK]; /* outermost first; row-major */
    uint64_t elem_count;
    uint64_t byte_count;
    uint64_t file_offset; /* of the first byte, in its file */
    uint32_t shard;       /* which file of the set */
};

/* "[512, 64]" into text; returns text. */
const char *st_shape_text(const struct st_tensor *tensor, char *text, size_t cap_bytes);

struct st_header {
    struct st_tensor *tensors; /* owned, with their names; sorted by name */
    uint32_t count;
};

/* Parses the JSON of one file whose data is data_bytes long and starts at data_offset of the file.
 * Errors: ERR_FORMAT; all faulty tensors are in one message. */
ERR_NODISCARD enum err_code st_header_parse(const char *json, size_t json_bytes,
                                            uint64_t data_offset, uint64_t data_bytes,
                                            struct st_header *out_header, struct err *err);
void st_header_fini(struct st_header *header);

struct st_set;

/* Opens model_dir/model.safetensors, else every shard in model_dir/model.safetensors.index.json.
 * Tensors of a shard that the index does not list are left out.  Errors: ERR_NOT_FOUND (neither
 * file, missing shards), ERR_FORMAT, ERR_LIMIT, ERR_SYSTEM; names the file. */
ERR_NODISCARD enum err_code st_open_folder(const char *model_dir, struct st_set **out_set,
                                           struct err *err);

/* Opens one file.  Errors: as st_open_folder. */
ERR_NODISCARD enum err_code st_open_file(const char *path, struct st_set **out_set,
                                         struct err *err);
void st_close(struct st_set *set); /* null is fine */

uint32_t st_count(const struct st_set *set);
const struct st_tensor *st_at(const struct st_set *set, uint32_t index); /* sorted by name */

/* Null where the set has no such tensor. */
const struct st_tensor *st_find(const struct st_set *set, const char *name);

/* Copies byte_count bytes from byte_offset of a tensor's data, which must lie within it.
 * Errors: ERR_FORMAT (the file has become shorter), ERR_SYSTEM; names the file. */
ERR_NODISCARD enum err_code st_read(const struct st_set *set, const struct st_tensor *tensor,
                                    uint64_t byte_offset, void *out_bytes, size_t byte_count,
                                    struct err *err);

#endif
