/*
 * The books of a process: the three rules of trace_format.h at each instruction an event can stop
 * at, shares in peak and end of work, late changes, windows.
 */
#include "profile.h"
#include "timeline.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A device total with two sites, and what the reader makes of them. */
static struct trace_builder *builder;
static struct trace_total *total;
static struct trace_site *first, *second;
static struct trace *trace;
static struct profile *profile;

static void set_up(void) {
    builder = builder_new();
    total = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    first = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    second = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_POOL, 0, 0);
}

static void tear_down(void) {
    profile_free(profile);
    trace_close(trace);
    builder_free(builder);
}

TestSuite(profile, .init = set_up, .fini = tear_down);

static const struct profile_total *read_books(void) {
    profile_free(profile);
    trace_close(trace);
    trace = builder_open(builder);
    profile = profile_build(trace);
    cr_assert_not_null(profile);
    cr_assert_geq(profile->site_count, 2u);
    const struct profile_total *device =
        profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    cr_assert_not_null(device);
    return device;
}

#define EXPECT_SITE(site, live, blocks, allocated, freed, peak, work)                              \
    do {                                                                                           \
        cr_expect_eq((site)->live_bytes, (uint64_t)(live), "live %lu", (site)->live_bytes);        \
        cr_expect_eq((site)->live_count, (uint64_t)(blocks), "blocks %lu", (site)->live_count);    \
        cr_expect_eq((site)->allocs, (uint64_t)(allocated), "allocs %lu", (site)->allocs);         \
        cr_expect_eq((site)->frees, (uint64_t)(freed), "frees %lu", (site)->frees);                \
        cr_expect_eq((site)->at_peak_bytes, (uint64_t)(peak), "peak %lu", (site)->at_peak_bytes);  \
        cr_expect_eq((site)->end_of_work_bytes, (uint64_t)(work), "work %lu",                      \
                     (site)->end_of_work_bytes);                                                   \
    } while (0)

Test(profile, sums_what_is_at_rest) {
    struct trace_slot *a = builder_alloc(builder, first, total, 1000);
    builder_alloc(builder, second, total, 500);
    builder_free_block(builder, first, total, a);
    builder_alloc(builder, first, total, 200);
    const struct profile_total *device = read_books();
    EXPECT_SITE(&profile->sites[0], 200, 1, 2, 1, 1000, 200);
    EXPECT_SITE(&profile->sites[1], 500, 1, 1, 0, 500, 500);
    cr_expect_eq(device->live_bytes, 700u);
    cr_expect_eq(device->peak_bytes, 1500u);
    cr_expect_eq(device->peak_ns, 2000000u);
    cr_expect_eq(device->last_alloc_ns, 4000000u);
    cr_expect_eq(device->residue_bytes, 0);
    cr_expect_eq(device->end_of_work_bytes, 700u);
    cr_expect_eq(device->end_of_work_count, 2u);
    cr_expect_eq(device->allocs, 3u);
    cr_expect_eq(device->frees, 1u);
    cr_expect_not(device->peak_is_now);
    const struct profile_kind *kind =
        profile_kind(profile, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0);
    cr_expect_eq(kind->peak_bytes, 1000u);
    cr_expect_eq(kind->live_bytes, 200u);
    cr_expect_eq(kind->allocs, 2u);
    cr_expect_eq(kind->frees, 1u);
    cr_expect_eq(profile->end_of_work_ns, 4000000u);
    cr_expect_eq(profile->last_ns, 4000000u);
}

