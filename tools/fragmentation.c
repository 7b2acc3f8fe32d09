/*
 * The five numbers. See fragmentation.h; one thread.
 */
#include "fragmentation.h"

#include "frameworks.h"
#include "reconcile.h"

#include <stdlib.h>

const char *const fragmentation_moments[] = {
#define X(name, key) key,
    FRAGMENTATION_MOMENTS(X)
#undef X
};

/* ---- pages ----------------------------------------------------------------------------------- */

static void add_rounding(struct fragmentation *f, const struct blocks *blocks) {
    struct block_list plain = blocks_of(blocks, TRACE_SPACE_POINTER, f->device);
    uint64_t pages = 0, next = 0; /* the first page not counted yet */
    for (size_t i = 0; i < plain.count; i++) {
        const struct block *block = &plain.list[i];
        if (block->kind != TRACE_KIND_DEVICE || !block->bytes)
            continue;
        uint64_t first = block->address / FRAGMENTATION_PAGE;
        uint64_t last = (block->address + block->bytes - 1) / FRAGMENTATION_PAGE;
        f->plain_bytes += block->bytes;
        if (first < next)
            first = next;
        if (last < first)
            continue;
        pages += last - first + 1;
        next = last + 1;
    }
    uint64_t taken = pages * FRAGMENTATION_PAGE;
    f->rounding_waste_bytes = taken > f->plain_bytes ? taken - f->plain_bytes : 0;
    f->rounding_known = true;
}

/* ---- holes ----------------------------------------------------------------------------------- */

static void add_hole(struct fragmentation *f, uint64_t bytes, uint64_t *unusable) {
    if (!bytes)
        return;
    f->holes++;
    f->holes_bytes += bytes;
    if (bytes > f->largest_hole_bytes)
        f->largest_hole_bytes = bytes;
    if (bytes < f->request_bytes)
        *unusable += bytes;
}

static void add_holes_of(struct fragmentation *f, const struct arena *arena, uint64_t *unusable) {
    uint64_t at = arena->address, end = arena->address + arena->bytes;
    for (size_t i = 0; i < arena->parts.count; i++) {
        const struct block *part = &arena->parts.list[i];
        if (part->address > at)
            add_hole(f, part->address - at, unusable);
        if (part->address + part->bytes > at)
            at = part->address + part->bytes;
    }
    if (at < end)
        add_hole(f, end - at, unusable);
    f->segments++;
    f->segment_bytes += arena->bytes;
}

static bool add_holes(struct fragmentation *f, const struct profile *profile,
                      const struct blocks *blocks) {
    size_t count;
    uint64_t unusable = 0, used = 0;
    struct arena *arenas = blocks_segments(profile, blocks, f->device, &count);
    if (count == SIZE_MAX)
        return false;
    for (size_t i = 0; i < count; i++) {
        add_holes_of(f, &arenas[i], &unusable);
        used += arenas[i].used_bytes;
    }
    free(arenas);
    /* Mapped bit by bit, segments of an earlier moment are not known. */
    f->holes_known =
        count && (f->at != FRAGMENTATION_FAILURE || !framework_expandable_segments(profile->trace));
    f->external_ratio =
        f->holes_bytes ? 1 - (double)f->largest_hole_bytes / (double)f->holes_bytes : 0;
    f->unusable_ratio = f->holes_bytes ? (double)unusable / (double)f->holes_bytes : 0;
    if (f->holes_known) {
        f->cached_known = true;
        f->cached_bytes = (int64_t)(f->segment_bytes - used);
    }
    return true;
}

/* ---- virtual memory -------------------------------------------------------------------------- */

static int compare_handles(const void *left, const void *right) {
    const uint64_t *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

static bool add_virtual(struct fragmentation *f, const struct profile *profile,
                        const struct blocks *blocks) {
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_RANGES), mapped = 0;
    uint64_t *handles = calloc(count + 1, sizeof *handles);
    if (!handles)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct trace_range *range = trace_record(profile->trace, TRACE_SECTION_RANGES, i);
        if (!range || range->removed_ns)
            continue;
        if (range->type == TRACE_RANGE_MAPPING)
            handles[mapped++] = range->handle;
        if (range->device != f->device)
            continue;
        if (range->type == TRACE_RANGE_MAPPING)
            f->mapped_bytes += range->bytes;
        else if (range->type == TRACE_RANGE_RESERVATION)
            f->reserved_bytes += range->bytes;
    }
    if (mapped)
        qsort(handles, mapped, sizeof *handles, compare_handles);
    struct block_list held = blocks_of(blocks, TRACE_SPACE_VMM, f->device);
    for (size_t i = 0; i < held.count; i++)
        if (held.list[i].bytes && (!mapped || !bsearch(&held.list[i].address, handles, mapped,
                                                       sizeof *handles, compare_handles))) {
            f->held_unmapped_bytes += held.list[i].bytes;
            f->held_unmapped++;
        }
    free(handles);
    f->virtual_known = true;
    return true;
}

/* ---- pools ----------------------------------------------------------------------------------- */

