// LINK: @O@/simgpu/libcuda.so.1 -rdynamic
/*
 * A long list of driver calls of all kinds, good and bad, in an order that a seed fixes. After each
 * call it prints what the program can see of it: code, every byte of the outputs, errno, and what
 * reached the driver meanwhile. Traced and not, all of it must be the same, but for the lines
 * "own NAME": driver calls that are not the program's.
 *
 *     same_calls SEED CALLS
 */
#include "cuda_sim.h"
#include "simgpu.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define ENTRY(symbol, base, version, stream, capture, body, params, args) #symbol,
#include "driver_api.def"
#undef ENTRY
};
#define NAMES (sizeof names / sizeof *names)

/* Mappings lie above, no number of bytes here does: mapped memory has 16 GiB a device. */
#define LOWEST_ADDRESS (1ull << 40)

static uint64_t state;

static unsigned below(unsigned limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % limit;
}

/* ---- what the calls write ---- */

static struct {
    CUdeviceptr number[3];
    void *handle[2];
    char bytes[64];
} out;

/* Addresses differ from run to run, as the kernel has it: they are told by order of appearance. So
   does which mapping comes where another was: what is made counts as new each time, and nothing
   that may have been mapped again is used after its end. */
static bool new_mapping;
static struct {
    uint64_t address;
    unsigned order;
} seen[1 << 18];
static unsigned seen_count;

static unsigned order_of(uint64_t address) {
    const size_t size = sizeof seen / sizeof *seen;
    size_t at = (address * 0x9e3779b97f4a7c15u) >> 46;
    while (seen[at].address && seen[at].address != address)
        at = (at + 1) % size;
    if (!seen[at].address || new_mapping) {
        new_mapping = false;
        seen[at].address = address;
        seen[at].order = ++seen_count;
        if (seen_count == size - 1)
            abort();
    }
    return seen[at].order;
}

/* ---- what reaches the driver ---- */

static const char *asked;
static unsigned reached;
static uint64_t own_calls[NAMES];

static void note_call(const char *name, void *number) {
    if (asked && !strcmp(name, asked) && !reached++)
        return;
    own_calls[(uintptr_t)number]++;
    printf("own %s\n", name);
}

static void ask(const char *name) {
    memset(&out, 0xa5, sizeof out);
    asked = name;
    reached = 0;
    errno = 1234;
}

static void tell(CUresult rc) {
    int kept = errno;
    printf("%s = %d, errno %d, reached %u |", asked, (int)rc, kept, reached);
    asked = NULL;
    for (size_t i = 0; i < sizeof out.number / sizeof *out.number; i++)
        if (out.number[i] >= LOWEST_ADDRESS && out.number[i] < 1ull << 47)
            printf(" @%u", order_of(out.number[i]));
        else
            printf(" %llx", out.number[i]);
    for (size_t i = 0; i < sizeof out.handle / sizeof *out.handle; i++)
        printf(" #%u", out.handle[i] ? order_of((uintptr_t)out.handle[i]) : 0);
    for (size_t i = 0; i < sizeof out.bytes; i++)
        if (out.bytes[i] != (char)0xa5)
            printf(" %zu:%02x", i, (unsigned char)out.bytes[i]);
    printf("\n");
    new_mapping = false;
}

