/*
 * Asks a driver how it behaves and prints one line an answer; conformance.txt is what a real one
 * said. Run on the simulated driver, the same lines must come out: that is what ties it to the
 * truth. `conformance` runs every section in a process of its own, `conformance NAME` one of them.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_sim.h"

#define MIB    ((size_t)1 << 20)
#define POISON 0x7f7f7f7f7f7full

static struct {
#define ENTRY(symbol, base, version, stream, capture, body, params, args)                          \
    __typeof__(&symbol) symbol;
#include "driver_api.def"
#undef ENTRY
} cu;

static const struct {
    const char *name;
    void **function;
} entries[] = {
#define ENTRY(symbol, base, version, stream, capture, body, params, args)                          \
    {#symbol, (void **)&cu.symbol},
#include "driver_api.def"
#undef ENTRY
};

static void load(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);

    for (size_t i = 0; handle && i < sizeof entries / sizeof *entries; i++)
        *entries[i].function = dlsym(handle, entries[i].name);
    if (!cu.cuInit) {
        fprintf(stderr, "conformance: no libcuda.so.1 here\n");
        exit(2);
    }
}

/* Makes a call and prints it with its code. */
#define SAY(call) printf("%s = %d\n", #call, (int)cu.call)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult must = cu.call;                                                                   \
        if (must)                                                                                  \
            printf("unexpected: %s = %d\n", #call, (int)must);                                     \
    } while (0)

/* The same for a call with an out-parameter, saying what became of that. */
static CUdeviceptr out;
static void *host_out;
static size_t row_out;
static const char *fate(uint64_t value, uint64_t before) {
    return value == before ? "left" : value ? "set" : "zero";
}
#define SAY_OUT(call)                                                                              \
    do {                                                                                           \
        out = row_out = POISON;                                                                    \
        host_out = (void *)POISON;                                                                 \
        int code = (int)cu.call;                                                                   \
        printf("%s = %d, pointer %s, host pointer %s, row %s\n", #call, code, fate(out, POISON),   \
               fate((uintptr_t)host_out, POISON), fate(row_out, POISON));                          \
    } while (0)

static CUcontext primary;
static void start(void) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxSetCurrent(primary));
}

/* ---- sections ---- */

static void before_init(void) {
    CUcontext context;
    CUdevice device;
    int number;

    SAY(cuCtxGetCurrent(&context));
    SAY(cuCtxGetDevice(&device));
    SAY(cuDeviceGetCount(&number));
    SAY_OUT(cuMemAlloc_v2(&out, 512));
    SAY_OUT(cuMemHostAlloc(&host_out, 512, 0));
    SAY(cuMemFree_v2(0));
    SAY(cuMemFreeHost(NULL));
    SAY(cuDriverGetVersion(&number));
    SAY(cuInit(1));
    SAY(cuInit(0));
    SAY(cuInit(0));
}

static void without_context(void) {
    CUcontext context = (CUcontext)&out;
    CUmemoryPool pool;
    CUdevice device;
    size_t bytes;

    MUST(cuInit(0));
    SAY(cuCtxGetCurrent(&context));
    printf("current: %s\n", context ? "some" : "none");
    SAY(cuCtxGetDevice(&device));
    SAY(cuCtxGetDevice_v2(&device, NULL));
    SAY_OUT(cuMemAlloc_v2(&out, 512));
    SAY_OUT(cuMemAlloc_v2(&out, 0));
    SAY_OUT(cuMemAllocPitch_v2(&out, &row_out, 100, 3, 4));
    SAY_OUT(cuMemAllocManaged(&out, 512, CU_MEM_ATTACH_GLOBAL));
    SAY_OUT(cuMemHostAlloc(&host_out, 512, 0));
    SAY_OUT(cuMemHostAlloc(&host_out, 0, 0));
    SAY_OUT(cuMemAllocHost_v2(&host_out, 512));
    SAY_OUT(cuMemAllocAsync(&out, 512, NULL));
    SAY_OUT(cuMemAllocAsync(&out, 0, NULL));
    SAY(cuMemFree_v2(0));
    SAY(cuMemFree_v2(0x1234000));
    SAY(cuMemFreeHost(NULL));
    SAY(cuMemFreeHost((void *)0x1234000));
    SAY(cuMemFreeAsync(0, NULL));
    SAY(cuMemGetInfo_v2(&bytes, NULL));
    SAY(cuDeviceGetDefaultMemPool(&pool, 0));
    SAY(cuDeviceTotalMem_v2(&bytes, 0));
    SAY(cuDeviceGet(&device, 999));
    SAY(cuCtxSynchronize());
    SAY(cuCtxPopCurrent_v2(&context));
}