Test(profile, an_allocation_in_flight_counts_from_its_slot_on) {
    builder_alloc(builder, first, total, 1000);
    builder_free_block(builder, second, total, builder_alloc(builder, second, total, 500));
    /* Below the peak of 1500: rule 3 has no part in it. */
    builder_book_slot(builder, first, 300);
    for (int step = 0; step < 3; step++) {
        if (step == 1)
            builder_book_site(builder, first, total, 300, true);
        if (step == 2)
            builder_book_total(builder, total, TRACE_KIND_DEVICE, 300, true);
        const struct profile_total *device = read_books();
        EXPECT_SITE(&profile->sites[0], 1300, 2, 2, 0, 1000, 1300);
        EXPECT_SITE(&profile->sites[1], 0, 0, 1, 1, 500, 0);
        cr_expect_eq(device->live_bytes, 1300u);
        cr_expect_eq(device->allocs, 3u);
        cr_expect_eq(device->frees, 1u);
        cr_expect_eq(device->peak_bytes, 1500u);
        cr_expect_eq(device->residue_bytes, 0);
        cr_expect_eq(device->end_of_work_bytes, 1300u);
        cr_expect_geq(device->last_alloc_ns, 4000000u);
    }
}

Test(profile, a_new_peak_in_flight_is_the_peak) {
    builder_alloc(builder, first, total, 1000);
    builder_alloc(builder, second, total, 500);
    builder_book_slot(builder, first, 300);
    for (int step = 0; step < 3; step++) {
        if (step == 1)
            builder_book_site(builder, first, total, 300, true);
        if (step == 2)
            builder_book_total(builder, total, TRACE_KIND_DEVICE, 300, true);
        const struct profile_total *device = read_books();
        EXPECT_SITE(&profile->sites[0], 1300, 2, 2, 0, 1300, 1300);
        EXPECT_SITE(&profile->sites[1], 500, 1, 1, 0, 500, 500);
        cr_expect_eq(device->peak_bytes, 1800u);
        cr_expect_eq(device->residue_bytes, 0);
        cr_expect_eq(device->peak_ns, 3000000u);
        cr_expect_eq(device->peak_is_now, step < 2);
        cr_expect_eq(profile_kind(profile, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0)->peak_bytes,
                     1300u);
    }
}

Test(profile, a_free_in_flight_counts_from_the_moment_its_slot_is_empty) {
    struct trace_slot *slot = builder_alloc(builder, first, total, 1000);
    builder_alloc(builder, second, total, 500);
    slot->word = TRACE_SLOT_FREEING | TRACE_SPACE_POINTER << 3;
    const struct profile_total *device = read_books();
    EXPECT_SITE(&profile->sites[0], 1000, 1, 1, 0, 1000, 1000);
    slot->word = TRACE_SLOT_EMPTY;
    for (int step = 0; step < 3; step++) {
        if (step == 1)
            builder_book_site(builder, first, total, 1000, false);
        if (step == 2)
            builder_book_total(builder, total, TRACE_KIND_DEVICE, 1000, false);
        device = read_books();
        EXPECT_SITE(&profile->sites[0], 0, 0, 1, 1, 1000, 1000);
        EXPECT_SITE(&profile->sites[1], 500, 1, 1, 0, 500, 500);
        cr_expect_eq(device->live_bytes, 500u);
        cr_expect_eq(device->frees, 1u);
        cr_expect_eq(device->end_of_work_bytes, 1500u);
        cr_expect_eq(device->end_of_work_count, 2u);
        cr_expect_eq(device->residue_bytes, 0);
    }
}

Test(profile, counters_stopped_half_way_are_made_whole) {
    builder_alloc(builder, first, total, 1000);
    builder_book_slot(builder, first, 70);
    first->version = 1;
    first->alloc_bytes += 70; /* but not allocs */
    read_books();
    EXPECT_SITE(&profile->sites[0], 1070, 2, 2, 0, 1070, 1070);
    cr_expect_eq(profile->sites[0].alloc_bytes, 1070u);
    cr_expect_eq(profile->sites[0].free_bytes, 0u);
}

