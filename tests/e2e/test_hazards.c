/*
 * Hazards of living in another program's process: unwinding, descriptors, unloading, forks, small
 * stacks, the loader's locks, threads, signals. A hang is a failure by the harness's time limit.
 */
#include "books.h"
#include "profile.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(hazards, the_unwinder_stays_out_of_the_programs_scope) {
    struct run *run = run_same_output((struct launch){.program = PROGRAM("hazard_scope")});
    cr_assert(strstr(run->out, "with libgcc_s: _Unwind_RaiseException is libgcc_s.so.1\n"));
    cr_assert(strstr(run->out, "after an allocation: unw_backtrace is absent\n"));
    run_free(run);
}

Test(hazards, no_byte_goes_to_the_hosts_descriptors) {
    struct run *run = run_same_output((struct launch){.program = PROGRAM("hazard_descriptors")});
    cr_assert(strstr(run->out, "descriptor 3, offset 0, \"host data\"\n"), "%s", run->out);
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_eq(json_number(report, "processes.0.devices.0.driver.total.live_bytes"),
                 UINT64_C(41) * 4096);
    json_decref(report);
    run_free(run);
}

Test(hazards, a_host_with_libunwind_of_its_own_keeps_its_descriptors) {
    struct run *run = run_same_output((struct launch){.program = PROGRAM("hazard_own_unwinder")});
    if (strstr(run->out, "no libunwind\n"))
        cr_skip_test("libunwind is not installed");
    cr_assert_str_eq(run->out, "walked\n"
                               "descriptor 3, offset 0, 9 bytes, \"host data\"\n"
                               "descriptor 4, offset 0, 9 bytes, \"host data\"\n"
                               "descriptor 5, offset 0, 9 bytes, \"host data\"\n"
                               "descriptor 6, offset 0, 9 bytes, \"host data\"\n");
    run_free(run);
}

/* ---- loading and unloading ---- */

Test(hazards, no_unwinder_is_loaded_where_there_is_no_cuda) {
    struct launch launch = {.program = PROGRAM("hazard_unload"), .no_driver = true};
    struct run *run = run_same_output(launch);
    cr_assert_str_eq(run->out, "cos found\ndladdr found\ndlclose 0\nmaps read\n");
    cr_assert_eq(run->trace_count, 0);
    run_free(run);
}

/* The function "through_..." that a site's stack goes through, until the next call; the way out to
   main must be whole. */
static const char *library_of(json_t *report, json_t *site) {
    const char *names[64], *found = "neither";
    unsigned count = site_frames(report, site, names, 64), mains = 0;
    for (unsigned i = 0; i < count; i++) {
        if (!strncmp(names[i], "through_", 8))
            found = names[i];
        mains += !strcmp(names[i], "main");
    }
    cr_assert_eq(mains, 1, "the stack ends before main");
    return found;
}

/* Live bytes of the sites that go through a library. */
static uint64_t live_through(json_t *report, const char *library) {
    json_t *site;
    uint64_t live = 0;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        if (!strcmp(library_of(report, site), library))
            live += json_number(site, "live_bytes");
    }
    return live;
}

Test(hazards, a_library_at_the_address_of_another_has_its_own_stacks) {
    struct launch launch = {.program = PROGRAM("hazard_reload"),
                            .args = {PROGRAM("reload_first.so"), PROGRAM("reload_second.so")}};
    struct run *run = run_same_output(launch);
    if (!strstr(run->out, "same addresses\n"))
        cr_skip_test("the loader put the libraries at different addresses");
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_eq(live_through(report, "through_first"), 3 * 1000 + 3 * 300000);
    cr_assert_eq(live_through(report, "through_second"), 3 * 20000);
    json_decref(report);
    run_free(run);
}

struct turns {
    char library[96];
    char function[16];
};

static struct turns other_libraries[] = {
    {PROGRAM("reload_second.so"), "through_second"},
    {PROGRAM("reload_twin.so"), "through_twin"},
};

ParameterizedTestParameters(hazards, libraries_that_take_turns_at_one_address) {
    return cr_make_param_array(struct turns, other_libraries,
                               sizeof other_libraries / sizeof *other_libraries);
}

ParameterizedTest(struct turns *other, hazards, libraries_that_take_turns_at_one_address) {
    struct launch launch = {.program = PROGRAM("hazard_churn"),
                            .args = {"4", PROGRAM("reload_first.so"), other->library}};
    struct run *run = run_program(&launch); /* what it says of addresses is the kernel's choice */
    run_must_succeed(run);
    if (!strstr(run->out, "same addresses\n"))
        cr_skip_test("the loader put the libraries at different addresses");
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_eq(live_through(report, "through_first"), 2 * 1000);
    cr_assert_eq(live_through(report, other->function), 2 * 20000);
    cr_assert_eq(live_through(report, "neither"), 0);
    json_decref(report);
    run_free(run);
}

