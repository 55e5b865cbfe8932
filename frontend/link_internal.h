/* Shared by link.c and link_session.c alone. */
#ifndef FRONTEND_LINK_INTERNAL_H
#define FRONTEND_LINK_INTERNAL_H

#include <stdint.h>

#include "common/buf.h"
#include "common/shm.h"
#include "frontend/link.h"

/* Append a control request: HELLO, or ATTACH where there is a nonce.  Errors: ERR_LIMIT (name). */
ERR_NODISCARD enum err_code link_put_request(const char *name, const uint64_t *nonce,
                                             struct buf *out, struct err *err);

/* Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_draw_nonce(uint64_t *out_nonce, struct err *err);

/* Map the segment that ATTACHED names and check what it must hold.  Both outputs may be half-built
 * after an error: close the segment.  Errors: ERR_PROTOCOL, ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_open_session(const struct hello_welcome *welcome,
                                              const struct hello_attached *attached,
                                              struct shm_segment *segment,
                                              struct link_session *session, struct err *err);

#endif
