/* A stand-in for the engine, for tests of the HTTP side: implements frontend/engine.h.
 *
 * Each request's output repeats its prompt from the second token on, then a stop id.  run_dir is not
 * a folder but the stand-in's settings, "fake?name=value&...":
 *
 *   step_us     time of a step, which gives every running request one token (1000)
 *   slots       requests running at once (64)
 *   context     highest max_total (8192)
 *   vocab       (2048)
 *   fail_after  tokens after which a request fails as by a lost device (0: never)
 *   ready_ms    time until a worker is attached (0)
 *   hash        tokenizer hash of the worker, hexadecimal (0)
 *   cancels     file that gets 16 bytes for each cancel: request's last prompt id, monotonic ns */
#ifndef TESTS_TESTLIB_FAKE_ENGINE_H
#define TESTS_TESTLIB_FAKE_ENGINE_H

#include <stdint.h>

/* What the stand-in writes to the file named by `cancels`. */
struct fake_cancel {
    uint64_t last_prompt_id;
    uint64_t time_ns;
};

#endif
