// LINK: @O@/simgpu/libcuda.so.1
/*
 * The calls that reach the driver, in their order: traced and not, they must be the same but for
 * the few that the library makes on its own.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

static const char *const names[] = {
#define ENTRY(symbol, base, version, stream, capture, body, params, args) #symbol,
#include "driver_api.def"
#undef ENTRY
};
#define NAMES (sizeof names / sizeof *names)

static const char *order[4096];
static unsigned order_count;

static void note_call(const char *name, void *unused) {
    (void)unused;
    if (order_count < sizeof order / sizeof *order)
        order[order_count++] = name;
}

PLACE void use(int device) {
    CUdeviceptr block[6];
    CUmemoryPool pool;
    void *host;
    for (int i = 0; i < 6; i++)
        MUST(cuMemAlloc_v2(&block[i], 1000));
    for (int i = 0; i < 6; i++)
        MUST(cuMemFree_v2(block[i]));
    MUST(cuMemAllocAsync(&block[0], 100, NULL));
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    MUST(cuMemAllocFromPoolAsync(&block[1], 100, pool, NULL));
    MUST(cuMemFreeAsync(block[0], NULL));
    MUST(cuMemFreeAsync(block[1], NULL));
    MUST(cuMemHostAlloc(&host, 100, 0));
    MUST(cuMemFreeHost(host));
    MUST(cuMemAllocManaged(&block[0], 100, CU_MEM_ATTACH_GLOBAL));
    cuMemAlloc_v2(&block[1], (size_t)1 << 60);
    cuMemFree_v2(12345);
    MUST(cuMemFree_v2(0));
}

int main(void) {
    CUcontext context;
    for (size_t i = 0; i < NAMES; i++)
        simgpu_hook(names[i], SIMGPU_BEFORE, note_call, NULL);
    MUST(cuInit(0));
    for (int device = 0; device < 2; device++) {
        MUST(device ? cuDevicePrimaryCtxRetain(&context, device)
                    : cuCtxCreate_v2(&context, 0, device));
        MUST(cuCtxSetCurrent(context));
        use(device);
    }
    MUST(cuCtxSynchronize());
    for (size_t i = 0; i < NAMES; i++)
        simgpu_hook(names[i], SIMGPU_BEFORE, NULL, NULL);
    for (unsigned i = 0; i < order_count; i++)
        printf("%s\n", order[i]);
    return 0;
}
