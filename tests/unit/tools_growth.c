/*
 * Growth classes: each by windows made for it, and what must not be called growing. And how the
 * books of framework and driver are put together.
 */
#include "growth.h"
#include "reconcile.h"

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
    return growth_of_windows(windows, count);
}

Test(growth, a_floor_that_rises_all_along_is_growing) {
    uint64_t floors[32];
    for (unsigned count = 10; count <= 32; count++) {
        for (unsigned i = 0; i < count; i++)
            floors[i] = 512 * i;
        floors[count - 1] = 0; /* freed at the end, in the window of the last allocation */
        cr_assert_eq(of_floors(floors, count, 3), GROWTH_GROWING, "%u windows", count);
    }
}

Test(growth, a_leak_among_large_temporaries_is_growing) {
    for (unsigned i = 0; i < 24; i++)
        windows[i] = (struct trace_window){.min_bytes = 100 * i,
                                           .max_bytes = 1000000 + 100 * i,
                                           .last_bytes = 100 * i,
                                           .allocs = 1000,
                                           .frees = 999};
    cr_assert_eq(growth_of_windows(windows, 24), GROWTH_GROWING);
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
    cr_assert_eq(growth_of_windows(windows, 24), GROWTH_SAWTOOTH);
    for (unsigned i = 0; i < 24; i++)
        windows[i].max_bytes = i == 7 ? 100000 : 10;
    cr_assert_eq(growth_of_windows(windows, 24), GROWTH_HIGH_WATER);
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

/* ---- reconciliation -------------------------------------------------------------------------- */

Test(reconcile, the_two_ledgers_are_put_together_and_never_summed) {
    struct profile_site sites[] = {
        {.ledger = TRACE_LEDGER_TENSOR,
         .kind = TRACE_KIND_TENSOR,
         .end_of_work_bytes = 300,
         .allocs = 100},
        {.ledger = TRACE_LEDGER_DRIVER,
         .kind = TRACE_KIND_DEVICE,
         .flags = TRACE_SITE_SEGMENT,
         .end_of_work_bytes = 1000,
         .allocs = 5},
        {.ledger = TRACE_LEDGER_DRIVER,
         .kind = TRACE_KIND_DEVICE,
         .end_of_work_bytes = 40,
         .allocs = 1},
        {.ledger = TRACE_LEDGER_DRIVER, .kind = TRACE_KIND_POOL, .end_of_work_bytes = 7},
        {.ledger = TRACE_LEDGER_DRIVER, .kind = TRACE_KIND_MANAGED, .end_of_work_bytes = 9999},
        {.ledger = TRACE_LEDGER_DRIVER,
         .kind = TRACE_KIND_DEVICE,
         .device = 1,
         .end_of_work_bytes = 8888},
    };
    struct profile profile = {.sites = sites, .site_count = sizeof sites / sizeof *sites};
    struct reconciliation sum = {0};
    double rate;
    reconcile(&sum, &profile, 0);
    cr_assert_eq(sum.allocated, 300);
    cr_assert_eq(sum.cached, 700);
    cr_assert_eq(sum.reserved, 1000);
    cr_assert_eq(sum.other, 40);
    cr_assert_eq(sum.pools, 7);
    cr_assert_eq(sum.driver, 1047);
    cr_assert(reconcile_reuse_rate(&sum, &rate));
    cr_assert(rate > 0.9499 && rate < 0.9501);
    struct reconciliation other = {0};
    reconcile(&other, &profile, 1);
    cr_assert_not(other.tensors);
    cr_assert_not(reconcile_reuse_rate(&other, &rate));
}
