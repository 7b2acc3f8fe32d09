/*
 * The books of one process: totals, kinds and sites as they stood at its end (or stand now).
 *
 * Built from a trace alone, without symbols, by the three rules in the head of trace_format.h, so
 * that the numbers agree with each other at whatever instruction the process stopped. Cost is that
 * of the sites in use plus one pass over the live table.
 *
 * Called by job.c and by tests. The profile is read-only once built; it does not own the trace,
 * which must outlive it.
 */
#ifndef TOOLS_PROFILE_H
#define TOOLS_PROFILE_H

#include "trace_reader.h"

/* One kind of memory within a ledger, on a device. */
struct profile_kind {
    uint64_t live_bytes;
    uint64_t live_count;
    uint64_t peak_bytes;
    uint64_t allocs;
    uint64_t frees;
};

/* One sum: a ledger's group of kinds, on a device (TRACE_DEVICE_HOST for host and registered). */
struct profile_total {
    uint8_t ledger;  /* enum trace_ledger */
    uint8_t group;   /* enum trace_group */
    uint16_t device; /* ordinal in the process, or TRACE_DEVICE_ */
    uint64_t live_bytes;
    uint64_t live_count;
    uint64_t peak_bytes;
    uint64_t peak_ns;
    uint64_t below_90_ns;  /* when live first fell under 90 % of the peak; 0: not since */
    int64_t residue_bytes; /* peak_bytes less the shares of all sites: events in flight then */
    uint64_t end_of_work_bytes;
    uint64_t end_of_work_count;
    uint64_t allocs;
    uint64_t frees;
    uint64_t first_ns;
    uint64_t last_alloc_ns; /* the end of work */
    uint64_t last_ns;
    bool peak_is_now;                            /* rule 3 applied: the shares are what is live */
    const struct trace_total *record;            /* NULL: its first event is in flight */
    struct profile_kind kinds[TRACE_KIND_SLOTS]; /* by enum trace_kind; all zero: unused */
};

/* One place in the program as one ledger, kind and device. */
struct profile_site {
    const struct trace_site *record;
    uint32_t index; /* of the record in its section: the site's identity within this trace */
    uint32_t total; /* index in profile.totals */
    uint8_t ledger;
    uint8_t kind;
    uint16_t device;
    uint32_t flags;        /* TRACE_SITE_OTHER, TRACE_SITE_SEGMENT, TRACE_SITE_VARIES */
    uint32_t native_stack; /* refs; 0: none */
    uint32_t python_stack;
    uint32_t called_from; /* Python stack of the thread that waited for it */
    uint64_t live_bytes;  /* what its slots hold */
    uint64_t live_count;
    uint64_t allocs;
    uint64_t alloc_bytes;
    uint64_t frees;
    uint64_t free_bytes;
    uint64_t own_peak_bytes;
    uint64_t at_peak_bytes; /* share in its total's peak */
    uint64_t end_of_work_bytes;
    uint64_t end_of_work_count;
    uint64_t first_ns;
    uint64_t last_ns;
    /* What of it is the cache of a framework (segments.h): of its live blocks, and of what was live
       at the end of work. A site can have taken both such blocks and others. */
    uint64_t cache_bytes;
    uint64_t cache_count;
    uint64_t cache_end_of_work_bytes;
    uint64_t cache_end_of_work_count;
};

struct profile {
    const struct trace *trace;
    struct profile_total *totals;
    size_t total_count;
    struct profile_site *sites; /* those in use, in the order of the trace */
    size_t site_count;
    uint64_t busy_slots;   /* half-written entries of the live table: allocations in flight */
    uint64_t orphan_slots; /* entries that name no site: only in a damaged trace */
    uint64_t orphan_bytes;
    uint64_t end_of_work_ns; /* of all ledgers: when the last allocation was made */
    uint64_t last_ns;        /* of the latest event seen */
};

/* NULL only when memory is exhausted. */
struct profile *profile_build(const struct trace *trace);
void profile_free(struct profile *profile);

/* NULL where the process never used such memory. */
const struct profile_total *profile_total(const struct profile *profile, enum trace_ledger ledger,
                                          enum trace_group group, unsigned device);
const struct profile_kind *profile_kind(const struct profile *profile, enum trace_ledger ledger,
                                        enum trace_kind kind, unsigned device);

/* When the last allocation of a ledger was made; 0: it has none. */
uint64_t profile_end_of_work(const struct profile *profile, enum trace_ledger ledger);

#endif
