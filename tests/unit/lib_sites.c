/*
 * Sites and totals: against a plain model when one thread writes, against sums when eight do.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atomic.h"
#include "sites.h"
#include "windows.h"

#define SITES 6

static char path[64];
static struct trace_writer trace;
static struct sites *sites;
static struct trace_header *header;

static void open_trace(uint64_t max_bytes) {
    header = calloc(1, TRACE_HEADER_BYTES);
    snprintf(path, sizeof path, "/tmp/cuheap-unit-%d.trace", getpid());
    cr_assert_eq(trace_create(&trace, path, 0600, max_bytes, header), 0);
    sites = calloc(1, sizeof *sites);
    cr_assert(sites_init(sites, &trace));
}

static void drop_trace(void) {
    unlink(path);
}

TestSuite(sites, .fini = drop_trace);

static struct trace_site *site_number(uint32_t n) {
    struct site_key key = {
        .ledger = TRACE_LEDGER_DRIVER, .kind = TRACE_KIND_DEVICE, .device = 0, .native_stack = n};
    return sites_get(sites, &key);
}

static struct trace_total *total(void) {
    return sites->totals[0][TRACE_GROUP_DEVICE][0];
}

static uint64_t live(const struct trace_site *s) {
    return s->alloc_bytes + s->late_alloc_bytes - s->free_bytes - s->late_free_bytes;
}

static uint64_t at_peak(const struct trace_site *s) {
    return s->peak_epoch == total()->peak_bytes ? s->at_peak_bytes : live(s);
}

static uint64_t at_work(const struct trace_site *s) {
    return s->work_epoch == total()->allocs ? s->at_work_bytes : live(s);
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 33;
}

Test(sites, one_key_is_one_site) {
    open_trace(16 << 20);
    struct trace_site *a = site_number(1);
    cr_assert_eq(site_number(1), a);
    cr_assert_neq(site_number(2), a);
    struct site_key key = {
        .ledger = TRACE_LEDGER_DRIVER, .kind = TRACE_KIND_POOL, .device = 0, .native_stack = 1};
    cr_assert_neq(sites_get(sites, &key), a);
    key.device = 1;
    cr_assert_neq(sites_get(sites, &key), site_number(1));
}

/* The model: everything at once, by brute force, after each event. */
struct model {
    uint64_t live[SITES], allocs[SITES], frees[SITES], own_peak[SITES];
    uint64_t total, peak, peak_ns, share[SITES], work[SITES], last_alloc_ns;
};

static void model_event(struct model *m, int site, uint64_t bytes, bool alloc, uint64_t ns) {
    m->live[site] += alloc ? bytes : -bytes;
    m->total += alloc ? bytes : -bytes;
    (alloc ? m->allocs : m->frees)[site]++;
    if (m->live[site] > m->own_peak[site])
        m->own_peak[site] = m->live[site];
    if (m->total > m->peak) {
        m->peak = m->total;
        m->peak_ns = ns;
        memcpy(m->share, m->live, sizeof m->share);
    }
    if (alloc) {
        memcpy(m->work, m->live, sizeof m->work);
        m->last_alloc_ns = ns;
    }
}

Test(sites, peak_shares_and_end_of_work_are_exact_for_one_thread) {
    struct model m = {0};
    uint64_t seed = 42, ns = 0, blocks[512], owner[512];
    int held = 0;
    open_trace(16 << 20);
    for (int i = 0; i < 200000; i++) {
        ns += next_random(&seed) % 100000 + 1;
        /* Waves, so that there are many peaks and many descents from them. */
        bool alloc =
            held == 0 || (held < 512 && next_random(&seed) % 100 < (i / 700 % 2 ? 60 : 40));
        int at = alloc ? held : (int)(next_random(&seed) % (uint64_t)held);
        if (alloc) {
            blocks[at] = next_random(&seed) % 100000 + 1;
            owner[at] = next_random(&seed) % SITES;
            held++;
        }
        struct site_event event = {ns, blocks[at], alloc};
        struct trace_site *site = site_number((uint32_t)owner[at] + 1);
        sites_change(sites, site, &event);
        model_event(&m, (int)owner[at], blocks[at], alloc, ns);
        if (!alloc) {
            held--;
            blocks[at] = blocks[held];
            owner[at] = owner[held];
        }
        if (i % 97 && i != 199999)
            continue;
        cr_assert_eq(total()->live_bytes, m.total);
        cr_assert_eq(total()->peak_bytes, m.peak);
        cr_assert_eq(total()->peak_ns, m.peak_ns);
        cr_assert_eq(total()->last_alloc_ns, m.last_alloc_ns);
        for (int s = 0; s < SITES; s++) {
            const struct trace_site *real = site_number((uint32_t)s + 1);
            cr_assert_eq(live(real), m.live[s]);
            cr_assert_eq(real->allocs, m.allocs[s]);
            cr_assert_eq(real->frees, m.frees[s]);
            cr_assert_eq(real->own_peak_bytes, m.own_peak[s]);
            cr_assert_eq(at_peak(real), m.share[s], "event %d site %d", i, s);
            cr_assert_eq(at_work(real), m.work[s]);
        }
    }
    cr_assert_eq(trace.header->losses[TRACE_LOSS_COUNTERS_DELAYED], 0);
}

