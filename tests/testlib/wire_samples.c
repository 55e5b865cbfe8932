#include "tests/testlib/wire_samples.h"

#define TEXT(text)             \
    {                          \
        text, sizeof(text) - 1 \
    }

static const uint32_t prompt[] = {2, 105, 2364, 107, 262143, 65536, 255};
static const uint32_t stop_ids[] = {1, 106};
static const uint32_t suppress_ids[] = {258880, 258881};
static const struct wire_bias biases[] = {{7, -100.0F}, {262000, 2.5F}};
static const struct wire_row rows[] = {
    {.seq_id = 1}, {.seq_id = 0x100000000ULL}, {.seq_id = 3, .start = 128, .count = 512}};

static const struct wire_samples_plan plans[WIRE_SAMPLES_PLAN_COUNT] = {
    {"admit",
     {.type = PLAN_ADMIT,
      .epoch = 0x0123456789abcdefULL,
      .msg_seq = 1,
      .as.admit = {.seq_id = 9,
                   .prompt = {prompt, 7},
                   .output_start = 7,
                   .max_total = 4096,
                   .min_tokens = 2,
                   .seed = UINT64_MAX,
                   .temperature = 0.7F,
                   .top_k = 64,
                   .top_p = 0.95F,
                   .min_p = 0.05F,
                   .presence_penalty = -2.0F,
                   .frequency_penalty = 1.5F,
                   .repetition_penalty = 1.1F,
                   .logit_bias = {biases, 2},
                   .stop_ids = {stop_ids, 2},
                   .suppress_ids = {suppress_ids, 2},
                   .ignore_eos = true,
                   .logprobs = 21,
                   .prompt_logprobs = 1,
                   .constrained = true,
                   .cache_salt = 77}}},
    {"admit-plain",
     {.type = PLAN_ADMIT,
      .epoch = 5,
      .msg_seq = 2,
      .as.admit = {.seq_id = 10,
                   .prompt = {prompt, 1},
                   .output_start = 1,
                   .max_total = 2,
                   .top_p = 1.0F,
                   .repetition_penalty = 1.0F}}},
    {"step",
     {.type = PLAN_STEP, .epoch = 5, .msg_seq = 300, .as.step = {.after = 299, .rows = {rows, 3}}}},
    {"cancel", {.type = PLAN_CANCEL, .epoch = 5, .msg_seq = 4, .as.cancel = {.seq_id = 10}}},
    {"release", {.type = PLAN_RELEASE, .epoch = 5, .msg_seq = 5, .as.release = {.seq_id = 10}}},
    {"ping", {.type = PLAN_PING, .epoch = 5, .msg_seq = 6, .as.ping = {.nonce = 0xfeed}}},
};

static const struct wire_samples_hello hellos[WIRE_SAMPLES_HELLO_COUNT] = {
    {"hello",
     {.type = HELLO_HELLO,
      .as.hello = {.protocol_version = 1, .table_hash = 0xabcdef, .name = TEXT("frontend")}}},
    {"welcome",
     {.type = HELLO_WELCOME,
      .as.welcome = {.instance_id = 0x8877665544332211ULL,
                     .state = HELLO_STATE_READY,
                     .load_done_bytes = 1000,
                     .load_total_bytes = 23810000000ULL,
                     .model_id = TEXT("demo-model"),
                     .config_hash = 1,
                     .tokenizer_hash = 2,
                     .backend = TEXT("cpu"),
                     .vocab_tokens = 262144,
                     .max_context_tokens = 131072,
                     .window_tokens = 1024,
                     .page_tokens = 64,
                     .local_pages = 300,
                     .global_pages = 4000,
                     .slots = 16,
                     .max_step_rows = 16,
                     .max_step_tokens = 2048,
                     .pipeline_depth = 2,
                     .ring_records = 4096,
                     .session_timeout_ms = 10000,
                     .segment_tokens = 256,
                     .local_page_bytes = 20971520,
                     .global_page_bytes = 1U << 19,
                     .prefix_cache = true}}},
    {"attach",
     {.type = HELLO_ATTACH,
      .as.attach =
          {.protocol_version = 1, .table_hash = 0xabcdef, .nonce = 42, .name = TEXT("f")}}},
    {"attached",
     {.type = HELLO_ATTACHED,
      .as.attached = {.instance_id = 1,
                      .epoch = 2,
                      .plan_url = TEXT("ipc:///run/bezel/plan-2.ipc"),
                      .segment_name = TEXT("/bezel-1-2"),
                      .segment_bytes = 1U << 20,
                      .mask_offset_bytes = 600000,
                      .mask_words = 8192}}},
    {"stats", {.type = HELLO_STATS, .as.stats = {.unused = 0}}},
    {"stats-answer",
     {.type = HELLO_STATS_ANSWER,
      .as.stats_answer = {.instance_id = 1,
                          .sessions = 2,
                          .sequences = 3,
                          .local_pages_free = 4,
                          .global_pages_free = 5,
                          .steps = 6,
                          .plans_refused = 7,
                          .messages_malformed = 8,
                          .messages_stale = 9,
                          .sequences_failed = 10,
                          .steps_failed = 11,
                          .busy_ns = 12,
                          .steady_steps = 13,
                          .steady_turns = 14,
                          .steady_uploads = 15,
                          .steady_upload_bytes = 16,
                          .steady_launches = 17,
                          .steady_host_ns = 18,
                          .steady_device_ns = 19,
                          .gaps = 20,
                          .longest_gap_ns = 21,
                          .local_pages_cached = 22,
                          .global_pages_cached = 23,
                          .local_prefix_pages = 24,
                          .global_prefix_pages = 25,
                          .local_pages_evicted = 26,
                          .global_pages_evicted = 27,
                          .prefix_query_tokens = 28,
                          .prefix_hit_tokens = 29,
                          .prefix_hits = 30}}},
    {"profile", {.type = HELLO_PROFILE, .as.profile = {.enable = true}}},
    {"profile-answer", {.type = HELLO_PROFILE_ANSWER, .as.profile_answer = {.enabled = false}}},
    {"fault",
     {.type = HELLO_FAULT,
      .as.fault = {.code = ERR_PROTOCOL, .text = TEXT("table hash 1, worker has 2")}}},
};

const struct wire_samples_plan *wire_samples_plan(uint32_t index)
{
    return &plans[index];
}

const struct wire_samples_hello *wire_samples_hello(uint32_t index)
{
    return &hellos[index];
}
