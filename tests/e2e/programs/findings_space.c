// LINK: @O@/simgpu/libcuda.so.1
/*
 * Pools, physical memory, graphs, shared memory, contexts, code on the GPU, and calls that fail
 * without being out of memory, with healthy programs beside: one case a name, see
 * tests/e2e/test_findings.c.
 */
#include "cuda_sim.h"
#include "findings.h"
#include "simgpu.h"

#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;

static void open_device(void) {
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
}

/* ---- pools ----------------------------------------------------------------------------------- */

static CUmemoryPool keeping_pool(void) {
    CUmemPoolProps here = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    uint64_t all = UINT64_MAX;
    MUST(cuMemPoolCreate(&pool, &here));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    return pool;
}

#define CHUNKS 2518 /* of 32 MiB: what a pool reserves by */
#define WHOLE  1594 /* of them stay whole */

PLACE CUdeviceptr fill_column(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr block;
    MUST(cuMemAllocFromPoolAsync(&block, bytes, pool, NULL));
    return block;
}

PLACE CUresult join_tables(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr block;
    return cuMemAllocFromPoolAsync(&block, bytes, pool, NULL);
}

/* Reserved 84490059776, used 53514136688, and 132870728 are refused. */
static void pool_fragmented(void) {
    static CUdeviceptr columns[CHUNKS];
    open_device();
    CUmemoryPool pool = keeping_pool();
    for (int i = 0; i < CHUNKS; i++)
        columns[i] = fill_column(pool, 32 * MIB);
    for (int i = 0; i < CHUNKS - WHOLE; i++) /* no two side by side */
        MUST(cuMemFreeAsync(columns[2 * i], NULL));
    fill_column(pool, 28372080);
    for (int i = 0; i < STEPS; i++) {
        MUST(cuMemFreeAsync(fill_column(pool, MIB), NULL));
        pace();
    }
    if (join_tables(pool, 132870728) != CUDA_ERROR_OUT_OF_MEMORY)
        exit(4);
}

static void pool_healthy(void) {
    open_device();
    CUmemoryPool pool = keeping_pool();
    for (int i = 0; i < 200; i++)
        MUST(cuMemFreeAsync(fill_column(pool, 32 * MIB), NULL));
    for (int i = 0; i < 8; i++)
        fill_column(pool, 32 * MIB);
    uint64_t reserved;
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
}

/* ---- physical memory ------------------------------------------------------------------------- */

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

PLACE CUmemGenericAllocationHandle create_weights(void) {
    CUmemGenericAllocationHandle handle;
    MUST(cuMemCreate(&handle, 64 * MIB, &on_device, 0));
    return handle;
}

#define HANDLES 32

static CUmemGenericAllocationHandle handles[HANDLES];
static CUdeviceptr base;

static void wake(void) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    if (!base)
        MUST(cuMemAddressReserve(&base, HANDLES * 64 * MIB, 0, 0, 0));
    for (int i = 0; i < HANDLES; i++) {
        handles[i] = create_weights();
        MUST(cuMemMap(base + (size_t)i * 64 * MIB, 64 * MIB, 0, handles[i], 0));
    }
    MUST(cuMemSetAccess(base, HANDLES * 64 * MIB, &access, 1));
}

/* Unmapped, and not released: the memory stays. */
static void sleep_without_release(void) {
    open_device();
    wake();
    MUST(cuMemUnmap(base, HANDLES * 64 * MIB));
    _exit(0); /* as a worker that is stopped while it sleeps */
}

static void sleep_healthy(void) {
    open_device();
    for (int round = 0; round < 3; round++) {
        wake();
        MUST(cuMemUnmap(base, HANDLES * 64 * MIB));
        for (int i = 0; i < HANDLES; i++)
            MUST(cuMemRelease(handles[i]));
    }
    MUST(cuMemAddressFree(base, HANDLES * 64 * MIB));
}

PLACE void release_twice(CUmemGenericAllocationHandle handle) {
    MUST(cuMemRelease(handle));
    if (cuMemRelease(handle) == CUDA_SUCCESS)
        exit(4);
}

static void double_release(void) {
    open_device();
    for (int i = 0; i < 12; i++)
        release_twice(create_weights());
}

PLACE void map_where_something_is(void) {
    if (cuMemMap(base, 64 * MIB, 0, handles[0], 0) == CUDA_SUCCESS)
        exit(4);
}

static void map_failed(void) {
    open_device();
    wake();
    map_where_something_is();
    MUST(cuMemUnmap(base, HANDLES * 64 * MIB));
    for (int i = 0; i < HANDLES; i++)
        MUST(cuMemRelease(handles[i]));
}

/* ---- host memory ----------------------------------------------------------------------------- */

PLACE void pin_region(void *at) {
    if (cuMemHostRegister_v2(at, 4 * MIB, 0) == CUDA_SUCCESS)
        exit(4);
}

static void register_failed(void) {
    open_device();
    char *region = aligned_alloc(4096, 4 * MIB);
    MUST(cuMemHostRegister_v2(region, 4 * MIB, 0));
    pin_region(region);
    MUST(cuMemHostUnregister(region));
    free(region);
}

/* A free inside a stream's host function is not permitted; nobody looks at the code. */
PLACE void *stage_indices(void) {
    void *block;
    MUST(cuMemHostAlloc(&block, 8 * KIB, 0));
    return block;
}

PLACE void free_in_callback(void *block) {
    if ((int)cuMemFreeHost(block) != 800) /* not permitted */
        exit(4);
}

