/*
 * How a site's memory went over time: the growth class of cuheap-report(1), from its windows.
 *
 * A site grows when its floor, the least that was live in a window, keeps rising: what is freed
 * within a step or an epoch does not count, however much it is. Judged up to the end of work, since
 * a program frees at its end what it leaked. Called by view.c; no state.
 */
#ifndef TOOLS_GROWTH_H
#define TOOLS_GROWTH_H

#include "timeline.h"

enum growth_class {
    GROWTH_CANNOT_TELL, /* too few windows, or none of the below */
    GROWTH_GROWING,     /* the floor rises all along, to the last */
    GROWTH_SATURATING,  /* it rose, and then stayed */
    GROWTH_RETAINED,    /* it has not changed since the first allocations */
    GROWTH_SAWTOOTH,    /* up and down, nothing stays */
    GROWTH_HIGH_WATER,  /* much at one time, little before and after */
    GROWTH_LATE,        /* it rose only in the last windows */
    GROWTH_CLASSES
};

extern const char *const growth_names[GROWTH_CLASSES]; /* as in JSON */

/* end_of_work_ns: of the site's ledger in its process. */
enum growth_class growth_of_site(const struct trace_site *site, uint64_t end_of_work_ns);

/* The same on windows: the first is the one in which the site was born, the last holds the end of
   work and perhaps what came after. */
enum growth_class growth_of_windows(const struct trace_window *windows, unsigned count);

#endif
