/*
 * Records of what was refused: which are alike, what was free, copies of the live table, and what
 * came after. The driver is a stand-in that says what is free; time is moved, not waited for.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "record.h"

#define MS       1000000u
#define RECORDS  128
#define FREE     7000u
#define TOTAL    9000u
#define NO_SPACE CUDA_ERROR_OUT_OF_MEMORY

static char path[64];
static struct recorder *recorder;
static struct record_call call;
static unsigned questions;

static CUresult tell_free(size_t *free_bytes, size_t *total) {
    questions++;
    *free_bytes = FREE;
    *total = TOTAL;
    return CUDA_SUCCESS;
}

static CUresult tell_device(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

static void open_trace(uint64_t max_bytes) {
    void *header = calloc(1, TRACE_HEADER_BYTES);
    recorder = calloc(1, sizeof *recorder);
    snprintf(path, sizeof path, "/tmp/cuheap-failures-%d.trace", getpid());
    cr_assert_eq(trace_create(&recorder->trace, path, 0600, max_bytes, header), 0);
    cr_assert(record_init(recorder, CONFIG_STACKS_NONE, 64));
    free(header);
    call = (struct record_call){.recorder = recorder, .row = ROW_cuMemAlloc_v2};
    driver.cuMemGetInfo_v2 = tell_free;
    driver.cuCtxGetDevice = tell_device;
    recorder->trace.start_ns -= 1000 * MS; /* some time has passed */
}

static void open_usual(void) {
    open_trace(64 << 20);
}

static void drop(void) {
    unlink(path);
    free(recorder);
}

TestSuite(failures, .init = open_usual, .fini = drop);

static void pass_time(uint64_t ns) {
    recorder->trace.start_ns -= ns;
}

/* The published records, in the order of the file. */
static unsigned records(struct trace_failure *list[RECORDS]) {
    unsigned count = 0;
    for (uint32_t i = 0; i < recorder->trace.header->directory_count; i++) {
        struct trace_region *region =
            (struct trace_region *)(recorder->trace.base + TRACE_DIRECTORY_OFFSET) + i;
        if (region->section != TRACE_SECTION_FAILURES)
            continue;
        struct trace_failure *record =
            (struct trace_failure *)(recorder->trace.base + region->offset);
        for (uint64_t n = region->claimed / sizeof *record; n--; record++)
            if (record->state)
                list[count++] = record;
    }
    return count;
}

static struct trace_failure *only_record(void) {
    struct trace_failure *list[RECORDS];
    cr_assert_eq(records(list), 1);
    return list[0];
}

static struct trace_copy *copy_of(const struct trace_failure *failure) {
    return failure->copy ? trace_at(&recorder->trace, failure->copy) : NULL;
}

static void fail(uint64_t bytes) {
    failures_alloc(&call, TRACE_KIND_DEVICE, NO_SPACE, bytes);
}

static void take(uint64_t address, uint64_t bytes) {
    record_alloc(&call, TRACE_KIND_DEVICE, TRACE_SPACE_POINTER, address, bytes);
}

static void give(uint64_t address) {
    record_free_begin(&call, TRACE_SPACE_POINTER, address);
    record_free_end(&call, address, CUDA_SUCCESS);
}

static uint64_t counter(enum trace_counter counter) {
    return recorder->trace.header->counters[counter];
}

static uint64_t loss(enum trace_loss loss) {
    return recorder->trace.header->losses[loss];
}

/* ---- records --------------------------------------------------------------------------------- */

Test(failures, alike_ones_are_counted_in_one_record) {
    fail(5000);
    fail(5001);
    fail(8191);
    const struct trace_failure *one = only_record();
    cr_assert_eq(one->repeats, 2);
    cr_assert_eq(one->request_bytes, 5000);
    cr_assert_eq(one->last_request_bytes, 8191);
    cr_assert_geq(one->last_ns, one->ns);
    cr_assert_eq(counter(TRACE_COUNTER_FAILED_ALLOCS), 3);
    cr_assert_eq(loss(TRACE_LOSS_RATE_LIMITED), 0);
}

