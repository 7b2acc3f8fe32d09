// LINK: @O@/simgpu/libcuda.so.1
/*
 * Random operations of all kinds: kinds_random SEED OPERATIONS. Four threads, three devices,
 * contexts that come and go, calls that fail by script. After each thousand all threads wait, the
 * trace is compared with the driver's books to the byte, by kind and device, the threads' things
 * change hands, and a context may end with all that is in it.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#include <sys/wait.h>

#define THREADS 4
#define THINGS  400 /* of a thread at one time */
#define DEVICES 3
#define ROUND   1000
#define PAGE    ((size_t)2 << 20)
#define HANDLES 4 /* of another process's memory */

enum what {
    NONE, /* no thing */
    POINTER,
    STREAM_ORDERED, /* a pointer that outlives its context */
    PINNED,
    REGISTERED,
    PHYSICAL,
    MAPPED,
    ARRAY,
    MIPMAP,
    OPENED,
    EXTERNAL,
    GRAPH,
    POOL,
    MODULE,
    LIBRARY,
};

struct thing {
    enum what what;
    CUcontext context; /* that it ends with; NULL: none */
    uint64_t key, more, bytes;
};

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t random;
    CUcontext context;
    struct thing things[THINGS];
    char *own; /* memory to register, a page a thing */
};

static struct worker workers[THREADS];
static pthread_barrier_t barrier;
static CUipcMemHandle foreign[HANDLES];
static unsigned long rounds;
static uint64_t seed;

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 8;
}

static uint64_t below(struct worker *w, uint64_t limit) {
    return next_random(&w->random) % limit;
}

static size_t some_bytes(struct worker *w) {
    return 1 + below(w, (uint64_t)1 << (4 + below(w, 22)));
}

/* ---- taking ---- */

static bool keep(struct worker *w, struct thing thing) {
    for (unsigned i = 0; i < THINGS; i++)
        if (w->things[i].what == NONE) {
            w->things[i] = thing;
            return true;
        }
    abort();
}

static void take_pointer(struct worker *w) {
    CUdeviceptr pointer;
    size_t pitch, bytes = some_bytes(w);
    CUresult rc;
    if (below(w, 50) == 0)
        bytes <<= 20; /* often too much */
    switch (below(w, 4)) {
    case 0:
        rc = cuMemAllocPitch_v2(&pointer, &pitch, 1 + bytes % 5000, 1 + bytes % 100, 4);
        break;
    case 1:
        rc = cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    default:
        rc = cuMemAlloc_v2(&pointer, bytes);
    }
    if (!rc)
        keep(w, (struct thing){POINTER, w->context, pointer, 0, 0});
}

static void take_host(struct worker *w) {
    size_t bytes = some_bytes(w);
    unsigned page = (unsigned)below(w, THINGS);
    void *pointer;
    if (below(w, 3) == 0) {
        if (!cuMemHostRegister_v2(w->own + page * 4096, 1 + bytes % 4096, 0))
            keep(w, (struct thing){REGISTERED, w->context, (uintptr_t)w->own + page * 4096, 0, 0});
    } else if (!(bytes % 2 ? cuMemHostAlloc(&pointer, bytes, 0)
                           : cuMemAllocHost_v2(&pointer, bytes))) {
        keep(w, (struct thing){PINNED, w->context, (uintptr_t)pointer, 0, 0});
    }
}

static CUmemoryPool some_pool(struct worker *w) {
    CUmemoryPool pool;
    for (unsigned i = (unsigned)below(w, THINGS), n = 0; n < THINGS; n++, i = (i + 1) % THINGS)
        if (w->things[i].what == POOL)
            return (CUmemoryPool)(uintptr_t)w->things[i].key;
    return cuDeviceGetDefaultMemPool(&pool, (int)below(w, DEVICES)) ? NULL : pool;
}

static void take_stream_ordered(struct worker *w) {
    CUdeviceptr pointer;
    size_t bytes = some_bytes(w);
    CUmemoryPool pool = below(w, 2) ? some_pool(w) : NULL;
    CUresult rc;
    if (pool)
        rc = bytes % 2 ? cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL)
                       : cuMemAllocFromPoolAsync_ptsz(&pointer, bytes, pool, NULL);
    else
        rc = bytes % 2 ? cuMemAllocAsync(&pointer, bytes, NULL)
                       : cuMemAllocAsync_ptsz(&pointer, bytes, NULL);
    if (!rc)
        keep(w, (struct thing){STREAM_ORDERED, NULL, pointer, 0, 0});
}

