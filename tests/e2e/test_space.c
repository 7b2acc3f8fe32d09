/*
 * A trace that has to grow where the file system, or a limit of the process, is against it: what
 * cannot be recorded is counted, and the program never notices.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define KIND "processes.0.devices.0.driver.kinds.device."

/* Every block is in the books or among the losses. */
static void blocks_must_add_up(json_t *report, uint64_t blocks) {
    uint64_t booked = json_number(report, KIND "live_count");
    uint64_t lost = report_loss(report, "table_full");
    cr_assert_eq(booked + lost, blocks, "%lu blocks booked, %lu counted as lost, of %lu",
                 (unsigned long)booked, (unsigned long)lost, (unsigned long)blocks);
    cr_assert_eq(json_number(report, KIND "live_bytes"), booked * 512);
    cr_assert_eq(report_loss(report, "table_full_bytes"), lost * 512);
}

/* Zeros are written there to get space, and must fall on nothing that another thread recorded. */
Test(space, threads_keep_their_records_without_fallocate) {
    for (int round = 0; round < 3; round++) {
        struct launch launch = {.program = PROGRAM("space"),
                                .args = {"threads"},
                                .preload_front = PROGRAM("fallocate.so")};
        struct run *run = run_program(&launch);
        run_must_succeed(run);
        json_t *report = cuheap_json("report", run_trace(run));
        cr_assert_eq(json_number(report, KIND "allocs"), 32000);
        cr_assert_eq(json_number(report, KIND "frees"), 32000);
        cr_assert_eq(json_number(report, KIND "live_count"), 0);
        cr_assert_eq(json_number(report, KIND "live_bytes"), 0);
        static const char *const losses[] = {"unknown_frees", "lost_frees",  "table_full",
                                             "sites_full",    "stacks_full", "space_grow_failed"};
        for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
            cr_assert_eq(report_loss(report, losses[i]), 0, "%s: %lu", losses[i],
                         (unsigned long)report_loss(report, losses[i]));
        json_decref(report);
        run_free(run);
    }
}

Test(space, a_full_file_system_that_has_room_again_is_used_again) {
    struct launch launch = {
        .program = PROGRAM("space"), .args = {"refused"}, .preload_front = PROGRAM("fallocate.so")};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    json_t *report = cuheap_json("report", run_trace(run));
    blocks_must_add_up(report, 1000 + 40000 + 1100 + 40000);
    cr_assert_eq(json_number(site_of(report, "take_before"), "live_count"), 1000);
    cr_assert_lt(json_number(site_of(report, "take_during"), "live_count"), 40000);
    cr_assert_eq(json_number(site_of(report, "take_after"), "live_count"), 40000);
    /* It was asked now and then, not for each of the blocks. */
    cr_assert_gt(report_loss(report, "space_grow_failed"), 0);
    cr_assert_lt(report_loss(report, "space_grow_failed"), 1000);
    json_decref(report);
    run_free(run);
}

/* ---- a limit on the size of files: beyond it there is SIGXFSZ ---- */

static struct run *limited(unsigned kibibytes, bool plain) {
    char command[256];
    snprintf(command, sizeof command, "ulimit -f %u && exec " PROGRAM("space") " many 100000",
             kibibytes * 2); /* of 512 bytes */
    struct launch launch = {.program = "/bin/sh", .args = {"-c", command}, .plain = plain};
    return run_program(&launch);
}

static struct run *limited_as_without(unsigned kibibytes) {
    struct run *plain = limited(kibibytes, true), *traced = limited(kibibytes, false);
    run_must_succeed(plain);
    cr_assert(traced->code == 0 && !traced->signal, "code %d, signal %d\n%s", traced->code,
              traced->signal, traced->err);
    cr_assert_str_eq(traced->out, plain->out);
    run_free(plain);
    return traced;
}

Test(space, a_limit_of_the_process_on_file_sizes_is_kept) {
    struct run *run = limited_as_without(1500);
    cr_assert_str_eq(run->err, "");
    struct stat st;
    cr_assert_eq(stat(run_trace(run), &st), 0);
    cr_assert_leq(st.st_size, 1500 << 10);
    json_t *report = cuheap_json("report", run_trace(run));
    blocks_must_add_up(report, 100000);
    cr_assert_gt(report_loss(report, "table_full"), 0);
    json_decref(report);
    run_free(run);
}

Test(space, a_limit_below_the_smallest_trace_means_none) {
    struct run *run = limited_as_without(100);
    cr_assert_eq(run->trace_count, 0);
    const char *newline = strchr(run->err, '\n');
    cr_assert(!strncmp(run->err, "cuheap: no trace: ", 18) && newline && !newline[1],
              "not one line: %s", run->err);
    run_free(run);
}
