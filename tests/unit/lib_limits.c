/*
 * Pretended capacity and failures: what the settings mean, which allocations they choose, and that
 * threads together take no more than there is.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "record.h"

#define GIB (1ull << 30)

TestSuite(limits, .init = limits_reset);

Test(limits, capacities) {
    static const struct {
        const char *text;
        uint64_t first, second; /* of devices 0 and 1 */
        bool good;
    } rows[] = {
        {"8GiB", 8 * GIB, 8 * GIB, true},
        {"8g", 8 * GIB, 8 * GIB, true},
        {"0:8GiB,1:16GiB", 8 * GIB, 16 * GIB, true},
        {"1:4096", 0, 4096, true},
        {"8GiB,1:1GiB", 8 * GIB, GIB, true},
        {"", 0, 0, false},
        {"0", 0, 0, false},
        {"0:0", 0, 0, false},
        {"8GiB,", 0, 0, false},
        {",8GiB", 0, 0, false},
        {"1:", 0, 0, false},
        {":8GiB", 0, 0, false},
        {"64:8GiB", 0, 0, false},
        {"1:2:3", 0, 0, false},
        {"much", 0, 0, false},
        {"-1", 0, 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        limits_reset();
        cr_assert_eq(limits_read_capacity(rows[i].text), rows[i].good, "\"%s\"", rows[i].text);
        cr_assert_eq(limits_active, rows[i].good);
        cr_assert_eq(limits_settings.capacity[0], rows[i].first, "\"%s\"", rows[i].text);
        cr_assert_eq(limits_settings.capacity[1], rows[i].second, "\"%s\"", rows[i].text);
    }
}

/* Bit i: allocation i + 1 fails. */
static uint64_t chosen_of_the_first_40(void) {
    uint64_t bits = 0;
    for (unsigned i = 0; i < 40; i++)
        bits |= (uint64_t)limits_chosen(i + 1) << i;
    return bits;
}