Test(failures, what_differs_has_a_record_of_its_own) {
    struct trace_failure *list[RECORDS];
    fail(5000);
    fail(8192); /* another power of two */
    failures_alloc(&call, TRACE_KIND_DEVICE, 999, 5000);
    failures_alloc(&call, TRACE_KIND_MANAGED, NO_SPACE, 5000);
    failures_block(&call, TRACE_KIND_DEVICE, 1, NO_SPACE, 5000);
    failures_tensor(&call, "report", 5000, 0);
    call.row = ROW_cuMemAllocPitch_v2;
    fail(5000);
    cr_assert_eq(records(list), 7);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(list[i]->repeats, 0);
}

/* 100 kinds: 48 stay, of the others the latest 16. */
Test(failures, the_first_and_the_latest_kinds_have_records) {
    struct trace_failure *list[RECORDS];
    bool found[100] = {false};
    for (int i = 0; i < 100; i++) {
        failures_alloc(&call, TRACE_KIND_DEVICE, 1000 + i, 64);
        failures_alloc(&call, TRACE_KIND_DEVICE, 1000 + i, 64);
    }
    cr_assert_eq(records(list), 64);
    for (int i = 0; i < 64; i++) {
        cr_assert_eq(list[i]->repeats, 1);
        found[list[i]->code - 1000] = true;
    }
    for (int i = 0; i < 100; i++)
        cr_assert_eq(found[i], i < 48 || i >= 84, "kind %d", i);
    cr_assert_eq(loss(TRACE_LOSS_RATE_LIMITED), 72, "36 records and a repeat of each");
    cr_assert_eq(counter(TRACE_COUNTER_FAILED_ALLOCS), 200);
}

/* ---- what was free --------------------------------------------------------------------------- */

static void free_must_be(const struct trace_failure *failure, uint64_t bytes, uint64_t total) {
    cr_assert(failure->flags & TRACE_FAILURE_FREE_KNOWN);
    cr_assert_eq(failure->free_bytes, bytes);
    cr_assert_eq(failure->total_bytes, total);
}

Test(failures, the_driver_is_asked_once_what_is_free) {
    take(1, 300);
    fail(5000);
    cr_assert_eq(questions, 1);
    free_must_be(only_record(), FREE, TOTAL);
    const struct trace_device *device = &recorder->trace.header->devices[0];
    cr_assert_eq(device->free_bytes, FREE);
    cr_assert_eq(device->free_live_bytes, 300);
    cr_assert(device->free_ns);
}

Test(failures, the_driver_is_not_asked_for_nothing) {
    failures_alloc(&call, TRACE_KIND_DEVICE, 1, 0); /* an invalid value */
    failures_alloc(&call, TRACE_KIND_HOST, NO_SPACE, 5000);
    failures_block(&call, TRACE_KIND_VMM, 1, NO_SPACE, 5000); /* not the current device */
    failures_tensor(&call, "report", 5000, 0);
    graphs_capture_begin(&call);
    fail(5000);
    cr_assert_eq(questions, 0);
    struct trace_failure *list[RECORDS];
    cr_assert_eq(records(list), 5);
    for (int i = 0; i < 5; i++)
        cr_assert_not(list[i]->flags & TRACE_FAILURE_FREE_KNOWN);
}

/* The framework's report asks nothing itself: the driver's failure just before it did. */
Test(failures, a_frameworks_report_knows_what_was_last_told) {
    struct trace_failure *list[RECORDS];
    fail(5000);
    failures_tensor(&call, "report", 4000, 0);
    cr_assert_eq(questions, 1);
    cr_assert_eq(records(list), 2);
    free_must_be(list[1], FREE, TOTAL);
    cr_assert_eq(list[1]->flags, TRACE_FAILURE_FRAMEWORK | TRACE_FAILURE_FREE_KNOWN);
    take(1, 100);
    failures_tensor(&call, "report", 2000, 0);
    cr_assert_eq(records(list), 3);
    cr_assert_eq(list[2]->flags, TRACE_FAILURE_FRAMEWORK, "something was taken since");
    size_t free_bytes = 6900, total = TOTAL;
    failures_told(&call, CUDA_SUCCESS, &free_bytes, &total); /* the program asked */
    failures_tensor(&call, "report", 1000, 0);
    cr_assert_eq(records(list), 4);
    free_must_be(list[3], 6900, TOTAL);
}

