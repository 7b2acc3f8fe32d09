/*
 * Growth classes: each by windows made for it, and what must not be called growing; from a trace's
 * windows, with what happens after the end of work.
 */
#include "growth.h"
#include "timeline.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <string.h>

static struct trace_window windows[TRACE_SITE_WINDOWS];

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 33;
}

/* Floors as given; each window does 10 allocations and as many frees, but for `net` of them. */
static enum growth_class of_floors(const uint64_t *floors, unsigned count, uint32_t net) {
    for (unsigned i = 0; i < count; i++)
        windows[i] = (struct trace_window){.min_bytes = floors[i],
                                           .max_bytes = floors[i] + 50,
                                           .last_bytes = floors[i],
                                           .allocs = 10,
                                           .frees = 10 - net};
    return growth_of_windows(windows, count, 2 * count, NULL);
}

Test(growth, a_floor_that_rises_all_along_is_growing) {
    uint64_t floors[32];
    for (unsigned count = 10; count <= 32; count++) {
        for (unsigned i = 0; i < count; i++)
            floors[i] = 512 * i;
        floors[count - 1] = 0; /* freed at the end, in the window of the last allocation */
        cr_assert_eq(of_floors(floors, count, 10), GROWTH_GROWING, "%u windows", count);
        /* Where much is freed on the way, it takes more windows to tell it from chance. */
        cr_assert_eq(of_floors(floors, count, 3) == GROWTH_GROWING, count >= 14, "%u windows",
                     count);
    }
}

Test(growth, a_leak_among_large_temporaries_is_growing) {
    for (unsigned i = 0; i < 24; i++)
        windows[i] = (struct trace_window){.min_bytes = 100 * i,
                                           .max_bytes = 1000000 + 100 * i,
                                           .last_bytes = 100 * i,
                                           .allocs = 1000,
                                           .frees = 999};
    cr_assert_eq(growth_of_windows(windows, 24, 2 * 24, NULL), GROWTH_GROWING);
}

Test(growth, few_windows_or_few_blocks_cannot_tell) {
    uint64_t floors[32];
    for (unsigned i = 0; i < 32; i++)
        floors[i] = 512 * i;
    cr_assert_eq(of_floors(floors, 9, 3), GROWTH_CANNOT_TELL);
    cr_assert_neq(of_floors(floors, 12, 1), GROWTH_GROWING, "ten blocks are no trend");
    cr_assert_eq(of_floors(floors, 0, 1), GROWTH_CANNOT_TELL);
    cr_assert_eq(of_floors(floors, 1, 1), GROWTH_CANNOT_TELL);
}

Test(growth, what_rose_and_stayed_is_saturating) {
    uint64_t floors[24];
    for (unsigned i = 0; i < 24; i++)
        floors[i] = i < 10 ? 1000 * i : 10000;
    cr_assert_eq(of_floors(floors, 24, 2), GROWTH_SATURATING);
}

Test(growth, what_never_changed_is_retained) {
    uint64_t floors[24];
    for (unsigned i = 0; i < 24; i++)
        floors[i] = 1000000 + i % 3;
    cr_assert_eq(of_floors(floors, 24, 0), GROWTH_RETAINED);
}

Test(growth, what_rose_only_lately_is_late) {
    uint64_t floors[24];
    for (unsigned i = 0; i < 24; i++)
        floors[i] = i < 17 ? 1000 : 1000 + 500 * (i - 16);
    cr_assert_eq(of_floors(floors, 24, 2), GROWTH_LATE);
}

Test(growth, up_and_down_is_sawtooth_and_once_is_high_water) {
    for (unsigned i = 0; i < 24; i++)
        windows[i] = (struct trace_window){.max_bytes = 1000, .allocs = 50, .frees = 50};
    cr_assert_eq(growth_of_windows(windows, 24, 2 * 24, NULL), GROWTH_SAWTOOTH);
    for (unsigned i = 0; i < 24; i++)
        windows[i].max_bytes = i == 7 ? 100000 : 10;
    cr_assert_eq(growth_of_windows(windows, 24, 2 * 24, NULL), GROWTH_HIGH_WATER);
}

/* A thousand walks at random, of blocks that live for a while, and of caches that fill. */
Test(growth, chance_is_not_called_a_leak) {
    unsigned alarms = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        uint64_t random = seed, floors[32], level = 10000;
        for (unsigned i = 0; i < 32; i++) {
            level += next_random(&random) % 2001;
            level -= 1000;
            floors[i] = level;
        }
        alarms += of_floors(floors, 32, 1) == GROWTH_GROWING;
    }
    cr_assert_leq(alarms, 1, "%u of 1000 walks", alarms);
    for (unsigned half = 3; half < 20; half++) { /* fills ever more slowly, to a limit */
        uint64_t floors[32];
        for (unsigned i = 0; i < 32; i++)
            floors[i] = i < half ? 1000 * i : 1000 * half;
        cr_assert_neq(of_floors(floors, 32, 2), GROWTH_GROWING);
    }
}

