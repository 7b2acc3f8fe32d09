// LINK: @O@/simgpu/libcuda.so.1
/*
 * Calls that fail, by SIMGPU_FAIL: an allocation refused, a free refused, a free that returns an
 * older asynchronous error though it did free. And frees of nothing, and of pointers never seen.
 * The codes go to stdout: they must be those of the driver.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <stdlib.h>

PLACE int take(CUdeviceptr *block, size_t bytes) {
    return TAKE("device", 0, *block, bytes, cuMemAlloc_v2(block, bytes));
}

PLACE int take_again(CUdeviceptr *block, size_t bytes) {
    return TAKE("device", 0, *block, bytes, cuMemAlloc_v2(block, bytes));
}

int main(void) {
    CUcontext context;
    CUdeviceptr block[4] = {0}, untouched = 0x5a5a5a5a, again, pool;
    void *host, *host_untouched = &context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));

    /* SIMGPU_FAIL=cuMemAlloc_v2:3=2 and more */
    MUST(take(&block[0], 2000));
    MUST(take(&block[1], 5 << 20));
    printf("refused: %d", take(&untouched, 3000));
    printf(", pointer %s\n", untouched == 0x5a5a5a5a ? "untouched" : "written");
    MUST(take(&block[2], 600)); /* kept: it holds the page of the first block */
    printf("too much: %d\n", take(&untouched, (size_t)1 << 50));
    printf("nothing: %d\n", take(&untouched, 0));
    printf("pinned refused: %d", cuMemHostAlloc(&host_untouched, 4096, 0));
    printf(", pointer %s\n", host_untouched == &context ? "untouched" : "written");
    MUST(TAKE("host", LEDGER_HOST, host, 4096, cuMemHostAlloc(&host, 4096, 0)));
    MUST(TAKE("pool", 0, pool, 640, cuMemAllocAsync(&pool, 640, NULL)));

    /* cuMemFree_v2:1=1: refused, then done */
    printf("free refused: %d\n", GIVE(block[0], cuMemFree_v2(block[0])));
    printf("free: %d\n", GIVE(block[0], cuMemFree_v2(block[0])));
    printf("pinned free refused: %d\n", GIVE(host, cuMemFreeHost(host)));
    printf("pool free refused: %d\n", GIVE(pool, cuMemFreeAsync(pool, NULL)));

    /* !cuMemFree_v2:3=700: freed, and yet an error; the address then comes again */
    printf("free with older error: %d\n", GIVE(block[1], cuMemFree_v2(block[1])));
    MUST(take_again(&again, 5 << 20));
    printf("the address %s\n", again == block[1] ? "came again" : "is another");

    printf("free of nothing: %d %d\n", cuMemFree_v2(0), cuMemFreeHost(NULL));
    for (unsigned i = 0; i < 1000; i++)
        if (cuMemFree_v2(0x123450000 + i) != CUDA_ERROR_INVALID_VALUE)
            return 1;
    ledger_loss("failed_frees", 4 + 1000);
    ledger_loss("unknown_frees", 1000);
    if (again == block[1])
        ledger_loss("lost_frees", 1);
    ledger_print();
    return 7;
}
