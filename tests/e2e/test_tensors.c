/*
 * The tensor ledger, by stand-ins for PyTorch's libraries: every form of the names that its
 * versions use. The real ones are compared with PyTorch's own counters in tests/gpu/torch.sh.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#define MIB (1u << 20)

static uint64_t sum(json_t *report, const char *function, const char *key) {
    json_t *site;
    size_t i;
    uint64_t all = 0;
    json_array_foreach(json_at(report, "sites"), i, site) {
        const char *name =
            json_string_value(json_object_get(json_object_get(site, "blame"), "function"));
        if (!strcmp(json_string_value(json_object_get(site, "ledger")), "tensor") && name &&
            !strcmp(name, function))
            all += json_number(site, key);
    }
    return all;
}

ParameterizedTestParameters(tensors, are_booked_in_every_form) {
    static int forms[] = {0, 1, 2};
    return cr_make_param_array(int, forms, 3);
}

ParameterizedTest(int *form, tensors, are_booked_in_every_form) {
    char number[2] = {(char)('0' + *form), 0};
    struct launch launch = {.program = PROGRAM("tensors"),
                            .args = {PROGRAM("c10_cuda.so"), number}};
    struct launch bare = launch;
    bare.plain = true;
    struct run *run = run_program(&launch), *plain = run_program(&bare);
    run_must_succeed(run);
    cr_assert_str_eq(run->out, plain->out, "the originals are called as before");
    json_t *report = cuheap_json("report", run_trace(run));
    json_t *tensor = json_at(report, "processes.0.devices.0.tensor");
    json_t *kind = json_object_get(json_object_get(tensor, "kinds"), "tensor");
    cr_assert_eq(json_number(kind, "allocs"), 13);
    cr_assert_eq(json_number(kind, "frees"), 10);
    cr_assert_eq(json_number(kind, "live_bytes"), 3 * 4096);
    cr_assert_eq(json_number(kind, "live_count"), 3);
    cr_assert_eq(json_number(kind, "peak_bytes"), 3 * 4096 + 8 * MIB);
    cr_assert_eq(sum(report, "c10_report", "allocs"), 13);
    cr_assert_eq(report_loss(report, "unknown_frees"), 1);
    json_t *driver = json_at(report, "processes.0.devices.0.driver.total");
    cr_assert_eq(json_number(driver, "live_bytes"), 25 * MIB);
    json_t *books = json_at(report, "processes.0.devices.0.reconciliation");
    cr_assert_eq(json_number(books, "allocated_bytes"), 3 * 4096 + 8 * MIB);
    cr_assert_eq(json_number(books, "reserved_bytes"), 22 * MIB);
    cr_assert_eq(json_number(books, "cached_bytes"), 14 * MIB - 3 * 4096);
    cr_assert_eq(json_number(books, "other_bytes"), 3 * MIB);
    cr_assert_eq(json_number(books, "driver_bytes"), 25 * MIB);
    json_t *failure = json_at(report, "processes.0.failures.0");
    cr_assert_eq(json_number(failure, "request_bytes"), 1ull << 42);
    cr_assert_eq(report_loss(report, "lost_frees"), 0);
    json_decref(report);
    run_free(run);
    run_free(plain);
}

/* ---- what is not a plain pair of allocation and free ------------------------------------------
 */

/* Must print the same without the library. The caller frees. */
static json_t *run_case(const char *name, const char *second) {
    struct launch launch = {.program = PROGRAM("tensor_cases"),
                            .args = {PROGRAM("c10_cuda.so"), name, second}};
    struct launch bare = launch;
    bare.plain = true;
    struct run *run = run_program(&launch), *plain = run_program(&bare);
    run_must_succeed(run);
    run_must_succeed(plain);
    cr_assert_str_eq(run->out, plain->out);
    json_t *report = cuheap_json("report", run_trace(run));
    run_free(run);
    run_free(plain);
    return report;
}

static json_t *device_of(json_t *report, int index) {
    json_t *device;
    size_t i;
    json_array_foreach(json_at(report, "processes.0.devices"), i, device) {
        if (json_integer_value(json_object_get(device, "index")) == index)
            return device;
    }
    cr_assert_fail("no device %d", index);
    return NULL;
}

static void tensors_must_be(json_t *device, uint64_t allocs, uint64_t frees, uint64_t live,
                            uint64_t peak) {
    json_t *kind = json_at(device, "tensor.kinds.tensor");
    cr_expect_eq(json_number(kind, "allocs"), allocs);
    cr_expect_eq(json_number(kind, "frees"), frees);
    cr_expect_eq(json_number(kind, "live_bytes"), live);
    cr_expect_eq(json_number(kind, "peak_bytes"), peak);
}

