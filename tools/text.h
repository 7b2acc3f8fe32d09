/*
 * Text for people: names that came from a trace made harmless, sizes and times in readable units.
 *
 * Called by everything that prints or stores a name. No state; any thread.
 */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Copies a name that others chose. What could steer a terminal, break a line or mislead the eye
 * becomes visible: control characters and bytes that are not UTF-8 as \xNN, the invisible marks
 * that reorder text as \u{NNNN}. Always ends `out`; cuts at a whole character. Returns out.
 */
char *text_clean(char *out, size_t size, const char *name);

/* Bytes that a cleaned copy of `name` needs at most, with its NUL. */
size_t text_clean_bytes(const char *name);

/* Columns that a cleaned name takes on a terminal: one a character. */
size_t text_columns(const char *text);

/* Shortens to `columns` by dropping its start (a path keeps its end); "..." marks the cut. */
char *text_keep_end(char *out, size_t size, const char *text, size_t columns);
/* Shortens to `columns` by dropping its end. */
char *text_keep_start(char *out, size_t size, const char *text, size_t columns);

#define TEXT_BYTES 48
/* "12.0 MiB", "512 B" */
char *text_bytes(char out[TEXT_BYTES], uint64_t bytes);
/* "12.0 MiB (12582912 bytes)" */
char *text_exact_bytes(char out[TEXT_BYTES], uint64_t bytes);
/* "0.938 ms", "12.345 s", "2 min 05 s", "3 h 02 min" */
char *text_duration(char out[TEXT_BYTES], uint64_t ns);

/* Parses "64M", "1g", "4096": false where it is no size or does not fit. */
int text_parse_bytes(const char *text, uint64_t *bytes);

/* FNV-1a over a text, to be chained; separates texts by their NUL. */
#define TEXT_HASH_START 0xcbf29ce484222325u
uint64_t text_hash(uint64_t hash, const char *text);

const char *text_basename(const char *path);

#endif
