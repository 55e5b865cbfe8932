/* Arguments of a tool call, as the chat format writes them, into JSON.
 *
 *   city:"Paris",days:3,units:{wind:"km/h"},tags:["a","b"]      (the quotes are one token, <|"|>)
 *
 * Lenient, as models are: what cannot be read otherwise is a string, nothing is an error.  Pure. */
#ifndef FRONTEND_CHAT_ARGS_H
#define FRONTEND_CHAT_ARGS_H

#include <stddef.h>

#include "common/buf.h"

/* Stands for the quote token in the text: no byte of UTF-8. */
#define CHAT_ARGS_QUOTE '\xff'

/* Append the JSON object of the text between the outer braces, with ", " and ": " as Python's
 * json.dumps writes them.  Of equal keys the last wins. */
void chat_args_to_json(const char *text, size_t byte_count, struct buf *out);

#endif
