/* The entry point of every fuzz target, under the name that libFuzzer calls.  replay_main.c calls it
 * with each file of a corpus, so that every build checks the kept inputs. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0; aborts where an input shows a fault. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

#endif