#define CALL(function, ...)                                                                        \
    ({                                                                                             \
        ask(#function);                                                                            \
        CUresult code_ = function(__VA_ARGS__);                                                    \
        tell(code_);                                                                               \
        code_;                                                                                     \
    })

/* One whose handle counts as new whatever was there before. */
#define CALL_NEW(function, ...) (new_mapping = true, CALL(function, __VA_ARGS__))

/* ---- what the program holds; slots are reused, so that some things leak and some are given back
   twice ---- */

#define SLOTS 24
static CUdeviceptr blocks[SLOTS];
static void *hosts[SLOTS];
static CUmemoryPool pools[4];
static CUstream streams[6]; /* the first two are the legacy and the per-thread one */
static CUcontext contexts[4];
static CUevent events[2];

#define ANY(array) (&(array)[below(sizeof(array) / sizeof *(array))])
#define INT(slot)  ((int *)&(slot))
#define SIZE(slot) ((size_t *)&(slot))

static size_t any_size(void) {
    static const size_t sizes[] = {0, 1, 512, 1000, 1 << 20, 3 << 20, (size_t)1 << 50, SIZE_MAX};
    return sizes[below(sizeof sizes / sizeof *sizes)];
}

static CUdeviceptr any_pointer(void) {
    CUdeviceptr block = *ANY(blocks);
    return below(16) ? block : block + 256 * below(3);
}

static void keep(CUresult rc) {
    if (rc == CUDA_SUCCESS)
        *ANY(blocks) = out.number[0];
}

static void keep_host(CUresult rc) {
    if (rc == CUDA_SUCCESS)
        *ANY(hosts) = out.handle[0];
}

/* ---- the calls ---- */

static void plain_blocks(void) {
    CUdeviceptr *to = &out.number[0];
    switch (below(5)) {
    case 0:
    case 1:
        keep(CALL(cuMemAlloc_v2, to, any_size()));
        break;
    case 2:
        keep(CALL(cuMemAllocPitch_v2, to, SIZE(out.number[1]), any_size(), below(40),
                  4u << below(4)));
        break;
    case 3:
        keep(CALL(cuMemAllocManaged, to, any_size(), below(4)));
        break;
    default:
        CALL(cuMemAlloc, (CUdeviceptr_v1 *)&out.number[0], 1000);
        CALL(cuMemAllocPitch, (CUdeviceptr_v1 *)&out.number[0], (unsigned *)&out.number[1], 8, 8,
             4);
        CALL(cuMemFree, (CUdeviceptr_v1)any_pointer());
    }
}

static void freed_blocks(void) {
    CALL(cuMemFree_v2, any_pointer());
}

/* Twice at once, now and then. */
static void free_host(void **host) {
    unsigned times = below(8) ? 1 : 2;
    for (unsigned i = 0; i < times; i++)
        CALL(cuMemFreeHost, *host);
    *host = NULL;
}

static void host_blocks(void) {
    switch (below(5)) {
    case 0:
        keep_host(CALL_NEW(cuMemHostAlloc, &out.handle[0], any_size(), below(9)));
        break;
    case 1:
        keep_host(CALL_NEW(cuMemAllocHost_v2, &out.handle[0], any_size()));
        break;
    case 2:
        CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr *)&out.handle[0], *ANY(hosts), 0);
        CALL(cuMemHostGetFlags, (unsigned *)&out.number[0], *ANY(hosts));
        break;
    default:
        free_host(ANY(hosts));
    }
}

static void stream_ordered(void) {
    CUdeviceptr *to = &out.number[0];
    CUstream stream = *ANY(streams);
    switch (below(6)) {
    case 0:
        keep(CALL(cuMemAllocAsync, to, any_size(), stream));
        break;
    case 1:
        keep(CALL(cuMemAllocAsync_ptsz, to, any_size(), stream));
        break;
    case 2:
        keep(CALL(cuMemAllocFromPoolAsync, to, any_size(), *ANY(pools), stream));
        break;
    case 3:
        keep(CALL(cuMemAllocFromPoolAsync_ptsz, to, any_size(), *ANY(pools), stream));
        break;
    case 4:
        CALL(cuMemFreeAsync, any_pointer(), stream);
        break;
    default:
        CALL(cuMemFreeAsync_ptsz, any_pointer(), stream);
    }
}

static void pool_calls(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(3)}};
    CUmemoryPool *pool = ANY(pools); /* the first two are the default ones */
    uint64_t threshold = below(2) ? 0 : UINT64_MAX;
    switch (below(6)) {
    case 0:
        if (CALL_NEW(cuMemPoolCreate, (CUmemoryPool *)&out.handle[0], &properties) == CUDA_SUCCESS)
            pools[2 + below(2)] = out.handle[0];
        break;
    case 1: /* a default pool cannot be destroyed */
        CALL(cuMemPoolDestroy, pools[below(2)]);
        break;
    case 2:
        CALL(cuMemPoolSetAttribute, *pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
        break;
    case 3:
        CALL(cuDeviceSetMemPool, (int)below(2), *pool);
        CALL(cuDeviceGetMemPool, (CUmemoryPool *)&out.handle[0], (int)below(2));
        break;
    case 4:
        CALL(cuMemPoolTrimTo, *pool, any_size());
        break;
    default:
        CALL(cuMemPoolGetAttribute, *pool, (CUmemPool_attribute)(1 + below(8)), &out.number[0]);
    }
}

