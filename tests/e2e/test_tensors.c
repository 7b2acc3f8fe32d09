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
    json_decref(report);
    run_free(run);
    run_free(plain);
}
