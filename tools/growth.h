/*
 * How the live bytes of a site went over time: its growth class, judged at the end of work.
 *
 * What is judged are the floors, the least live bytes of each window, from the window after the
 * site's birth up to the one before the end of work: those two are cut off by what they end at. A
 * floor rises when it is above every floor before it. Called by view.c; no state.
 */
#ifndef TOOLS_GROWTH_H
#define TOOLS_GROWTH_H

#include "profile.h"

#define GROWTH_CLASSES(X)                                                                          \
    X(CANNOT_TELL, "cannot_tell") /* too few windows or blocks */                                  \
    X(GROWING, "growing")         /* rose nearly always, and still does: a leak */                 \
    X(SATURATING, "saturating")   /* rose, then stayed */                                          \
    X(RETAINED, "retained")       /* has stayed since it was born */                               \
    X(SAWTOOTH, "sawtooth")       /* comes back to the same floor */                               \
    X(HIGH_WATER, "high_water")   /* reached new heights at few moments */                         \
    X(LATE, "late")               /* rose only in the last third */

enum growth_class {
#define X(name, key) GROWTH_##name,
    GROWTH_CLASSES(X)
#undef X
};

extern const char *const growth_names[];

#define GROWTH_WINDOWS    8    /* the least for growing */
#define GROWTH_INCREMENTS 16   /* likewise: blocks that stayed, or rises of the floor */
#define GROWTH_RISING     0.8  /* share of windows that must rise; of the last third, half */
#define GROWTH_FEW        5    /* with fewer windows only retained and late are told */
#define GROWTH_SETTLED    0.05 /* share of the rise that a settled third may have */
#define GROWTH_FLAT       0.01 /* of its level, by which what is retained may move */

/* Judges a site by its windows from the first that it lived in to that of the end of work. */
enum growth_class growth_of_windows(const struct trace_window *windows, uint32_t count);

/*
 * When the work of a total ended, for judging its sites: at its last allocation. But where nothing
 * was freed for long after that, the program went on without allocating, and its sites stayed as
 * they were: then at the beginning of the frees, or at end_ns, the end of the process.
 */
uint64_t growth_work_end(const struct profile_total *total, uint64_t end_ns);

struct growth {
    enum growth_class class;
    uint64_t gain_bytes; /* of the floor, from the first to the last window judged */
    uint64_t from_ns;    /* the time between those two */
    uint64_t span_ns;    /* 0: nothing was judged */
};
struct growth growth_of_site(const struct trace_site *site, uint64_t work_end_ns);

/* Steps of the program in a stretch of time: how often its commonest mark was set; 0: no mark was
   set twice. */
uint64_t growth_steps(const struct trace *trace, uint64_t from_ns, uint64_t span_ns);

#endif