struct pool_slack fragmentation_pool(const struct trace_pool *pool) {
    struct pool_slack slack = {.pool = pool, .known = pool->sampled_ns};
    if (slack.known && pool->reserved_bytes > pool->used_bytes) {
        slack.slack_bytes = pool->reserved_bytes - pool->used_bytes;
        slack.slack_ratio = (double)slack.slack_bytes / (double)pool->reserved_bytes;
    }
    return slack;
}

uint64_t fragmentation_pools_slack(const struct trace *trace, unsigned device) {
    size_t count = trace_record_count(trace, TRACE_SECTION_POOLS);
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trace_pool *pool = trace_record(trace, TRACE_SECTION_POOLS, i);
        if (pool && pool->device == device && !pool->destroyed_ns)
            sum += fragmentation_pool(pool).slack_bytes;
    }
    return sum;
}

/* ---- moments --------------------------------------------------------------------------------- */

static struct fragmentation *add(struct fragmentations *found, enum fragmentation_moment at,
                                 unsigned device, uint64_t ns) {
    struct fragmentation *grown = realloc(found->list, (found->count + 1) * sizeof *found->list);
    if (!grown)
        return NULL;
    found->list = grown;
    grown[found->count] = (struct fragmentation){.at = at, .device = (uint16_t)device, .ns = ns};
    return &grown[found->count++];
}

static bool fill(struct fragmentation *f, const struct profile *profile,
                 const struct blocks *blocks) {
    add_rounding(f, blocks);
    return add_holes(f, profile, blocks) &&
           (f->at == FRAGMENTATION_FAILURE || add_virtual(f, profile, blocks));
}

/* Nothing was freed after the last allocation: what is live now was live then. */
static bool ends_at_work(const struct profile *profile, unsigned device) {
    for (size_t i = 0; i < profile->total_count; i++) {
        const struct profile_total *total = &profile->totals[i];
        if (total->device == device && (total->live_bytes != total->end_of_work_bytes ||
                                        total->live_count != total->end_of_work_count))
            return false;
    }
    return true;
}

static uint64_t last_alloc(const struct profile *profile, unsigned device) {
    uint64_t last = 0;
    for (size_t i = 0; i < profile->total_count; i++)
        if (profile->totals[i].device == device && profile->totals[i].last_alloc_ns > last)
            last = profile->totals[i].last_alloc_ns;
    return last;
}

/* From the sites: how much is cached, without knowing where. */
static void add_cached(struct fragmentation *f, const struct profile *profile) {
    struct reconciliation sum = reconcile(profile, f->device);
    if (f->cached_known || !sum.known[RECONCILE_CACHED])
        return;
    f->cached_known = true;
    f->cached_bytes = (int64_t)sum.bytes[RECONCILE_CACHED];
}

static bool add_failures(struct fragmentations *found, const struct profile *profile,
                         unsigned device, struct fragmentation *work) {
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_FAILURES);
    for (size_t i = 0; i < count; i++) {
        const struct trace_failure *failure =
            trace_record(profile->trace, TRACE_SECTION_FAILURES, i);
        struct blocks blocks;
        if (!failure || failure->device != device || !failure->copy)
            continue;
        if (!blocks_of_copy(profile, failure->copy, &blocks))
            return false;
        bool ok = true;
        if (blocks.count) {
            struct fragmentation *f = add(found, FRAGMENTATION_FAILURE, device, blocks.ns);
            if (f)
                f->request_bytes = failure->request_bytes;
            ok = f && fill(f, profile, &blocks);
            if (ok && !work->rounding_known && blocks.ns >= work->ns) {
                struct fragmentation as_failure = *work;
                ok = fill(&as_failure, profile, &blocks);
                as_failure.virtual_known = false;
                *work = as_failure;
            }
        }
        blocks_free(&blocks);
        if (!ok)
            return false;
    }
    return true;
}

static int compare_times(const void *left, const void *right) {
    const struct fragmentation *a = left, *b = right;
    if (a->ns != b->ns)
        return a->ns < b->ns ? -1 : 1;
    return (int)a->at - (int)b->at;
}

bool fragmentation_build(const struct profile *profile, unsigned device, const struct blocks *live,
                         struct fragmentations *found) {
    struct fragmentation work = {.at = FRAGMENTATION_END_OF_WORK,
                                 .device = (uint16_t)device,
                                 .ns = last_alloc(profile, device)};
    *found = (struct fragmentations){0};
    bool ok = !ends_at_work(profile, device) || fill(&work, profile, live);
    ok = ok && add_failures(found, profile, device, &work);
    add_cached(&work, profile);
    struct fragmentation *last = ok ? add(found, FRAGMENTATION_END_OF_WORK, device, work.ns) : NULL;
    if (last)
        *last = work;
    struct fragmentation *exit = last ? add(found, FRAGMENTATION_EXIT, device, live->ns) : NULL;
    ok = exit && fill(exit, profile, live);
    if (!ok)
        fragmentation_free(found);
    else
        qsort(found->list, found->count, sizeof *found->list, compare_times);
    return ok;
}

void fragmentation_free(struct fragmentations *found) {
    free(found->list);
    *found = (struct fragmentations){0};
}

const struct fragmentation *fragmentation_at(const struct fragmentations *found,
                                             enum fragmentation_moment at) {
    const struct fragmentation *last = NULL;
    for (size_t i = 0; i < found->count; i++)
        if (found->list[i].at == at)
            last = &found->list[i];
    return last;
}
