/* Bounds that both processes agree on.  They are part of the wire: the table hash covers them. */
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H

#define PROTO_VERSION 1

#define PLAN_MAX_ROWS           1024  /* rows of one STEP */
#define PLAN_MAX_STEP_TOKENS    16384 /* tokens of one STEP */
#define PLAN_MAX_PROMPT_TOKENS  1048576
#define PLAN_MAX_LOGIT_BIAS     1024
#define PLAN_MAX_STOP_IDS       16
#define PLAN_MAX_LOGPROBS       20
#define PLAN_MAX_TEMPERATURE    100.0F
#define PLAN_MIN_TOP_P          1e-9F  /* 0 keeps no token */
#define PLAN_MAX_PENALTY        100.0F /* presence, frequency; either sign */
#define PLAN_MIN_REPETITION     1e-3F  /* logits are divided by it */
#define PLAN_MAX_REPETITION     1e3F
#define PLAN_MAX_MESSAGE_BYTES  (8U << 20) /* NNG_OPT_RECVMAXSZ of the plan socket */
#define HELLO_MAX_MESSAGE_BYTES (64U << 10)
#define HELLO_MAX_TEXT_BYTES    1024
#define SESSION_MAX_COUNT       2

#define RESULT_RECORD_BYTES 128

#endif
