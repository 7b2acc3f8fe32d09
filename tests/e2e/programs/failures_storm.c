// LINK: @O@/simgpu/libcuda.so.1
/*
 * Holds many tensors and asks for too much until it is killed: the live table is copied again and
 * again. The number of tensors is the first argument; each has 512 bytes.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>
#include <unistd.h>

#define DEVICE_0 1 /* type CUDA, index 0, as PyTorch passes it */

int main(int argc, char **argv) {
    CUcontext context;
    CUdeviceptr block;
    void (*report)(void *, int64_t, uint64_t, uint64_t, uint64_t);
    void *symbol = dlsym(RTLD_DEFAULT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    MUST(argc != 2 || !symbol);
    alarm(60); /* the end, if nobody kills it */
    memcpy(&report, &symbol, sizeof report);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemAlloc_v2(&block, 4096)); /* the device is met */
    for (uintptr_t i = 1; i <= strtoul(argv[1], NULL, 10); i++)
        report((void *)(i * 512), 512, 0, 0, DEVICE_0);
    for (;;)
        MUST(cuMemAlloc_v2(&block, (size_t)1 << 50) != CUDA_ERROR_OUT_OF_MEMORY);
}
