/*
 * The windows of a site or total, brought up to a time: see struct trace_window for what the writer
 * leaves undone. Called by analyses over time and by tests; no state.
 */
#ifndef TOOLS_TIMELINE_H
#define TOOLS_TIMELINE_H

#include "profile.h"

struct timeline {
    uint32_t shift; /* window i covers [i << shift, (i + 1) << shift) ns */
    uint32_t count; /* up to the one that holds the end; 0: nothing is known */
    bool unsettled; /* the writer was stopped while changing the current window */
    struct trace_window windows[TRACE_TOTAL_WINDOWS];
};

/* As it stood at end_ns, which is not before the owner's last event. */
void timeline_of_site(const struct trace_site *site, uint64_t end_ns, struct timeline *timeline);
void timeline_of_total(const struct trace_total *total, uint64_t end_ns, struct timeline *timeline);

#endif
