/*
 * Sites and totals under interleavings of our choosing: no byte is lost or doubled, whatever the
 * order of the atomic steps of several writers at the same sites. See interleave.h.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "atomic.h"
#include "interleave.h"

#undef load_relaxed
#undef store_relaxed
#undef store_release
#undef add_relaxed
#undef exchange_relaxed
#undef cas_acq_rel
#define load_relaxed(p)        (stop(), __atomic_load_n((p), __ATOMIC_RELAXED))
#define store_relaxed(p, v)    (stop(), __atomic_store_n((p), (v), __ATOMIC_RELAXED))
#define store_release(p, v)    (stop(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define add_relaxed(p, v)      (stop(), __atomic_fetch_add((p), (v), __ATOMIC_RELAXED))
#define exchange_relaxed(p, v) (stop(), __atomic_exchange_n((p), (v), __ATOMIC_RELAXED))
#define cas_acq_rel(p, expected, desired)                                                          \
    (stop(), __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_ACQ_REL,      \
                                         __ATOMIC_ACQUIRE))
#define sites_init   stepped_sites_init
#define sites_get    stepped_sites_get
#define sites_change stepped_sites_change
#include "../../lib/sites.c"

#define SITES  3
#define HELD   20
#define ROUNDS 100

static char path[64];
static struct trace_writer trace;
static struct sites *books;
static uint64_t left, now;
static uint64_t live_model[SITES], allocs_model[SITES], frees_model[SITES], peak_model, sum_model;

static struct trace_site *site_number(uint32_t n) {
    struct site_key key = {.ledger = TRACE_LEDGER_DRIVER,
                           .kind = TRACE_KIND_DEVICE,
                           .device = 0,
                           .native_stack = n + 1};
    return sites_get(books, &key);
}

/* The model books the event when it is handed over, before any of its steps. */
static void change(uint32_t n, uint64_t bytes, bool alloc) {
    struct site_event event = {now += 1000, bytes, alloc};
    live_model[n] += alloc ? bytes : -bytes;
    sum_model += alloc ? bytes : -bytes;
    (alloc ? allocs_model : frees_model)[n]++;
    if (sum_model > peak_model)
        peak_model = sum_model;
    sites_change(books, site_number(n), &event);
}

static void body(void) {
    uint64_t bytes[HELD];
    uint32_t owner[HELD];
    int me = running, held = 0;
    while (left) {
        left--;
        if (held == HELD || (held && next_random() & 1)) {
            held--;
            change(owner[held], bytes[held], false);
        } else {
            bytes[held] = next_random() % 1000 + 1;
            owner[held] = (uint32_t)(next_random() % SITES);
            held++;
            change(owner[held - 1], bytes[held - 1], true);
        }
    }
    finished[me] = true;
}

static void begin(void) {
    struct trace_header *header = calloc(1, TRACE_HEADER_BYTES);
    snprintf(path, sizeof path, "/tmp/cuheap-unit-%d.trace", getpid());
    cr_assert_eq(trace_create(&trace, path, 0600, 4 << 20, header), 0);
    free(header);
    unlink(path);
    books = calloc(1, sizeof *books);
    cr_assert(sites_init(books, &trace));
    memset(live_model, 0, sizeof live_model);
    memset(allocs_model, 0, sizeof allocs_model);
    memset(frees_model, 0, sizeof frees_model);
    peak_model = sum_model = now = 0;
}

static void compare(void) {
    const struct trace_total *sum = books->totals[0][TRACE_GROUP_DEVICE][0];
    uint64_t windows_allocs = sum->late_allocs, all = 0;
    for (uint32_t n = 0; n < SITES; n++) {
        const struct trace_site *site = site_number(n);
        cr_assert_eq(site->version % 2, 0);
        cr_assert_eq(site->allocs + site->late_allocs, allocs_model[n]);
        cr_assert_eq(site->frees + site->late_frees, frees_model[n]);
        cr_assert_eq(site->alloc_bytes + site->late_alloc_bytes - site->free_bytes -
                         site->late_free_bytes,
                     live_model[n]);
        all += allocs_model[n];
    }
    for (uint32_t i = 0; i <= sum->window_current; i++)
        windows_allocs += sum->windows[i].allocs;
    cr_assert_eq(windows_allocs, all, "no allocation is missing from the timeline");
    cr_assert_eq(sum->live_bytes, sum_model);
    cr_assert_eq(sum->allocs, all);
    /* What is in flight may raise a peak that never was, or hide one, by one event a writer. */
    cr_assert_leq(sum->peak_bytes, peak_model + FIBERS * 1000);
    cr_assert_geq(sum->peak_bytes + FIBERS * 1000, peak_model);
}

Test(sites_interleaved, no_byte_is_lost_or_doubled) {
    uint64_t late = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        seed = round;
        begin();
        left = OPERATIONS / ROUNDS;
        run_all(body);
        compare();
        late += trace.header->losses[TRACE_LOSS_COUNTERS_DELAYED];
        munmap(trace.base, trace.max_bytes);
        munmap(books->index.refs, sizeof(uint32_t) * (books->index.mask + 1));
        free(books);
        memset(&trace, 0, sizeof trace);
    }
    cr_assert_gt(late, OPERATIONS / 10000, "writers met at a site");
}