Test(limits, choices) {
    static const struct {
        const char *text;
        uint64_t bits;
        bool good;
    } rows[] = {
        {"1", 1, true},
        {"3", 4, true},
        {"3,7,40", 1ull << 39 | 0x44, true},
        {"every:10", 1ull << 39 | 1u << 29 | 1u << 19 | 1u << 9, true},
        {"p:1", (1ull << 40) - 1, true},
        {"p:1.000,5", (1ull << 40) - 1, true},
        {"p:0.000000001", 0, true},
        {"", 0, false},
        {"0", 0, false},
        {"3,", 0, false},
        {"3,x", 0, false},
        {"3,0", 0, false},
        {"every:0", 0, false},
        {"every:", 0, false},
        {"every:3,4", 0, false},
        {"p:", 0, false},
        {"p:0", 0, false},
        {"p:0.0", 0, false},
        {"p:1.5", 0, false},
        {"p:2", 0, false},
        {"p:0.1,", 0, false},
        {"p:0.1,seed", 0, false},
        {"p:0.1,seed=", 0, false},
        {"p:0.1,4x", 0, false},
        {"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,"
         "33",
         0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        limits_reset();
        cr_assert_eq(limits_read_choice(rows[i].text), rows[i].good, "\"%s\"", rows[i].text);
        cr_assert_eq(limits_active, rows[i].good);
        cr_assert_eq(chosen_of_the_first_40(), rows[i].bits, "\"%s\"", rows[i].text);
    }
}

static unsigned chosen_of_a_million(const char *text, uint64_t *first_40) {
    unsigned count = 0;
    limits_reset();
    cr_assert(limits_read_choice(text));
    *first_40 = chosen_of_the_first_40();
    for (uint64_t i = 1; i <= 1000000; i++)
        count += limits_chosen(i);
    return count;
}

/* What is chosen depends on the seed and on nothing else: these numbers may never change. */
Test(limits, chances_are_kept_and_repeat_themselves) {
    uint64_t plain, again, seven;
    unsigned count = chosen_of_a_million("p:0.25", &plain);
    cr_assert_eq(count, chosen_of_a_million("p:0.25,0", &again));
    cr_assert_eq(plain, again);
    cr_assert(count > 248000 && count < 252000, "%u", count);
    count = chosen_of_a_million("p:0.25,seed=7", &seven);
    cr_assert(count > 248000 && count < 252000, "%u", count);
    cr_assert_neq(seven, plain);
    chosen_of_a_million("p:0.25,7", &again);
    cr_assert_eq(again, seven);
    cr_assert_eq(plain, 0x2380040154, "%#lx", (unsigned long)plain);
    cr_assert_eq(seven, 0x184809b220, "%#lx", (unsigned long)seven);
}

Test(limits, what_is_not_understood_is_noted_and_changes_nothing) {
    setenv("CUHEAP_LIMIT", "8GiB", 1);
    setenv("CUHEAP_FAIL", "sometimes", 1);
    config_read();
    cr_assert_str_eq(config.unknown, "CUHEAP_FAIL=sometimes");
    cr_assert_eq(limits_settings.choice, LIMITS_NONE);
    cr_assert_eq(limits_settings.capacity[5], 8 * GIB);
    char note[2 * LIMITS_TEXT + 128];
    limits_note(note, sizeof note);
    cr_assert_str_eq(note, "pretended: CUHEAP_LIMIT=8GiB; allocations were refused that the GPU "
                           "might have had room for");
    setenv("CUHEAP_FAIL", "3,4", 1);
    config_read();
    limits_note(note, sizeof note);
    cr_assert_str_eq(note, "pretended: CUHEAP_LIMIT=8GiB and CUHEAP_FAIL=3,4; allocations were "
                           "refused that the GPU might have had room for");
    unsetenv("CUHEAP_LIMIT");
    unsetenv("CUHEAP_FAIL");
    config_read();
    cr_assert_not(limits_active);
    cr_assert_eq(limits_settings.capacity[5], 0);
}

/* ---- capacity -------------------------------------------------------------------------------- */

#define THREADS 8
#define ROUNDS  20000
#define BLOCK   100u
#define FITTING 20u /* blocks */

static char path[64];
static struct recorder *recorder;
static uint64_t live, most, refused, taken;

static void open_recorder(void) {
    void *header = calloc(1, TRACE_HEADER_BYTES);
    recorder = calloc(1, sizeof *recorder);
    snprintf(path, sizeof path, "/tmp/cuheap-limits-%d.trace", getpid());
    cr_assert_eq(trace_create(&recorder->trace, path, 0600, 64 << 20, header), 0);
    cr_assert(record_init(recorder, CONFIG_STACKS_NONE, 64));
    free(header);
}

static bool take(struct record_call *call, uint64_t address, uint64_t bytes) {
    struct record_block block = {.kind = TRACE_KIND_DEVICE,
                                 .space = TRACE_SPACE_POINTER,
                                 .address = address,
                                 .bytes = bytes};
    if (limits_refuse(call, TRACE_KIND_DEVICE, 0, bytes)) {
        cr_assert(limits_failed(recorder));
        add_relaxed(&refused, 1);
        return false;
    }
    raise_relaxed(&most, add_relaxed(&live, bytes) + bytes);
    record_block(call, &block);
    add_relaxed(&taken, 1);
    return true;
}

static void give(struct record_call *call, uint64_t address, uint64_t bytes) {
    record_free_begin(call, TRACE_SPACE_POINTER, address);
    add_relaxed(&live, -bytes);
    record_free_end(call, address, CUDA_SUCCESS);
}

static void *take_and_give(void *number) {
    struct record_call call = {.recorder = recorder};
    uint64_t base = (uint64_t)(uintptr_t)number << 32;
    for (unsigned i = 0; i < ROUNDS; i++) {
        bool had[4];
        for (unsigned n = 0; n < 4; n++)
            had[n] = take(&call, base + n + 1, BLOCK);
        for (unsigned n = 0; n < 4; n++)
            if (had[n])
                give(&call, base + n + 1, BLOCK);
    }
    return NULL;
}

Test(limits, threads_together_take_no_more_than_there_is) {
    pthread_t threads[THREADS];
    cr_assert(limits_read_capacity("2000"));
    open_recorder();
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, take_and_give, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unlink(path);
    cr_assert_leq(most, FITTING * BLOCK);
    cr_assert_eq(taken + refused, THREADS * ROUNDS * 4);
    cr_assert_eq(recorder->limits.taken[0], 0, "all of it is there again");
    struct record_call call = {.recorder = recorder};
    for (uint64_t i = 1; i <= FITTING; i++)
        cr_assert(take(&call, i, BLOCK));
    cr_assert_not(take(&call, FITTING + 1, 1));
}

Test(limits, what_the_driver_refused_is_there_again) {
    struct record_call call = {0};
    cr_assert(limits_read_capacity("2000"));
    open_recorder();
    unlink(path);
    call.recorder = recorder;
    cr_assert_not(limits_refuse(&call, TRACE_KIND_DEVICE, 0, 1500));
    cr_assert_eq(recorder->limits.taken[0], 1500);
    cr_assert_not(limits_failed(recorder), "the driver's own failure is not ours");
    cr_assert_eq(recorder->limits.taken[0], 0);
    cr_assert(limits_refuse(&call, TRACE_KIND_VMM, 0, 2001));
    cr_assert_not(limits_refuse(&call, TRACE_KIND_MANAGED, 0, 2001));
    cr_assert_not(limits_refuse(&call, TRACE_KIND_HOST, 0, 2001));
    cr_assert_not(limits_refuse(&call, TRACE_KIND_REGISTERED, 0, 2001));
    cr_assert_not(limits_refuse(&call, TRACE_KIND_DEVICE, TRACE_DEVICE_UNKNOWN, 2001));
}

Test(limits, a_block_that_is_larger_than_what_was_asked_for_counts_as_it_is) {
    struct record_call call = {0};
    struct record_block pitched = {
        .kind = TRACE_KIND_DEVICE, .space = TRACE_SPACE_POINTER, .address = 1, .bytes = 1600};
    cr_assert(limits_read_capacity("2000"));
    open_recorder();
    unlink(path);
    call.recorder = recorder;
    cr_assert_not(limits_refuse(&call, TRACE_KIND_DEVICE, 0, 1500));
    record_block(&call, &pitched);
    size_t free_bytes = 1 << 20, total = 1 << 20;
    limits_show(recorder, 0, &free_bytes, &total);
    cr_assert_eq(free_bytes, 400);
    cr_assert_eq(total, 2000);
    free_bytes = 300, total = 1 << 20;
    limits_show(recorder, 0, &free_bytes, NULL);
    cr_assert_eq(free_bytes, 300, "less than that is really free");
    limits_show_total(CUDA_SUCCESS, 1, &total);
    cr_assert_eq(total, 2000);
    limits_show_total(CUDA_SUCCESS, -1, &total);
    give(&call, 1, 1600);
    cr_assert_eq(recorder->limits.taken[0], 0);
}