Test(hazards, a_plug_in_that_comes_and_goes_stays_one_module) {
    struct launch launch = {.program = PROGRAM("hazard_churn"),
                            .args = {"5000", PROGRAM("reload_first.so")}};
    struct run *run = run_program(&launch);
    run_must_succeed(run); /* what it says of addresses is the kernel's choice */
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_eq(live_through(report, "through_first"), 5000 * 1000);
    cr_assert_eq(json_number(report, "processes.0.devices.0.driver.kinds.device.frees"), 5000);
    bool moved = strstr(run->out, "other addresses\n"); /* then a stack of its own each time */
    cr_assert(moved || json_array_size(json_at(report, "sites")) == 2);
    cr_assert_eq(report_loss(report, "modules_full"), 0);
    cr_assert_eq(report_loss(report, "stack_incomplete"), 0);
    json_decref(report);
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    unsigned modules = 0;
    for (size_t i = 0; i < trace_record_count(trace, TRACE_SECTION_MODULES); i++)
        modules += trace_record(trace, TRACE_SECTION_MODULES, i) != NULL;
    trace_close(trace);
    cr_assert(moved || modules < 30, "%u modules", modules);
    run_free(run);
}

/* ---- forks ---- */

/* Of each child: three blocks taken, one given back. */
static void child_trace_must_read(const char *path) {
    struct trace_error error = {0};
    struct trace *trace = trace_open(path, &error);
    cr_assert(trace, "%s", error.text);
    struct profile *profile = profile_build(trace);
    const struct profile_kind *kind =
        profile_kind(profile, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0);
    cr_assert(kind && kind->live_bytes == 301000 && kind->live_count == 2 && kind->allocs == 3 &&
                  kind->frees == 1,
              "%s: %lu bytes live", path, kind ? (unsigned long)kind->live_bytes : 0ul);
    profile_free(profile);
    trace_close(trace);
}

/* 300 children in all, in three runs that the disk can hold. */
Test(hazards, forked_children_take_their_first_stack) {
    for (int round = 0; round < 3; round++) {
        struct launch launch = {.program = PROGRAM("hazard_fork"),
                                .args = {PROGRAM("reload_first.so"), "100"},
                                .env = {"CUHEAP_MAX_SIZE=1M"}};
        struct run *run = run_program(&launch);
        run_must_succeed(run);
        cr_assert_eq(run->trace_count, 100, "%u traces of 100 children", run->trace_count);
        for (unsigned i = 0; i < run->trace_count; i++)
            child_trace_must_read(run->traces[i]);
        run_free(run);
    }
}

/* ---- small stacks, constructors ---- */

Test(hazards, threads_with_the_smallest_stack) {
    struct run *run = run_same_output((struct launch){.program = PROGRAM("hazard_small_stack")});
    json_t *report = cuheap_json("report", run_trace(run));
    json_t *kind = json_at(report, "processes.0.devices.0.driver.kinds.device");
    cr_assert_eq(json_number(kind, "live_bytes"), 8 * 5000);
    cr_assert_eq(json_number(kind, "live_count"), 8);
    /* Where there was no room to go on, it is said; the frames that were taken are right. */
    uint64_t with = 0;
    json_t *site;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        const char *function =
            json_string_value(json_object_get(json_object_get(site, "blame"), "function"));
        if (function && !strcmp(function, "take"))
            with += json_number(site, "allocs");
    }
    cr_assert(with == 8 || report_loss(report, "stack_small") > 0, "%lu stacks right, of 8",
              (unsigned long)with);
    json_decref(report);
    run_free(run);
}

/* The second number leaves little more than the driver needs. */
Test(hazards, fibers_with_small_stacks) {
    static const char *const used[] = {"0", "4500"};
    for (int i = 0; i < 2; i++) {
        struct launch launch = {.program = PROGRAM("hazard_fibers"), .args = {used[i]}};
        struct run *run = run_same_output(launch);
        json_t *report = cuheap_json("report", run_trace(run));
        json_t *kind = json_at(report, "processes.0.devices.0.driver.kinds.device");
        cr_assert_eq(json_number(kind, "live_bytes"),
                     500 + 501 + 502 + 503 + 504 + 505 + 506 + 2 * 507);
        cr_assert_eq(json_number(kind, "live_count"), 9);
        /* None of the six small ones has the room to learn about a frame. */
        cr_assert_eq(report_loss(report, "stack_small"), 6);
        json_decref(report);
        run_free(run);
    }
}

Test(hazards, allocations_from_a_constructor_beside_dlopen) {
    struct launch launch = {.program = PROGRAM("hazard_constructor"),
                            .args = {PROGRAM("constructor.so"), PROGRAM("reload_first.so")}};
    struct run *run = run_same_output(launch);
    cr_assert_str_eq(run->out, "loads 40\n");
    json_t *report = cuheap_json("report", run_trace(run)), *site;
    json_t *kind = json_at(report, "processes.0.devices.0.driver.kinds.device");
    cr_assert_eq(json_number(kind, "allocs"), 80);
    cr_assert_eq(json_number(kind, "frees"), 40);
    cr_assert_eq(json_number(kind, "live_bytes"), 40 * 1000);
    uint64_t blamed = 0;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        if (!strcmp(json_text(site, "blame.function"), "from_constructor"))
            blamed += json_number(site, "allocs");
    }
    cr_assert_eq(blamed, 80);
    json_decref(report);
    run_free(run);
}