static void take_pool(struct worker *w) {
    CUmemPoolProps there = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)}};
    CUmemoryPool pool;
    uint64_t value = 1 << 20;
    if (cuMemPoolCreate(&pool, &there))
        return;
    if (below(w, 2))
        cuDeviceSetMemPool(there.location.id, pool);
    cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    keep(w, (struct thing){POOL, NULL, (uintptr_t)pool, 0, 0});
}

static void take_physical(struct worker *w) {
    CUmemAllocationProp there = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmulticastObjectProp many = {.numDevices = 2, .size = PAGE};
    CUmemGenericAllocationHandle handle;
    size_t bytes = (1 + below(w, 4)) * PAGE;
    CUresult rc;
    there.location.type =
        below(w, 8) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA;
    there.location.id = (int)below(w, DEVICES);
    switch (below(w, 8)) {
    case 0:
        bytes = PAGE;
        rc = cuMulticastCreate(&handle, &many);
        break;
    case 1:
        bytes = PAGE;
        rc = cuMemImportFromShareableHandle(&handle, &bytes,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        break;
    default:
        rc = cuMemCreate(&handle, bytes, &there, 0);
    }
    if (!rc)
        keep(w, (struct thing){PHYSICAL, NULL, handle, 0, bytes});
}

/* Maps some memory once or twice, side by side, and may let the handle go. */
static void map_some(struct worker *w) {
    struct thing *memory = &w->things[below(w, THINGS)];
    CUdeviceptr va;
    if (memory->what != PHYSICAL || cuMemAddressReserve(&va, 2 * memory->bytes, 0, 0, 0))
        return;
    if (cuMemMap(va, memory->bytes, 0, memory->key, 0)) {
        cuMemAddressFree(va, 2 * memory->bytes);
        return;
    }
    uint64_t mapped = memory->bytes;
    if (below(w, 2) && !cuMemMap(va + mapped, memory->bytes, 0, memory->key, 0))
        mapped += memory->bytes;
    struct thing mapping = {MAPPED, NULL, va, 2 * memory->bytes, mapped};
    if (below(w, 2) && !cuMemRelease(memory->key))
        memory->what = NONE;
    keep(w, mapping);
}

static void retain_some(struct worker *w) {
    const struct thing *mapping = &w->things[below(w, THINGS)];
    CUmemGenericAllocationHandle handle;
    if (mapping->what == MAPPED &&
        !cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(mapping->key + 77)))
        keep(w, (struct thing){PHYSICAL, NULL, handle, 0, PAGE});
}

static void take_array(struct worker *w) {
    static const CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF,
                                             CU_AD_FORMAT_FLOAT, CU_AD_FORMAT_BC1_UNORM};
    static const unsigned flags[] = {0, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SPARSE,
                                     CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUDA_ARRAY3D_DESCRIPTOR deep = {1 + below(w, 200),    below(w, 200),     below(w, 9),
                                    formats[below(w, 4)], 1u << below(w, 3), flags[below(w, 4)]};
    CUDA_ARRAY_DESCRIPTOR flat = {deep.Width, deep.Height, deep.Format, deep.NumChannels};
    CUmipmappedArray mipmap;
    CUarray array;
    if (below(w, 3) == 0) {
        if (!cuMipmappedArrayCreate(&mipmap, &deep, 1 + (unsigned)below(w, 7)))
            keep(w, (struct thing){MIPMAP, w->context, (uintptr_t)mipmap, 0, 0});
    } else if (!(below(w, 2) ? cuArrayCreate_v2(&array, &flat)
                             : cuArray3DCreate_v2(&array, &deep))) {
        keep(w, (struct thing){ARRAY, w->context, (uintptr_t)array, 0, 0});
    }
}

static void open_foreign(struct worker *w) {
    CUdeviceptr pointer;
    CUipcMemHandle handle = foreign[below(w, HANDLES)];
    if (!(below(w, 2) ? cuIpcOpenMemHandle_v2(&pointer, handle, 1)
                      : cuIpcOpenMemHandle(&pointer, handle, 1)))
        keep(w, (struct thing){OPENED, w->context, pointer, 0, 0});
}

