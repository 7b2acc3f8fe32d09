// LINK: @O@/simgpu/libcuda.so.1
/*
 * Pools: which one a block is from, whose device that is, used bytes and their most, thresholds,
 * and reserved bytes as the program asked for them and after an out-of-memory. After each step the
 * books are the driver's.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

static const struct trace_pool *pool_of(CUmemoryPool handle) {
    const struct trace_pool *pool, *found = NULL;
    for (unsigned i = 0; (pool = books_record(TRACE_SECTION_POOLS, i)); i++)
        if (pool->handle == (uintptr_t)handle)
            found = pool;
    return found;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute what) {
    uint64_t value;
    MUST(cuMemPoolGetAttribute(pool, what, &value));
    return value;
}

static CUmemoryPool make(int device) {
    CUmemPoolProps there = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool pool;
    STEP(cuMemPoolCreate(&pool, &there));
    return pool;
}

static void default_pool(void) {
    CUmemoryPool standard;
    CUdeviceptr block[2];
    /* the default pool, met before its handle is known */
    STEP(cuMemAllocAsync(&block[0], 1000, NULL));
    STEP(cuDeviceGetDefaultMemPool(&standard, 0));
    TRACED(pool_of(standard)->used_bytes, 1000);
    TRACED(pool_of(standard)->flags, TRACE_POOL_DEFAULT);
    STEP(cuMemAllocFromPoolAsync(&block[1], 500, standard, NULL));
    TRACED(pool_of(standard)->used_bytes, 1500);
    STEP(cuMemFreeAsync(block[1], NULL));
    TRACED(pool_of(standard)->used_bytes, 1000);
    TRACED(pool_of(standard)->used_high_bytes, 1500);
    TRACED(pool_of(standard)->sampled_ns, 0);
    uint64_t reserved = attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    TRACED(pool_of(standard)->reserved_bytes, reserved);
    TRACED(pool_of(standard)->sampled_ns > 0, 1);
}

static CUdeviceptr block[4];
static CUmemoryPool own;

static void pool_of_another_device(void) {
    CUcontext context;
    CUmemoryPool same;
    uint64_t threshold = 1 << 20;
    /* another device's pool: its blocks are that device's, whatever is current */
    own = make(1);
    STEP(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    TRACED(pool_of(own)->threshold, threshold);
    TRACED(pool_of(own)->flags, TRACE_POOL_THRESHOLD_SET);
    TRACED(pool_of(own)->device, 1);
    STEP(cuMemAllocFromPoolAsync_ptsz(&block[2], 4096, own, NULL));
    STEP(cuDeviceSetMemPool(1, own));
    STEP(cuDeviceGetMemPool(&same, 1));
    MUST(cuCtxCreate_v2(&context, 0, 1));
    STEP(cuMemAllocAsync(&block[3], 8192, NULL));
    TRACED(pool_of(own)->used_bytes, 4096 + 8192);
}

static void out_of_memory(void) {
    CUdeviceptr none;
    /* out of memory: the driver is asked what the pools hold */
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&none, (size_t)1 << 50, NULL));
    TRACED(pool_of(own)->reserved_bytes, 32 << 20);
}

static void destroyed(void) {
    CUdeviceptr other;
    CUmemoryPool same;
    /* destroyed, its blocks live on; its handle may come again */
    STEP(cuMemPoolDestroy(own));
    STEP(cuMemFree_v2(block[2]));
    STEP(cuMemAllocAsync(&other, 64, NULL)); /* from the default one again */
    STEP(cuMemFreeAsync(block[3], NULL));
    same = make(1);
    STEP(cuMemAllocFromPoolAsync(&block[2], 77, same, NULL));
    TRACED(pool_of(same)->used_bytes, 77);
    TRACED(pool_of(same)->destroyed_ns, 0);
}

static void imported(void) {
    CUmemoryPool foreign;
    CUmemPoolPtrExportData data;
    CUdeviceptr other;
    /* pointers of another process's pool: no bytes of ours */
    STEP(cuMemPoolImportFromShareableHandle(&foreign, &data,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    STEP(cuMemPoolExportPointer(&data, block[2]));
    STEP(cuMemPoolImportPointer(&other, foreign, &data));
    STEP(cuMemFreeAsync(other, NULL));
    STEP(cuMemPoolImportPointer(&other, foreign, &data));
    STEP(cuMemFree_v2(other));
    TRACED(pool_of(foreign)->flags, TRACE_POOL_IMPORTED);
}

static void many(void) {
    CUdeviceptr other;
    /* more pools one after the other than can be at one time */
    for (int i = 0; i < 1000; i++) {
        CUmemoryPool pool = make(0);
        MUST(cuMemAllocFromPoolAsync(&other, 99, pool, NULL));
        MUST(cuMemPoolDestroy(pool));
        MUST(cuMemFreeAsync(other, NULL));
    }
    BOOKS();
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    default_pool();
    pool_of_another_device();
    out_of_memory();
    destroyed();
    imported();
    many();
    TRACED(books_loss(TRACE_LOSS_RECORDS_FULL), 0);
    TRACED(books_loss(TRACE_LOSS_UNKNOWN_FREES), 0);
    return 0;
}