/* Over few windows a walk at random rises all along once in 128 times. */
Test(growth, chance_over_few_windows_is_not_called_a_leak) {
    unsigned alarms = 0, rose = 0;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        uint64_t random = seed, floors[13], level = 100000, count = 10 + seed % 4;
        bool all = true;
        for (unsigned i = 0; i < count; i++) {
            uint64_t next = level + next_random(&random) % 2001 - 1000;
            all &= i < 2 || i + 1 == count || next > level;
            floors[i] = level = next;
        }
        rose += all;
        alarms += of_floors(floors, (unsigned)count, 2) == GROWTH_GROWING;
    }
    cr_assert_gt(rose, 20u);
    cr_assert_eq(alarms, 0u, "%u of %u that rose", alarms, rose);
}

Test(growth, chances_are_those_of_their_formulae) {
    /* all of 7 steps: 1 / 128; six of them or more: C(8, 7) / 2^8 besides */
    cr_expect_float_eq(growth_chance(7, 7, 1, 1), 2 / 128., 1e-9);
    cr_expect_float_eq(growth_chance(7, 6, 1, 1), 2 * (1 / 128. + 8 / 256.), 1e-9);
    cr_expect_float_eq(growth_chance(7, 0, 1, 1), 1, 1e-9);
    /* 16 allocations and no free: 4 standard deviations */
    cr_expect_float_eq(growth_chance(7, 7, 16, 0), 2 * 6.334248e-5, 1e-9);
}

/* Born when three fifths of the run were over: few windows, but nothing was freed. */
Test(growth, what_began_late_and_is_never_freed_is_growing) {
    uint64_t floors[32];
    for (unsigned i = 0; i < 32; i++)
        floors[i] = 5120 * i;
    for (unsigned count = 6; count < 10; count++) {
        of_floors(floors, count, 10);
        cr_expect_eq(growth_of_windows(windows, count, 16, NULL), GROWTH_GROWING, "%u", count);
        cr_expect_neq(growth_of_windows(windows, count, 32, NULL), GROWTH_GROWING,
                      "%u windows are less than a quarter of 32", count);
        of_floors(floors, count, 3);
        cr_expect_neq(growth_of_windows(windows, count, 16, NULL), GROWTH_GROWING);
    }
}

/* Noise around a level, at every number of windows that is judged. */
Test(growth, noise_is_not_called_a_leak) {
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        uint64_t random = seed, floors[32];
        unsigned count = 10 + seed % 23;
        for (unsigned i = 0; i < count; i++)
            floors[i] = 100000 + next_random(&random) % 50000;
        cr_assert_neq(of_floors(floors, count, 3), GROWTH_GROWING, "seed %u", (unsigned)seed);
    }
}

Test(growth, steps_up_are_not_called_a_leak) {
    uint64_t floors[30];
    for (unsigned stairs = 3; stairs <= 10; stairs++) {
        for (unsigned i = 0; i < 30; i++)
            floors[i] = 1000 + 1000 * (i * stairs / 30);
        cr_assert_eq(of_floors(floors, 30, 3), GROWTH_HIGH_WATER, "%u stairs", stairs);
    }
}

Test(growth, a_long_sawtooth_is_not_called_a_leak) {
    uint64_t floors[31];
    for (unsigned period = 4; period <= 15; period++) {
        for (unsigned i = 0; i < 31; i++)
            floors[i] = 1000 * (i % period);
        cr_assert_eq(of_floors(floors, 31, 3), GROWTH_SAWTOOTH, "every %u windows", period);
    }
}

Test(growth, what_stopped_growing_is_not_called_growing) {
    uint64_t floors[31];
    for (unsigned stop = 12; stop <= 23; stop++) {
        for (unsigned i = 0; i < 31; i++)
            floors[i] = 1000 * (i < stop ? i : stop);
        cr_assert_neq(of_floors(floors, 31, 3), GROWTH_GROWING, "at window %u", stop);
    }
}

Test(growth, a_tensor_that_is_replaced_by_longer_ones_is_growing) {
    for (unsigned i = 0; i < 30; i++)
        windows[i] = (struct trace_window){.min_bytes = 512 * i,
                                           .max_bytes = 1024 * i + 512,
                                           .last_bytes = 512 * i,
                                           .allocs = 1,
                                           .frees = 1};
    cr_assert_eq(growth_of_windows(windows, 30, 2 * 30, NULL), GROWTH_GROWING);
}

Test(growth, one_window_in_ten_may_stand_still) {
    uint64_t floors[31], level = 0;
    for (unsigned i = 0; i < 31; i++)
        floors[i] = level += i % 10 == 5 ? 0 : 512;
    cr_assert_eq(of_floors(floors, 31, 2), GROWTH_GROWING);
}

/* ---- from a trace ---------------------------------------------------------------------------- */

#define WINDOW_NS (1ull << TRACE_WINDOW_SHIFT_MIN)

static struct trace_builder *builder;
static struct trace *trace;
static struct profile *profile;
static struct trace_total *total;
static struct trace_site *site;