Test(failures, the_program_may_leave_out_an_output) {
    size_t total = TOTAL, free_bytes = 10;
    failures_told(&call, CUDA_SUCCESS, NULL, &total);
    failures_told(&call, CUDA_SUCCESS, NULL, NULL);
    failures_told(&call, 201, &free_bytes, &total);
    cr_assert_eq(recorder->trace.header->devices[0].free_ns, 0);
}

/* ---- copies ---------------------------------------------------------------------------------- */

Test(failures, a_copy_holds_what_was_live) {
    for (uint64_t i = 1; i <= 10000; i++)
        take(i * 512, i);
    record_free_begin(&call, TRACE_SPACE_POINTER, 7 * 512); /* being freed: live */
    give(5 * 512);
    fail(5000);
    take(1 << 30, 999);
    const struct trace_failure *failure = only_record();
    const struct trace_copy *copy = copy_of(failure);
    cr_assert(copy && copy->state == 1);
    cr_assert_eq(copy->count, 9999);
    cr_assert_eq(copy->ns, failure->ns);
    cr_assert_eq(copy->failure, trace_ref(&recorder->trace, failure));
    static bool seen[10001];
    for (uint64_t i = 0; i < copy->count; i++) {
        const struct trace_slot *slot = &copy->slots[i];
        cr_assert(slot->bytes >= 1 && slot->bytes <= 10000 && !seen[slot->bytes]);
        cr_assert_eq(slot->address, slot->bytes * 512);
        cr_assert_neq(slot->site, 0);
        seen[slot->bytes] = true;
    }
    cr_assert_not(seen[5]);
    cr_assert_eq(counter(TRACE_COUNTER_COPIES_LEFT_OUT), 0);
}

Test(failures, none_soon_after_another) {
    struct trace_failure *list[RECORDS];
    fail(5000);
    fail(10000);
    pass_time(100 * MS);
    fail(20000);
    cr_assert_eq(records(list), 3);
    cr_assert(list[0]->copy && !list[1]->copy && list[2]->copy);
    cr_assert_eq(counter(TRACE_COUNTER_COPIES_LEFT_OUT), 1);
}

Test(failures, the_first_four_and_the_latest_four_have_copies) {
    struct trace_failure *list[RECORDS];
    for (unsigned i = 0; i < 20; i++) {
        fail(1ull << i);
        take(i + 1, 100 + i);
        pass_time(100 * MS);
    }
    cr_assert_eq(records(list), 20);
    for (unsigned i = 0; i < 20; i++) {
        const struct trace_copy *copy = copy_of(list[i]);
        cr_assert_eq(copy != NULL, i < 4 || i >= 16, "failure %u", i);
        if (!copy)
            continue;
        cr_assert(copy->state == 1 && copy->count == i, "failure %u", i);
        cr_assert_eq(copy->ns, list[i]->ns);
        cr_assert_eq(trace_at(&recorder->trace, copy->failure), list[i]);
    }
    cr_assert_eq(counter(TRACE_COUNTER_COPIES_LEFT_OUT), 0);
}

/* A repeat has a copy too: the record names the latest. */
Test(failures, the_copy_of_a_repeat) {
    fail(5000);
    take(1, 1);
    pass_time(100 * MS);
    fail(5000);
    const struct trace_failure *failure = only_record();
    cr_assert_eq(copy_of(failure)->count, 1);
    cr_assert_eq(copy_of(failure)->ns, failure->last_ns);
}

static uint64_t bytes_of_copies(void) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < recorder->trace.header->directory_count; i++) {
        const struct trace_region *region =
            (struct trace_region *)(recorder->trace.base + TRACE_DIRECTORY_OFFSET) + i;
        if (region->section == TRACE_SECTION_FAILURE_COPIES)
            bytes += region->bytes;
    }
    return bytes;
}

