/* One line per event on standard error: time level module event key=value ...
 *
 * Called by program code only (frontend/, worker/, deploy/); common/, proto/ and kernels/ return
 * errors instead.  Lines are written with one write(2), so threads do not mix them.  Where the reader
 * of standard error stands still, lines are lost, not the caller's time; how many, a line says as soon
 * as there is room. */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

enum log_level {
    LOG_LEVEL_ERROR, /* needs a human */
    LOG_LEVEL_WARN,  /* degraded but handled */
    LOG_LEVEL_INFO,  /* lifecycle */
    LOG_LEVEL_DEBUG, /* the rest */
};

/* Call once before threads start.  program is put on every line (borrowed, a literal). */
void log_init(const char *program, enum log_level most_verbose);

/* event is a constant slug; format gives the key=value fields, values without spaces or quoted
 * by the caller (log_quote). */
void log_line(enum log_level level, const char *module, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* text in double quotes with quotes, backslashes and control bytes escaped, cut to fit out. */
const char *log_quote(const char *text, char *out, unsigned out_bytes);

/* NOLINTBEGIN(readability-identifier-naming): read as functions, and may become such */
#define log_error(module, event, ...) log_line(LOG_LEVEL_ERROR, module, event, __VA_ARGS__)
#define log_warn(module, event, ...)  log_line(LOG_LEVEL_WARN, module, event, __VA_ARGS__)
#define log_info(module, event, ...)  log_line(LOG_LEVEL_INFO, module, event, __VA_ARGS__)
#define log_debug(module, event, ...) log_line(LOG_LEVEL_DEBUG, module, event, __VA_ARGS__)
/* NOLINTEND(readability-identifier-naming) */

#endif