Test(sites, below_90_percent_is_noted_once_and_forgotten_at_a_new_peak) {
    open_trace(16 << 20);
    struct trace_site *site = site_number(1);
    const struct {
        uint64_t ns, bytes;
        bool alloc;
        uint64_t below;
    } steps[] = {
        {10, 1000, true, 0}, {20, 50, false, 0}, {30, 60, false, 30},
        {40, 90, false, 30}, {50, 500, true, 0}, {60, 1300, false, 60},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct site_event event = {steps[i].ns, steps[i].bytes, steps[i].alloc};
        sites_change(sites, site, &event);
        cr_assert_eq(total()->below_90_ns, steps[i].below, "step %zu", i);
    }
}

/* ---- windows
 * -------------------------------------------------------------------------------------------- */

struct sample {
    uint64_t ns, after;
    bool alloc;
};

/* A window by definition: all that happened in [from, to), and what was live when it began. */
static struct trace_window by_hand(const struct sample *samples, size_t count, uint64_t from,
                                   uint64_t to, bool *born) {
    struct trace_window w = {0};
    uint64_t live_now = 0;
    bool begun = false;
    for (size_t i = 0; i < count && samples[i].ns < to; i++) {
        if (samples[i].ns >= from) {
            if (!begun) {
                w.min_bytes = w.max_bytes = live_now;
                begun = true;
            }
            if (samples[i].after < w.min_bytes)
                w.min_bytes = samples[i].after;
            if (samples[i].after > w.max_bytes)
                w.max_bytes = samples[i].after;
            w.allocs += samples[i].alloc;
            w.frees += !samples[i].alloc;
        }
        live_now = samples[i].after;
    }
    if (!begun)
        w.min_bytes = w.max_bytes = live_now;
    w.last_bytes = live_now;
    *born = count && samples[0].ns < to;
    return w;
}

Test(windows, equal_the_definition_at_every_width) {
    static struct sample samples[4000];
    for (uint64_t round = 1; round <= 40; round++) {
        struct trace_window window[TRACE_SITE_WINDOWS] = {{0}};
        uint32_t shift = 0, current = 0;
        struct windows w = {window, TRACE_SITE_WINDOWS, &shift, &current};
        uint64_t seed = round, ns = next_random(&seed) % 50000000, now = 0;
        size_t count = 0;
        for (; count < sizeof samples / sizeof *samples; count++) {
            bool alloc = now == 0 || next_random(&seed) & 1;
            uint64_t bytes = alloc ? next_random(&seed) % 1000 + 1 : next_random(&seed) % now + 1;
            uint64_t after = alloc ? now + bytes : now - bytes;
            windows_change(&w, ns, now, after, alloc, !alloc);
            samples[count] = (struct sample){ns, after, alloc};
            now = after;
            ns += next_random(&seed) % (1ull << (10 + round % 25)) + 1;
        }
        cr_assert_lt(samples[count - 1].ns >> shift, TRACE_SITE_WINDOWS);
        cr_assert_eq(current, samples[count - 1].ns >> shift);
        for (uint32_t i = 0; i <= current; i++) {
            bool born;
            struct trace_window want =
                by_hand(samples, count, (uint64_t)i << shift, (uint64_t)(i + 1) << shift, &born);
            cr_assert_arr_eq(&window[i], &want, sizeof want, "round %lu window %u", round, i);
        }
    }
}

/* ---- threads
 * -------------------------------------------------------------------------------------------- */

static void *hammer(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument, held = 0;
    struct trace_site *mine = site_number((uint32_t)(seed % 3) + 1);
    for (int i = 0; i < 100000; i++) {
        bool alloc = held < 4096 && (held == 0 || next_random(&seed) & 1);
        struct site_event event = {(uint64_t)i * 1000 + 1, 64, alloc};
        sites_change(sites, mine, &event);
        held += alloc ? 64 : -64;
    }
    return (void *)(uintptr_t)held;
}

