/*
 * Judges how a site's live bytes went. See growth.h; no state.
 */
#include "growth.h"

#include "text.h"
#include "timeline.h"

#include <math.h>
#include <stdlib.h>

const char *const growth_names[] = {
#define X(name, key) key,
    GROWTH_CLASSES(X)
#undef X
};

/* The windows judged, told in the words of the classes. */
struct shape {
    uint32_t windows;
    uint32_t last_third; /* its windows */
    uint32_t rises;      /* floors above every one before */
    uint32_t last_third_rises;
    uint64_t allocs, frees;
    uint64_t stayed;         /* blocks: allocations less frees */
    uint64_t first, highest; /* floors */
    uint64_t highest_before; /* the last third */
    uint64_t lowest, top;    /* of all that was live */
    uint32_t high;           /* windows that came to half of the top */
    bool fell;               /* the floor lost more than half of its rise again */
};

static void add_floor(struct shape *shape, uint32_t index, uint64_t floor) {
    bool late = index >= shape->windows - shape->last_third;
    if (index == shape->windows - shape->last_third)
        shape->highest_before = shape->highest;
    if (floor > shape->highest) {
        shape->highest = floor;
        shape->rises++;
        shape->last_third_rises += late;
    }
    if (floor < shape->lowest)
        shape->lowest = floor;
}

static struct shape shape_of(const struct trace_window *windows, uint32_t count) {
    struct shape shape = {.windows = count, .last_third = (count + 2) / 3};
    bool half = false;
    shape.first = shape.highest = shape.lowest = windows[0].min_bytes;
    for (uint32_t i = 0; i < count; i++) {
        add_floor(&shape, i, windows[i].min_bytes);
        shape.allocs += windows[i].allocs;
        shape.frees += windows[i].frees;
        if (windows[i].max_bytes > shape.top)
            shape.top = windows[i].max_bytes;
    }
    for (uint32_t i = 0; i < count; i++) {
        bool above = windows[i].min_bytes > shape.first + (shape.highest - shape.first) / 2;
        shape.fell |= half && !above;
        half |= above;
        shape.high += windows[i].max_bytes > shape.top / 2;
    }
    shape.stayed = shape.allocs > shape.frees ? shape.allocs - shape.frees : 0;
    return shape;
}

/* ---- chance ---------------------------------------------------------------------------------- */

/* Of a walk of `steps` steps that it reaches `rises` new heights or more. */
static double chance_of_rises(uint32_t steps, uint32_t rises) {
    double sum = 0;
    for (uint32_t m = rises + 1; m <= steps + 1; m++) {
        double n = steps, k = 2 * n - m + 1;
        sum += exp(lgamma(k + 1) - lgamma(n + 1) - lgamma(k - n + 1) - k * M_LN2);
    }
    return sum < 1 ? sum : 1;
}

static double chance_of_events(uint64_t allocs, uint64_t frees) {
    if (allocs <= frees)
        return 1;
    double made = (double)allocs, freed = (double)frees;
    return erfc((made - freed) / sqrt(made + freed) / M_SQRT2);
}

double growth_chance(uint32_t steps, uint32_t rises, uint64_t allocs, uint64_t frees) {
    double chance = 2 * fmin(chance_of_rises(steps, rises), chance_of_events(allocs, frees));
    return chance < 1 ? chance : 1;
}

static double chance_of(const struct shape *shape) {
    return growth_chance(shape->windows - 1, shape->rises, shape->allocs, shape->frees);
}

/* ---- classes --------------------------------------------------------------------------------- */

/* A tensor that is replaced by a longer one keeps its number of blocks: its rises count. */
static bool has_evidence(const struct shape *shape) {
    return shape->windows >= GROWTH_WINDOWS &&
           (shape->stayed >= GROWTH_INCREMENTS || shape->rises >= GROWTH_INCREMENTS) &&
           chance_of(shape) <= GROWTH_CHANCE;
}

static bool has_evidence_of_young(const struct shape *shape, uint32_t run_windows) {
    return shape->windows >= GROWTH_YOUNG_WINDOWS &&
           shape->windows >= GROWTH_YOUNG_SHARE * run_windows &&
           shape->rises == shape->windows - 1 && shape->stayed >= 2 * GROWTH_INCREMENTS &&
           chance_of(shape) <= GROWTH_YOUNG_CHANCE;
}

static bool rises_throughout(const struct shape *shape) {
    return shape->windows > 1 && shape->rises >= GROWTH_RISING * (shape->windows - 1) &&
           2 * shape->last_third_rises >= shape->last_third;
}

static bool is_flat(const struct shape *shape) {
    return shape->lowest &&
           (double)(shape->top - shape->lowest) <= GROWTH_FLAT * (double)shape->top;
}