static const char *name_of(void *function) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (*entries[i].function == function)
            return entries[i].name;
    return function ? "another" : "NULL";
}

static void ask(const char *name, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status = 9;
    void *function = &status, *first = &status;
    CUresult code = cu.cuGetProcAddress_v2(name, &function, version, flags, &status);
    CUresult first_code = cu.cuGetProcAddress(name, &first, version, flags);

    printf("\"%s\" %d flags %d: v2 %d status %d %s; v1 %d %s\n", name, version, (int)flags, code,
           (int)status, function == &status ? "untouched" : name_of(function), first_code,
           first == &status ? "untouched" : name_of(first));
}

static const struct question {
    const char *name;
    int version;
    cuuint64_t flags;
} questions_asked[] =
    {
        {"", 0, 0},
        {"cuInit", 2000, 0},
        {"cuGetProcAddress", 11030, 0},
        {"cuGetProcAddress", 11090, 0},
        {"cuGetProcAddress", 12000, 0},
        {"cuMemAlloc", 1000, 0},
        {"cuMemAlloc", 2000, 0},
        {"cuMemAlloc", 3019, 0},
        {"cuMemAlloc", 3020, 0},
        {"cuMemAlloc", 13000, 0},
        {"cuMemAlloc", 13010, 0},
        {"cuMemAlloc", 14000, 0},
        {"cuMemAlloc", 3020, 2},
        {"cuMemAlloc_v2", 13000, 0},
        {"cuMemAllocAsync", 11010, 0},
        {"cuMemAllocAsync", 11020, 0},
        {"cuMemAllocAsync", 11020, 1},
        {"cuMemAllocAsync", 11020, 2},
        {"cuMemAllocAsync", 11020, 3},
        {"cuMemAllocAsync", 11020, 4},
        {"cuMemAllocAsync_ptsz", 11020, 0},
        {"cuMemcpy", 4000, 0},
        {"cuMemcpy", 4000, 2},
        {"cuMemcpy", 7000, 2},
        {"cuMemsetD8", 3020, 2},
        {"cuMemsetD8", 7000, 2},
        {"cuStreamBeginCapture", 10000, 2},
        {"cuStreamBeginCapture", 10010, 2},
        {"cuCtxCreate", 3020, 0},
        {"cuCtxCreate", 11040, 0},
        {"cuCtxCreate", 12050, 0},
        {"cuCtxGetDevice", 2000, 0},
        {"cuCtxGetDevice", 13000, 0},
        {"cuDeviceGetUuid", 9020, 0},
        {"cuDeviceGetUuid", 11040, 0},
        {"cuDevicePrimaryCtxReset", 7000, 0},
        {"cuDevicePrimaryCtxReset", 11000, 0},
        {"cuEventElapsedTime", 12080, 0},
        {"cuNoSuchThing", 13000, 0},
},
  without_status[] = {
      {"", 0, 0},
      {"cuNoSuchThing", 2000, 0},
      {"cuMemAlloc", 1000, 0},
      {"cuMemcpy", 4000, 2},
};

static void ask_without_status(const struct question *question) {
    void *function = &function;
    CUresult code =
        cu.cuGetProcAddress_v2(question->name, &function, question->version, question->flags, NULL);

    printf("\"%s\" without a status: %d, %s\n", question->name, code,
           function == &function ? "untouched" : name_of(function));
}

static void proc_address(void) {
    for (size_t i = 0; i < sizeof questions_asked / sizeof *questions_asked; i++)
        ask(questions_asked[i].name, questions_asked[i].version, questions_asked[i].flags);
    for (size_t i = 0; i < sizeof without_status / sizeof *without_status; i++)
        ask_without_status(&without_status[i]);
}