Test(sites, eight_threads_lose_no_byte) {
    pthread_t threads[8];
    uint64_t held = 0, sum = 0, allocs = 0, frees = 0, shares = 0;
    open_trace(16 << 20);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, hammer, (void *)(i + 1));
    for (int i = 0; i < 8; i++) {
        void *left;
        pthread_join(threads[i], &left);
        held += (uintptr_t)left;
    }
    for (uint32_t s = 1; s <= 3; s++) {
        const struct trace_site *site = site_number(s);
        cr_assert_eq(site->version % 2, 0);
        sum += live(site);
        allocs += site->allocs + site->late_allocs;
        frees += site->frees + site->late_frees;
        shares += at_peak(site);
    }
    cr_assert_eq(sum, held);
    cr_assert_eq(allocs + frees, 800000);
    cr_assert_eq(total()->live_bytes, held);
    cr_assert_eq(total()->allocs, allocs);
    cr_assert_eq(total()->frees, frees);
    /* Shares in the peak may be off by what was in flight: eight events and what came late. */
    uint64_t late = trace.header->losses[TRACE_LOSS_COUNTERS_DELAYED];
    int64_t off = (int64_t)(shares - total()->peak_bytes);
    cr_assert_leq(llabs(off), (int64_t)((8 + late) * 64));
}

static void *meet(void *unused) {
    (void)unused;
    for (uint32_t n = 1; n <= 2000; n++) {
        struct site_event event = {n, n, true};
        sites_change(sites, site_number(n), &event);
    }
    return NULL;
}

Test(sites, threads_that_meet_at_a_new_site_agree_on_it) {
    pthread_t threads[8];
    uint64_t used = 0, bytes = 0;
    open_trace(64 << 20);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, meet, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < trace.header->directory_count; i++) {
        const struct trace_region *r =
            (const struct trace_region *)(trace.base + TRACE_DIRECTORY_OFFSET) + i;
        if (r->section != TRACE_SECTION_SITES)
            continue;
        const struct trace_site *site = (const void *)(trace.base + r->offset);
        uint64_t end = r->claimed < r->bytes ? r->claimed : r->bytes;
        for (uint64_t n = end / sizeof *site; n--; site++)
            if (site->state == TRACE_SITE_USED) {
                used++;
                bytes += live(site);
            }
    }
    cr_assert_eq(used, 2000);
    cr_assert_eq(bytes, 8ull * 2000 * 2001 / 2);
}

Test(sites, without_room_events_go_to_other_and_totals_stay_exact) {
    open_trace(1 << 20);
    uint64_t bytes = 0;
    struct trace_site *last = NULL;
    for (uint32_t n = 1; n <= 3000; n++) {
        struct site_event event = {n, n, true};
        last = site_number(n);
        cr_assert_not_null(last);
        sites_change(sites, last, &event);
        bytes += n;
    }
    cr_assert(last->flags & TRACE_SITE_OTHER);
    cr_assert_gt(trace.header->losses[TRACE_LOSS_SITES_FULL], 0);
    cr_assert_eq(total()->live_bytes, bytes);
}

/* The space that a site would take could never be found again. */
Test(sites, a_full_index_takes_nothing_from_the_trace) {
    open_trace(8 << 20);
    struct trace_site *first = site_number(1);
    cr_assert_eq(first->flags & TRACE_SITE_OTHER, 0);
    const struct trace_region *region = trace.current[TRACE_SECTION_SITES];
    uint64_t claimed = region->claimed;
    sites->index.used = sites->index.mask;
    for (uint32_t n = 2; n < 6; n++)
        cr_assert(site_number(n)->flags & TRACE_SITE_OTHER);
    cr_assert_eq(trace.header->losses[TRACE_LOSS_SITES_FULL], 4);
    cr_assert_eq(trace.current[TRACE_SECTION_SITES], region);
    cr_assert_eq(region->claimed, claimed);
    cr_assert_eq(site_number(1), first);
}

Test(sites, a_change_that_finds_the_site_taken_is_kept_for_later) {
    open_trace(16 << 20);
    struct trace_site *site = site_number(1);
    struct site_event event = {5, 100, true};
    site->version = 7; /* somebody is at it and does not come back */
    sites_change(sites, site, &event);
    cr_assert_eq(site->allocs, 0);
    cr_assert_eq(site->late_allocs, 1);
    cr_assert_eq(live(site), 100);
    cr_assert_eq(trace.header->losses[TRACE_LOSS_COUNTERS_DELAYED], 1);
    site->version = 8;
    sites_change(sites, site, &event);
    cr_assert_eq(site->late_allocs, 0);
    cr_assert_eq(site->allocs, 2);
    cr_assert_eq(site->alloc_bytes, 200);
}
