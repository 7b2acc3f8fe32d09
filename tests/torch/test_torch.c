/*
 * The tensor ledger against the counters of PyTorch's own allocator, to the byte: the real
 * libc10_cuda on the simulated driver. Not part of `make check`, since it needs a download; see
 * check.sh.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TORCH(name) CUHEAP_BUILD "/torch/" name
#define MIB         (1ull << 20)

/* A line of cases.cc. */
struct counters {
    int device;
    uint64_t allocs, frees, live, count, peak, reserved, segments, active, ooms, retries;
};

static struct launch launch_of(const char *name) {
    return (struct launch){.program = TORCH("start"),
                           .args = {TORCH("cases.so"), name},
                           .env = {"SIMGPU_DEVICES=2", "SIMGPU_MEMORY=1G"}};
}

static struct run *run_case(const struct launch *launch) {
    struct run *run = run_program(launch);
    run_must_succeed(run);
    return run;
}

/* PyTorch's counters are the same with the library and without, where threads do not race. */
static void must_run_as_before(const struct launch *launch, const struct run *run) {
    struct launch bare = *launch;
    bare.plain = true;
    struct run *plain = run_program(&bare);
    run_must_succeed(plain);
    cr_assert_str_eq(run->out, plain->out);
    run_free(plain);
}

static struct counters counters_of(const struct run *run, int device) {
    char head[16];
    struct counters c;
    snprintf(head, sizeof head, "device %d ", device);
    const char *line = strstr(run->out, head);
    cr_assert(line, "nothing of device %d in: %s", device, run->out);
    int got = sscanf(line,
                     "device %d allocs %lu frees %lu live %lu count %lu peak %lu reserved %lu "
                     "segments %lu active %lu ooms %lu retries %lu",
                     &c.device, &c.allocs, &c.frees, &c.live, &c.count, &c.peak, &c.reserved,
                     &c.segments, &c.active, &c.ooms, &c.retries);
    cr_assert_eq(got, 11, "not understood: %s", line);
    return c;
}

static json_t *device_of(json_t *report, int index) {
    json_t *device;
    size_t i;
    json_array_foreach(json_at(report, "processes.0.devices"), i, device) {
        if (json_integer_value(json_object_get(device, "index")) == index)
            return device;
    }
    return NULL;
}

#define SAME(of, what, said, found)                                                                \
    cr_expect(said == found, "device %d: %s: PyTorch says %lu, the report %lu", (of)->device,      \
              what, (unsigned long)(said), (unsigned long)(found))

static void must_match(json_t *report, const struct counters *c) {
    json_t *device = device_of(report, c->device);
    cr_assert(device, "device %d is not in the report", c->device);
    json_t *tensors = json_at(device, "tensor.kinds.tensor");
    SAME(c, "allocations", c->allocs, json_number(tensors, "allocs"));
    SAME(c, "frees", c->frees, json_number(tensors, "frees"));
    SAME(c, "live bytes", c->live, json_number(tensors, "live_bytes"));
    SAME(c, "live tensors", c->count, json_number(tensors, "live_count"));
    SAME(c, "peak", c->peak, json_number(tensors, "peak_bytes"));
    json_t *blocks = json_at(device, "driver.kinds.device");
    SAME(c, "reserved", c->reserved, json_number(blocks, "live_bytes"));
    SAME(c, "segments", c->segments, json_number(blocks, "live_count"));
}

static uint64_t failures(json_t *report, const char *call) {
    json_t *failure;
    size_t i;
    uint64_t count = 0;
    json_array_foreach(json_at(report, "processes.0.failures"), i, failure) {
        const char *name = json_string_value(json_object_get(failure, "call"));
        count += name && strstr(name, call) != NULL;
    }
    return count;
}

static json_t *report_of(const struct run *run) {
    json_t *report = cuheap_json("report", run_trace(run));
    cr_expect_eq(report_loss(report, "unknown_frees"), 0u);
    cr_expect_eq(report_loss(report, "lost_frees"), 0u);
    return report;
}

static void same_lines(json_t *report, const struct counters *c) {
    json_t *books = json_at(device_of(report, c->device), "reconciliation");
    SAME(c, "reserved, reconciled", c->reserved, json_number(books, "reserved_bytes"));
    SAME(c, "allocated, reconciled", c->live, json_number(books, "allocated_bytes"));
    SAME(c, "cached, reconciled", c->reserved - c->live, json_number(books, "cached_bytes"));
    SAME(c, "others', reconciled", 0ul, json_number(books, "other_bytes"));
}

/* Cases that end with an allocation: what is live then is what the reconciliation takes. */
ParameterizedTestParameters(torch, counts_as_pytorch_does) {
    static char names[][16] = {"churn", "threads", "retry", "graph_pool"};
    return cr_make_param_array(char[16], names, sizeof names / sizeof *names);
}

ParameterizedTest(char (*name)[16], torch, counts_as_pytorch_does) {
    struct launch launch = launch_of(*name);
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    bool threads = !strcmp(*name, "threads"), both = threads || !strcmp(*name, "churn");
    if (!threads)
        must_run_as_before(&launch, run);
    for (int i = 0; i < 1 + both; i++) {
        struct counters c = counters_of(run, i);
        must_match(report, &c);
        same_lines(report, &c);
        cr_expect_eq(failures(report, "cuMemAlloc_v2"), c.retries);
        cr_expect_eq(failures(report, "OutOfMemory"), 0u);
    }
    json_decref(report);
    run_free(run);
}