Test(profile, a_process_whose_first_event_is_in_flight_has_that_event) {
    total->state = 0;
    builder_book_slot(builder, first, 4096);
    const struct profile_total *device = read_books();
    EXPECT_SITE(&profile->sites[0], 4096, 1, 1, 0, 4096, 4096);
    cr_expect_eq(device->peak_bytes, 4096u);
    cr_expect_eq(device->live_bytes, 4096u);
    cr_expect_null(device->record);
}

Test(profile, half_written_slots_are_in_flight) {
    struct trace_slot *slot = builder_alloc(builder, first, total, 1000);
    builder_book_slot(builder, first, 64)->word = TRACE_SLOT_BUSY;
    cr_expect_eq(read_books()->live_bytes, 1000u);
    cr_expect_eq(profile->busy_slots, 1u);
    cr_expect_eq(profile->orphan_slots, 0u);
    slot->site = 12345;
    read_books();
    cr_expect_eq(profile->orphan_slots, 1u);
    cr_expect_eq(profile->orphan_bytes, 1000u);
}

Test(profile, late_changes_are_added) {
    builder_alloc(builder, first, total, 1000);
    builder_book_slot(builder, first, 24);
    first->late_allocs = 2;
    first->late_alloc_bytes = 24 + 16;
    first->late_frees = 1;
    first->late_free_bytes = 16;
    builder_book_total(builder, total, TRACE_KIND_DEVICE, 24, true);
    builder_book_total(builder, total, TRACE_KIND_DEVICE, 16, true);
    builder_book_total(builder, total, TRACE_KIND_DEVICE, 16, false);
    const struct profile_total *device = read_books();
    cr_expect_eq(profile->sites[0].allocs, 3u);
    cr_expect_eq(profile->sites[0].alloc_bytes, 1040u);
    cr_expect_eq(profile->sites[0].frees, 1u);
    cr_expect_eq(profile->sites[0].live_bytes, 1024u);
    cr_expect_eq(profile->sites[0].end_of_work_bytes, 1024u);
    cr_expect_eq(device->allocs, 3u);
    /* The peak of 1040 had 16 bytes that no site knows of any more. */
    cr_expect_eq(device->peak_bytes, 1040u);
    cr_expect_eq(device->residue_bytes, 16);
}

Test(profile, what_was_freed_after_the_last_allocation_was_live_at_the_end_of_work) {
    struct trace_slot *a = builder_alloc(builder, first, total, 100);
    struct trace_slot *b = builder_alloc(builder, first, total, 50);
    struct trace_slot *c = builder_alloc(builder, second, total, 7);
    builder_free_block(builder, first, total, a);
    builder_free_block(builder, first, total, b);
    builder_free_block(builder, second, total, c);
    const struct profile_total *device = read_books();
    EXPECT_SITE(&profile->sites[0], 0, 0, 2, 2, 150, 150);
    EXPECT_SITE(&profile->sites[1], 0, 0, 1, 1, 7, 7);
    cr_expect_eq(profile->sites[0].end_of_work_count, 2u);
    cr_expect_eq(device->end_of_work_bytes, 157u);
    cr_expect_eq(device->last_alloc_ns, 3000000u);
    cr_expect_eq(device->live_bytes, 0u);
}

Test(profile, keeps_totals_of_groups_and_devices_apart) {
    struct trace_total *pinned =
        builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_HOST, TRACE_DEVICE_HOST);
    struct trace_site *host =
        builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_HOST, TRACE_DEVICE_HOST, 0);
    struct trace_total *other = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 1);
    struct trace_site *there = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 1, 0);
    builder_alloc(builder, first, total, 1);
    builder_alloc(builder, host, pinned, 20);
    builder_alloc(builder, there, other, 300);
    read_books();
    cr_expect_eq(profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0)->live_bytes,
                 1u);
    cr_expect_eq(profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 1)->live_bytes,
                 300u);
    cr_expect_eq(profile_kind(profile, TRACE_LEDGER_DRIVER, TRACE_KIND_HOST, 0)->live_bytes, 20u,
                 "host memory has no device");
    cr_expect_null(profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0));
    cr_expect_eq(profile_end_of_work(profile, TRACE_LEDGER_DRIVER), 3000000u);
    cr_expect_eq(profile_end_of_work(profile, TRACE_LEDGER_TENSOR), 0u);
}

