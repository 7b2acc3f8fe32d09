// LINK: @O@/simgpu/libcuda.so.1
/*
 * Three devices: what is taken counts on the device whose context was current then, whichever is
 * current when it is freed. Contexts by each way of making them.
 */
#include "cuda_sim.h"
#include "ledger.h"

#define DEVICES 3

static CUcontext contexts[DEVICES];

PLACE CUdeviceptr take(int device, size_t bytes) {
    CUdeviceptr block;
    MUST(cuCtxSetCurrent(contexts[device]));
    MUST(TAKE("device", device, block, bytes, cuMemAlloc_v2(&block, bytes)));
    return block;
}

PLACE CUdeviceptr take_async(int device, size_t bytes) {
    CUdeviceptr block;
    MUST(cuCtxSetCurrent(contexts[device]));
    MUST(TAKE("pool", device, block, bytes, cuMemAllocAsync(&block, bytes, NULL)));
    return block;
}

PLACE void give_elsewhere(int current, CUdeviceptr block) {
    MUST(cuCtxSetCurrent(contexts[current]));
    MUST(GIVE(block, cuMemFree_v2(block)));
}

int main(void) {
    CUdeviceptr block[DEVICES][4];
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&contexts[0], 0, 0));
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuCtxCreate_v4(&contexts[2], NULL, 0, 2));
    for (int device = 0; device < DEVICES; device++)
        for (int i = 0; i < 4; i++)
            block[device][i] = take(device, (size_t)(device + 1) * 1000 + i);
    for (int device = 0; device < DEVICES; device++)
        take_async(device, 555 + device);
    for (int device = 0; device < DEVICES; device++)
        for (int i = 0; i <= device; i++)
            give_elsewhere((device + 1) % DEVICES, block[device][i]);
    take(1, 1 << 20);
    ledger_print();
    return 0;
}
