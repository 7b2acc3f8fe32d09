/*
 * The windows of a site or total: its live bytes over time, in a fixed number of stretches on the
 * common clock of trace_format.h. Called by sites alone, by one thread at a time for each owner
 * (under its version word).
 */
#ifndef CUHEAP_WINDOWS_H
#define CUHEAP_WINDOWS_H

#include <stdint.h>

#include "cuheap/trace_format.h"

struct windows {
    struct trace_window *window;
    uint32_t count; /* a power of two */
    uint32_t *shift;
    uint32_t *current;
};

/*
 * Books a change from `before` to `after` live bytes at time `ns`. A time before the current window
 * (another thread read the clock later and came earlier) is booked in the current one.
 */
void windows_change(const struct windows *w, uint64_t ns, uint64_t before, uint64_t after,
                    uint32_t allocs, uint32_t frees);

#endif