static void new_context(void) {
    CUcontext *to = (CUcontext *)&out.handle[0];
    int device = (int)below(3);
    CUresult rc;
    switch (below(5)) {
    case 0:
        rc = CALL_NEW(cuCtxCreate, to, 0, device);
        break;
    case 1:
        rc = CALL_NEW(cuCtxCreate_v2, to, 0, device);
        break;
    case 2:
        rc = CALL_NEW(cuCtxCreate_v3, to, NULL, 0, 0, device);
        break;
    case 3:
        rc = CALL_NEW(cuCtxCreate_v4, to, NULL, 0, device);
        break;
    default:
        rc = CALL(cuDevicePrimaryCtxRetain, to, device);
    }
    if (rc == CUDA_SUCCESS)
        contexts[2 + below(2)] = out.handle[0];
}

/* With a context goes its pinned memory. */
static void gone(CUresult rc) {
    if (rc == CUDA_SUCCESS)
        memset(hosts, 0, sizeof hosts);
}

static void context_calls(void) {
    switch (below(12)) {
    case 0:
        new_context();
        break;
    case 1:
        if (!below(2))
            gone(CALL(cuCtxDestroy_v2, contexts[2 + below(2)]));
        break;
    case 2:
        gone(CALL(cuDevicePrimaryCtxRelease_v2, (int)below(3)));
        break;
    case 3:
        if (!below(8))
            gone(CALL(cuDevicePrimaryCtxReset_v2, (int)below(3)));
        break;
    case 4:
        CALL(cuCtxPushCurrent_v2, *ANY(contexts));
        break;
    case 5:
        CALL(cuCtxPopCurrent_v2, (CUcontext *)&out.handle[0]);
        break;
    case 6:
        CALL(cuCtxGetCurrent, (CUcontext *)&out.handle[0]);
        CALL(cuCtxGetDevice, INT(out.number[0]));
        break;
    case 7:
        CALL(cuCtxSynchronize);
        break;
    default:
        CALL(cuCtxSetCurrent, contexts[below(8) ? below(2) : below(4)]);
    }
}

static void questions(void) {
    switch (below(6)) {
    case 0:
        CALL(cuMemGetInfo_v2, SIZE(out.number[0]), SIZE(out.number[1]));
        break;
    case 1:
        CALL(cuMemGetAddressRange_v2, &out.number[0], SIZE(out.number[1]), any_pointer());
        break;
    case 2:
        CALL(cuPointerGetAttribute, &out.number[0], CU_POINTER_ATTRIBUTE_RANGE_SIZE, any_pointer());
        break;
    case 3:
        CALL(cuDeviceGetName, out.bytes, 40, (int)below(3));
        CALL(cuDeviceGetUuid, (CUuuid *)out.bytes, (int)below(3));
        break;
    case 4:
        CALL(cuDeviceTotalMem_v2, SIZE(out.number[0]), (int)below(3));
        CALL(cuDriverGetVersion, INT(out.number[0]));
        break;
    default:
        CALL(cuStreamIsCapturing, *ANY(streams), (CUstreamCaptureStatus *)&out.number[0]);
    }
}

static void stream_calls(void) {
    CUstream *stream = &streams[2 + below(4)];
    CUevent *event = ANY(events);
    switch (below(8)) {
    case 0:
        CALL(cuStreamDestroy_v2, *stream);
        if (CALL_NEW(cuStreamCreate, (CUstream *)&out.handle[0], below(2)) == CUDA_SUCCESS)
            *stream = out.handle[0];
        break;
    case 1:
        CALL(cuStreamSynchronize, *stream);
        break;
    case 2:
        if (CALL_NEW(cuEventCreate, (CUevent *)&out.handle[0], 0) == CUDA_SUCCESS)
            *event = out.handle[0];
        break;
    case 3:
        CALL(cuMemsetD8_v2, any_pointer(), 1, any_size());
        CALL(cuMemcpyDtoD_v2, any_pointer(), any_pointer(), 512);
        break;
    case 4:
        CALL(cuStreamBeginCapture_v2, *stream, (CUstreamCaptureMode)below(3));
        break;
    default:
        CALL(cuStreamQuery, *stream);
    }
}

static void end_capture(void) {
    for (int i = 2; i < 6; i++)
        if (CALL_NEW(cuStreamEndCapture, streams[i], (CUgraph *)&out.handle[0]) == CUDA_SUCCESS) {
            CUgraph graph = out.handle[0];
            CALL(cuGraphDestroy, graph);
        }
}

/* Physical memory and mappings, at addresses reserved once. */
#define RANGE (8ul << 20)
static CUdeviceptr range;
static CUmemGenericAllocationHandle physical[3];