static void free_failed(void) {
    open_device();
    SIMGPU_SYMBOL(simgpu_script)("cuMemFreeHost:1+=800");
    for (int i = 0; i < STEPS; i++) {
        free_in_callback(stage_indices());
        pace();
    }
}

/* A static object frees after the driver has ended. */
static CUdeviceptr static_block;

static void free_static(void) {
    if (cuMemFree_v2(static_block) != CUDA_ERROR_DEINITIALIZED)
        _exit(4);
}

static void free_after_end(void) {
    atexit(free_static); /* before the driver's own: runs after it */
    open_device();
    MUST(cuMemAlloc_v2(&static_block, MIB));
}

/* ---- graphs ---------------------------------------------------------------------------------- */

PLACE void add_node(CUgraph graph) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 96 * MIB};
    CUgraphNode node, end;
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0};
    MUST(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    MUST(cuGraphAddMemFreeNode(&end, graph, &node, 1, params.dptr));
}

static void graph(bool trim) {
    CUgraph graph;
    CUgraphExec exec;
    open_device();
    MUST(cuGraphCreate(&graph, 0));
    add_node(graph);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 10; i++)
        MUST(cuGraphLaunch(exec, NULL));
    if (trim)
        MUST(cuDeviceGraphMemTrim(0));
}

static void graph_reserved(void) {
    graph(false);
}

static void graph_healthy(void) {
    graph(true);
}

/* ---- shared memory --------------------------------------------------------------------------- */

PLACE void share_batch(CUipcMemHandle *handle) {
    CUdeviceptr pointer;
    MUST(cuMemAlloc_v2(&pointer, 2 * MIB));
    MUST(cuIpcGetMemHandle(handle, pointer));
}

PLACE CUdeviceptr receive_batch(const CUipcMemHandle *handle) {
    CUdeviceptr pointer;
    MUST(cuIpcOpenMemHandle_v2(&pointer, *handle, 1));
    return pointer;
}

#define BATCHES 32

/* A producer shares batches, a consumer opens them. */
static void share(bool close_them) {
    static CUipcMemHandle batches[BATCHES];
    int ends[2];
    MUST(pipe(ends));
    pid_t producer = fork();
    if (producer == 0) {
        open_device();
        for (int i = 0; i < BATCHES; i++)
            share_batch(&batches[i]);
        _exit(write(ends[1], batches, sizeof batches) != sizeof batches);
    }
    MUST(read(ends[0], batches, sizeof batches) != sizeof batches);
    waitpid(producer, NULL, 0);
    open_device();
    for (int i = 0; i < BATCHES; i++) {
        CUdeviceptr batch = receive_batch(&batches[i]);
        if (close_them)
            MUST(cuIpcCloseMemHandle(batch));
    }
}

static void ipc_unclosed(void) {
    share(false);
}

static void ipc_closed(void) {
    share(true);
}

/* ---- contexts -------------------------------------------------------------------------------- */

PLACE void train(void) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, 64 * MIB));
}

static void context_second(void) {
    CUcontext second;
    open_device();
    MUST(cuCtxCreate_v2(&second, 0, 0));
    train();
}

static void context_one_after_the_other(void) {
    open_device();
    MUST(cuCtxDestroy_v2(context));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    train();
}

/* Workers that only meant to prepare data. */
static void contexts_of_workers(void) {
    for (int i = 0; i < 24; i++)
        if (fork() == 0) {
            CUcontext primary;
            MUST(cuInit(0));
            MUST(cuDevicePrimaryCtxRetain(&primary, 0));
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    open_device();
    train();
}

/* ---- code on the GPU ------------------------------------------------------------------------- */

PLACE CUmodule compile_kernel(void) {
    CUmodule module;
    MUST(cuModuleLoadData(&module, "code"));
    return module;
}

static void modules(bool unload) {
    open_device();
    for (int i = 0; i < STEPS; i++) {
        for (int n = 0; n < 2; n++) {
            CUmodule module = compile_kernel();
            if (unload)
                MUST(cuModuleUnload(module));
        }
        pace();
        CUdeviceptr block;
        MUST(cuMemAlloc_v2(&block, MIB));
        MUST(cuMemFree_v2(block));
    }
}

static void modules_growing(void) {
    modules(false);
}

static void modules_healthy(void) {
    modules(true);
}

/* Compiled when the program begins, and once more when a shape changes. */
static void modules_recompiled(void) {
    open_device();
    for (int i = 0; i < STEPS; i++) {
        for (int n = 0; n < 50 && (i == 0 || i == 30); n++)
            compile_kernel();
        pace();
        CUdeviceptr block;
        MUST(cuMemAlloc_v2(&block, MIB));
        MUST(cuMemFree_v2(block));
    }
}

static const struct findings_case cases[] = {
    {"pool_fragmented", pool_fragmented},
    {"pool_healthy", pool_healthy},
    {"sleep_without_release", sleep_without_release},
    {"sleep_healthy", sleep_healthy},
    {"double_release", double_release},
    {"map_failed", map_failed},
    {"register_failed", register_failed},
    {"free_failed", free_failed},
    {"free_after_end", free_after_end},
    {"graph_reserved", graph_reserved},
    {"graph_healthy", graph_healthy},
    {"ipc_unclosed", ipc_unclosed},
    {"ipc_closed", ipc_closed},
    {"context_second", context_second},
    {"context_one_after_the_other", context_one_after_the_other},
    {"contexts_of_workers", contexts_of_workers},
    {"modules_growing", modules_growing},
    {"modules_healthy", modules_healthy},
    {"modules_recompiled", modules_recompiled},
};

MAIN(cases)