/* ---- threads ---- */

Test(hazards, a_cancelled_thread_leaves_nothing_half_done) {
    struct run *run = run_same_output((struct launch){.program = PROGRAM("hazard_cancel")});
    cr_assert_str_eq(run->out, "retain: came back\ntake: came back\nblocks 120001\n");
    json_t *report = cuheap_json("report", run_trace(run));
    json_t *kind = json_at(report, "processes.0.devices.0.driver.kinds.device");
    cr_assert_eq(json_number(kind, "live_count"), 120001);
    cr_assert_eq(json_number(kind, "live_bytes"), UINT64_C(120000) * 512 + 1000);
    cr_assert_eq(report_loss(report, "starting"), 0);
    cr_assert_eq(report_loss(report, "space_grow_failed"), 0);
    json_decref(report);
    run_free(run);
}

/* Those who come while the first one describes the context are not waited for: they do not count
   as uses. */
Test(hazards, a_context_retained_by_many_at_once_is_one) {
    struct launch launch = {.program = PROGRAM("hazard_contexts"), .env = {"SIMGPU_DEVICES=16"}};
    struct run *run = run_same_output(launch);
    cr_assert_str_eq(run->out, "devices 16\n");
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    unsigned contexts[16] = {0};
    for (size_t i = 0; i < trace_record_count(trace, TRACE_SECTION_CONTEXTS); i++) {
        const struct trace_context *context = trace_record(trace, TRACE_SECTION_CONTEXTS, i);
        if (!context)
            continue;
        cr_assert_lt(context->device, 16);
        cr_assert(context->uses >= 1 && context->uses <= 8, "%u uses", context->uses);
        contexts[context->device]++;
    }
    for (int i = 0; i < 16; i++)
        cr_assert_eq(contexts[i], 1, "%u contexts of device %d", contexts[i], i);
    trace_close(trace);
    run_free(run);
}

/* ---- signals ---- */

struct interrupted {
    struct run *run;
    unsigned long made, live, blocks; /* what the program says */
    uint64_t allocs, frees, live_found, blocks_found, nested, stale;
};

/* Calls made inside another watched call belong to the driver: they are counted apart. */
static struct interrupted interrupt(const char *mode) {
    struct interrupted i = {0};
    struct launch launch = {.program = PROGRAM("hazard_signal"), .args = {mode}};
    i.run = run_program(&launch);
    cr_assert(!i.run->timed_out && i.run->code == 0, "code %d, signal %d\n%s%s", i.run->code,
              i.run->signal, i.run->out, i.run->err);
    if (strstr(i.run->out, "not on this machine"))
        cr_skip_test("no single-stepping by a trap flag on this machine");
    const char *made = strstr(i.run->err, "made ");
    cr_assert(made && sscanf(made, "made %lu", &i.made) == 1 &&
                  sscanf(i.run->out, "live %lu blocks %lu", &i.live, &i.blocks) == 2,
              "%s%s", i.run->out, i.run->err);
    json_t *report = cuheap_json("report", run_trace(i.run));
    json_t *kind = json_at(report, "processes.0.devices.0.driver.kinds.device");
    i.allocs = json_number(kind, "allocs");
    i.frees = json_number(kind, "frees");
    i.live_found = json_number(kind, "live_bytes");
    i.blocks_found = json_number(kind, "live_count");
    json_decref(report);
    json_t *info = cuheap_json("info", run_trace(i.run));
    i.nested = json_number(info, "counters.nested_calls");
    i.stale = json_number(info, "counters.stale_guards");
    json_decref(info);
    cr_assert_eq(i.live_found, i.live, "live: the program says %lu, the report %lu", i.live,
                 (unsigned long)i.live_found);
    cr_assert_eq(i.blocks_found, i.blocks);
    return i;
}

Test(hazards, a_signal_handler_allocates_inside_the_driver) {
    struct interrupted i = interrupt("inside");
    cr_assert_eq(i.made, 20);
    cr_assert_eq(i.allocs, 10);
    cr_assert_eq(i.nested, 20); /* a block taken and given back in each of ten calls */
    run_free(i.run);
}

Test(hazards, a_call_is_left_by_longjmp) {
    struct interrupted i = interrupt("leave");
    cr_assert_eq(i.allocs, i.made);
    cr_assert_eq(i.frees, 4);
    cr_assert_eq(i.stale, 4);
    cr_assert_eq(i.nested, 0);
    run_free(i.run);
}

Test(hazards, a_signal_at_every_instruction_of_ours) {
    struct interrupted i = interrupt("step");
    unsigned long points = 0;
    sscanf(i.run->err, "%lu points", &points);
    cr_assert_gt(points, 100, "only %lu instructions of ours were met", points);
    cr_assert_eq(i.made, points + 4);
    cr_assert_eq(i.allocs + i.nested / 2, i.made, "%lu booked, %lu nested, %lu made",
                 (unsigned long)i.allocs, (unsigned long)i.nested, i.made);
    run_free(i.run);
}