static void take_external(struct worker *w) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .size = some_bytes(w)};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = 1 + from.size / 2};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC image = {
        .arrayDesc = {8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0}, .numLevels = 1};
    CUexternalMemory memory;
    CUmipmappedArray mipmap;
    CUdeviceptr buffer;
    if (cuImportExternalMemory(&memory, &from))
        return;
    keep(w, (struct thing){EXTERNAL, w->context, (uintptr_t)memory, 0, 0});
    if (below(w, 2) && !cuExternalMemoryGetMappedBuffer(&buffer, memory, &part))
        keep(w, (struct thing){POINTER, w->context, buffer, 0, 0});
    if (below(w, 2) && !cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &image))
        keep(w, (struct thing){MIPMAP, w->context, (uintptr_t)mipmap, 0, 0});
}

/* ---- graphs ---- */

static CUgraph built_graph(struct worker *w, CUdeviceptr *left) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUgraph graph;
    CUgraphNode node;
    if (cuGraphCreate(&graph, 0))
        return NULL;
    for (uint64_t n = 1 + below(w, 3); n--;) {
        params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        params.alloc = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = some_bytes(w)};
        params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params.alloc.poolProps.location =
            (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)};
        if (below(w, 2) ? cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params.alloc)
                        : cuGraphAddNode(&node, graph, NULL, 0, &params))
            continue;
        if (!*left && below(w, 2))
            *left = params.alloc.dptr;
        else
            MUST(cuGraphAddMemFreeNode(&node, graph, NULL, 0, params.alloc.dptr));
    }
    return graph;
}

static CUgraph captured_graph(struct worker *w, CUdeviceptr *left) {
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr pointer;
    if (cuStreamCreate(&stream, 1))
        return NULL;
    if (!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED)) {
        for (uint64_t n = 1 + below(w, 3); n--;) {
            if (cuMemAllocAsync(&pointer, some_bytes(w), stream))
                continue;
            if (!*left && below(w, 2))
                *left = pointer;
            else
                cuMemFreeAsync(pointer, stream);
        }
        MUST(cuStreamEndCapture(stream, &graph));
    }
    cuStreamDestroy_v2(stream);
    return graph;
}

static void take_graph(struct worker *w) {
    CUdeviceptr left = 0;
    CUgraphExec exec;
    CUgraph graph = below(w, 2) ? built_graph(w, &left) : captured_graph(w, &left);
    if (!graph)
        return;
    if (cuGraphInstantiateWithFlags(&exec, graph, 0)) {
        MUST(cuGraphDestroy(graph));
        return;
    }
    bool live = !cuGraphLaunch(exec, NULL) && left;
    if (below(w, 2) && left && live)
        live = cuMemFree_v2(left) != 0;
    if (below(w, 2))
        live = (!cuGraphLaunch_ptsz(exec, NULL) && left) || live;
    MUST(cuGraphDestroy(graph));
    keep(w, (struct thing){GRAPH, NULL, (uintptr_t)exec, left, live});
}

static void launch_again(struct worker *w) {
    struct thing *graph = &w->things[below(w, THINGS)];
    if (graph->what == GRAPH && !cuGraphLaunch((CUgraphExec)(uintptr_t)graph->key, NULL))
        graph->bytes = graph->more != 0;
}

/* ---- code, contexts, nonsense ---- */

static void load_code(struct worker *w) {
    CUmodule module;
    CUlibrary library;
    if (below(w, 2) && !cuModuleLoadData(&module, w))
        keep(w, (struct thing){MODULE, NULL, (uintptr_t)module, 0, 0});
    else if (!cuLibraryLoadData(&library, w, NULL, NULL, 0, NULL, NULL, 0))
        keep(w, (struct thing){LIBRARY, NULL, (uintptr_t)library, 0, 0});
}

/* A context of a moment, while the other threads go on. */
static void visit_context(struct worker *w) {
    CUcontext context;
    CUdeviceptr pointer;
    void *host;
    if (cuCtxCreate_v2(&context, 0, (int)below(w, DEVICES)))
        return;
    for (uint64_t n = below(w, 5); n--;) {
        cuMemAlloc_v2(&pointer, some_bytes(w));
        cuMemHostAlloc(&host, some_bytes(w), 0);
        cuIpcOpenMemHandle_v2(&pointer, foreign[0], 1);
    }
    while (cuCtxDestroy_v2(context))
        ;
    MUST(cuCtxSetCurrent(w->context));
}

