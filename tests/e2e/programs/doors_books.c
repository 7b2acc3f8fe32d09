/*
 * Takes and gives back through functions found at the door named by the first argument: whichever
 * way a program finds the driver, the books are the same.
 *
 *     doors_books handle|global|default|proc1|proc2
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

#include <dlfcn.h>

#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, "cuInit", 2000)                                                                      \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                         \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                           \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                             \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                                                   \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                     \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                                                      \
    X(cuMemFreeHost, "cuMemFreeHost", 2000)

#define X(symbol, base, version) static __typeof__(&symbol) real_##symbol;
DRIVER_FUNCTIONS(X)
#undef X

static const char *door;

static void *find(void *handle, const char *symbol, const char *base, int version) {
    void *found = NULL;
    if (!strcmp(door, "proc1")) {
        __typeof__(&cuGetProcAddress) proc =
            (__typeof__(&cuGetProcAddress))dlsym(handle, "cuGetProcAddress");
        MUST(proc(base, &found, version, 0));
    } else if (!strcmp(door, "proc2")) {
        __typeof__(&cuGetProcAddress_v2) proc =
            (__typeof__(&cuGetProcAddress_v2))dlsym(handle, "cuGetProcAddress_v2");
        MUST(proc(base, &found, version, 0, NULL));
    } else {
        found = dlsym(!strcmp(door, "default") ? RTLD_DEFAULT : handle, symbol);
    }
    if (!found)
        fprintf(stderr, "no %s\n", symbol);
    return found;
}

PLACE void use(void) {
    CUdeviceptr block[3], stream[2];
    void *host[2];
    for (unsigned i = 0; i < 3; i++)
        MUST(TAKE("device", 0, block[i], 1u << (10 + i),
                  real_cuMemAlloc_v2(&block[i], 1u << (10 + i))));
    MUST(TAKE("pool", 0, stream[0], 300, real_cuMemAllocAsync(&stream[0], 300, NULL)));
    MUST(TAKE("pool", 0, stream[1], 5000, real_cuMemAllocAsync(&stream[1], 5000, NULL)));
    MUST(TAKE("host", LEDGER_HOST, host[0], 64, real_cuMemHostAlloc(&host[0], 64, 0)));
    MUST(TAKE("host", LEDGER_HOST, host[1], 128, real_cuMemHostAlloc(&host[1], 128, 0)));
    MUST(GIVE(block[1], real_cuMemFree_v2(block[1])));
    MUST(GIVE(stream[1], real_cuMemFreeAsync(stream[1], NULL)));
    MUST(GIVE(host[0], real_cuMemFreeHost(host[0])));
}

int main(int argc, char **argv) {
    CUcontext context;
    door = argc > 1 ? argv[1] : "handle";
    bool global = !strcmp(door, "global") || !strcmp(door, "default");
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!handle)
        return 2;
#define X(symbol, base, version)                                                                   \
    real_##symbol = (__typeof__(&symbol))find(handle, #symbol, base, version);
    DRIVER_FUNCTIONS(X)
#undef X
    MUST(real_cuInit(0));
    MUST(real_cuCtxCreate_v2(&context, 0, 0));
    use();
    int (*self_lookup)(void) = SIMGPU_SYMBOL(simgpu_self_lookup);
    printf("the driver found itself: %d\n", self_lookup());
    ledger_print();
    return 0;
}
