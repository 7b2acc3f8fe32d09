/*
 * A line on the terminal for work that takes over a second. Called by loops of the reader; the
 * caller holds the state.
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    const char *what;
    size_t done, all;
    uint64_t next_ns; /* when to print next */
    bool shown;
    bool terminal;
};

struct progress progress_begin(const char *what, size_t all);
void progress_step(struct progress *progress);
void progress_end(struct progress *progress);

#endif