static void must_be_unknown(json_t *device, const char *key) {
    json_t *books = json_at(device, "reconciliation");
    cr_expect(json_is_null(json_at(books, key)), "%s is unknown, not a number", key);
}

Test(tensors, freed_but_never_allocated_are_counted) {
    json_t *report = run_case("frees_alone", NULL);
    cr_expect_eq(report_loss(report, "unknown_frees"), 3u);
    cr_expect_eq(json_array_size(json_at(report, "sites")), 0u);
    json_decref(report);
}

Test(tensors, of_a_pool_that_is_put_back_stay_exact) {
    json_t *report = run_case("restored", NULL), *device = device_of(report, 0);
    tensors_must_be(device, 6, 5, 7 * MIB, 8 * MIB);
    cr_expect_eq(report_loss(report, "lost_frees"), 1u);
    cr_expect_eq(report_loss(report, "unknown_frees"), 0u);
    cr_expect_eq(json_number(device, "reconciliation.reserved_bytes"), 20 * MIB);
    json_decref(report);
}

Test(tensors, of_the_oldest_form_lie_in_no_segment) {
    json_t *report = run_case("blocks", NULL), *device = device_of(report, 0);
    tensors_must_be(device, 2, 1, 5 * MIB, 8 * MIB);
    cr_expect_eq(json_number(device, "reconciliation.allocated_bytes"), 8 * MIB);
    must_be_unknown(device, "reserved_bytes");
    must_be_unknown(device, "cached_bytes");
    must_be_unknown(device, "other_bytes");
    cr_expect_eq(json_number(device, "driver.total.live_bytes"), 20 * MIB);
    json_decref(report);
}

Test(tensors, in_memory_that_was_not_seen_leave_the_rest_unknown) {
    json_t *report = run_case("unseen", NULL), *device = device_of(report, 0);
    cr_expect_eq(json_number(device, "reconciliation.allocated_bytes"), 4 * MIB);
    must_be_unknown(device, "reserved_bytes");
    must_be_unknown(device, "cached_bytes");
    must_be_unknown(device, "other_bytes");
    must_be_unknown(device, "driver_bytes");
    json_decref(report);
}

Test(tensors, in_expandable_segments_are_joined_to_physical_memory) {
    json_t *report = run_case("expandable", NULL), *device = device_of(report, 0);
    tensors_must_be(device, 3, 1, 21 * MIB, 76 * MIB);
    cr_expect_eq(json_number(device, "driver.kinds.vmm.live_bytes"), 82 * MIB);
    cr_expect_eq(json_number(device, "reconciliation.allocated_bytes"), 76 * MIB);
    cr_expect_eq(json_number(device, "reconciliation.reserved_bytes"), 80 * MIB);
    cr_expect_eq(json_number(device, "reconciliation.cached_bytes"), 4 * MIB);
    cr_expect_eq(json_number(device, "reconciliation.other_bytes"), 2 * MIB);
    json_decref(report);
}

Test(tensors, of_other_processors_are_passed_on_unbooked) {
    json_t *report = run_case("devices", NULL);
    tensors_must_be(device_of(report, 0), 1, 0, 512, 512);
    tensors_must_be(device_of(report, 1), 1, 0, 1024, 1024);
    cr_expect_eq(json_array_size(json_at(report, "sites")), 3u, "2048 bytes on no known device");
    cr_expect_eq(json_array_size(json_at(report, "processes.0.failures")), 0u);
    json_decref(report);
}

Test(tensors, out_of_memory_is_known_in_each_form) {
    json_t *report = run_case("out_of_memory", NULL);
    json_t *failures = json_at(report, "processes.0.failures");
    cr_assert_eq(json_array_size(failures), 3u);
    for (int i = 0; i < 3; i++) {
        json_t *failure = json_array_get(failures, (size_t)i);
        cr_expect_str_eq(json_text(failure, "call"), "c10::reportOutOfMemoryToProfiler");
        cr_expect_eq(json_number(failure, "request_bytes"), 1000u + (unsigned)i);
    }
    json_decref(report);
}

/* Each of two PyTorchs has its reports passed on to its own libc10, after an unloading too. */
Test(tensors, of_two_copies_reach_their_own_originals) {
    json_t *report = run_case("copies", PROGRAM("c10_cuda_second.so"));
    tensors_must_be(device_of(report, 0), 7, 2, 5 * 512, 7 * 512);
    cr_expect_eq(json_array_size(json_at(report, "processes.0.failures")), 2u);
    json_decref(report);
}
