#include "sites.h"

#include <string.h>

#include "atomic.h"
#include "windows.h"

#define MEETING_SPINS 64 /* tries for a site's version before the change is left for the other */

static uint64_t key_hash(const struct site_key *key) {
    uint64_t x = (uint64_t)key->native_stack << 32 | key->python_stack;
    x ^= ((uint64_t)key->ledger << 24 | (uint64_t)key->kind << 16 | key->device) *
         0x9e3779b97f4a7c15ull;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 29;
}

static bool matches(const void *owner, uint32_t ref, const void *wanted) {
    const struct trace_site *site = trace_at(owner, ref);
    const struct site_key *key = wanted;
    return site->ledger == key->ledger && site->kind == key->kind && site->device == key->device &&
           site->native_stack == key->native_stack && site->python_stack == key->python_stack;
}

static void fill(struct trace_site *site, const struct site_key *key, uint64_t hash) {
    site->ledger = key->ledger;
    site->kind = key->kind;
    site->device = key->device;
    site->native_stack = key->native_stack;
    site->python_stack = key->python_stack;
    site->flags = key->flags;
    site->hash = hash;
    /* Pairs with the reader of the trace. */
    store_release(&site->state, TRACE_SITE_USED);
}

bool sites_init(struct sites *sites, struct trace_writer *trace) {
    sites->trace = trace;
    if (!index_init(&sites->index, SITES_INDEX_BITS))
        return false;
    sites->reserve =
        trace_append(trace, TRACE_SECTION_SITES, SITES_RESERVE * sizeof(struct trace_site),
                     sizeof(struct trace_site));
    return sites->reserve != NULL;
}

/* Takes a reserved record by swapping its state from unused to a claim; claims are never undone. */
static struct trace_site *other_site(struct sites *sites, struct site_key key) {
    key.native_stack = key.python_stack = 0;
    key.flags = TRACE_SITE_OTHER;
    trace_lose(sites->trace, TRACE_LOSS_SITES_FULL, 1);
    for (int i = 0; i < SITES_RESERVE; i++) {
        struct trace_site *site = &sites->reserve[i];
        uint32_t none = 0;
        /* version claims it: two threads may make two (other) sites of one key; both count. */
        if (load_acquire(&site->state) == TRACE_SITE_UNUSED &&
            cas_acq_rel(&site->version, &none, 2u)) {
            fill(site, &key, 0);
            return site;
        }
        if (load_acquire(&site->state) == TRACE_SITE_USED &&
            matches(sites->trace, trace_ref(sites->trace, site), &key))
            return site;
    }
    return NULL;
}

struct trace_site *sites_get(struct sites *sites, const struct site_key *key) {
    struct trace_writer *trace = sites->trace;
    uint64_t hash = key_hash(key);
    uint32_t ref = index_find(&sites->index, hash, matches, trace, key);
    if (ref)
        return trace_at(trace, ref);
    struct trace_site *site = NULL;
    if (index_has_room(&sites->index))
        site = trace_append(trace, TRACE_SECTION_SITES, sizeof *site, sizeof *site);
    if (!site)
        return other_site(sites, *key);
    fill(site, key, hash);
    uint32_t mine = trace_ref(trace, site);
    ref = index_add(&sites->index, hash, mine, matches, trace, key);
    if (ref == mine)
        return site;
    store_release(&site->state, TRACE_SITE_UNUSED); /* another thread's is the one */
    return ref ? trace_at(trace, ref) : other_site(sites, *key);
}

/* ---- a site's counters ----------------------------------------------------------------------- */

/* True with an even version made odd: the counters are ours until leave(). */
static bool enter(uint32_t *version) {
    for (int spin = 0; spin < MEETING_SPINS; spin++) {
        uint32_t seen = load_relaxed(version);
        /* Pairs with the release in leave. */
        if (!(seen & 1) && cas_acq_rel(version, &seen, seen + 1))
            return true;
        cpu_pause();
    }
    return false;
}

static void leave(uint32_t *version) {
    store_release(version, load_relaxed(version) + 1);
}

static void take_late(struct trace_site *site) {
    if (!load_relaxed(&site->late_allocs) && !load_relaxed(&site->late_frees))
        return;
    add_owned(&site->alloc_bytes, exchange_relaxed(&site->late_alloc_bytes, 0));
    add_owned(&site->allocs, exchange_relaxed(&site->late_allocs, 0));
    add_owned(&site->free_bytes, exchange_relaxed(&site->late_free_bytes, 0));
    add_owned(&site->frees, exchange_relaxed(&site->late_frees, 0));
}

static void leave_late(struct trace_site *site, const struct site_event *event) {
    if (event->alloc) {
        add_relaxed(&site->late_alloc_bytes, event->bytes);
        add_relaxed(&site->late_allocs, 1);
    } else {
        add_relaxed(&site->late_free_bytes, event->bytes);
        add_relaxed(&site->late_frees, 1);
    }
}

/* What a share is about to lose is saved before the epoch that names it, and both before the
   change: a reader at any instruction finds either the old rule or the new one to be right. */
static void save_shares(struct trace_site *site, const struct trace_total *total, uint64_t live) {
    uint64_t peak = load_relaxed(&total->peak_bytes);
    if (site->peak_epoch != peak) {
        store_relaxed(&site->at_peak_bytes, live);
        store_release(&site->peak_epoch, peak);
    }
    uint64_t work = load_relaxed(&total->allocs);
    if (site->work_epoch != work) {
        store_relaxed(&site->at_work_bytes, live);
        store_relaxed(&site->at_work_count, site->allocs - site->frees);
        store_release(&site->work_epoch, work);
    }
}

