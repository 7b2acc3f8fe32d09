/*
 * The sum that leads from tensors to the whole device. See reconcile.h; no state.
 */
#include "reconcile.h"

#include "segments.h"

static void set(struct reconciliation *sum, enum reconciliation_line line, uint64_t bytes) {
    sum->known[line] = true;
    sum->bytes[line] = bytes;
}

/* What the sites of the driver's device memory held at the end of work. */
struct driver_parts {
    uint64_t segment_bytes;
    uint64_t segment_allocs;
    uint64_t pool_bytes;
    uint64_t all_bytes;
    size_t mixed_sites;
    bool segments; /* any, ever */
};

static void add_site(struct driver_parts *parts, const struct profile_site *site) {
    bool segments = (site->flags & TRACE_SITE_SEGMENT) || site->cache_count;
    bool mixed = segments_mixed(site);
    parts->all_bytes += site->end_of_work_bytes;
    parts->segment_bytes += site->cache_end_of_work_bytes;
    if (site->kind == TRACE_KIND_POOL)
        parts->pool_bytes += site->end_of_work_bytes - site->cache_end_of_work_bytes;
    parts->segments |= segments;
    parts->mixed_sites += mixed;
    if (segments)
        parts->segment_allocs += site->allocs - (mixed ? site->live_count - site->cache_count : 0);
}

static struct driver_parts driver_parts(const struct profile *profile,
                                        const struct profile_total *total) {
    struct driver_parts parts = {0};
    for (size_t i = 0; total && i < profile->site_count; i++)
        if (&profile->totals[profile->sites[i].total] == total)
            add_site(&parts, &profile->sites[i]);
    return parts;
}

static const char *why_reserved_is_unknown(const struct driver_parts *parts, uint64_t allocated) {
    if (!parts->segments)
        return "no block that holds tensors was seen taken from the driver";
    if (parts->segment_bytes < allocated)
        return "the segments that were seen hold less than the tensors: others are not recorded, "
               "or were given back before the last allocation";
    return NULL;
}

static void add_tensors(struct reconciliation *sum, const struct profile_total *tensors,
                        const struct driver_parts *parts) {
    uint64_t allocated = tensors->end_of_work_bytes;
    sum->tensors = true;
    sum->tensor_ns = tensors->last_alloc_ns;
    set(sum, RECONCILE_ALLOCATED, allocated);
    sum->unknown_reserved = why_reserved_is_unknown(parts, allocated);
    if (sum->unknown_reserved)
        return;
    set(sum, RECONCILE_RESERVED, parts->segment_bytes);
    set(sum, RECONCILE_CACHED, parts->segment_bytes - allocated);
    sum->reuse_known = tensors->allocs && parts->segment_allocs <= tensors->allocs;
    if (sum->reuse_known)
        sum->reuse_rate = 1 - (double)parts->segment_allocs / (double)tensors->allocs;
}

/* The device as the first failure after the end of work showed it: nothing was taken in between. */
static const struct trace_failure *failure_after(const struct profile *profile, unsigned device,
                                                 uint64_t ns) {
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_FAILURES);
    for (size_t i = 0; i < count; i++) {
        const struct trace_failure *failure =
            trace_record(profile->trace, TRACE_SECTION_FAILURES, i);
        if (failure && failure->device == device && failure->ns >= ns &&
            (failure->flags & TRACE_FAILURE_FREE_KNOWN) &&
            failure->free_bytes <= failure->total_bytes)
            return failure;
    }
    return NULL;
}

/* By what the driver last told of free memory: what passed no allocation then is taken to be there
   at the end of work too. */
static bool add_told(struct reconciliation *sum, const struct profile *profile, unsigned device) {
    const struct trace_device *told =
        device < TRACE_DEVICES ? &trace_get_header(profile->trace)->devices[device] : NULL;
    if (!told || !told->free_ns || !(told->known & TRACE_DEVICE_TOTAL) ||
        told->free_bytes > told->total_bytes ||
        told->free_live_bytes > told->total_bytes - told->free_bytes)
        return false;
    uint64_t untracked = told->total_bytes - told->free_bytes - told->free_live_bytes;
    set(sum, RECONCILE_UNTRACKED, untracked);
    if (sum->known[RECONCILE_DRIVER])
        set(sum, RECONCILE_USED, sum->bytes[RECONCILE_DRIVER] + untracked);
    return true;
}

static void add_device(struct reconciliation *sum, const struct profile *profile, unsigned device) {
    if (add_told(sum, profile, device))
        return;
    const struct trace_failure *failure = failure_after(profile, device, sum->driver_ns);
    if (!failure)
        return;
    uint64_t used = failure->total_bytes - failure->free_bytes;
    set(sum, RECONCILE_USED, used);
    if (sum->known[RECONCILE_DRIVER] && used >= sum->bytes[RECONCILE_DRIVER])
        set(sum, RECONCILE_UNTRACKED, used - sum->bytes[RECONCILE_DRIVER]);
}

struct reconciliation reconcile(const struct profile *profile, unsigned device) {
    struct reconciliation sum = {.process_count = 1};
    const struct profile_total *driver =
        profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, device);
    const struct profile_total *tensors =
        profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, device);
    struct driver_parts parts = driver_parts(profile, driver);
    if (tensors)
        add_tensors(&sum, tensors, &parts);
    sum.mixed_sites = parts.mixed_sites;
    sum.driver_ns = driver ? driver->last_alloc_ns : 0;
    set(&sum, RECONCILE_POOL, parts.pool_bytes);
    bool complete = !tensors || parts.all_bytes >= sum.bytes[RECONCILE_ALLOCATED];
    if (!sum.unknown_reserved)
        set(&sum, RECONCILE_OTHER, parts.all_bytes - parts.segment_bytes - parts.pool_bytes);
    if (complete)
        set(&sum, RECONCILE_DRIVER, parts.all_bytes);
    add_device(&sum, profile, device);
    return sum;
}

/* What one process does not know the sum of all does not either. What is used on the device is no
   sum: each process sees all of it, at a time of its own. */
void reconciliation_add(struct reconciliation *sum, const struct reconciliation *more) {
    for (int line = 0; line < RECONCILE_LIMIT; line++) {
        bool tensor_line =
            line == RECONCILE_ALLOCATED || line == RECONCILE_CACHED || line == RECONCILE_RESERVED;
        if (tensor_line && (!sum->tensors || !more->tensors))
            sum->known[line] = sum->tensors ? sum->known[line] : more->known[line];
        else
            sum->known[line] = sum->known[line] && more->known[line];
        sum->bytes[line] += more->bytes[line];
    }
    sum->known[RECONCILE_USED] = sum->known[RECONCILE_UNTRACKED] = false;
    sum->tensors |= more->tensors;
    sum->mixed_sites += more->mixed_sites;
    sum->reuse_known = false;
    sum->tensor_ns = sum->driver_ns = 0;
    if (!sum->unknown_reserved)
        sum->unknown_reserved = more->unknown_reserved;
    sum->process_count += more->process_count;
}
