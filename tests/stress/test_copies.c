/*
 * Programs killed while the live table is being copied for a failure, a copy over an older one as
 * well: the trace reads, and each copy that is there is whole. One thread; one program after the
 * other.
 */
#include "harness.h"
#include "profile.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENSORS      100000u
#define TENSOR_BYTES 512u
#define RUNS         5
#define MAPPED       (256u << 20) /* the largest trace: the file grows into it */
#define FIRST_REUSED 4            /* copies that are never written anew */

static bool has_ended(const struct run *run) {
    siginfo_t ended = {0};
    waitid(P_PID, (id_t)run->pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    return ended.si_pid != 0;
}

/* The trace in the run's folder, if it has a header already; -1. */
static int open_trace(const struct run *run) {
    struct stat file;
    int fd = -1;
    DIR *folder = opendir(run->dir);
    cr_assert(folder);
    for (struct dirent *entry; fd < 0 && (entry = readdir(folder));)
        if (strstr(entry->d_name, ".trace"))
            fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
    closedir(folder);
    if (fd >= 0 && fstat(fd, &file) == 0 && file.st_size >= TRACE_HEADER_BYTES)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Maps the trace of a program that is just starting. */
static const uint8_t *map_trace(const struct run *run) {
    int fd;
    while ((fd = open_trace(run)) < 0 && !has_ended(run))
        sched_yield();
    cr_assert_geq(fd, 0, "the program left no trace");
    const uint8_t *base = mmap(NULL, MAPPED, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    cr_assert(base != MAP_FAILED);
    return base;
}

/* Of the n-th copy's region; NULL: not made yet. */
static const struct trace_copy *copy_number(const uint8_t *base, uint32_t n) {
    const struct trace_region *region = (const void *)(base + TRACE_DIRECTORY_OFFSET);
    for (unsigned i = 0; i < TRACE_DIRECTORY_CAPACITY; i++, region++)
        if (__atomic_load_n(&region->section, __ATOMIC_ACQUIRE) == TRACE_SECTION_FAILURE_COPIES &&
            region->ordinal == n)
            return (const void *)(base + region->offset);
    return NULL;
}

static uint32_t state_of(const struct trace_copy *copy) {
    return copy ? __atomic_load_n(&copy->state, __ATOMIC_ACQUIRE) : 0;
}

/* Waits until the n-th copy is there, or once it was, until it is being written again. */
static void wait_for(const struct run *run, const uint8_t *base, uint32_t n, bool again) {
    while (!state_of(copy_number(base, n)) && !has_ended(run))
        sched_yield();
    const struct trace_copy *copy = copy_number(base, n);
    while (again && state_of(copy) && !has_ended(run))
        ;
}

/* How many there are. */
static unsigned copies_must_be_whole(const uint8_t *base) {
    unsigned found = 0;
    const struct trace_copy *copy;
    for (uint32_t n = 0; (copy = copy_number(base, n)); n++) {
        if (!copy->state)
            continue;
        uint64_t tensors = 0;
        cr_assert_eq(copy->count, TENSORS + 1, "copy %u has %lu slots", n,
                     (unsigned long)copy->count);
        for (uint64_t i = 0; i < copy->count; i++) {
            const struct trace_slot *slot = &copy->slots[i];
            if (TRACE_SLOT_SPACE(slot->word) != TRACE_SPACE_TENSOR)
                continue;
            cr_assert_eq(slot->bytes, TENSOR_BYTES);
            tensors += slot->address / TENSOR_BYTES;
        }
        cr_assert_eq(tensors, (uint64_t)TENSORS * (TENSORS + 1) / 2, "copy %u lacks tensors", n);
        const struct trace_failure *failure =
            (const void *)(base + ((uint64_t)copy->failure << TRACE_REF_SHIFT));
        cr_assert(failure->state == 1 && failure->request_bytes == 1ull << 50);
        found++;
    }
    return found;
}

static void trace_must_read(const struct run *run, const uint8_t *base) {
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    struct profile *profile = profile_build(trace);
    const struct profile_total *tensors =
        profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    cr_assert(tensors && tensors->live_count == TENSORS);
    cr_assert_eq(tensors->live_bytes, TENSORS * TENSOR_BYTES);
    const struct trace_failure *failure = trace_record(trace, TRACE_SECTION_FAILURES, 0);
    cr_assert(failure && !trace_record(trace, TRACE_SECTION_FAILURES, 1));
    const struct trace_copy *copy =
        (const void *)(base + ((uint64_t)failure->copy << TRACE_REF_SHIFT));
    cr_assert(!failure->copy || copy->state == 1, "the record names a copy that is not there");
    profile_free(profile);
    trace_close(trace);
}

Test(copies, a_kill_while_one_is_written) {
    unsigned caught = 0;
    for (unsigned i = 0; i < RUNS; i++) {
        struct launch launch = {.program = PROGRAM("failures_storm"), .args = {"100000"}};
        struct run *run = run_start(&launch);
        const uint8_t *base = map_trace(run);
        bool again = i % 4 != 0;
        wait_for(run, base, again ? FIRST_REUSED : i / 4 * 2, again);
        kill(run->pid, SIGKILL);
        run_wait(run, 20);
        cr_assert_eq(run->signal, SIGKILL, "code %d\n%s", run->code, run->err);
        trace_must_read(run, base);
        unsigned whole = copies_must_be_whole(base);
        if (again) {
            cr_assert(whole == 7 || whole == 8, "%u copies", whole);
            caught += whole == 7;
        }
        munmap((void *)(uintptr_t)base, MAPPED);
        run_free(run);
    }
    cr_assert_gt(caught, 0, "none was killed in the middle of a copy");
}