/* Of 8 MiB a copy may take 256 KiB, and all of them 2 MiB. */
Test(failures, copies_that_are_too_large_are_left_out) {
    struct trace_failure *list[RECORDS];
    drop();
    open_trace(8 << 20);
    uint64_t address = 1;
    for (unsigned i = 0; i < 20; i++) {
        while (address < (i < 10 ? 600 * i : 20000))
            take(address++, 1);
        fail(1ull << i);
        pass_time(100 * MS);
    }
    cr_assert_eq(records(list), 20);
    cr_assert_leq(bytes_of_copies(), 2 << 20);
    unsigned with = 0;
    for (unsigned i = 0; i < 20; i++)
        with += list[i]->copy != 0;
    cr_assert(list[0]->copy && list[3]->copy && !list[19]->copy);
    cr_assert(with >= 4 && with <= 8, "%u copies", with);
    cr_assert_geq(counter(TRACE_COUNTER_COPIES_LEFT_OUT), 10);
}

/* ---- what came after ------------------------------------------------------------------------- */

static void retries_must_be(uint64_t count, uint64_t bytes, uint64_t least_ns) {
    cr_assert_eq(counter(TRACE_COUNTER_FLUSH_RETRIES), count);
    cr_assert_eq(counter(TRACE_COUNTER_FLUSH_RETRY_BYTES), bytes);
    uint64_t ns = counter(TRACE_COUNTER_FLUSH_RETRY_NS);
    cr_assert(ns >= least_ns && ns < least_ns + 1000 * MS, "%lu ns", (unsigned long)ns);
}

Test(failures, freed_and_tried_again_is_a_flush_and_retry) {
    for (uint64_t i = 1; i <= 3; i++)
        take(i, 1000 * i);
    fail(5000);
    give(2);
    pass_time(3 * MS);
    give(3);
    take(9, 5000);
    const struct trace_failure *failure = only_record();
    cr_assert(failure->flags & TRACE_FAILURE_HANDLED);
    cr_assert_eq(failure->freed_bytes, 5000);
    cr_assert_geq(failure->retry_ns, failure->ns + 3 * MS);
    retries_must_be(1, 5000, 3 * MS);
    cr_assert_eq(recorder->attention, 0, "nothing is followed any more");
    give(1);
    cr_assert_eq(failure->freed_bytes, 5000);
}

/* PyTorch flushes in two steps: three tries, one flush and retry, from the first failure on. */
Test(failures, a_chain_of_them_is_one) {
    struct trace_failure *list[RECORDS];
    take(1, 700);
    take(2, 900);
    fail(5000);
    pass_time(2 * MS);
    give(1);
    call.row = ROW_cuMemAllocPitch_v2; /* stands for another place in the program */
    fail(5000);
    give(2);
    take(9, 5000);
    cr_assert_eq(records(list), 2);
    cr_assert_eq(list[0]->freed_bytes, 1600);
    cr_assert_eq(list[1]->freed_bytes, 900);
    cr_assert(list[0]->retry_ns && list[0]->retry_ns == list[1]->retry_ns);
    retries_must_be(1, 1600, 2 * MS);
}

Test(failures, what_repeats_itself_is_told_as_it_was_at_last) {
    for (uint64_t i = 1; i <= 30; i++) {
        take(i, 100);
        fail(5000);
        give(i);
        take(100 + i, 5000);
    }
    const struct trace_failure *failure = only_record();
    cr_assert_eq(failure->repeats, 29);
    cr_assert(failure->retry_ns && failure->freed_bytes == 100);
    retries_must_be(30, 3000, 0);
    fail(5000);
    cr_assert_eq(failure->repeats, 30);
    cr_assert_not(failure->flags & TRACE_FAILURE_HANDLED, "the last one ended the program");
    cr_assert_eq(failure->retry_ns, 0);
    cr_assert_eq(failure->freed_bytes, 0);
}

Test(failures, going_on_with_less_is_handled_and_no_retry) {
    take(1, 100);
    fail(5000);
    cr_assert_not(only_record()->flags & TRACE_FAILURE_HANDLED);
    give(1);
    take(2, 2500);
    cr_assert(only_record()->flags & TRACE_FAILURE_HANDLED);
    cr_assert_eq(only_record()->retry_ns, 0);
    retries_must_be(0, 0, 0);
    take(3, 5000); /* too late to be a retry */
    retries_must_be(0, 0, 0);
}

Test(failures, the_same_size_without_a_free_is_no_flush) {
    fail(5000);
    take(1, 5000);
    cr_assert(only_record()->flags & TRACE_FAILURE_HANDLED);
    retries_must_be(0, 0, 0);
}

