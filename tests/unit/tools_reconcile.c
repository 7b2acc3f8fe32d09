/*
 * Tensors and the driver's blocks put together: segments by flag and by address, the sum from
 * tensors to the device, what is unknown.
 */
#include "frameworks.h"
#include "reconcile.h"
#include "segments.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct trace_builder *builder;
static struct trace_total *driver, *tensors;
static struct trace_site *segments, *library, *tensor;
static struct trace *trace;
static struct profile *profile;

static void set_up(void) {
    builder = builder_new();
    driver = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    tensors = builder_total(builder, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    segments = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    library = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    tensor = builder_site(builder, TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, 0, 0);
}

static void tear_down(void) {
    profile_free(profile);
    trace_close(trace);
    builder_free(builder);
}

TestSuite(reconcile, .init = set_up, .fini = tear_down);

/* A tensor at an address, or in the air where block is NULL. */
static struct trace_slot *make_tensor(const struct trace_slot *block, uint64_t offset,
                                      uint64_t bytes) {
    struct trace_slot *slot = builder_alloc(builder, tensor, tensors, bytes);
    slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_TENSOR << 3;
    slot->address = block ? block->address + offset : 64;
    return slot;
}

static void flag_segment(struct trace_slot *slot, struct trace_site *site) {
    slot->word |= TRACE_SLOT_SEGMENT << 8;
    site->flags |= TRACE_SITE_SEGMENT;
}

static struct reconciliation read_books(void) {
    trace = builder_open(builder);
    profile = profile_build(trace);
    cr_assert_not_null(profile);
    return reconcile(profile, 0);
}

#define EXPECT_LINE(sum, line, value)                                                              \
    do {                                                                                           \
        cr_expect((sum).known[RECONCILE_##line], #line " is known");                               \
        cr_expect_eq((sum).bytes[RECONCILE_##line], (uint64_t)(value), #line " is %lu",            \
                     (sum).bytes[RECONCILE_##line]);                                               \
    } while (0)
#define EXPECT_UNKNOWN(sum, line) cr_expect_not((sum).known[RECONCILE_##line], #line)

Test(reconcile, leads_from_tensors_to_the_driver) {
    struct trace_slot *block = builder_alloc(builder, segments, driver, 1000);
    flag_segment(block, segments);
    builder_alloc(builder, library, driver, 40);
    builder_alloc(builder, builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_POOL, 0, 0),
                  driver, 7);
    builder_alloc(builder, builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_MANAGED, 0, 0),
                  builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_MANAGED, 0), 9999);
    builder_alloc(builder, builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 1, 0),
                  builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 1), 8888);
    for (int i = 0; i < 20; i++)
        make_tensor(block, 10u * (unsigned)i, 10);
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, ALLOCATED, 200);
    EXPECT_LINE(sum, CACHED, 800);
    EXPECT_LINE(sum, RESERVED, 1000);
    EXPECT_LINE(sum, OTHER, 40);
    EXPECT_LINE(sum, POOL, 7);
    EXPECT_LINE(sum, DRIVER, 1047);
    EXPECT_UNKNOWN(sum, UNTRACKED);
    EXPECT_UNKNOWN(sum, USED);
    cr_expect(sum.reuse_known);
    cr_expect_float_eq(sum.reuse_rate, 0.95, 1e-9);
    cr_expect_eq(sum.mixed_sites, 0u);
    struct reconciliation other = reconcile(profile, 1);
    EXPECT_UNKNOWN(other, ALLOCATED);
    EXPECT_LINE(other, DRIVER, 8888);
    cr_expect_not(other.reuse_known);
}

Test(reconcile, a_block_under_a_live_tensor_is_a_segment) {
    struct trace_slot *block = builder_alloc(builder, segments, driver, 1000);
    struct trace_slot *next = builder_alloc(builder, library, driver, 1000);
    next->address = block->address + 1000;
    make_tensor(block, 999, 1); /* the last byte of one, not the first of the other */
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, RESERVED, 1000);
    EXPECT_LINE(sum, OTHER, 1000);
    cr_expect_eq(profile->sites[0].cache_count, 1u);
    cr_expect_eq(profile->sites[1].cache_count, 0u);
}

Test(reconcile, a_site_of_both_sorts_is_told_apart_by_block) {
    struct trace_slot *block = builder_alloc(builder, segments, driver, 1000);
    flag_segment(block, segments);
    builder_alloc(builder, segments, driver, 300);
    struct trace_slot *freed = builder_alloc(builder, segments, driver, 50);
    make_tensor(block, 0, 600);
    builder_free_block(builder, segments, driver, freed); /* after the end of work */
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, RESERVED, 1050);
    EXPECT_LINE(sum, OTHER, 300);
    cr_expect_eq(sum.mixed_sites, 1u);
    cr_expect(segments_mixed(&profile->sites[0]));
    cr_expect_eq(profile->sites[0].cache_bytes, 1000u);
}

