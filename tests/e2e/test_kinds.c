/*
 * Every kind of memory: programs that, after each call, compare the trace's live slots and counters
 * with the simulated driver's books, by kind and device, to the byte (programs/trace_books.h). Here
 * they are run, traced and not; and the report says of them what it should.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

struct kinds_case {
    char program[64]; /* here, since other processes read it */
};

static struct kinds_case kinds_cases[] = {
    {"kinds_physical"}, {"kinds_graphs"},  {"kinds_contexts"},
    {"kinds_pools"},    {"kinds_imports"}, {"kinds_old_names"},
};
#define KINDS_CASES (sizeof kinds_cases / sizeof *kinds_cases)

static struct run *run_kinds(const char *name, bool plain) {
    char program[160];
    snprintf(program, sizeof program, PROGRAM("%s"), name);
    struct run *run = run_program(
        &(struct launch){.program = program, .env = {"SIMGPU_DEVICES=3"}, .plain = plain});
    run_must_succeed(run);
    return run;
}

ParameterizedTestParameters(kinds, each_step_agrees_with_the_driver) {
    return cr_make_param_array(struct kinds_case, kinds_cases, KINDS_CASES);
}

ParameterizedTest(struct kinds_case *c, kinds, each_step_agrees_with_the_driver) {
    struct run *traced = run_kinds(c->program, false), *plain = run_kinds(c->program, true);
    cr_assert_str_eq(traced->out, plain->out);
    cr_assert_eq(plain->trace_count, 0);
    run_free(traced);
    run_free(plain);
}

/* What was refused is there once for each call and code, and is no out-of-memory. */
Test(kinds, refusals_are_recorded_without_a_storm) {
    struct run *run = run_kinds("kinds_physical", false);
    json_t *report = cuheap_json("report", run_trace(run)), *failure;
    unsigned released = 0, unmapped = 0;
    size_t i;
    json_array_foreach(json_at(report, "processes.0.failures"), i, failure) {
        const char *call = json_text(failure, "call");
        released += !strcmp(call, "cuMemRelease");
        unmapped += !strcmp(call, "cuMemUnmap");
        cr_assert_eq(json_number(failure, "code"), 1, "%s", call);
    }
    cr_assert_eq(released, 1);
    cr_assert_eq(unmapped, 1);
    json_decref(report);
    run_free(run);
}

/* Neither enters the total of a device. */
Test(kinds, host_and_imported_memory_is_apart) {
    struct run *run = run_kinds("kinds_contexts", false);
    json_t *report = cuheap_json("report", run_trace(run));
    json_t *device = json_at(report, "processes.0.devices.0.driver");
    cr_assert_eq(json_number(device, "kinds.imported.peak_bytes"), 0);
    cr_assert_eq(json_number(device, "kinds.imported.allocs"), 1);
    cr_assert_eq(json_number(device, "kinds.array.allocs"), 1);
    cr_assert_eq(json_number(device, "kinds.array.peak_bytes"), 64 * 64 * 4);
    cr_assert_eq(json_number(report, "processes.0.host_memory.kinds.registered.live_bytes"), 8192);
    /* device 1000, pitched 7 x 512, array, pool, physical: at once; no other byte */
    cr_assert_eq(json_number(device, "total.peak_bytes"),
                 1000 + 7 * 512 + 64 * 64 * 4 + 555 + (2 << 20));
    json_decref(report);
    run_free(run);
}