static void errors(void) {
    const char *text;
#define X(value, name, string)                                                                     \
    if (!cu.cuGetErrorString(name, &text))                                                         \
        printf("%d %s\n", value, text);
    CUDA_SIM_ERRORS(X)
#undef X
    SAY(cuGetErrorName((CUresult)12345, &text));
    printf("text: %s\n", text ? "some" : "NULL");
}

static size_t free_now(void) {
    size_t bytes = 0;

    MUST(cuMemGetInfo_v2(&bytes, NULL));
    return bytes;
}

static void layout(void) {
    static const size_t sizes[] = {1, 256, 512, 1000, 4096, 1 * MIB, 1 * MIB};
    static const size_t large[] = {1 * MIB + 1, 2 * MIB, 2 * MIB + 1, 5 * MIB};
    CUdeviceptr small[7], pointer, again;

    start();
    MUST(cuMemAlloc_v2(&pointer, 512)); /* opens the first shared page */
    size_t before = free_now();
    for (int i = 0; i < 7; i++)
        MUST(cuMemAlloc_v2(&small[i], sizes[i]));
    for (int i = 0; i < 4; i++)
        printf("after %zu bytes the next block is %llu on\n", sizes[i],
               (unsigned long long)(small[i + 1] - small[i]));
    printf("all of them took %zu KiB\n", (before - free_now()) >> 10);
    for (int i = 0; i < 7; i++)
        MUST(cuMemFree_v2(small[i]));
    printf("and after their frees %zu KiB\n", (before - free_now()) >> 10);
    for (int i = 0; i < 4; i++) {
        before = free_now();
        MUST(cuMemAlloc_v2(&pointer, large[i]));
        printf("%zu bytes: %zu KiB, at 2 MiB + %llu", large[i], (before - free_now()) >> 10,
               (unsigned long long)(pointer % (2 * MIB)));
        MUST(cuMemFree_v2(pointer));
        printf(", after the free %zu KiB", (before - free_now()) >> 10);
        MUST(cuMemAlloc_v2(&again, large[i]));
        printf(", address reused: %d\n", again == pointer);
        MUST(cuMemFree_v2(again));
    }
    MUST(cuMemAlloc_v2(&pointer, 1000));
    MUST(cuMemFree_v2(pointer));
    MUST(cuMemAlloc_v2(&again, 1000));
    printf("small address reused: %d\n", again == pointer);
    MUST(cuMemAlloc_v2(&pointer, 2 * MIB - 512));
    MUST(cuMemAlloc_v2(&again, 1 * MIB + 512 * 1024));
    before = free_now();
    MUST(cuMemAlloc_v2(&pointer, 512 * 1024));
    printf("512 KiB beside 1.5 MiB: %zu KiB more, same page: %d\n", (before - free_now()) >> 10,
           pointer / (2 * MIB) == again / (2 * MIB));
}