Test(reconcile, without_segments_reserved_is_unknown) {
    builder_alloc(builder, library, driver, 1000);
    make_tensor(NULL, 0, 600);
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, ALLOCATED, 600);
    EXPECT_UNKNOWN(sum, CACHED);
    EXPECT_UNKNOWN(sum, RESERVED);
    EXPECT_UNKNOWN(sum, OTHER);
    cr_expect_not_null(sum.unknown_reserved);
    cr_expect_not(sum.reuse_known);
}

Test(reconcile, segments_that_hold_less_than_the_tensors_are_not_all) {
    struct trace_slot *block = builder_alloc(builder, segments, driver, 1000);
    make_tensor(block, 0, 600);
    make_tensor(NULL, 0, 600);
    struct reconciliation sum = read_books();
    EXPECT_UNKNOWN(sum, CACHED);
    EXPECT_UNKNOWN(sum, RESERVED);
    EXPECT_UNKNOWN(sum, DRIVER);
}

Test(reconcile, expandable_segments_are_physical_memory_that_held_tensors) {
    struct trace_site *physical = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_VMM, 0, 0);
    for (int i = 0; i < 3; i++) {
        struct trace_slot *handle = builder_alloc(builder, physical, driver, 1000);
        handle->word = TRACE_SLOT_LIVE | TRACE_SPACE_VMM << 3;
        if (i < 2)
            flag_segment(handle, physical);
    }
    make_tensor(NULL, 0, 1600);
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, ALLOCATED, 1600);
    EXPECT_LINE(sum, RESERVED, 2000);
    EXPECT_LINE(sum, OTHER, 1000);
    EXPECT_LINE(sum, DRIVER, 3000);
}

Test(reconcile, a_failure_after_the_end_of_work_shows_the_device) {
    struct trace_slot *block = builder_alloc(builder, segments, driver, 1000);
    flag_segment(block, segments);
    make_tensor(block, 0, 600);
    struct trace_failure *failure = builder_append(builder, TRACE_SECTION_FAILURES, 112);
    failure->flags = TRACE_FAILURE_FREE_KNOWN;
    failure->free_bytes = 6000;
    failure->total_bytes = 10000;
    failure->ns = driver->last_alloc_ns;
    failure->state = 1;
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, USED, 4000);
    EXPECT_LINE(sum, UNTRACKED, 3000);
    struct reconciliation two = sum;
    reconciliation_add(&two, &sum);
    EXPECT_LINE(two, ALLOCATED, 1200);
    EXPECT_LINE(two, DRIVER, 2000);
    EXPECT_UNKNOWN(two, USED);
}

/* Told at any time: what passes no allocation is what was used then beyond the books of then. */
Test(reconcile, what_the_driver_told_of_free_memory_shows_the_rest) {
    builder_alloc(builder, library, driver, 1000);
    struct trace_device *device = &builder->header->devices[0];
    device->state = 1;
    device->known = TRACE_DEVICE_TOTAL;
    device->total_bytes = 10000;
    device->free_bytes = 9300;
    device->free_live_bytes = 200;
    device->free_ns = 1;
    struct reconciliation sum = read_books();
    EXPECT_LINE(sum, UNTRACKED, 500);
    EXPECT_LINE(sum, USED, 1500);
}

Test(reconcile, free_memory_that_contradicts_the_books_is_not_believed) {
    builder_alloc(builder, library, driver, 1000);
    struct trace_device *device = &builder->header->devices[0];
    device->state = 1;
    device->known = TRACE_DEVICE_TOTAL;
    device->total_bytes = 10000;
    device->free_bytes = 9300;
    device->free_live_bytes = 701;
    device->free_ns = 1;
    struct reconciliation sum = read_books();
    EXPECT_UNKNOWN(sum, USED);
    EXPECT_UNKNOWN(sum, UNTRACKED);
}

Test(reconcile, a_failure_before_the_end_of_work_shows_nothing) {
    struct trace_failure *failure = builder_append(builder, TRACE_SECTION_FAILURES, 112);
    failure->flags = TRACE_FAILURE_FREE_KNOWN;
    failure->total_bytes = 10000;
    failure->state = 1;
    builder_alloc(builder, library, driver, 1000);
    struct reconciliation sum = read_books();
    EXPECT_UNKNOWN(sum, USED);
    EXPECT_UNKNOWN(sum, UNTRACKED);
}