static void set_up(void) {
    builder = builder_new();
    total = builder_total(builder, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    site = builder_site(builder, TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, 0, 0);
}

static void tear_down(void) {
    profile_free(profile);
    trace_close(trace);
    builder_free(builder);
}

TestSuite(growth_in_traces, .init = set_up, .fini = tear_down);

static void set_window(struct trace_window *window, uint64_t low, uint64_t high, unsigned allocs,
                       unsigned frees) {
    *window = (struct trace_window){low, high, frees ? low : high, allocs, frees};
}

/* 100 bytes in 2 blocks stay in each of 20 windows from the third on; `freed_at` (0: never) frees
   them all. */
static void leak(unsigned freed_at) {
    uint32_t last = freed_at ? freed_at : 22;
    site->window_shift = total->window_shift = TRACE_WINDOW_SHIFT_MIN;
    site->window_current = total->window_current = last;
    for (unsigned i = 3; i <= last; i++) {
        uint64_t before = i < 23 ? 100 * (i - 3) : 2000, after = i < 23 ? before + 100 : 2000;
        set_window(&site->windows[i], before, after, i < 23 ? 2 : 0, 0);
        total->windows[i] = site->windows[i];
    }
    if (freed_at) {
        site->windows[freed_at].min_bytes = site->windows[freed_at].last_bytes = 0;
        site->windows[freed_at].frees = 40;
        total->windows[freed_at] = site->windows[freed_at];
    }
    site->first_ns = total->first_ns = 3 * WINDOW_NS + 1;
    site->last_ns = total->last_ns = last * WINDOW_NS + 9;
    total->last_alloc_ns = 22 * WINDOW_NS + 5;
    total->allocs = site->allocs = 40;
    site->alloc_bytes = 2000;
    total->peak_bytes = 2000;
    if (freed_at) {
        site->frees = total->frees = 40;
        site->free_bytes = 2000;
        site->work_epoch = total->allocs;
        site->at_work_bytes = 2000;
        site->at_work_count = 40;
    } else {
        builder_book_slot(builder, site, 2000);
        site->allocs = total->allocs = 1;
    }
}

static struct growth judge(uint64_t end_ns) {
    trace = builder_open(builder);
    profile = profile_build(trace);
    cr_assert_not_null(profile);
    return growth_of_site(profile->sites[0].record, growth_work_end(&profile->totals[0], end_ns));
}

Test(growth_in_traces, a_leak_freed_by_the_end_is_growing) {
    leak(22); /* in the very window of the last allocation */
    struct growth growth = judge(23 * WINDOW_NS);
    cr_expect_eq(growth.class, GROWTH_GROWING);
    cr_expect_eq(growth.from_ns, 4 * WINDOW_NS);
    cr_expect_eq(growth.span_ns, 17 * WINDOW_NS);
    cr_expect_eq(growth.gain_bytes, 1700u);
}

Test(growth_in_traces, a_leak_freed_soon_after_is_growing) {
    leak(25);
    cr_expect_eq(judge(26 * WINDOW_NS).class, GROWTH_GROWING);
}

Test(growth_in_traces, a_leak_that_nobody_frees_is_growing) {
    leak(0);
    cr_expect_eq(judge(25 * WINDOW_NS).class, GROWTH_GROWING);
}

Test(growth_in_traces, loading_and_then_working_without_allocating_is_saturating) {
    leak(0);
    cr_expect_eq(judge(200 * WINDOW_NS).class, GROWTH_SATURATING);
}

Test(growth_in_traces, a_site_caught_in_a_change_cannot_be_told) {
    leak(0);
    site->version = 1;
    cr_expect_eq(judge(25 * WINDOW_NS).class, GROWTH_CANNOT_TELL);
}

Test(growth_in_traces, windows_of_an_impossible_width_tell_nothing) {
    struct timeline timeline;
    leak(0);
    site->window_shift = 21929;
    cr_expect_eq(judge(25 * WINDOW_NS).class, GROWTH_CANNOT_TELL);
    timeline_of_site(profile->sites[0].record, 25 * WINDOW_NS, &timeline);
    cr_expect_eq(timeline.count, 0u);
    cr_expect_lt(timeline.shift, 64u);
}

static void mark(const char *name, uint64_t ns) {
    struct trace_mark *record = builder_append(builder, TRACE_SECTION_MARKS, sizeof *record);
    record->name = builder_string(builder, name);
    record->ns = ns;
    record->state = 1;
}

Test(growth_in_traces, steps_are_those_of_the_commonest_mark) {
    mark("start", 1);
    for (unsigned i = 0; i < 10; i++)
        mark("step", 10 + i);
    mark("epoch", 12);
    mark("epoch", 17);
    trace = builder_open(builder);
    cr_expect_eq(growth_steps(trace, 0, 100), 10u);
    cr_expect_eq(growth_steps(trace, 12, 4), 4u);
    cr_expect_eq(growth_steps(trace, 0, 5), 0u);
    cr_expect_eq(growth_steps(trace, 50, 5), 0u);
}
