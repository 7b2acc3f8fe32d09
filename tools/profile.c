/*
 * Builds the books of one process from its trace. See profile.h; one thread at a time.
 *
 * Order of work: the live table is summed by site first; then each site's counters are corrected to
 * agree with its slots (rule 2); then each total is the sum of its sites, its peak corrected (rule
 * 3); then the shares of sites in peak and end of work, which need the totals; last the segments.
 */
#include "profile.h"

#include "segments.h"

#include <stdlib.h>

/* What the slots of one site hold. */
struct holding {
    uint64_t bytes;
    uint64_t count;
    uint32_t newest_ms;
};

struct builder {
    struct profile *profile;
    struct holding *holdings; /* by index of the site's record */
    size_t holding_count;
    bool *work_is_now; /* by total: an allocation is in flight, so work has not ended before it */
    bool failed;
};

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t difference(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* ---- the live table -------------------------------------------------------------------------- */

static void count_slot(struct builder *builder, const struct trace_slot *slot) {
    struct profile *profile = builder->profile;
    struct trace_slot block;
    unsigned state = trace_slot_read(slot, &block);
    if (state == TRACE_SLOT_EMPTY)
        return;
    if (state != TRACE_SLOT_LIVE && state != TRACE_SLOT_FREEING) {
        profile->busy_slots++;
        return;
    }
    ptrdiff_t index = trace_record_index(profile->trace, TRACE_SECTION_SITES, block.site);
    if (index < 0 || !trace_record(profile->trace, TRACE_SECTION_SITES, (size_t)index)) {
        profile->orphan_slots++;
        profile->orphan_bytes += block.bytes;
        return;
    }
    struct holding *holding = &builder->holdings[index];
    holding->bytes += block.bytes;
    holding->count++;
    if (block.time_ms > holding->newest_ms)
        holding->newest_ms = block.time_ms;
}

static void sum_live_table(struct builder *builder) {
    const struct trace *trace = builder->profile->trace;
    for (unsigned t = 0;; t++) {
        struct trace_slots table = trace_live_table(trace, t);
        if (table.count == 0)
            return;
        for (size_t i = 0; i < table.count; i++)
            count_slot(builder, trace_slot_at(&table, i));
    }
}

/* ---- totals ---------------------------------------------------------------------------------- */

static uint16_t device_of(enum trace_group group, uint16_t device) {
    return group == TRACE_GROUP_HOST || group == TRACE_GROUP_REGISTERED ? TRACE_DEVICE_HOST
                                                                        : device;
}

static struct profile_total *find_total(const struct profile *profile, unsigned ledger,
                                        unsigned group, unsigned device) {
    for (size_t i = 0; i < profile->total_count; i++) {
        struct profile_total *total = &profile->totals[i];
        if (total->ledger == ledger && total->group == group && total->device == device)
            return total;
    }
    return NULL;
}

/* `totals` grows by doubling: its capacity is the power of two at or above its count. */
static struct profile_total *add_total(struct builder *builder, unsigned ledger, unsigned group,
                                       unsigned device) {
    struct profile *profile = builder->profile;
    size_t count = profile->total_count;
    if ((count & (count - 1)) == 0) {
        size_t room = count ? 2 * count : 1;
        struct profile_total *grown = realloc(profile->totals, room * sizeof *grown);
        if (!grown) {
            builder->failed = true;
            return NULL;
        }
        profile->totals = grown;
    }
    profile->totals[count] = (struct profile_total){
        .ledger = (uint8_t)ledger, .group = (uint8_t)group, .device = (uint16_t)device};
    profile->total_count = count + 1;
    return &profile->totals[count];
}

static void read_totals(struct builder *builder) {
    const struct trace *trace = builder->profile->trace;
    size_t count = trace_record_count(trace, TRACE_SECTION_TOTALS);
    for (size_t i = 0; i < count; i++) {
        const struct trace_total *record = trace_record(trace, TRACE_SECTION_TOTALS, i);
        if (!record)
            continue;
        uint16_t device = device_of((enum trace_group)record->group, record->device);
        if (find_total(builder->profile, record->ledger, record->group, device))
            continue;
        struct profile_total *total = add_total(builder, record->ledger, record->group, device);
        if (!total)
            return;
        total->record = record;
        total->peak_bytes = record->peak_bytes;
        total->peak_ns = record->peak_ns;
        total->below_90_ns = record->below_90_ns;
        total->first_ns = record->first_ns;
        total->last_alloc_ns = record->last_alloc_ns;
        total->last_ns = record->last_ns;
        for (unsigned kind = 0; kind < TRACE_KIND_SLOTS; kind++)
            total->kinds[kind].peak_bytes = record->kind_peak_bytes[kind];
    }
}

/* ---- sites ----------------------------------------------------------------------------------- */

/* Rule 2: where the slots hold more than allocations less frees, an allocation has not been counted
   yet; where they hold less, a free. */
static void agree(uint64_t held, uint64_t *added, uint64_t *removed) {
    int64_t missing = (int64_t)(held - (*added - *removed));
    if (missing > 0)
        *added += (uint64_t)missing;
    else
        *removed += (uint64_t)-missing;
}

static void read_site(struct profile_site *site, const struct trace_site *record,
                      const struct holding *holding) {
    site->record = record;
    site->ledger = record->ledger;
    site->kind = record->kind;
    site->device = device_of(trace_kind_group(record->kind), record->device);
    site->flags = record->flags;
    site->native_stack = record->native_stack;
    site->python_stack = record->python_stack;
    site->called_from = record->called_from;
    site->live_bytes = holding->bytes;
    site->live_count = holding->count;
    site->allocs = record->allocs + record->late_allocs;
    site->alloc_bytes = record->alloc_bytes + record->late_alloc_bytes;
    site->frees = record->frees + record->late_frees;
    site->free_bytes = record->free_bytes + record->late_free_bytes;
    /* The shares by the counters as written; finish_site() replaces them where it knows better. */
    site->at_peak_bytes = difference(site->alloc_bytes, site->free_bytes);
    site->end_of_work_bytes = site->at_peak_bytes;
    site->end_of_work_count = difference(site->allocs, site->frees);
    agree(site->live_count, &site->allocs, &site->frees);
    agree(site->live_bytes, &site->alloc_bytes, &site->free_bytes);
    uint64_t newest_ns = holding->newest_ms * 1000000ull;
    site->own_peak_bytes = larger(record->own_peak_bytes, site->live_bytes);
    site->first_ns = record->first_ns;
    site->last_ns = larger(record->last_ns, newest_ns);
}

static void add_to_total(struct profile_total *total, const struct profile_site *site) {
    struct profile_kind *kind = &total->kinds[site->kind < TRACE_KIND_SLOTS ? site->kind : 0];
    kind->live_bytes += site->live_bytes;
    kind->live_count += site->live_count;
    kind->allocs += site->allocs;
    kind->frees += site->frees;
    total->live_bytes += site->live_bytes;
    total->live_count += site->live_count;
    total->allocs += site->allocs;
    total->frees += site->frees;
    total->last_ns = larger(total->last_ns, site->last_ns);
}

static void read_sites(struct builder *builder) {
    struct profile *profile = builder->profile;
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_SITES);
    if (count > builder->holding_count)
        count = builder->holding_count;
    profile->sites = calloc(count + 1, sizeof *profile->sites);
    builder->failed |= !profile->sites;
    for (size_t i = 0; i < count && !builder->failed; i++) {
        const struct trace_site *record = trace_record(profile->trace, TRACE_SECTION_SITES, i);
        if (!record)
            continue;
        struct profile_site *site = &profile->sites[profile->site_count];
        read_site(site, record, &builder->holdings[i]);
        site->index = (uint32_t)i;
        enum trace_group group = trace_kind_group(site->kind);
        struct profile_total *total = find_total(profile, site->ledger, group, site->device);
        if (!total)
            total = add_total(builder, site->ledger, group, site->device);
        if (!total)
            return;
        site->total = (uint32_t)(total - profile->totals);
        add_to_total(total, site);
        profile->site_count++;
    }
}

