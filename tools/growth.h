/*
 * How the live bytes of a site went over time: the growth class, judged at the end of work.
 *
 * What is judged are the floors, the least live bytes of each window, from the window after the
 * site's birth up to the one before the end of work: those two are cut off by what they end at. A
 * floor rises when it is above every floor before it. Called by view.c; no state.
 */
#ifndef TOOLS_GROWTH_H
#define TOOLS_GROWTH_H

#include "profile.h"

/* Order: that of GROWTH_CLASSES. */
#define GROWTH_CLASSES(X)                                                                          \
    X(CANNOT_TELL, "cannot_tell") /* too few windows or allocations */                             \
    X(GROWING, "growing")         /* rose nearly always, and still does: a leak */                 \
    X(SATURATING, "saturating")   /* rose, then stayed */                                          \
    X(RETAINED, "retained")       /* has stayed since it was born */                               \
    X(SAWTOOTH, "sawtooth")       /* comes back to the same floor */                               \
    X(HIGH_WATER, "high_water")   /* rises at times, to new heights, and stays there */            \
    X(LATE, "late")               /* rose only in the last third */

enum growth_class {
#define X(name, key) GROWTH_##name,
    GROWTH_CLASSES(X)
#undef X
};

#define GROWTH_WINDOWS     8    /* the least for growing */
#define GROWTH_ALLOCATIONS 16   /* likewise, made in windows whose floor rose */
#define GROWTH_RISING      0.8  /* share of windows that must rise */
#define GROWTH_FEW         5    /* with fewer windows only retained is told */
#define GROWTH_SETTLED     0.05 /* share of the rise that a settled last third may have */

struct growth {
    enum growth_class class;
    uint64_t gain_bytes;       /* of the floor, from the first to the last window judged */
    uint64_t from_ns, span_ns; /* the time between those two */
};

extern const char *const growth_class_names[];

/* Judges windows [born + 1, end): `born` is the site's first one, `end` holds the end of work; the
   site held end_bytes then. */
enum growth_class growth_judge(const struct trace_window *windows, uint32_t born, uint32_t end,
                               uint64_t end_bytes);

/*
 * When the work of a total ended, for judging its sites: its last allocation. But where nothing was
 * freed for long after that, the program went on without allocating, and its sites stayed as they
 * were: then the beginning of the frees, or end_ns, that of the process.
 */
uint64_t growth_work_end(const struct profile_total *total, uint64_t end_ns);

/* Steps of the program in a stretch of time: how often its commonest mark was set; 0: it was not
   set twice. */
uint64_t growth_steps(const struct trace *trace, uint64_t from_ns, uint64_t span_ns);

struct growth growth_of_site(const struct profile_site *site, uint64_t work_end_ns);

#endif
