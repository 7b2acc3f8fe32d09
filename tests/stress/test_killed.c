/*
 * Two hundred programs killed in the middle of an allocation storm on four threads: each trace must
 * read, and what it says is live must be what the program's own log says, within the one call that
 * each thread was in. One thread; the programs run one after the other.
 */
#include "../e2e/programs/storm.h"
#include "harness.h"
#include "profile.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUNS 200

struct bounds {
    uint64_t lower_bytes, upper_bytes, lower_blocks, upper_blocks, call_bytes, calls;
};

static struct bounds sum(const struct storm_log *log) {
    struct bounds sum = {0};
    for (int i = 0; i < STORM_THREADS; i++) {
        sum.lower_bytes += log->threads[i].lower_bytes;
        sum.upper_bytes += log->threads[i].upper_bytes;
        sum.lower_blocks += log->threads[i].lower_blocks;
        sum.upper_blocks += log->threads[i].upper_blocks;
        sum.call_bytes += log->threads[i].largest_call;
        sum.calls += log->threads[i].calls;
    }
    return sum;
}

static struct storm_log *map_log(char *path) {
    strcpy(path, "/tmp/cuheap-storm-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && ftruncate(fd, sizeof(struct storm_log)) == 0);
    struct storm_log *log = mmap(NULL, sizeof *log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    cr_assert(log != MAP_FAILED);
    return log;
}

/* Kills once the program has made so many calls: the moment is the scheduler's. */
static void kill_after(const struct run *run, const struct storm_log *log, uint64_t calls) {
    while (sum(log).calls < calls && kill(run->pid, 0) == 0) {
        siginfo_t ended = {0};
        waitid(P_PID, (id_t)run->pid, &ended, WEXITED | WNOHANG | WNOWAIT);
        if (ended.si_pid)
            return;
        sched_yield();
    }
    kill(run->pid, SIGKILL);
}

static void trace_must_agree(const char *path, const struct bounds *truth, unsigned run) {
    struct trace_error error = {0};
    struct trace *trace = trace_open(path, &error);
    cr_assert(trace, "run %u: %s", run, error.text);
    struct profile *profile = profile_build(trace);
    const struct profile_total *total =
        profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    cr_assert(total, "run %u: nothing recorded after %lu calls", run, (unsigned long)truth->calls);
    cr_assert(total->live_bytes >= truth->lower_bytes && total->live_bytes <= truth->upper_bytes,
              "run %u: live %lu, the program's log says %lu to %lu", run,
              (unsigned long)total->live_bytes, (unsigned long)truth->lower_bytes,
              (unsigned long)truth->upper_bytes);
    cr_assert(total->live_count >= truth->lower_blocks && total->live_count <= truth->upper_blocks,
              "run %u: %lu blocks, the program's log says %lu to %lu", run,
              (unsigned long)total->live_count, (unsigned long)truth->lower_blocks,
              (unsigned long)truth->upper_blocks);
    cr_assert(total->allocs - total->frees == total->live_count, "run %u: %lu - %lu is not %lu",
              run, (unsigned long)total->allocs, (unsigned long)total->frees,
              (unsigned long)total->live_count);
    cr_assert(total->allocs + total->frees >= truth->calls &&
                  total->allocs + total->frees <= truth->calls + STORM_THREADS,
              "run %u: %lu events of %lu calls", run, (unsigned long)(total->allocs + total->frees),
              (unsigned long)truth->calls);
    cr_assert_geq(total->peak_bytes, total->live_bytes);
    uint64_t live = 0;
    for (size_t i = 0; i < profile->site_count; i++)
        live += profile->sites[i].live_bytes;
    cr_assert_eq(live, total->live_bytes, "run %u: the sites do not add up to the total", run);
    profile_free(profile);
    trace_close(trace);
}

Test(killed, every_trace_is_true_to_within_a_call_a_thread) {
    unsigned state = 1;
    for (unsigned i = 0; i < RUNS; i++) {
        char path[64], seed[16];
        struct storm_log *log = map_log(path);
        snprintf(seed, sizeof seed, "%u", i);
        struct launch launch = {.program = PROGRAM("storm"), .args = {path, seed}};
        struct run *run = run_start(&launch);
        kill_after(run, log, 1 + (uint64_t)rand_r(&state) % 5000);
        run_wait(run, 20);
        cr_assert(run->signal == SIGKILL && !run->timed_out, "run %u: code %d\n%s", i, run->code,
                  run->err);
        struct bounds truth = sum(log);
        cr_assert_leq(truth.upper_bytes - truth.lower_bytes, truth.call_bytes);
        trace_must_agree(run_trace(run), &truth, i);
        munmap(log, sizeof *log);
        unlink(path);
        run_free(run);
    }
}