static unsigned size_class(uint64_t bytes) {
    unsigned log2 = 63 - (unsigned)__builtin_clzll(bytes | 1);
    return log2 < TRACE_SIZE_CLASSES ? log2 : TRACE_SIZE_CLASSES - 1;
}

static void change_site(struct trace_site *site, const struct trace_total *total,
                        const struct site_event *event) {
    take_late(site);
    uint64_t before = site->alloc_bytes - site->free_bytes;
    uint64_t after = event->alloc ? before + event->bytes : before - event->bytes;
    if (total)
        save_shares(site, total, before);
    if (event->alloc) {
        store_release(&site->alloc_bytes, site->alloc_bytes + event->bytes);
        store_release(&site->allocs, site->allocs + 1);
        site->sizes[size_class(event->bytes)]++;
        if (after > site->own_peak_bytes)
            store_relaxed(&site->own_peak_bytes, after);
    } else {
        store_release(&site->free_bytes, site->free_bytes + event->bytes);
        store_release(&site->frees, site->frees + 1);
    }
    if (!site->first_ns)
        site->first_ns = event->ns;
    site->last_ns = event->ns;
    struct windows windows = {site->windows, TRACE_SITE_WINDOWS, &site->window_shift,
                              &site->window_current};
    windows_change(&windows, event->ns, before, after, event->alloc, !event->alloc);
}

/* ---- a total's counters ---------------------------------------------------------------------- */

static struct trace_total *add_total(struct sites *sites, struct trace_total **place,
                                     const struct trace_site *site) {
    struct trace_total *total =
        trace_append(sites->trace, TRACE_SECTION_TOTALS, sizeof *total, sizeof *total);
    if (!total) {
        trace_lose(sites->trace, TRACE_LOSS_RECORDS_FULL, 1);
        return NULL;
    }
    total->ledger = site->ledger;
    total->group = sites_group(site->kind);
    total->device = site->device;
    struct trace_total *none = NULL;
    /* Two threads may both make it: the loser's record is never published. */
    if (!cas_acq_rel(place, &none, total))
        return none;
    store_release(&total->state, 1u); /* pairs with the reader */
    return total;
}

static struct trace_total *total_of(struct sites *sites, const struct trace_site *site) {
    struct trace_total **place = sites_total_place(sites, site->ledger, site->kind, site->device);
    struct trace_total *total = load_acquire(place); /* pairs with the swap in add_total */
    return total ? total : add_total(sites, place, site);
}

static void change_total_windows(struct sites *sites, struct trace_total *total,
                                 const struct site_event *event, uint64_t before, uint64_t after) {
    uint32_t seen = load_relaxed(&total->version);
    /* No waiting here: a missed sample of the timeline is made good by the next event. */
    if ((seen & 1) || !cas_acq_rel(&total->version, &seen, seen + 1)) {
        add_relaxed(event->alloc ? &total->late_allocs : &total->late_frees, 1);
        trace_lose(sites->trace, TRACE_LOSS_BUCKETS_SKIPPED, 1);
        return;
    }
    uint64_t allocs = exchange_relaxed(&total->late_allocs, 0) + event->alloc;
    uint64_t frees = exchange_relaxed(&total->late_frees, 0) + !event->alloc;
    struct windows windows = {total->windows, TRACE_TOTAL_WINDOWS, &total->window_shift,
                              &total->window_current};
    windows_change(&windows, event->ns, before, after, (uint32_t)allocs, (uint32_t)frees);
    leave(&total->version);
}

static void raise_peaks(struct trace_total *total, unsigned kind, uint64_t live, uint64_t kind_live,
                        uint64_t ns) {
    raise_relaxed(&total->kind_peak_bytes[kind], kind_live);
    if (raise_relaxed(&total->peak_bytes, live)) {
        store_relaxed(&total->peak_ns, ns);
        store_relaxed(&total->below_90_ns, 0);
    }
}

static void change_total(struct sites *sites, struct trace_total *total, unsigned kind,
                         const struct site_event *event) {
    uint64_t delta = event->alloc ? event->bytes : -event->bytes;
    uint64_t before = add_relaxed(&total->live_bytes, delta);
    uint64_t kind_live = add_relaxed(&total->kind_live_bytes[kind], delta) + delta;
    uint64_t live = before + delta;
    if (event->alloc) {
        raise_peaks(total, kind, live, kind_live, event->ns);
        store_relaxed(&total->last_alloc_ns, event->ns);
        add_relaxed(&total->allocs, 1); /* a new end of work: see save_shares */
    } else {
        uint64_t peak = load_relaxed(&total->peak_bytes);
        if (live < peak - peak / 10 && !load_relaxed(&total->below_90_ns))
            store_relaxed(&total->below_90_ns, event->ns);
        add_relaxed(&total->frees, 1);
    }
    if (!load_relaxed(&total->first_ns))
        store_relaxed(&total->first_ns, event->ns);
    store_relaxed(&total->last_ns, event->ns);
    change_total_windows(sites, total, event, before, live);
}

void sites_change(struct sites *sites, struct trace_site *site, const struct site_event *event) {
    struct trace_total *total = total_of(sites, site);
    if (enter(&site->version)) {
        change_site(site, total, event);
        leave(&site->version);
    } else {
        leave_late(site, event);
        trace_lose(sites->trace, TRACE_LOSS_COUNTERS_DELAYED, 1);
    }
    if (total)
        change_total(sites, total, site->kind, event);
}
