/* How a session begins, without the sockets: what is asked, and the segment that comes of it. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/ring.h"
#include "frontend/link_internal.h"
#include "proto/result.h"

enum err_code link_put_request(const char *name, const uint64_t *nonce, struct buf *out,
                               struct err *err)
{
    struct wire_text name_text = {.at = name, .byte_count = (uint32_t)strlen(name)};
    struct hello_message message = {
        .type = HELLO_HELLO,
        .as.hello = {.protocol_version = PROTO_VERSION,
                     .table_hash = hello_table_hash(),
                     .name = name_text},
    };
    if (nonce != NULL) {
        message.type = HELLO_ATTACH;
        message.as.attach = (struct hello_attach){.protocol_version = PROTO_VERSION,
                                                  .table_hash = hello_table_hash(),
                                                  .nonce = *nonce,
                                                  .name = name_text};
    }
    return hello_encode(&message, out, err);
}

enum err_code link_draw_nonce(uint64_t *out_nonce, struct err *err)
{
    if (getrandom(out_nonce, sizeof(*out_nonce), 0) != (ssize_t)sizeof(*out_nonce)) {
        return err_set(err, ERR_SYSTEM, "no random bytes for a nonce");
    }
    return ERR_OK;
}

enum err_code link_open_session(const struct hello_welcome *welcome,
                                const struct hello_attached *attached, struct shm_segment *segment,
                                struct link_session *session, struct err *err)
{
    char name[sizeof(segment->name)];
    if (attached->segment_name.byte_count >= sizeof(name)) {
        return err_set(err, ERR_PROTOCOL, "the segment's name has %u bytes, at most %zu",
                       attached->segment_name.byte_count, sizeof(name) - 1);
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)attached->segment_name.byte_count,
                   attached->segment_name.at); /* it fits */
    enum err_code code = shm_open_existing(segment, name, (size_t)attached->segment_bytes, err);
    if (code != ERR_OK) {
        return code;
    }
    *session = (struct link_session){
        .epoch = attached->epoch,
        .segment = segment->at,
        .ring_bytes = ring_segment_bytes(RESULT_RECORD_BYTES, welcome->ring_records),
    };
    if (session->ring_bytes == 0 || session->ring_bytes > attached->segment_bytes) {
        return err_set(err, ERR_PROTOCOL, "a ring of %u records in a segment of %llu bytes",
                       welcome->ring_records, (unsigned long long)attached->segment_bytes);
    }
    struct mask_geometry masks = {.lanes = welcome->slots, .words = attached->mask_words};
    return mask_area_init(&session->mask, segment->at, segment->byte_count,
                          (size_t)attached->mask_offset_bytes, &masks, err);
}
