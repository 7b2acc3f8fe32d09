/*
 * Judges how a site's live bytes went. See growth.h; no state.
 */
#include "growth.h"

#include "text.h"
#include "timeline.h"

#include <stdlib.h>

const char *const growth_class_names[] = {
#define X(name, key) key,
    GROWTH_CLASSES(X)
#undef X
};

/* ---- the judgement --------------------------------------------------------------------------- */

/* The floors of the windows judged, told in the words of the classes. */
struct shape {
    uint32_t windows;
    uint32_t rises; /* floors above every one before */
    uint32_t last_third_rises;
    uint32_t last_third; /* its windows */
    uint64_t rising_allocs;
    uint64_t first, highest, last; /* floors */
    uint64_t highest_before;       /* the last third */
    uint64_t last_third_lowest;
    bool moved; /* some window held more than its floor */
};

static struct shape shape_of(const struct trace_window *windows, uint32_t count) {
    struct shape shape = {.windows = count, .last_third = (count + 2) / 3};
    uint32_t last_third_at = count - shape.last_third;
    shape.first = shape.highest = windows[0].min_bytes;
    shape.last_third_lowest = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t floor = windows[i].min_bytes;
        if (i == last_third_at)
            shape.highest_before = shape.highest;
        if (floor > shape.highest) {
            shape.highest = floor;
            shape.rises++;
            shape.last_third_rises += i >= last_third_at;
            shape.rising_allocs += windows[i].allocs;
        }
        if (i >= last_third_at && floor < shape.last_third_lowest)
            shape.last_third_lowest = floor;
        shape.moved |= windows[i].max_bytes > floor || floor != shape.first;
        shape.last = floor;
    }
    return shape;
}

static bool rises_throughout(const struct shape *shape) {
    return shape->windows > 1 && shape->rises >= GROWTH_RISING * (shape->windows - 1) &&
           2 * shape->last_third_rises >= shape->last_third;
}

/* Enough windows to tell one way of rising from another. */
static enum growth_class class_of_rise(const struct shape *shape) {
    uint64_t gain = shape->highest - shape->first;
    uint64_t late_gain = shape->highest - shape->highest_before;
    if (shape->last_third_lowest < shape->first + gain / 2)
        return GROWTH_SAWTOOTH; /* came back by more than half */
    if ((double)late_gain <= GROWTH_SETTLED * (double)gain)
        return GROWTH_SATURATING;
    if ((double)late_gain >= (1 - GROWTH_SETTLED) * (double)gain)
        return GROWTH_LATE;
    return GROWTH_HIGH_WATER;
}

enum growth_class growth_judge(const struct trace_window *windows, uint32_t born, uint32_t end,
                               uint64_t end_bytes) {
    uint32_t count = end > born + 1 ? end - born - 1 : 0;
    if (count < 2)
        return GROWTH_CANNOT_TELL;
    struct shape shape = shape_of(windows + born + 1, count);
    if (!shape.moved && shape.first && end_bytes == shape.first)
        return GROWTH_RETAINED;
    if (rises_throughout(&shape) && count >= GROWTH_WINDOWS &&
        shape.rising_allocs >= GROWTH_ALLOCATIONS)
        return GROWTH_GROWING;
    if (shape.rises && count < GROWTH_WINDOWS && 3 * born >= 2 * end)
        return GROWTH_LATE;
    if (rises_throughout(&shape) || count < GROWTH_FEW)
        return GROWTH_CANNOT_TELL;
    if (shape.rises == 0 && !shape.moved && end_bytes > shape.last)
        return GROWTH_LATE;
    return shape.rises ? class_of_rise(&shape) : GROWTH_SAWTOOTH;
}

/* ---- where the windows come from ------------------------------------------------------------- */

uint64_t growth_work_end(const struct profile_total *total, uint64_t end_ns) {
    struct timeline timeline;
    uint64_t work_ns = total->last_alloc_ns;
    if (!total->record || end_ns < total->record->last_ns)
        return work_ns;
    timeline_of_total(total->record, end_ns, &timeline);
    uint64_t at = work_ns >> timeline.shift;
    if (timeline.count == 0 || at >= timeline.count ||
        timeline.windows[at].last_bytes < total->end_of_work_bytes)
        return work_ns;
    uint32_t quiet = (uint32_t)at + 1;
    while (quiet < timeline.count && !timeline.windows[quiet].frees)
        quiet++;
    uint64_t quiet_ns = quiet < timeline.count ? (uint64_t)quiet << timeline.shift : end_ns;
    uint64_t work = work_ns - total->first_ns;
    return quiet_ns > work_ns && quiet_ns - work_ns >= work / 2 ? quiet_ns : work_ns;
}

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

struct growth growth_of_site(const struct profile_site *site, uint64_t work_end_ns) {
    struct timeline timeline;
    struct growth growth = {GROWTH_CANNOT_TELL, 0, 0, 0};
    const struct trace_site *record = site->record;
    uint64_t end_ns = work_end_ns > record->last_ns ? work_end_ns : record->last_ns;
    timeline_of_site(record, end_ns, &timeline);
    if (timeline.count == 0 || timeline.unsettled || !record->first_ns)
        return growth;
    uint64_t born = record->first_ns >> timeline.shift, end = work_end_ns >> timeline.shift;
    if (born >= timeline.count || end >= timeline.count)
        return growth;
    growth.class =
        growth_judge(timeline.windows, (uint32_t)born, (uint32_t)end, site->end_of_work_bytes);
    if (end < born + 3)
        return growth;
    uint64_t first = timeline.windows[born + 1].min_bytes,
             last = timeline.windows[end - 1].min_bytes;
    growth.gain_bytes = last > first ? last - first : 0;
    growth.from_ns = (born + 1) << timeline.shift;
    growth.span_ns = (end - born - 2) << timeline.shift;
    return growth;
}