Test(failures, tensors_from_the_cache_are_going_on) {
    fail(5000);
    record_tensor(&call, 77, 10, 1);
    cr_assert_not(only_record()->flags & TRACE_FAILURE_HANDLED, "on another device");
    record_tensor_free(&call, 77);
    record_alloc(&call, TRACE_KIND_HOST, TRACE_SPACE_HOST, 5, 5);
    cr_assert_not(only_record()->flags & TRACE_FAILURE_HANDLED, "not on a device");
    record_tensor(&call, 78, 10, 0);
    cr_assert(only_record()->flags & TRACE_FAILURE_HANDLED);
}

static void *take_5000(void *address) {
    take((uintptr_t)address, 5000);
    return NULL;
}

static void elsewhere(void *(*function)(void *), uintptr_t address) {
    pthread_t thread;
    pthread_create(&thread, NULL, function, (void *)address);
    pthread_join(thread, NULL);
}

Test(failures, another_threads_success_is_going_on_but_no_retry) {
    take(1, 100);
    fail(5000);
    give(1);
    elsewhere(take_5000, 2);
    cr_assert(only_record()->flags & TRACE_FAILURE_HANDLED);
    retries_must_be(0, 0, 0);
    take(3, 5000); /* the thread's own retry is still known as one */
    retries_must_be(1, 100, 0);
}

static void *fail_for_ever(void *bytes) {
    fail((uintptr_t)bytes);
    return NULL;
}

Test(failures, threads_that_ended_keep_no_place) {
    for (unsigned i = 0; i < 30; i++)
        elsewhere(fail_for_ever, 1ull << i);
    take(1, 100);
    fail(5000000);
    give(1);
    take(2, 5000000);
    retries_must_be(1, 100, 0);
    cr_assert_leq(recorder->attention, FAILURES_WATCHED);
}

/* ---- many threads ---------------------------------------------------------------------------- */

#define THREADS 8
#define ROUNDS  2000

static int kinds; /* of failures, by their code */

static void *storm(void *number) {
    struct record_call mine = {.recorder = recorder, .row = ROW_cuMemAlloc_v2};
    uint64_t base = (uint64_t)(uintptr_t)number << 20;
    for (int i = 0; i < ROUNDS; i++) {
        record_alloc(&mine, TRACE_KIND_DEVICE, TRACE_SPACE_POINTER, base, 10);
        failures_alloc(&mine, TRACE_KIND_DEVICE, i % 10 ? NO_SPACE : 100 + i % kinds, 5000);
        record_free_begin(&mine, TRACE_SPACE_POINTER, base);
        record_free_end(&mine, base, CUDA_SUCCESS);
        record_alloc(&mine, TRACE_KIND_DEVICE, TRACE_SPACE_POINTER, base, 5000);
        record_free_begin(&mine, TRACE_SPACE_POINTER, base);
        record_free_end(&mine, base, CUDA_SUCCESS);
    }
    return NULL;
}

/* What the records and the loss tell of, together. */
static uint64_t storm_of(int different) {
    pthread_t threads[THREADS];
    struct trace_failure *list[RECORDS];
    kinds = different;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, storm, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t told = loss(TRACE_LOSS_RATE_LIMITED);
    for (unsigned i = records(list); i-- > 0;) {
        const struct trace_copy *copy = copy_of(list[i]);
        told += 1 + list[i]->repeats;
        cr_assert(!copy || copy->state == 1);
        for (uint64_t n = 0; copy && n < copy->count; n++)
            cr_assert(copy->slots[n].bytes == 10 || copy->slots[n].bytes == 5000);
    }
    cr_assert_eq(counter(TRACE_COUNTER_FAILED_ALLOCS), THREADS * ROUNDS);
    cr_assert_gt(counter(TRACE_COUNTER_FLUSH_RETRIES), 0);
    return told;
}

Test(failures, many_threads_lose_no_count) {
    cr_assert_eq(storm_of(3), THREADS * ROUNDS);
}

/* A repeat may meet the rewriting of its record, and is then counted there or nowhere. */
Test(failures, many_threads_write_records_anew) {
    uint64_t told = storm_of(200);
    cr_assert(told <= THREADS * ROUNDS && told > THREADS * ROUNDS / 2, "%lu", (unsigned long)told);
}