static void nonsense(struct worker *w) {
    CUdeviceptr garbage = 0x1000 + below(w, 1 << 20);
    CUdeviceptr pointer;
    cuMemFree_v2(garbage);
    cuMemFree_v2(0);
    cuMemFreeAsync(garbage, NULL);
    cuMemFreeHost((void *)(uintptr_t)garbage);
    cuMemUnmap(garbage, PAGE);
    cuMemRelease(garbage);
    cuIpcCloseMemHandle(garbage);
    cuArrayDestroy((CUarray)(uintptr_t)garbage);
    cuMemAlloc_v2(&pointer, 0);
    cuMemHostUnregister((void *)(uintptr_t)garbage);
}

/* ---- giving back ---- */

static CUresult give(struct worker *w, struct thing *thing) {
    CUresult rc;
    switch (thing->what) {
    case POINTER:
    case STREAM_ORDERED:
        return below(w, 3) ? cuMemFree_v2(thing->key) : cuMemFreeAsync(thing->key, NULL);
    case PINNED:
        return cuMemFreeHost((void *)(uintptr_t)thing->key);
    case REGISTERED:
        return cuMemHostUnregister((void *)(uintptr_t)thing->key);
    case PHYSICAL:
        return cuMemRelease(thing->key);
    case MAPPED:
        rc = cuMemUnmap(thing->key, thing->bytes);
        if (!rc)
            cuMemAddressFree(thing->key, thing->more);
        return rc;
    case ARRAY:
        return cuArrayDestroy((CUarray)(uintptr_t)thing->key);
    case MIPMAP:
        return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)thing->key);
    case OPENED:
        MUST(cuCtxSetCurrent(thing->context));
        rc = cuIpcCloseMemHandle(thing->key);
        MUST(cuCtxSetCurrent(w->context));
        return rc;
    case EXTERNAL:
        return cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)thing->key);
    case GRAPH:
        rc = cuGraphExecDestroy((CUgraphExec)(uintptr_t)thing->key);
        if (!rc && thing->bytes) {
            *thing = (struct thing){STREAM_ORDERED, NULL, thing->more, 0, 0};
            return CUDA_ERROR_UNKNOWN; /* what it left is a thing of its own */
        }
        return rc;
    case POOL:
        return cuMemPoolDestroy((CUmemoryPool)(uintptr_t)thing->key);
    case MODULE:
        return cuModuleUnload((CUmodule)(uintptr_t)thing->key);
    case LIBRARY:
        return cuLibraryUnload((CUlibrary)(uintptr_t)thing->key);
    case NONE:
        break;
    }
    return CUDA_SUCCESS;
}

static void give_some(struct worker *w) {
    for (unsigned i = (unsigned)below(w, THINGS), n = 0; n < THINGS; n++, i = (i + 1) % THINGS)
        if (w->things[i].what != NONE) {
            if (!give(w, &w->things[i]))
                w->things[i].what = NONE;
            return;
        }
}

static unsigned things_of(const struct worker *w) {
    unsigned count = 0;
    for (unsigned i = 0; i < THINGS; i++)
        count += w->things[i].what != NONE;
    return count;
}

/* ---- rounds ---- */

static const struct {
    unsigned weight;
    void (*operation)(struct worker *w);
} operations[] = {
    {30, take_pointer}, {20, take_stream_ordered}, {15, take_host},   {15, take_physical},
    {15, map_some},     {8, retain_some},          {15, take_array},  {8, open_foreign},
    {6, take_external}, {8, take_graph},           {2, launch_again}, {2, take_pool},
    {3, load_code},     {1, visit_context},        {3, nonsense},     {110, give_some},
};
#define OPERATIONS (sizeof operations / sizeof *operations)

static void operate(struct worker *w) {
    unsigned all = 0, at = 0;
    for (unsigned i = 0; i < OPERATIONS; i++)
        all += operations[i].weight;
    uint64_t drawn = below(w, all);
    while (drawn >= operations[at].weight)
        drawn -= operations[at++].weight;
    if (things_of(w) > THINGS - 10)
        give_some(w);
    else
        operations[at].operation(w);
}

