/*
 * The one line that the library may say, and its counters of losses. No malloc, no stdio; any
 * thread, also in a forked child or a signal handler.
 */
#ifndef CUHEAP_DIAG_H
#define CUHEAP_DIAG_H

#include <stdint.h>

/* Writes "cuheap: " and the parts, up to a NULL, as one line to stderr. errno is kept. */
void diag_say(const char *part, ...) __attribute__((sentinel));

/* Decimal text of a number in buffer (at least 21 bytes); returns its start. */
char *diag_decimal(uint64_t number, char buffer[24]);

#endif