Test(profile, sums_all_tables_of_a_live_table_that_grew) {
    builder_alloc(builder, first, total, 1);
    builder_add_region(builder, TRACE_SECTION_LIVE_TABLE, 131072, 32);
    builder->next_slot = 4095;
    builder_alloc(builder, first, total, 2);
    cr_expect_eq(read_books()->live_bytes, 3u);
    cr_expect_eq(profile->sites[0].live_count, 2u);
}

/* ---- windows --------------------------------------------------------------------------------- */

Test(profile, windows_after_the_last_change_hold_its_value) {
    first->window_shift = 20;
    first->window_current = 2;
    first->windows[0] = (struct trace_window){0, 100, 100, 1, 0};
    first->windows[1] = (struct trace_window){100, 100, 100, 0, 0};
    first->windows[2] = (struct trace_window){60, 160, 60, 1, 1};
    first->late_allocs = 3;
    struct timeline timeline;
    timeline_of_site(first, 5ull << 20, &timeline);
    cr_assert_eq(timeline.count, 6u);
    cr_expect_eq(timeline.shift, 20u);
    cr_expect_eq(timeline.windows[1].min_bytes, 100u);
    cr_expect_eq(timeline.windows[2].max_bytes, 160u);
    cr_expect_eq(timeline.windows[2].allocs, 4u);
    cr_expect_eq(timeline.windows[5].min_bytes, 60u);
    cr_expect_eq(timeline.windows[5].last_bytes, 60u);
    cr_expect_eq(timeline.windows[5].allocs, 0u);
    cr_expect_not(timeline.unsettled);
}

Test(profile, windows_of_an_older_width_are_merged) {
    total->window_shift = 20;
    total->window_current = 2;
    total->windows[0] = (struct trace_window){5, 50, 20, 2, 1};
    total->windows[1] = (struct trace_window){20, 90, 30, 3, 2};
    total->windows[2] = (struct trace_window){30, 30, 30, 0, 0};
    total->version = 1;
    struct timeline timeline;
    /* 256 windows of 2^20 ns end at 2^28: twice the width is needed from there on. */
    timeline_of_total(total, (1ull << 28) + 1, &timeline);
    cr_assert_eq(timeline.shift, 21u);
    cr_assert_eq(timeline.count, 129u);
    cr_expect_eq(timeline.windows[0].min_bytes, 5u);
    cr_expect_eq(timeline.windows[0].max_bytes, 90u);
    cr_expect_eq(timeline.windows[0].last_bytes, 30u);
    cr_expect_eq(timeline.windows[0].allocs, 5u);
    cr_expect_eq(timeline.windows[0].frees, 3u);
    cr_expect_eq(timeline.windows[1].min_bytes, 30u);
    cr_expect_eq(timeline.windows[128].last_bytes, 30u);
    cr_expect(timeline.unsettled);
}

Test(profile, windows_that_cannot_be_are_none) {
    struct timeline timeline;
    timeline_of_site(first, 1000, &timeline);
    cr_expect_eq(timeline.count, 0u, "a site without an event");
    first->window_shift = 20;
    first->window_current = TRACE_SITE_WINDOWS;
    timeline_of_site(first, 1000, &timeline);
    cr_expect_eq(timeline.count, 0u);
    first->window_current = 0;
    first->window_shift = 64;
    timeline_of_site(first, UINT64_MAX, &timeline);
    cr_expect_eq(timeline.count, 0u);
    first->window_shift = 20;
    timeline_of_site(first, UINT64_MAX, &timeline);
    cr_expect_eq(timeline.count, 32u);
    cr_expect_eq(timeline.shift, 59u);
}