/* Alone: all other threads wait. A device may be too full for another context. */
static void end_a_context(struct worker *w) {
    CUcontext gone = w->context, fresh;
    if (cuCtxCreate_v2(&fresh, 0, (int)below(w, DEVICES)))
        return;
    MUST(cuCtxPopCurrent_v2(NULL));
    MUST(cuCtxDestroy_v2(gone));
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned i = 0; i < THINGS; i++)
            if (workers[t].things[i].context == gone)
                workers[t].things[i].what = NONE;
    w->context = fresh;
}

/* Refused once each: never what undoes, or what the program needs. */
static void refuse_some(struct worker *w) {
    static const char *const names[] = {
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
        "cuArrayDestroy",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuCtxDestroy_v2",
        "cuGraphLaunch",
        "cuMemPoolCreate",
        "cuIpcOpenMemHandle_v2",
        "cuIpcCloseMemHandle",
        "cuMemHostRegister_v2",
        "cuGraphExecDestroy",
        "cuMemPoolDestroy",
        "cuGraphInstantiateWithFlags",
        "cuMemHostUnregister",
    };
    char rules[1024] = "";
    for (int n = 0; n < 6; n++)
        snprintf(rules + strlen(rules), sizeof rules - strlen(rules), "%s%s:%lu=%d", n ? "," : "",
                 names[below(w, sizeof names / sizeof *names)], 1 + below(w, 60),
                 below(w, 2) ? 2 : 999);
    simgpu_script(rules);
}

static void between_rounds(unsigned long round) {
    char where[64];
    struct worker *first = &workers[0];
    snprintf(where, sizeof where, "seed %lu, round %lu", seed, round);
    books_check(where);
    /* things change hands; memory to be registered goes with them */
    struct worker before[THREADS];
    memcpy(before, workers, sizeof before);
    for (unsigned t = 0; t < THREADS; t++)
        memcpy(workers[t].things, before[(t + 1) % THREADS].things, sizeof workers[t].things);
    simgpu_script("");
    if (round % 7 == 0)
        end_a_context(first);
    if (round % 3 == 0)
        cuDeviceGraphMemTrim(
            (int)below(first, DEVICES)); /* while a launch goes on, who is first? */
    MUST(cuCtxSetCurrent(first->context));
    refuse_some(first);
}

static void *work(void *argument) {
    struct worker *w = argument;
    MUST(cuCtxSetCurrent(w->context));
    for (unsigned long round = 0; round < rounds; round++) {
        for (int i = 0; i < ROUND / THREADS; i++)
            operate(w);
        pthread_barrier_wait(&barrier);
        if (w->number == 0)
            between_rounds(round);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void export_from_another_process(void) {
    int ends[2];
    MUST(pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        CUcontext context;
        CUdeviceptr pointer;
        MUST(cuInit(0));
        MUST(cuCtxCreate_v2(&context, 0, 0));
        for (int i = 0; i < HANDLES; i++) {
            MUST(cuMemAlloc_v2(&pointer, 8 << 20));
            MUST(cuIpcGetMemHandle(&foreign[i], pointer));
        }
        _exit(write(ends[1], foreign, sizeof foreign) != sizeof foreign);
    }
    MUST(read(ends[0], foreign, sizeof foreign) != sizeof foreign);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    rounds = (argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000) / ROUND;
    export_from_another_process();
    MUST(cuInit(0));
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned t = 0; t < THREADS; t++) {
        struct worker *w = &workers[t];
        w->number = t;
        w->random = (seed * THREADS + t + 1) * 0x9e3779b97f4a7c15u;
        w->own =
            mmap(NULL, THINGS * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(cuCtxCreate_v2(&w->context, 0, (int)t % DEVICES));
    }
    for (unsigned t = 0; t < THREADS; t++)
        pthread_create(&workers[t].thread, NULL, work, &workers[t]);
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(workers[t].thread, NULL);
    TRACED(books_loss(TRACE_LOSS_LOST_FREES), 0);
    TRACED(books_loss(TRACE_LOSS_TABLE_FULL), 0);
    TRACED(books_loss(TRACE_LOSS_RECORDS_FULL), 0);
    printf("seed %lu: %lu rounds\n", seed, rounds);
    return 0;
}
