// LINK: @O@/simgpu/libcuda.so.1
/*
 * A device of 1 GiB runs full: what the trace says of each refusal when it comes, and of it after
 * the program got over it, or did not. Run with SIMGPU_MEMORY=1G SIMGPU_CONTEXT_MEMORY=0.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#define MIB          ((size_t)1 << 20)
#define FAILURE(i)   ((const struct trace_failure *)books_record(TRACE_SECTION_FAILURES, i))
#define HANDLED      TRACE_FAILURE_HANDLED
#define FREE_KNOWN   TRACE_FAILURE_FREE_KNOWN
#define NO_RECORD(i) TRACED((uintptr_t)FAILURE(i), 0)

static CUdeviceptr blocks[4];

PLACE int take(CUdeviceptr *block, size_t bytes) {
    return cuMemAlloc_v2(block, bytes);
}

static void copy_must_hold_the_blocks(void) {
    uint64_t found = 0;
    if (!books_map())
        return;
    const struct trace_copy *copy =
        (const void *)(books_trace.base + ((uint64_t)FAILURE(0)->copy << TRACE_REF_SHIFT));
    TRACED(copy->state, 1);
    TRACED(copy->count, 4);
    TRACED(copy->ns, FAILURE(0)->ns);
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 4; n++)
            found += copy->slots[n].address == blocks[i] && copy->slots[n].bytes == 200 * MIB;
    TRACED(found, 4);
}

static void flush_and_retry(void) {
    CUdeviceptr large = 0;
    for (int i = 0; i < 4; i++)
        STEP(take(&blocks[i], 200 * MIB));
    NO_RECORD(0);
    REFUSED(2, take(&large, 400 * MIB));
    NO_RECORD(1);
    TRACED(FAILURE(0)->flags, FREE_KNOWN);
    TRACED(FAILURE(0)->request_bytes, 400 * MIB);
    TRACED(FAILURE(0)->free_bytes, 224 * MIB);
    TRACED(FAILURE(0)->total_bytes, 1024 * MIB);
    TRACED(FAILURE(0)->retry_ns, 0);
    copy_must_hold_the_blocks();
    STEP(cuMemFree_v2(blocks[1]));
    TRACED(FAILURE(0)->flags, FREE_KNOWN);
    STEP(cuMemFree_v2(blocks[2]));
    STEP(take(&large, 400 * MIB));
    TRACED(FAILURE(0)->flags, FREE_KNOWN | HANDLED);
    TRACED(FAILURE(0)->freed_bytes, 400 * MIB);
    TRACED(FAILURE(0)->retry_ns > FAILURE(0)->ns, 1);
    TRACED(books_counter(TRACE_COUNTER_FLUSH_RETRIES), 1);
    TRACED(books_counter(TRACE_COUNTER_FLUSH_RETRY_BYTES), 400 * MIB);
    TRACED(books_counter(TRACE_COUNTER_FLUSH_RETRY_NS), FAILURE(0)->retry_ns - FAILURE(0)->ns);
    STEP(cuMemFree_v2(large));
}

/* A probe for the largest size that fits, as libraries do. */
static void probe(void) {
    CUdeviceptr block;
    size_t bytes = 1000 * MIB;
    while (take(&block, bytes) != 0)
        bytes -= 100 * MIB;
    printf("fits: %zu MiB\n", bytes / MIB);
    TRACED(FAILURE(1)->request_bytes, 1000 * MIB);
    TRACED(FAILURE(1)->repeats, 3); /* 900, 800, 700: of one size class */
    TRACED(FAILURE(1)->last_request_bytes, 700 * MIB);
    TRACED(FAILURE(1)->flags, FREE_KNOWN | HANDLED);
    TRACED(FAILURE(1)->retry_ns, 0);
    NO_RECORD(2);
    STEP(cuMemFree_v2(block));
}

/* The driver must not be asked then. */
static void while_capturing(void) {
    CUstream captured, other;
    CUgraph graph;
    CUdeviceptr block;
    MUST(cuStreamCreate(&captured, 1));
    MUST(cuStreamCreate(&other, 1));
    MUST(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    uint64_t asked = simgpu_calls("cuMemGetInfo_v2");
    REFUSED(2, cuMemAllocAsync(&block, 2048 * MIB, other));
    printf("asked while capturing: %lu\n",
           (unsigned long)(simgpu_calls("cuMemGetInfo_v2") - asked));
    MUST(cuStreamEndCapture(captured, &graph));
    TRACED(FAILURE(2)->kind, TRACE_KIND_POOL);
    TRACED(FAILURE(2)->flags, 0);
}

static void observed(void) {
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    printf("free: %zu of %zu MiB\n", free_bytes / MIB, total / MIB);
    if (!books_map())
        return;
    const struct trace_device *device = ((const struct trace_header *)books_trace.base)->devices;
    TRACED(device->free_bytes, free_bytes);
    TRACED(device->free_live_bytes, 400 * MIB);
    TRACED(device->free_ns != 0, 1);
}

/* The last one is not got over: pinned memory is no memory of the device. */
static void end(void) {
    CUdeviceptr block = 0;
    void *host;
    REFUSED(2, take(&block, 3000 * MIB));
    STEP(cuMemHostAlloc(&host, 4096, 0));
    STEP(cuMemFree_v2(blocks[0]));
    TRACED(FAILURE(3)->flags, FREE_KNOWN);
    TRACED(FAILURE(3)->free_bytes, 624 * MIB);
    NO_RECORD(4);
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    flush_and_retry();
    probe();
    while_capturing();
    observed();
    end();
    TRACED(books_loss(TRACE_LOSS_RATE_LIMITED), 0);
    return 0;
}
