#include "worker/faults.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    /* Kept free for the count, the ending, and what callers put in front. */
    RESERVED_BYTES = 80
};

void faults_add(struct faults *faults, const char *format, ...)
{
    char clause[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(clause, sizeof(clause), format, args);
    va_end(args);
    if (faults->on_fault != NULL) {
        faults->on_fault(faults->owner, clause);
    }
    faults->count++;
    unsigned room = sizeof(faults->text) - RESERVED_BYTES - faults->used_bytes;
    bool is_first = faults->shown_count == 0;
    /* The first fault is shown even when it must be cut; later ones whole or not at all, and none
     * after one that was left out. */
    if (wanted < 0 || faults->shown_count + 1 < faults->count ||
        (!is_first && (unsigned)wanted + 3 > room)) {
        return;
    }
    int written =
        snprintf(faults->text + faults->used_bytes, room, "%s%s", is_first ? "" : "; ", clause);
    unsigned kept = written < 0 ? 0 : (unsigned)written;
    faults->used_bytes += kept < room ? kept : room - 1;
    faults->shown_count++;
}

enum err_code faults_note(struct faults *faults, enum err_code code, const struct err *err)
{
    if (code != ERR_OK) {
        faults->first = faults->count == 0 ? *err : faults->first;
        faults_add(faults, "%s", err->message);
    }
    return code;
}

enum err_code faults_noted(const struct faults *faults, const char *what, struct err *err)
{
    if (faults->count == 1) {
        *err = faults->first;
        return err->code;
    }
    return faults_result(faults, faults->first.code, what, err);
}

enum err_code faults_result(const struct faults *faults, enum err_code code, const char *what,
                            struct err *err)
{
    if (faults->count == 0) {
        return ERR_OK;
    }
    if (faults->shown_count < faults->count) {
        return err_set(err, code, "%u %ss: %s; and %u more", faults->count, what, faults->text,
                       faults->count - faults->shown_count);
    }
    return err_set(err, code, "%u %s%s: %s", faults->count, what, faults->count == 1 ? "" : "s",
                   faults->text);
}