static void frees(void) {
    CUdeviceptr pointer, managed;
    void *host;

    start();
    MUST(cuMemAlloc_v2(&pointer, 4 * MIB));
    MUST(cuMemHostAlloc(&host, 4 * MIB, 0));
    MUST(cuMemAllocManaged(&managed, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    SAY_OUT(cuMemAlloc_v2(&out, 0));
    SAY_OUT(cuMemAlloc_v2(&out, (size_t)1 << 46));
    SAY_OUT(cuMemAlloc_v2(&out, SIZE_MAX));
    SAY_OUT(cuMemAlloc_v2(NULL, 512));
    SAY_OUT(cuMemAllocManaged(&out, 0, CU_MEM_ATTACH_GLOBAL));
    SAY_OUT(cuMemAllocManaged(&out, 512, 0));
    SAY_OUT(cuMemAllocManaged(&out, 512, 8));
    SAY_OUT(cuMemHostAlloc(&host_out, 0, 0));
    SAY_OUT(cuMemHostAlloc(&host_out, 512, 0x100));
    SAY_OUT(cuMemHostAlloc(&host_out, (size_t)1 << 50, 0));
    SAY_OUT(cuMemAllocHost_v2(&host_out, 0));
    SAY(cuMemFree_v2(0));
    SAY(cuMemFree_v2(0x1234000));
    SAY(cuMemFree_v2(pointer + 512));
    SAY(cuMemFree_v2((CUdeviceptr)(uintptr_t)host));
    SAY(cuMemFreeHost(NULL));
    SAY(cuMemFreeHost((void *)0x1234000));
    SAY(cuMemFreeHost((void *)(uintptr_t)pointer));
    SAY(cuMemFree_v2(pointer));
    SAY(cuMemFree_v2(pointer));
    SAY(cuMemFree_v2(managed));
    SAY(cuMemFree_v2(managed));
    SAY(cuMemFreeHost(host));
    SAY(cuMemFreeHost(host));
}

static void pitch(void) {
    CUdeviceptr pointer = POISON;
    size_t row = 0;

    start();
    SAY(cuMemAllocPitch_v2(&pointer, &row, 100, 3, 4));
    printf("pitch of 100: %zu\n", row);
    SAY(cuMemFree_v2(pointer));
    SAY(cuMemAllocPitch_v2(&pointer, &row, 513, 3, 16));
    printf("pitch of 513: %zu\n", row);
    SAY_OUT(cuMemAllocPitch_v2(&out, &row_out, 100, 3, 3));
    SAY_OUT(cuMemAllocPitch_v2(&out, &row_out, 0, 3, 4));
    SAY_OUT(cuMemAllocPitch_v2(&out, &row_out, 100, 0, 4));
    SAY_OUT(cuMemAllocPitch_v2(&out, &row_out, 100, (size_t)1 << 40, 4));
}

static void first_forms(void) {
    CUdeviceptr_v1 pointer = 0x7f7f7f7f;
    unsigned int free_bytes = 0, total = 0, row;

    start();
    SAY(cuMemAlloc(&pointer, 512));
    SAY(cuMemAllocPitch(&pointer, &row, 100, 3, 4));
    SAY(cuMemFree(0));
    SAY(cuMemFree(0x1000));
    SAY(cuMemGetInfo(&free_bytes, &total));
    SAY(cuDeviceTotalMem(&total, 0));
}

static void questions(void) {
    CUdeviceptr device, managed, base;
    unsigned int type = 0;
    size_t bytes;
    void *host;

    start();
    MUST(cuMemAlloc_v2(&device, 1000));
    MUST(cuMemHostAlloc(&host, 1000, 0));
    MUST(cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL));
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
    printf("type %u\n", type);
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              (CUdeviceptr)(uintptr_t)host));
    printf("type %u\n", type);
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed));
    printf("type %u\n", type);
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1234000));
    SAY(cuMemGetAddressRange_v2(&base, &bytes, device + 100));
    printf("%llu before, %zu bytes\n", (unsigned long long)(device + 100 - base), bytes);
    SAY(cuMemGetAddressRange_v2(NULL, NULL, device));
    SAY(cuMemGetAddressRange_v2(&base, &bytes, 0x1234000));
    SAY(cuMemGetInfo_v2(NULL, NULL));
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
    uint64_t value = 0;

    MUST(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void show_pool(const char *when, CUmemoryPool pool) {
    printf("%s: used %llu, high %llu, reserved %llu MiB, high %llu MiB\n", when,
           (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
           (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
           (unsigned long long)(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >> 20),
           (unsigned long long)(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >> 20));
}

static void async(void) {
    CUdeviceptr one, many, plain, managed;
    CUmemoryPool pool;
    uint64_t keep = 64 * MIB, zero = 0, seven = 7;

    start();
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    show_pool("at first", pool);
    SAY_OUT(cuMemAllocAsync(&out, 0, NULL));
    SAY_OUT(cuMemAllocAsync(&out, (size_t)1 << 46, NULL));
    MUST(cuMemAllocAsync(&one, 1, NULL));
    show_pool("with 1 byte", pool);
    MUST(cuMemAllocAsync(&plain, 1, NULL));
    printf("the next is %llu on\n", (unsigned long long)(plain - one));
    MUST(cuMemFreeAsync(plain, NULL));
    MUST(cuMemAllocAsync(&many, 33 * MIB, NULL));
    show_pool("and 33 MiB", pool);
    SAY(cuMemFreeAsync(many, NULL));
    SAY(cuMemFreeAsync(one, NULL));
    SAY(cuMemFreeAsync(one, NULL));
    SAY(cuStreamSynchronize(NULL));
    show_pool("freed and synchronised", pool);
    SAY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    MUST(cuMemAllocAsync(&one, 1000, NULL));
    SAY(cuMemFreeAsync(one, NULL));
    SAY(cuStreamSynchronize(NULL));
    show_pool("with a threshold", pool);
    SAY(cuMemPoolTrimTo(pool, 0));
    show_pool("trimmed", pool);
    SAY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    SAY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &seven));
    show_pool("high mark reset", pool);
    MUST(cuMemAllocAsync(&one, 1000, NULL));
    MUST(cuMemAlloc_v2(&plain, 1000));
    SAY(cuMemFreeAsync(0, NULL));
    SAY(cuMemFreeAsync(0x1234000, NULL));
    SAY(cuMemFree_v2(one));
    SAY(cuMemFree_v2(one));
    show_pool("freed by cuMemFree", pool);
    SAY(cuStreamSynchronize(NULL));
    show_pool("and synchronised", pool);
    MUST(cuMemAlloc_v2(&plain, 4 * MIB));
    MUST(cuMemAllocManaged(&managed, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    size_t before = free_now();
    SAY(cuMemFreeAsync(plain, NULL)); /* plain memory, stream-ordered */
    SAY(cuStreamSynchronize(NULL));
    printf("gave back %zu KiB\n", (free_now() - before) >> 10);
    SAY(cuMemFree_v2(plain));
    SAY(cuMemFreeAsync(plain, NULL));
    SAY(cuMemFreeAsync(managed, NULL));
    SAY(cuMemFree_v2(managed));
}

static void pools(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool standard, pool, current;
    CUdeviceptr pointer;

    start();
    MUST(cuDeviceGetDefaultMemPool(&standard, 0));
    SAY(cuMemPoolDestroy(standard));
    SAY(cuMemPoolCreate(&pool, &properties));
    SAY(cuDeviceSetMemPool(0, pool));
    SAY(cuDeviceGetMemPool(&current, 0));
    printf("current is the new one: %d\n", current == pool);
    MUST(cuMemAllocFromPoolAsync(&pointer, 1000, pool, NULL));
    show_pool("its own", pool);
    SAY(cuMemPoolDestroy(pool));
    SAY(cuDeviceGetMemPool(&current, 0));
    printf("current is the default one: %d\n", current == standard);
    SAY(cuMemFreeAsync(pointer, NULL));
    properties.location.id = 999;
    SAY(cuMemPoolCreate(&pool, &properties));
    properties.location.id = 0;
    properties.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    SAY(cuMemPoolCreate(&pool, &properties));
}

static void contexts(void) {
    CUcontext one, two, current;
    CUdeviceptr plain, pooled;
    CUdevice device = -1;
    void *host;

    start();
    SAY(cuCtxCreate_v2(&one, 0, 0));
    SAY(cuCtxGetCurrent(&current));
    printf("current is the new one: %d\n", current == one);
    MUST(cuMemAlloc_v2(&plain, 4 * MIB));
    MUST(cuMemHostAlloc(&host, 4 * MIB, 0));
    MUST(cuMemAllocAsync(&pooled, 4 * MIB, NULL));
    SAY(cuCtxCreate_v4(&two, NULL, 0, 0));
    SAY(cuMemFree_v2(plain)); /* with another context current */
    MUST(cuCtxSetCurrent(one));
    MUST(cuMemAlloc_v2(&plain, 4 * MIB));
    SAY(cuCtxDestroy_v2(one));
    SAY(cuCtxGetCurrent(&current));
    printf("current is the primary one: %d\n", current == primary);
    MUST(cuCtxSetCurrent(two));
    SAY(cuMemFree_v2(plain));
    SAY(cuMemFreeHost(host));
    SAY(cuMemFreeAsync(pooled, NULL));
    SAY(cuCtxGetDevice(&device));
    SAY(cuCtxGetDevice_v2(&device, primary));
    printf("device %d\n", device);
    SAY(cuCtxDestroy_v2(two));
    SAY(cuCtxSetCurrent(NULL));
    SAY(cuCtxDestroy_v2(NULL));
    SAY(cuCtxDestroy_v2(primary));
}

static void show_state(void) {
    unsigned int flags;
    int active = -1;

    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active: %d\n", active);
}

static void primary_context(void) {
    CUdeviceptr pointer;
    CUcontext again;
    CUdevice device;

    MUST(cuInit(0));
    show_state();
    start();
    show_state();
    SAY(cuDevicePrimaryCtxRetain(&again, 0));
    printf("the same handle: %d\n", again == primary);
    SAY(cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuMemAlloc_v2(&pointer, 4 * MIB));
    SAY(cuDevicePrimaryCtxReset_v2(0));
    show_state();
    SAY(cuCtxGetDevice(&device));
    SAY(cuMemAlloc_v2(&pointer, 4 * MIB));
    SAY(cuMemFree_v2(pointer));
    SAY(cuMemFree_v2(0));
    SAY(cuDevicePrimaryCtxRetain(&again, 0));
    printf("the same handle: %d\n", again == primary);
    show_state();
    SAY(cuCtxSetCurrent(again));
    SAY(cuMemAlloc_v2(&pointer, 4 * MIB));
    SAY(cuDevicePrimaryCtxRelease_v2(0));
    show_state();
    SAY(cuDevicePrimaryCtxRelease_v2(0));
    SAY(cuMemFree_v2(pointer));
    SAY(cuDevicePrimaryCtxRelease_v2(0));
}

static void capture_basics(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstreamCaptureStatus status = 9;
    CUdeviceptr pointer, other;
    CUstream stream, free_stream;
    CUmemoryPool pool;
    CUgraph graph;

    start();
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuStreamCreate(&free_stream, 1));
    SAY(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cuStreamEndCapture(stream, &graph));
    SAY(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cuStreamIsCapturing(stream, &status));
    printf("status %d\n", (int)status);
    SAY(cuStreamIsCapturing(free_stream, &status));
    printf("status %d\n", (int)status);
    SAY(cuMemAllocAsync(&pointer, 1000, stream));
    SAY(cuMemFreeAsync(pointer, stream));
    SAY(cuThreadExchangeStreamCaptureMode(&mode));
    printf("mode was %d\n", (int)mode);
    SAY(cuMemAlloc_v2(&other, 1000));
    SAY(cuThreadExchangeStreamCaptureMode(&mode));
    SAY(cuStreamEndCapture(stream, &graph));
    printf("used %llu\n", (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    SAY(cuMemFree_v2(pointer));
    SAY(cuGraphDestroy(graph));
    MUST(cuStreamBeginCapture_v2(free_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cuStreamIsCapturing(NULL, &status));
    printf("status %d\n", (int)status);
    MUST(cuStreamEndCapture(free_stream, &graph));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY(cuStreamIsCapturing(NULL, &status));
}

/* What a call does to a capture that is going on: refused, and the capture spoilt, or not. */
#define FORBIDDEN(call)                                                                            \
    do {                                                                                           \
        CUstreamCaptureStatus status = 9;                                                          \
        MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));                      \
        CUresult code = cu.call;                                                                   \
        MUST(cuStreamIsCapturing(stream, &status));                                                \
        printf("capturing: %s = %d, status %d\n", #call, (int)code, (int)status);                  \
        cu.cuStreamEndCapture(stream, &graph);                                                     \
    } while (0)

static void forbidden_first(CUstream stream, CUdeviceptr freed, CUmemoryPool pool) {
    CUstreamCaptureStatus is = 9;
    CUdeviceptr pointer;
    CUcontext context;
    CUstream other;
    CUdevice device;
    CUgraph graph;
    CUevent event;
    uint64_t value;
    size_t bytes;
    char name[80];
    CUuuid uuid;
    void *host;

    MUST(cuEventCreate(&event, 0));
    FORBIDDEN(cuMemAlloc_v2(&pointer, 1000));
    FORBIDDEN(cuMemFree_v2(freed));
    FORBIDDEN(cuMemFree_v2(0));
    FORBIDDEN(cuMemHostAlloc(&host, 1000, 0));
    FORBIDDEN(cuMemFreeHost(NULL));
    FORBIDDEN(cuMemAllocManaged(&pointer, 1000, CU_MEM_ATTACH_GLOBAL));
    FORBIDDEN(cuMemGetInfo_v2(&bytes, &bytes));
    FORBIDDEN(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    FORBIDDEN(cuMemPoolTrimTo(pool, 0));
    FORBIDDEN(cuDeviceGetDefaultMemPool(&pool, 0));
    FORBIDDEN(cuCtxGetCurrent(&context));
    FORBIDDEN(cuCtxGetDevice(&device));
    FORBIDDEN(cuDeviceGetName(name, 80, 0));
    FORBIDDEN(cuDeviceGetUuid_v2(&uuid, 0));
    FORBIDDEN(cuDeviceTotalMem_v2(&bytes, 0));
    FORBIDDEN(cuDriverGetVersion(&device));
    FORBIDDEN(cuStreamIsCapturing(NULL, &is));
    FORBIDDEN(cuMemGetAddressRange_v2(&pointer, &bytes, freed));
    FORBIDDEN(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, freed));
    FORBIDDEN(cuCtxSynchronize());
    FORBIDDEN(cuStreamSynchronize(stream));
    FORBIDDEN(cuStreamQuery(stream));
    FORBIDDEN(cuStreamCreate(&other, 1));
    FORBIDDEN(cuEventCreate(&event, 0));
    FORBIDDEN(cuEventQuery(event));
    FORBIDDEN(cuDevicePrimaryCtxRetain(&context, 0));
    FORBIDDEN(cuMemsetD8_v2(freed, 0, 512));
}

static void forbidden_second(CUstream stream, CUdeviceptr freed, CUmemoryPool pool) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool created = NULL;
    CUdeviceptr pointer;
    CUcontext context;
    CUstream other;
    CUgraph graph;
    CUevent event;
    uint64_t value = 0;
    char name[80] = "";

    MUST(cuStreamCreate(&other, 1));
    MUST(cuEventCreate(&event, 0));
    FORBIDDEN(cuMemAllocAsync(&pointer, 1000, NULL));
    FORBIDDEN(cuMemAllocAsync(&pointer, 1000, stream));
    FORBIDDEN(cuMemFreeAsync(0, NULL));
    FORBIDDEN(cuMemFreeAsync(freed, NULL));
    FORBIDDEN(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    FORBIDDEN(cuMemPoolCreate(&created, &properties));
    FORBIDDEN(cuMemPoolDestroy(created));
    FORBIDDEN(cuDeviceSetMemPool(0, pool));
    FORBIDDEN(cuStreamDestroy_v2(other));
    FORBIDDEN(cuEventSynchronize(event));
    FORBIDDEN(cuEventDestroy_v2(event));
    FORBIDDEN(cuMemcpyHtoD_v2(freed, name, 8));
    FORBIDDEN(cuMemcpyDtoH_v2(name, freed, 8));
    FORBIDDEN(cuMemAlloc_v2(&pointer, 0));
    FORBIDDEN(cuDevicePrimaryCtxRelease_v2(0));
    FORBIDDEN(cuCtxCreate_v2(&context, 0, 0));
}

static void capture_forbidden(void) {
    CUdeviceptr freed;
    CUstream stream;
    CUmemoryPool pool;

    start();
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemAlloc_v2(&freed, 1000));
    forbidden_first(stream, freed, pool);
    forbidden_second(stream, freed, pool);
}

static const struct section {
    const char *name;
    void (*run)(void);
} sections[] = {
    {"before_init", before_init},
    {"without_context", without_context},
    {"proc_address", proc_address},
    {"errors", errors},
    {"layout", layout},
    {"frees", frees},
    {"pitch", pitch},
    {"first_forms", first_forms},
    {"questions", questions},
    {"async", async},
    {"pools", pools},
    {"contexts", contexts},
    {"primary_context", primary_context},
    {"capture_basics", capture_basics},
    {"capture_forbidden", capture_forbidden},
};

static int run_apart(const char *program, const char *name) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        execl("/proc/self/exe", program, name, NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (WIFSIGNALED(status))
        printf("%s: ended by signal %d\n", name, WTERMSIG(status));
    return status != 0;
}

int main(int argc, char **argv) {
    int failed = 0;

    setenv("SIMGPU_CAPTURE", "invalidate", 1); /* as a real driver does */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1)
        load();
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (argc > 1 && !strcmp(argv[1], sections[i].name))
            sections[i].run();
        if (argc > 1)
            continue;
        printf("== %s\n", sections[i].name);
        failed |= run_apart(argv[0], sections[i].name);
    }
    return failed;
}