/* The floor rose, but not throughout. */
static enum growth_class class_of_rise(const struct shape *shape) {
    double gain = (double)(shape->highest - shape->first);
    double late_gain = (double)(shape->highest - shape->highest_before);
    if (shape->fell)
        return GROWTH_SAWTOOTH;
    if (late_gain <= GROWTH_SETTLED * gain)
        return GROWTH_SATURATING;
    if (late_gain >= (1 - GROWTH_SETTLED) * gain)
        return GROWTH_LATE;
    return GROWTH_HIGH_WATER;
}

enum growth_class growth_of_windows(const struct trace_window *windows, uint32_t count,
                                    uint32_t run_windows, double *chance) {
    if (chance)
        *chance = 1;
    if (count < 4)
        return GROWTH_CANNOT_TELL;
    struct shape shape = shape_of(windows + 1, count - 2);
    if (chance)
        *chance = chance_of(&shape);
    if (rises_throughout(&shape) &&
        (has_evidence(&shape) || has_evidence_of_young(&shape, run_windows)))
        return GROWTH_GROWING;
    if (is_flat(&shape))
        return GROWTH_RETAINED;
    if (rises_throughout(&shape) || shape.windows < GROWTH_FEW)
        return GROWTH_CANNOT_TELL;
    if (shape.rises)
        return class_of_rise(&shape);
    return 4 * shape.high <= shape.windows ? GROWTH_HIGH_WATER : GROWTH_SAWTOOTH;
}

/* ---- where the windows come from ------------------------------------------------------------- */

/* The first window after the end of work in which something was freed; their count: none. */
static uint32_t first_frees(const struct timeline *timeline, uint32_t work) {
    uint32_t at = work + 1;
    while (at < timeline->count && !timeline->windows[at].frees)
        at++;
    return at;
}

uint64_t growth_work_end(const struct profile_total *total, uint64_t end_ns) {
    struct timeline timeline;
    uint64_t work_ns = total->last_alloc_ns;
    if (!total->record || end_ns < total->record->last_ns)
        return work_ns;
    timeline_of_total(total->record, end_ns, &timeline);
    uint64_t work = work_ns >> timeline.shift;
    if (work >= timeline.count || timeline.windows[work].last_bytes < total->end_of_work_bytes)
        return work_ns;
    uint32_t frees = first_frees(&timeline, (uint32_t)work);
    uint64_t quiet_ns = frees < timeline.count ? (uint64_t)frees << timeline.shift : end_ns;
    bool went_on = quiet_ns > work_ns && quiet_ns - work_ns >= (work_ns - total->first_ns) / 2;
    return went_on ? quiet_ns : work_ns;
}

struct growth growth_of_site(const struct trace_site *site, uint64_t work_end_ns) {
    struct timeline timeline;
    struct growth growth = {.class = GROWTH_CANNOT_TELL, .chance = 1};
    timeline_of_site(site, work_end_ns > site->last_ns ? work_end_ns : site->last_ns, &timeline);
    uint64_t born = site->first_ns >> timeline.shift, end = work_end_ns >> timeline.shift;
    const struct trace_window *windows = timeline.windows;
    if (timeline.unsettled || !site->first_ns || end >= timeline.count || born > end)
        return growth;
    growth.class = growth_of_windows(windows + born, (uint32_t)(end - born + 1), (uint32_t)end + 1,
                                     &growth.chance);
    if (growth.class == GROWTH_CANNOT_TELL && end - born < GROWTH_WINDOWS && 3 * born >= 2 * end &&
        windows[end].max_bytes > windows[born].last_bytes)
        growth.class = GROWTH_LATE;
    if (end < born + 3)
        return growth;
    uint64_t first = windows[born + 1].min_bytes, last = windows[end - 1].min_bytes;
    growth.gain_bytes = last > first ? last - first : 0;
    growth.windows = (uint32_t)(end - born - 1);
    growth.from_ns = (born + 1) << timeline.shift;
    growth.span_ns = (end - born - 2) << timeline.shift;
    return growth;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int compare_hashes(const void *left, const void *right) {
    const uint64_t *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

uint64_t growth_steps(const struct trace *trace, uint64_t from_ns, uint64_t span_ns) {
    size_t count = trace_record_count(trace, TRACE_SECTION_MARKS), kept = 0;
    uint64_t *hashes = calloc(count + 1, sizeof *hashes), most = 0, run = 0;
    for (size_t i = 0; hashes && i < count; i++) {
        const struct trace_mark *mark = trace_record(trace, TRACE_SECTION_MARKS, i);
        if (mark && mark->ns >= from_ns && mark->ns - from_ns < span_ns)
            hashes[kept++] = text_hash(TEXT_HASH_START, trace_string(trace, mark->name));
    }
    if (kept)
        qsort(hashes, kept, sizeof *hashes, compare_hashes);
    for (size_t i = 0; i < kept; i++) {
        run = i && hashes[i] == hashes[i - 1] ? run + 1 : 1;
        most = run > most ? run : most;
    }
    free(hashes);
    return most > 1 ? most : 0;
}