/* ---- peaks and ends -------------------------------------------------------------------------- */

/* The time of what no counter has noted yet is that of the newest block. */
static void finish_total(struct builder *builder, struct profile_total *total) {
    bool in_flight = total->allocs > (total->record ? total->record->allocs : 0);
    builder->work_is_now[total - builder->profile->totals] = in_flight;
    if (in_flight)
        total->last_alloc_ns = total->last_ns;
    if (total->live_bytes > total->peak_bytes) {
        total->peak_is_now = true;
        total->peak_bytes = total->live_bytes;
        total->peak_ns = total->last_ns;
        total->below_90_ns = 0;
    }
    for (unsigned kind = 0; kind < TRACE_KIND_SLOTS; kind++)
        total->kinds[kind].peak_bytes =
            larger(total->kinds[kind].peak_bytes, total->kinds[kind].live_bytes);
    total->residue_bytes = (int64_t)total->peak_bytes;
}

static void finish_site(const struct builder *builder, struct profile_site *site) {
    struct profile_total *total = &builder->profile->totals[site->total];
    const struct trace_site *record = site->record;
    if (total->peak_is_now)
        site->at_peak_bytes = site->live_bytes;
    else if (total->record && record->peak_epoch == total->record->peak_bytes)
        site->at_peak_bytes = record->at_peak_bytes;
    if (builder->work_is_now[site->total]) {
        site->end_of_work_bytes = site->live_bytes;
        site->end_of_work_count = site->live_count;
    } else if (total->record && record->work_epoch == total->record->allocs) {
        site->end_of_work_bytes = record->at_work_bytes;
        site->end_of_work_count = record->at_work_count;
    }
    total->residue_bytes = (int64_t)((uint64_t)total->residue_bytes - site->at_peak_bytes);
    total->end_of_work_bytes += site->end_of_work_bytes;
    total->end_of_work_count += site->end_of_work_count;
}

