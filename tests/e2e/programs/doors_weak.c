/*
 * Refers to the driver weakly and links none, as programs do that run with and without a GPU. With
 * no libcuda anywhere a call that got through must say so.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdio.h>

#pragma weak cuMemAlloc_v2
#pragma weak cuMemFree_v2
#pragma weak cuMemHostAlloc
#pragma weak cuCtxCreate_v4
#pragma weak cuGetProcAddress_v2
#pragma weak cuInit

int main(void) {
    CUdeviceptr block = 1;
    void *pointer = &block;
    CUcontext context = NULL;
    CUdriverProcAddressQueryResult status = 77;
    printf("cuInit %s\n", cuInit ? "there" : "absent");
    if (!cuMemAlloc_v2) {
        printf("nothing linked\n");
        return 0;
    }
    printf("cuMemAlloc_v2 %d\n", cuMemAlloc_v2(&block, 512));
    printf("cuMemFree_v2 %d\n", cuMemFree_v2(4096));
    printf("cuMemHostAlloc %d\n", cuMemHostAlloc(&pointer, 512, 0));
    printf("cuCtxCreate_v4 %d\n", cuCtxCreate_v4(&context, NULL, 0, 0));
    printf("cuGetProcAddress_v2 %d\n",
           cuGetProcAddress_v2("cuMemAlloc", &pointer, 13000, 0, &status));
    printf("outputs %s\n",
           block == 1 && pointer == &block && !context && status == 77 ? "untouched" : "written");
    const char *error = dlerror();
    printf("dlerror %s\n", error ? error : "none");
    return 0;
}
