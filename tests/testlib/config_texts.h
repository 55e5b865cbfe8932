/* A config.json as text, for tests that replace parts of it. */
#ifndef TESTS_TESTLIB_CONFIG_TEXTS_H
#define TESTS_TESTLIB_CONFIG_TEXTS_H

#include "common/err.h"
#include "worker/model_config.h"

/* A flat text config of five layers, in the style of published files. */
extern const char config_base_text[];

/* text with its only occurrence of `find` replaced; the caller frees. */
char *config_replaced(const char *text, const char *find, const char *replacement);

/* model_config_read of two texts; generation_text may be null.  Fails the test where they are not
 * JSON. */
enum err_code config_read_texts(const char *config_text, const char *generation_text,
                                struct model_config *config, struct err *err);

/* The base text with one replacement, which must be accepted. */
void config_read_edited(const char *find, const char *replacement, struct model_config *config);

#endif