static void physical_memory(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(3)}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    CUmemGenericAllocationHandle *handle = ANY(physical);
    CUdeviceptr at = range + (2ul << 20) * below(4);
    switch (below(8)) {
    case 0:
    case 1:
        if (CALL(cuMemCreate, &out.number[0], any_size(), &properties, 0) == CUDA_SUCCESS ||
            CALL(cuMemCreate, &out.number[0], 2ul << 20, &properties, 0) == CUDA_SUCCESS)
            *handle = out.number[0];
        break;
    case 2:
    case 3:
        CALL(cuMemMap, at, 2ul << 20, 0, *handle, 0);
        CALL(cuMemSetAccess, at, 2ul << 20, &access, 1);
        break;
    case 4:
        CALL(cuMemUnmap, at, 2ul << 20);
        break;
    case 5:
        if (CALL(cuMemRetainAllocationHandle, &out.number[0], (void *)(uintptr_t)at) ==
            CUDA_SUCCESS)
            *handle = out.number[0];
        break;
    case 6:
        CALL(cuMemAddressFree, at, 1);
        break;
    default:
        CALL(cuMemRelease, *handle);
    }
}

static void array_calls(void) {
    static CUarray arrays[4];
    static CUmipmappedArray mipmaps[2];
    CUDA_ARRAY_DESCRIPTOR flat = {64 * below(4), 32 * below(3), CU_AD_FORMAT_FLOAT, below(6)};
    CUDA_ARRAY3D_DESCRIPTOR deep = {.Width = 16 * below(4),
                                    .Height = 16,
                                    .Depth = below(3),
                                    .Format = CU_AD_FORMAT_FLOAT,
                                    .NumChannels = 1};
    CUarray *array = ANY(arrays);
    CUmipmappedArray *mipmap = ANY(mipmaps);
    switch (below(6)) {
    case 0:
        if (CALL_NEW(cuArrayCreate_v2, (CUarray *)&out.handle[0], &flat) == CUDA_SUCCESS)
            *array = out.handle[0];
        break;
    case 1:
        if (CALL_NEW(cuArray3DCreate_v2, (CUarray *)&out.handle[0], &deep) == CUDA_SUCCESS)
            *array = out.handle[0];
        break;
    case 2:
        CALL(cuArrayDestroy, *array);
        *array = NULL;
        break;
    case 3:
        if (CALL_NEW(cuMipmappedArrayCreate, (CUmipmappedArray *)&out.handle[0], &deep, below(4)) ==
            CUDA_SUCCESS)
            *mipmap = out.handle[0];
        break;
    case 4:
        CALL_NEW(cuMipmappedArrayGetLevel, (CUarray *)&out.handle[0], *mipmap, below(3));
        break;
    default:
        CALL(cuMipmappedArrayDestroy, *mipmap);
        *mipmap = NULL;
    }
}

static void registered(void) {
    static char memory[1 << 16] __attribute__((aligned(4096)));
    char *at = memory + 4096 * below(16);
    if (below(2))
        CALL(cuMemHostRegister_v2, at, 4096 * below(3), below(2));
    else
        CALL(cuMemHostUnregister, at);
}

/* A graph with memory nodes from its making to its end. */
static void graph_memory(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(3)}},
        .bytesize = any_size()};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec = NULL;
    if (CALL_NEW(cuGraphCreate, (CUgraph *)&out.handle[0], 0) != CUDA_SUCCESS)
        return;
    graph = out.handle[0];
    CUresult rc =
        CALL_NEW(cuGraphAddMemAllocNode, (CUgraphNode *)&out.handle[0], graph, NULL, 0, &params);
    printf("    pointer %d\n", params.dptr != 0);
    node = out.handle[0];
    if (rc == CUDA_SUCCESS && below(2))
        CALL_NEW(cuGraphAddMemFreeNode, (CUgraphNode *)&out.handle[0], graph, &node, 1,
                 params.dptr);
    if (CALL_NEW(cuGraphInstantiateWithFlags, (CUgraphExec *)&out.handle[0], graph, below(2)) ==
        CUDA_SUCCESS)
        exec = out.handle[0];
    for (unsigned i = below(3); exec && i > 0; i--)
        CALL(cuGraphLaunch, exec, streams[2]);
    if (rc == CUDA_SUCCESS && below(2))
        CALL(cuMemFree_v2, params.dptr);
    if (exec)
        CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
}

static void modules(void) {
    CUmodule module = NULL;
    if (CALL_NEW(cuModuleLoadData, (CUmodule *)&out.handle[0], "image") == CUDA_SUCCESS)
        module = out.handle[0];
    if (module)
        CALL(cuModuleUnload, module);
}

