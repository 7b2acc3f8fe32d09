// LINK: @O@/simgpu/libcuda.so.1
/*
 * Says of each of 12 allocations of several kinds whether it failed, then a forked child of 3, with
 * a count of its own.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <sys/wait.h>
#include <unistd.h>

static char page[4096] __attribute__((aligned(4096)));

static void twelve(void) {
    CUdeviceptr block;
    void *host;
    for (int i = 0; i < 3; i++) {
        printf(" %d", cuMemAlloc_v2(&block, 1000));
        printf(" %d", cuMemHostAlloc(&host, 1000, 0));
        MUST(cuMemHostRegister_v2(page, sizeof page, 0)); /* takes no memory: never chosen */
        MUST(cuMemHostUnregister(page));
        printf(" %d", cuMemAllocManaged(&block, 1000, CU_MEM_ATTACH_GLOBAL));
        printf(" %d", cuMemAllocAsync(&block, 1000, NULL));
    }
    printf("\n");
}

int main(void) {
    CUcontext context;
    CUdeviceptr block;
    int status;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    twelve();
    fflush(stdout);
    if (fork() == 0) {
        for (int i = 0; i < 3; i++)
            printf(" %d", cuMemAlloc_v2(&block, 1000));
        printf("\n");
        return 0;
    }
    wait(&status);
    return status != 0;
}
