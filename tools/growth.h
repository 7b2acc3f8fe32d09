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

#define GROWTH_WINDOWS    8     /* the least for growing */
#define GROWTH_INCREMENTS 16    /* likewise: blocks that stayed, or rises of the floor */
#define GROWTH_RISING     0.8   /* share of windows that must rise; of the last third, half */
#define GROWTH_FEW        5     /* with fewer windows only retained and late are told */
#define GROWTH_SETTLED    0.05  /* share of the rise that a settled third may have */
#define GROWTH_FLAT       0.01  /* of its level, by which what is retained may move */
#define GROWTH_CHANCE     0.001 /* of growing by chance, at most */
/* A site born late: fewer windows do, a quarter of the run, if hardly anything is ever freed. */
#define GROWTH_YOUNG_WINDOWS 4
#define GROWTH_YOUNG_SHARE   0.25
#define GROWTH_YOUNG_CHANCE  1e-6

/*
 * Judges a site by its windows from the first that it lived in to that of the end of work; the run
 * had `run_windows` up to there. *chance (may be NULL): how likely the same rise is without a
 * trend, see growth_chance().
 */
enum growth_class growth_of_windows(const struct trace_window *windows, uint32_t count,
                                    uint32_t run_windows, double *chance);

/*
 * How likely a walk at random shows as much growth: twice the smaller of two chances. One is that
 * `steps` steps, up or down with equal chance and of whatever sizes, reach `rises` new heights or
 * more: the sum over m > rises of C(2 steps - m + 1, steps) / 2^(2 steps - m + 1) (Sparre
 * Andersen). The other is that as many allocations as frees, in any order, leave so many more
 * allocations: erfc(z / sqrt 2), z = (allocs - frees) / sqrt(allocs + frees).
 */
double growth_chance(uint32_t steps, uint32_t rises, uint64_t allocs, uint64_t frees);

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
    double chance;       /* of rising so without a trend; 1: nothing was judged */
    uint32_t windows;    /* judged */
};
struct growth growth_of_site(const struct trace_site *site, uint64_t work_end_ns);

/* Steps of the program in a stretch of time: how often its commonest mark was set; 0: no mark was
   set twice. */
uint64_t growth_steps(const struct trace *trace, uint64_t from_ns, uint64_t span_ns);

#endif
