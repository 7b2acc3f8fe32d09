/*
 * Brings windows up to a time. See timeline.h; no state.
 */
#include "timeline.h"

#include <string.h>

struct source {
    const struct trace_window *windows;
    uint32_t room; /* a power of two */
    uint32_t shift;
    uint32_t current;
    uint64_t late_allocs;
    uint64_t late_frees;
};

/* The common clock: the smallest width for which the end is within the number of windows. */
static uint32_t shift_for(uint64_t end_ns, uint32_t room) {
    uint32_t shift = TRACE_WINDOW_SHIFT_MIN;
    while (end_ns >> shift >= room)
        shift++;
    return shift;
}

static struct trace_window merge(const struct trace_window *a, const struct trace_window *b) {
    return (struct trace_window){
        .min_bytes = a->min_bytes < b->min_bytes ? a->min_bytes : b->min_bytes,
        .max_bytes = a->max_bytes > b->max_bytes ? a->max_bytes : b->max_bytes,
        .last_bytes = b->last_bytes,
        .allocs = a->allocs + b->allocs,
        .frees = a->frees + b->frees,
    };
}

static void halve(struct timeline *timeline) {
    struct trace_window *windows = timeline->windows;
    uint32_t count = timeline->count;
    for (uint32_t i = 0; i < count; i += 2)
        windows[i / 2] = i + 1 < count ? merge(&windows[i], &windows[i + 1]) : windows[i];
    timeline->count = (count + 1) / 2;
    timeline->shift++;
}

static void bring_up(const struct source *source, uint64_t end_ns, struct timeline *timeline) {
    timeline->shift = TRACE_WINDOW_SHIFT_MIN;
    timeline->count = 0;
    if (source->shift < TRACE_WINDOW_SHIFT_MIN || source->shift > 63 ||
        source->current >= source->room)
        return;
    timeline->shift = source->shift;
    timeline->count = source->current + 1;
    memcpy(timeline->windows, source->windows, timeline->count * sizeof *timeline->windows);
    struct trace_window *last = &timeline->windows[source->current];
    last->allocs += (uint32_t)source->late_allocs;
    last->frees += (uint32_t)source->late_frees;
    uint32_t shift = shift_for(end_ns, source->room);
    while (timeline->shift < shift)
        halve(timeline);
    uint64_t live = timeline->windows[timeline->count - 1].last_bytes;
    for (uint64_t end = end_ns >> timeline->shift; timeline->count <= end; timeline->count++)
        timeline->windows[timeline->count] = (struct trace_window){live, live, live, 0, 0};
}

void timeline_of_site(const struct trace_site *site, uint64_t end_ns, struct timeline *timeline) {
    struct source source = {site->windows,        TRACE_SITE_WINDOWS, site->window_shift,
                            site->window_current, site->late_allocs,  site->late_frees};
    timeline->unsettled = site->version & 1;
    bring_up(&source, end_ns, timeline);
}

void timeline_of_total(const struct trace_total *total, uint64_t end_ns,
                       struct timeline *timeline) {
    struct source source = {total->windows,        TRACE_TOTAL_WINDOWS, total->window_shift,
                            total->window_current, total->late_allocs,  total->late_frees};
    timeline->unsettled = total->version & 1;
    bring_up(&source, end_ns, timeline);
}
