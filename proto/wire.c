/* Writes messages through msgpack-c; the only file that includes it. */
#include "proto/wire.h"

#include <math.h>

#include <msgpack.h>

static int on_write(void *data, const char *bytes, size_t byte_count)
{
    buf_append(data, bytes, byte_count);
    return 0;
}

static enum err_code over_bound(struct err *err, const struct wire_message *message,
                                const struct wire_field *field, uint32_t count)
{
    return err_set(err, ERR_LIMIT, "%s.%s: %u elements, at most %u", message->name, field->name,
                   count, field->max_count);
}

static enum err_code not_finite(struct err *err, const struct wire_message *message,
                                const struct wire_field *field)
{
    return err_set(err, ERR_LIMIT, "%s.%s: not a finite number", message->name, field->name);
}

static enum err_code put_biases(const struct wire_message *message, const struct wire_field *field,
                                const struct wire_bias_array *array, msgpack_packer *packer,
                                struct err *err)
{
    if (array->count > field->max_count) {
        return over_bound(err, message, field, array->count);
    }
    (void)msgpack_pack_array(packer, array->count); /* writing to a buf cannot fail */
    for (uint32_t i = 0; i < array->count; i++) {
        if (!isfinite(array->at[i].bias)) {
            return not_finite(err, message, field);
        }
        (void)msgpack_pack_array(packer, 2);
        (void)msgpack_pack_uint32(packer, array->at[i].token);
        (void)msgpack_pack_float(packer, array->at[i].bias);
    }
    return ERR_OK;
}

static enum err_code put_rows(const struct wire_message *message, const struct wire_field *field,
                              const struct wire_row_array *array, msgpack_packer *packer,
                              struct err *err)
{
    if (array->count > field->max_count) {
        return over_bound(err, message, field, array->count);
    }
    (void)msgpack_pack_array(packer, array->count);
    for (uint32_t i = 0; i < array->count; i++) {
        const struct wire_row *row = &array->at[i];
        if (row->count == 0 && row->start != 0) {
            return err_set(err, ERR_LIMIT, "%s.%s[%u]: start %u with no tokens", message->name,
                           field->name, i, row->start);
        }
        (void)msgpack_pack_array(packer, row->count == 0 ? 1 : 3);
        (void)msgpack_pack_uint64(packer, row->seq_id);
        if (row->count > 0) {
            (void)msgpack_pack_uint32(packer, row->start);
            (void)msgpack_pack_uint32(packer, row->count);
        }
    }
    return ERR_OK;
}

static enum err_code put_u32s(const struct wire_message *message, const struct wire_field *field,
                              const struct wire_u32_array *array, msgpack_packer *packer,
                              struct err *err)
{
    if (array->count > field->max_count) {
        return over_bound(err, message, field, array->count);
    }
    (void)msgpack_pack_array(packer, array->count);
    for (uint32_t i = 0; i < array->count; i++) {
        (void)msgpack_pack_uint32(packer, array->at[i]);
    }
    return ERR_OK;
}

static enum err_code put_value(const struct wire_message *message, const struct wire_field *field,
                               const void *at, msgpack_packer *packer, struct err *err)
{
    switch (field->kind) {
    case WIRE_KIND_U32: (void)msgpack_pack_uint32(packer, *(const uint32_t *)at); return ERR_OK;
    case WIRE_KIND_U64: (void)msgpack_pack_uint64(packer, *(const uint64_t *)at); return ERR_OK;
    case WIRE_KIND_F32:
        if (!isfinite(*(const float *)at)) {
            return not_finite(err, message, field);
        }
        (void)msgpack_pack_float(packer, *(const float *)at);
        return ERR_OK;
    case WIRE_KIND_BOOL:
        (void)(*(const bool *)at ? msgpack_pack_true(packer) : msgpack_pack_false(packer));
        return ERR_OK;
    case WIRE_KIND_TEXT: {
        const struct wire_text *text = at;
        if (text->byte_count > field->max_count) {
            return over_bound(err, message, field, text->byte_count);
        }
        (void)msgpack_pack_str(packer, text->byte_count);
        (void)msgpack_pack_str_body(packer, text->at, text->byte_count);
        return ERR_OK;
    }
    case WIRE_KIND_U32_ARRAY: return put_u32s(message, field, at, packer, err);
    case WIRE_KIND_BIAS_ARRAY: return put_biases(message, field, at, packer, err);
    case WIRE_KIND_ROW_ARRAY: return put_rows(message, field, at, packer, err);
    }
    return err_set(err, ERR_INTERNAL, "%s.%s: kind %d", message->name, field->name,
                   (int)field->kind);
}

static enum err_code put_fields(const struct wire_message *message, const void *record,
                                msgpack_packer *packer, struct err *err)
{
    (void)msgpack_pack_map(packer, message->field_count);
    for (uint32_t i = 0; i < message->field_count; i++) {
        const struct wire_field *field = &message->fields[i];
        (void)msgpack_pack_uint32(packer, field->key);
        const void *at = (const unsigned char *)record + field->offset_bytes;
        enum err_code code = put_value(message, field, at, packer, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    return ERR_OK;
}

enum err_code wire_encode(const struct wire_envelope *envelope, const uint64_t *head,
                          const void *record, struct buf *out, struct err *err)
{
    const struct wire_message *message = wire_find(envelope, head[0]);
    if (message == NULL) {
        return err_set(err, ERR_INTERNAL, "%s: no message type %llu", envelope->name,
                       (unsigned long long)head[0]);
    }
    size_t start_bytes = out->used_bytes;
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, on_write);
    (void)msgpack_pack_array(&packer, envelope->head_count + 1);
    for (uint32_t i = 0; i < envelope->head_count; i++) {
        (void)msgpack_pack_uint64(&packer, head[i]);
    }
    enum err_code code = put_fields(message, record, &packer, err);
    if (code == ERR_OK && out->used_bytes - start_bytes > envelope->max_bytes) {
        code = err_set(err, ERR_LIMIT, "%s: %zu bytes, at most %zu", message->name,
                       out->used_bytes - start_bytes, envelope->max_bytes);
    }
    if (code != ERR_OK) {
        buf_truncate(out, start_bytes);
    }
    return code;
}