Test(torch, counts_split_blocks_by_their_rounded_sizes) {
    struct launch launch = launch_of("split");
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    struct counters c = counters_of(run, 0);
    must_match(report, &c);
    cr_expect_eq(c.allocs, 77u);
    cr_expect(!device_of(report, 1), "a device that had nothing");
    json_decref(report);
    run_free(run);
}

/* Refused by the driver, once more after the cache was given back, then by PyTorch. */
Test(torch, out_of_memory_is_reported_once) {
    struct launch launch = launch_of("out_of_memory");
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    struct counters c = counters_of(run, 0);
    must_match(report, &c);
    cr_expect_eq(c.ooms, 1u);
    cr_expect_eq(failures(report, "reportOutOfMemoryToProfiler"), 1u);
    cr_expect_eq(failures(report, "cuMemAlloc_v2"), 2u);
    /* What is judged is what the driver refused: the segment that the tensor was to lie in. */
    cr_expect_eq(json_number(report, "processes.0.failures.2.request_bytes"), 514 * MIB);
    json_decref(report);
    run_free(run);
}

Test(torch, a_limit_of_its_own_is_not_the_drivers) {
    struct launch launch = launch_of("fraction");
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    struct counters c = counters_of(run, 0);
    must_match(report, &c);
    cr_expect_eq(failures(report, "reportOutOfMemoryToProfiler"), 1u);
    cr_expect_eq(failures(report, "cuMemAlloc_v2"), 0u);
    cr_expect_eq(json_number(report, "processes.0.failures.0.request_bytes"), 100 * MIB);
    json_decref(report);
    run_free(run);
}

/* Live is what is allocated, not what waits for another stream. */
Test(torch, record_stream_frees_at_the_request) {
    struct launch launch = launch_of("record_stream");
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    struct counters c = counters_of(run, 0);
    must_match(report, &c);
    cr_expect_eq(c.live, 30 * MIB);
    cr_expect_eq(c.active, 70 * MIB);
    json_decref(report);
    run_free(run);
}

/* Segments that are gone at the end were there at the end of work, and are known as segments. */
Test(torch, segments_given_back_stay_known) {
    struct launch launch = launch_of("empty_cache");
    struct run *run = run_case(&launch);
    json_t *report = report_of(run);
    struct counters c = counters_of(run, 0);
    must_match(report, &c);
    json_t *books = json_at(device_of(report, 0), "reconciliation");
    cr_expect_eq(json_number(books, "reserved_bytes"), 82 * MIB);
    cr_expect_eq(json_number(books, "allocated_bytes"), 80 * MIB + 512);
    cr_expect_eq(json_number(books, "other_bytes"), 0u);
    json_decref(report);
    run_free(run);
}

/* The driver ledger has the tensors; there is no tensor ledger, rather than an empty one. */
Test(torch, silent_tensors_are_in_the_driver_ledger) {
    static const struct {
        const char *variable;
        const char *kind;
    } cases[] = {
        {"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "driver.kinds.pool"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING=0", "driver.kinds.device"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launch launch = launch_of("silent");
        launch.env[0] = cases[i].variable;
        struct run *run = run_case(&launch);
        json_t *report = report_of(run), *device = device_of(report, 0);
        cr_expect(json_is_null(json_at(device, "tensor")), "%s", cases[i].variable);
        json_t *kind = json_at(device, cases[i].kind);
        cr_expect_eq(json_number(kind, "allocs"), 10u, "%s", cases[i].variable);
        cr_expect_eq(json_number(kind, "frees"), 4u, "%s", cases[i].variable);
        cr_expect_eq(json_number(kind, "live_bytes"), 6 * MIB, "%s", cases[i].variable);
        json_decref(report);
        run_free(run);
    }
}

static const char *trace_of_pid(const struct run *run, int pid) {
    char part[32];
    snprintf(part, sizeof part, ".%d.trace", pid);
    for (unsigned i = 0; i < run->trace_count; i++)
        if (strstr(run->traces[i], part))
            return run->traces[i];
    cr_assert_fail("no trace of pid %d", pid);
    return NULL;
}

Test(torch, tensors_made_before_tracing_are_counted_when_freed) {
    struct launch launch = launch_of("forked");
    struct run *run = run_case(&launch);
    json_t *parent = cuheap_json("report", trace_of_pid(run, run->pid));
    struct counters c = counters_of(run, 0);
    must_match(parent, &c);
    json_t *child = cuheap_json("report", trace_of_pid(run, atoi(run->out + strlen("child "))));
    json_t *tensors = json_at(child, "processes.0.devices.0.tensor.kinds.tensor");
    cr_expect_eq(json_number(tensors, "allocs"), 1u);
    cr_expect_eq(json_number(tensors, "frees"), 0u);
    cr_expect_eq(json_number(tensors, "live_bytes"), 9 * MIB);
    cr_expect_eq(report_loss(child, "unknown_frees"), 2u);
    json_decref(parent);
    json_decref(child);
    run_free(run);
}