static void finish(struct builder *builder) {
    struct profile *profile = builder->profile;
    builder->work_is_now = calloc(profile->total_count + 1, sizeof *builder->work_is_now);
    if (!builder->work_is_now) {
        builder->failed = true;
        return;
    }
    for (size_t i = 0; i < profile->total_count; i++) {
        finish_total(builder, &profile->totals[i]);
        profile->end_of_work_ns = larger(profile->end_of_work_ns, profile->totals[i].last_alloc_ns);
        profile->last_ns = larger(profile->last_ns, profile->totals[i].last_ns);
    }
    for (size_t i = 0; i < profile->site_count; i++)
        finish_site(builder, &profile->sites[i]);
}

struct profile *profile_build(const struct trace *trace) {
    struct profile *profile = calloc(1, sizeof *profile);
    if (!profile)
        return NULL;
    profile->trace = trace;
    struct builder builder = {.profile = profile};
    builder.holding_count = trace_record_room(trace, TRACE_SECTION_SITES);
    builder.holdings = calloc(builder.holding_count + 1, sizeof *builder.holdings);
    builder.failed = !builder.holdings;
    if (!builder.failed) {
        sum_live_table(&builder);
        read_totals(&builder);
    }
    if (!builder.failed)
        read_sites(&builder);
    if (!builder.failed)
        finish(&builder);
    if (!builder.failed)
        builder.failed = !segments_find(profile);
    free(builder.holdings);
    free(builder.work_is_now);
    if (builder.failed) {
        profile_free(profile);
        return NULL;
    }
    return profile;
}

void profile_free(struct profile *profile) {
    if (!profile)
        return;
    free(profile->totals);
    free(profile->sites);
    free(profile);
}

/* ---- look-ups -------------------------------------------------------------------------------- */

const struct profile_total *profile_total(const struct profile *profile, enum trace_ledger ledger,
                                          enum trace_group group, unsigned device) {
    return find_total(profile, ledger, group, device_of(group, (uint16_t)device));
}

const struct profile_kind *profile_kind(const struct profile *profile, enum trace_ledger ledger,
                                        enum trace_kind kind, unsigned device) {
    const struct profile_total *total =
        profile_total(profile, ledger, trace_kind_group(kind), device);
    return total && (unsigned)kind < TRACE_KIND_SLOTS ? &total->kinds[kind] : NULL;
}

uint64_t profile_end_of_work(const struct profile *profile, enum trace_ledger ledger) {
    uint64_t last = 0;
    for (size_t i = 0; i < profile->total_count; i++)
        if (profile->totals[i].ledger == (uint8_t)ledger)
            last = larger(last, profile->totals[i].last_alloc_ns);
    return last;
}
