// LINK: @O@/simgpu/libcuda.so.1
/*
 * Every watched entry point of the driver once at least, through plain linkage: each kind of memory
 * taken and given back by each function that may do so.
 */
#include "cuda_sim.h"
#include "ledger.h"

PLACE void linear(void) {
    CUdeviceptr block[5];
    for (int i = 0; i < 5; i++)
        MUST(TAKE("device", 0, block[i], 1000u * i + 9, cuMemAlloc_v2(&block[i], 1000u * i + 9)));
    MUST(GIVE(block[1], cuMemFree_v2(block[1])));
    MUST(GIVE(block[4], cuMemFree_v2(block[4])));
}

PLACE void pitched(void) {
    CUdeviceptr kept, image;
    size_t pitch;
    MUST(TAKE("device", 0, kept, pitch * 7, cuMemAllocPitch_v2(&kept, &pitch, 100, 7, 4)));
    MUST(TAKE("device", 0, image, pitch * 64, cuMemAllocPitch_v2(&image, &pitch, 513, 64, 8)));
    MUST(GIVE(image, cuMemFree_v2(image)));
}

PLACE void managed(void) {
    CUdeviceptr kept, gone;
    unsigned flags = CU_MEM_ATTACH_GLOBAL;
    MUST(TAKE("managed", 0, kept, 4096, cuMemAllocManaged(&kept, 4096, flags)));
    MUST(TAKE("managed", 0, gone, 1 << 20, cuMemAllocManaged(&gone, 1 << 20, flags)));
    MUST(GIVE(gone, cuMemFree_v2(gone)));
}

PLACE void pinned(void) {
    void *kept, *old, *gone;
    MUST(TAKE("host", LEDGER_HOST, kept, 12345, cuMemHostAlloc(&kept, 12345, 0)));
    MUST(TAKE("host", LEDGER_HOST, old, 777, cuMemAllocHost_v2(&old, 777)));
    MUST(TAKE("host", LEDGER_HOST, gone, 65536, cuMemAllocHost_v2(&gone, 65536)));
    MUST(GIVE(gone, cuMemFreeHost(gone)));
}

PLACE void stream_ordered(void) {
    CUdeviceptr block[4];
    MUST(TAKE("pool", 0, block[0], 100, cuMemAllocAsync(&block[0], 100, NULL)));
    MUST(TAKE("pool", 0, block[1], 200, cuMemAllocAsync_ptsz(&block[1], 200, NULL)));
    MUST(TAKE("pool", 0, block[2], 3 << 20, cuMemAllocAsync(&block[2], 3 << 20, NULL)));
    MUST(TAKE("pool", 0, block[3], 400, cuMemAllocAsync(&block[3], 400, NULL)));
    MUST(GIVE(block[0], cuMemFreeAsync(block[0], NULL)));
    MUST(GIVE(block[1], cuMemFreeAsync_ptsz(block[1], NULL)));
    MUST(GIVE(block[2], cuMemFree_v2(block[2]))); /* the plain free takes stream-ordered ones too */
}

PLACE void from_pool(void) {
    CUmemoryPool pool;
    CUdeviceptr block[3];
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(TAKE("pool", 0, block[0], 5000, cuMemAllocFromPoolAsync(&block[0], 5000, pool, NULL)));
    MUST(TAKE("pool", 0, block[1], 600, cuMemAllocFromPoolAsync_ptsz(&block[1], 600, pool, NULL)));
    MUST(TAKE("pool", 0, block[2], 70, cuMemAllocFromPoolAsync(&block[2], 70, pool, NULL)));
    MUST(GIVE(block[1], cuMemFreeAsync(block[1], NULL)));
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    linear();
    pitched();
    managed();
    pinned();
    stream_ordered();
    from_pool();
    ledger_print();
    return 0;
}
