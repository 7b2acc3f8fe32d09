/*
 * Growth classes. See growth.h.
 */
#include "growth.h"

#define WINDOWS_LEAST    8  /* whole ones, after the site's first */
#define INCREMENTS_LEAST 16 /* more allocations than frees in them */

const char *const growth_names[GROWTH_CLASSES] = {
    "cannot_tell", "growing", "saturating", "retained", "sawtooth", "high_water", "late",
};

struct floors {
    const struct trace_window *window;
    unsigned count;
};

static uint64_t floor_of(const struct floors *f, unsigned i) {
    return f->window[i].min_bytes;
}

/* Within one percent of the highest floor. */
static bool is_flat(const struct floors *f, unsigned from, unsigned to) {
    uint64_t low = UINT64_MAX, high = 0, most = 0;
    for (unsigned i = 0; i < f->count; i++)
        most = floor_of(f, i) > most ? floor_of(f, i) : most;
    for (unsigned i = from; i < to; i++) {
        low = floor_of(f, i) < low ? floor_of(f, i) : low;
        high = floor_of(f, i) > high ? floor_of(f, i) : high;
    }
    return high - low <= most / 100;
}

static unsigned rises(const struct floors *f, unsigned from, unsigned to) {
    unsigned count = 0;
    for (unsigned i = from; i < to; i++)
        count += i > 0 && floor_of(f, i) > floor_of(f, i - 1);
    return count;
}

static int64_t increments(const struct floors *f) {
    int64_t net = 0;
    for (unsigned i = 0; i < f->count; i++)
        net += (int64_t)f->window[i].allocs - (int64_t)f->window[i].frees;
    return net;
}

/* Rises in four of five windows, over all of them and over the last third alone. */
static bool is_growing(const struct floors *f) {
    unsigned third = f->count - f->count / 3;
    return increments(f) >= INCREMENTS_LEAST && 5 * rises(f, 1, f->count) >= 4 * (f->count - 1) &&
           5 * rises(f, third, f->count) >= 4 * (f->count - third);
}

/* Nothing stays: in most windows little of what was live at most remains. */
static enum growth_class of_passing(const struct floors *f) {
    uint64_t most = 0;
    unsigned high = 0, empty = 0;
    for (unsigned i = 0; i < f->count; i++)
        most = f->window[i].max_bytes > most ? f->window[i].max_bytes : most;
    for (unsigned i = 0; i < f->count; i++) {
        high += f->window[i].max_bytes > most / 2;
        empty += floor_of(f, i) <= most / 10;
    }
    if (!most || 4 * empty < 3 * f->count)
        return GROWTH_CANNOT_TELL;
    return 4 * high <= f->count ? GROWTH_HIGH_WATER : GROWTH_SAWTOOTH;
}

enum growth_class growth_of_windows(const struct trace_window *windows, unsigned count) {
    /* The first is not whole: the site was born in it. Nor is the last: what came after the end of
       work is in it, too. */
    struct floors f = {windows + 1, count < 2 ? 0 : count - 2};
    if (f.count < WINDOWS_LEAST)
        return GROWTH_CANNOT_TELL;
    unsigned last = f.count - 1, third = f.count / 3;
    if (floor_of(&f, last) == 0)
        return of_passing(&f);
    if (is_growing(&f))
        return GROWTH_GROWING;
    if (is_flat(&f, 0, f.count))
        return GROWTH_RETAINED;
    if (is_flat(&f, 0, f.count - third) && floor_of(&f, last) > floor_of(&f, 0))
        return GROWTH_LATE;
    if (is_flat(&f, f.count - third, f.count) && floor_of(&f, last) > floor_of(&f, 0))
        return GROWTH_SATURATING;
    return of_passing(&f);
}

enum growth_class growth_of_site(const struct trace_site *site, uint64_t end_of_work_ns) {
    struct timeline t;
    /* The timeline must reach the site's own last event; it is cut at the end of work below. */
    timeline_of_site(site, site->last_ns > end_of_work_ns ? site->last_ns : end_of_work_ns, &t);
    if (!t.count || t.unsettled)
        return GROWTH_CANNOT_TELL;
    uint64_t end = end_of_work_ns >> t.shift, birth = site->first_ns >> t.shift;
    if (end >= t.count || birth > end)
        return GROWTH_CANNOT_TELL;
    return growth_of_windows(t.windows + birth, (unsigned)(end - birth + 1));
}