/* Faults that the driver answers rather than crashes on. */
static void bad_arguments(void) {
    switch (below(5)) {
    case 0:
        CALL(cuMemAlloc_v2, NULL, 1000);
        break;
    case 1:
        CALL(cuMemHostAlloc, NULL, 1000, 0);
        break;
    case 2:
        CALL(cuMemFree_v2, 0);
        CALL(cuMemFreeHost, NULL);
        break;
    case 3:
        CALL(cuMemFree_v2, (CUdeviceptr)(uintptr_t)12345);
        CALL(cuMemFreeAsync, 12345, NULL);
        break;
    default:
        CALL(cuDevicePrimaryCtxRetain, (CUcontext *)&out.handle[0], 99);
    }
}

static void lookups(void) {
    static const char *const asked_names[] = {"cuMemAlloc", "cuMemFreeAsync", "cuInit",
                                              "cuNoSuch",   "cuCtxCreate",    ""};
    static const int versions[] = {0, 2000, 3020, 11040, 13000, 99000};
    const char *name = *ANY(asked_names);
    void *found = &out;
    ask("cuGetProcAddress_v2");
    CUresult rc = cuGetProcAddress_v2(name, &found, *ANY(versions), below(4),
                                      (CUdriverProcAddressQueryResult *)&out.number[0]);
    Dl_info info = {.dli_sname = "nothing"};
    if (found && found != &out)
        dladdr(found, &info);
    tell(rc);
    printf("    \"%s\": %s\n", name, found == &out ? "untouched" : info.dli_sname);
}

static void script(void) {
    static const char *const rules[] = {
        "",
        "cuMemAlloc_v2:3=2,cuMemAlloc_v2:9=700,cuMemHostAlloc:1+=2",
        "!cuMemFree_v2:2=700,cuMemFree_v2:4=1,!cuMemFreeAsync:1=719,cuMemFreeHost:2=4",
        "!cuMemAlloc_v2:2=700,cuMemAllocAsync:2+=2,cuMemAllocFromPoolAsync_ptsz:1=2",
        "cuMemCreate:2=2,cuMemMap:2=1,!cuMemRelease:3=700,cuArrayCreate_v2:1=2,cuMemHostRegister_"
        "v2:2=2",
        "cuMemAllocManaged:1=2,cuMemAllocPitch_v2:2=2",
    };
    const char *rule = *ANY(rules);
    printf("rules %s\n", rule);
    simgpu_script(rule);
}

static void (*const operations[])(void) = {
    plain_blocks,   plain_blocks,   freed_blocks, freed_blocks,  host_blocks,     host_blocks,
    stream_ordered, stream_ordered, pool_calls,   context_calls, questions,       stream_calls,
    bad_arguments,  lookups,        end_capture,  end_capture,   physical_memory, physical_memory,
    array_calls,    registered,     graph_memory, modules,
};

static void begin(void) {
    for (size_t i = 0; i < NAMES; i++)
        simgpu_hook(names[i], SIMGPU_BEFORE, note_call, (void *)i);
    CALL(cuMemAlloc_v2, &out.number[0], 100); /* before cuInit */
    CALL(cuInit, 0);
    CALL(cuMemAlloc_v2, &out.number[0], 100); /* without a context */
    for (int device = 0; device < 2; device++) {
        CALL_NEW(cuCtxCreate_v2, (CUcontext *)&out.handle[0], 0, device);
        contexts[device] = out.handle[0];
        CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *)&out.handle[0], device);
        pools[device] = pools[device + 2] = out.handle[0];
    }
    CALL(cuMemAddressReserve, &out.number[0], RANGE, 0, 0, 0);
    range = out.number[0];
    streams[1] = CU_STREAM_PER_THREAD;
    for (int i = 2; i < 6; i++) {
        CALL_NEW(cuStreamCreate, (CUstream *)&out.handle[0], i & 1);
        streams[i] = out.handle[0];
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    unsigned calls = (unsigned)strtoul(argv[2], NULL, 10);
    begin();
    for (unsigned i = 0; i < calls; i++) {
        if (i % 200 == 199)
            script();
        (*ANY(operations))();
    }
    for (size_t i = 0; i < NAMES; i++)
        printf("calls %s %llu\n", names[i],
               (unsigned long long)(simgpu_calls(names[i]) - own_calls[i]));
    return 0;
}
