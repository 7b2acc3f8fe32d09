// LINK: @O@/simgpu/libcuda.so.1
/*
 * Device 0 is pretended to have 100 MiB (CUHEAP_LIMIT=0:100M), device 1 is as it is: what would
 * take more fails before the driver is asked, and every answer agrees. SIMGPU_DEVICES=2.
 */
#include "cuda_runtime_sim.h"
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#define MIB   ((size_t)1 << 20)
#define LIMIT (100 * MIB)
#define REAL  ((size_t)16 << 30)
#define MARK  0x5a5a5a5au
#define EXPECT(figure, expected)                                                                   \
    do {                                                                                           \
        if ((size_t)(figure) != (size_t)(expected)) {                                              \
            fprintf(stderr, "line %d: %s is %zu, not %zu\n", __LINE__, #figure, (size_t)(figure),  \
                    (size_t)(expected));                                                           \
            exit(95);                                                                              \
        }                                                                                          \
    } while (0)

static size_t free_now(void) {
    size_t by_driver, by_runtime, total, also;
    MUST(cuMemGetInfo_v2(&by_driver, &total));
    MUST(cudaMemGetInfo(&by_runtime, &also));
    EXPECT(by_driver, by_runtime);
    EXPECT(total, LIMIT);
    EXPECT(also, LIMIT);
    return by_driver;
}

/* A call that must fail without the driver being called by this name. */
#define KEPT_FROM_DRIVER(name, call)                                                               \
    do {                                                                                           \
        uint64_t calls_ = simgpu_calls(name);                                                      \
        REFUSED(2, call);                                                                          \
        EXPECT(simgpu_calls(name), calls_);                                                        \
    } while (0)

static void totals(void) {
    size_t total;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT(total, LIMIT);
    MUST(cuDeviceTotalMem_v2(&total, 1));
    EXPECT(total, REAL);
    REFUSED(101, cuDeviceTotalMem_v2(&total, 7));
}

/* 60 MiB are taken. */
static void too_much_of_each_kind(void) {
    CUdeviceptr block = MARK;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp there = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR image = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    CUarray array;
    CUmemoryPool pool;
    size_t pitch;
    void *host, *by_runtime = NULL;
    KEPT_FROM_DRIVER("cuMemAlloc_v2", cuMemAlloc_v2(&block, 40 * MIB + 1));
    EXPECT(block, MARK);
    KEPT_FROM_DRIVER("cuMemAlloc_v2", cudaMalloc(&by_runtime, 41 * MIB));
    KEPT_FROM_DRIVER("cuMemAllocPitch_v2", cuMemAllocPitch_v2(&block, &pitch, 41 * MIB, 1, 4));
    KEPT_FROM_DRIVER("cuMemAllocAsync", cuMemAllocAsync(&block, 41 * MIB, NULL));
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    KEPT_FROM_DRIVER("cuMemAllocFromPoolAsync",
                     cuMemAllocFromPoolAsync(&block, 41 * MIB, pool, NULL));
    KEPT_FROM_DRIVER("cuMemCreate", cuMemCreate(&handle, 42 * MIB, &there, 0));
    KEPT_FROM_DRIVER("cuArrayCreate_v2", cuArrayCreate_v2(&array, &image));
    STEP(cuMemAllocManaged(&block, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    STEP(cuMemHostAlloc(&host, 200 * MIB, 0));
    there.location.id = 1;
    STEP(cuMemCreate(&handle, 500 * MIB, &there, 0));
}

static void records(void) {
    const struct trace_failure *failure;
    unsigned count = 0;
    uint64_t all = 0;
    for (; (failure = books_record(TRACE_SECTION_FAILURES, count)); count++) {
        all += 1 + failure->repeats;
        TRACED(failure->flags & ~(uint32_t)TRACE_FAILURE_HANDLED,
               TRACE_FAILURE_PRETENDED | TRACE_FAILURE_FREE_KNOWN);
        TRACED(failure->code, 2);
        TRACED(failure->device, 0);
        TRACED(failure->free_bytes, 40 * MIB);
        TRACED(failure->total_bytes, LIMIT);
    }
    TRACED(all, 7);
    TRACED(books_counter(TRACE_COUNTER_FAILED_ALLOCS), 7);
}

int main(void) {
    CUcontext contexts[2];
    CUdeviceptr kept, rest, block;
    MUST(cuInit(0));
    totals();
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    MUST(cuCtxSetCurrent(contexts[0]));
    EXPECT(free_now(), LIMIT);
    STEP(cuMemAlloc_v2(&kept, 60 * MIB));
    EXPECT(free_now(), 40 * MIB);
    too_much_of_each_kind();
    EXPECT(free_now(), 40 * MIB);
    records();
    STEP(cuMemAllocAsync(&rest, 40 * MIB, NULL));
    EXPECT(free_now(), 0);
    KEPT_FROM_DRIVER("cuMemAlloc_v2", cuMemAlloc_v2(&block, 1));
    STEP(cuMemFree_v2(kept));
    EXPECT(free_now(), 60 * MIB);
    STEP(cuMemAlloc_v2(&kept, 60 * MIB));
    MUST(cuCtxSetCurrent(contexts[1]));
    STEP(cuMemAlloc_v2(&block, 500 * MIB));
    /* What the driver itself refuses is its own, and leaves room as it was. */
    REFUSED(1, cuMemAlloc_v2(&block, 0));
    MUST(cuCtxSetCurrent(contexts[0]));
    STEP(cuMemFree_v2(kept));
    REFUSED(1, cuMemAlloc_v2(NULL, 50 * MIB));
    EXPECT(free_now(), 60 * MIB);
    puts("done");
    return 0;
}
