// LINK: @O@/simgpu/libcuda.so.1
/*
 * The 32-bit functions of CUDA 2 are passed through, by every door: what the program is given is
 * the driver's own. And what a program asks of memory that was never seen is answered by the
 * driver.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#include <dlfcn.h>

static const char *const old_names[] = {
    "cuMemAlloc", "cuMemFree", "cuMemAllocPitch", "cuMemAllocHost", "cuMemGetInfo",
};

static bool is_drivers_own(void *function) {
    Dl_info info;
    return dladdr(function, &info) && strstr(info.dli_fname, "libcuda.so");
}

int main(void) {
    CUcontext context;
    CUdeviceptr_v1 pointer;
    size_t total;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    for (unsigned i = 0; i < sizeof old_names / sizeof *old_names; i++) {
        CUdriverProcAddressQueryResult status;
        void *found = NULL;
        MUST(cuGetProcAddress_v2(old_names[i], &found, 2000, 0, &status));
        printf("%s: %d %d %d\n", old_names[i], found == dlsym(driver, old_names[i]),
               is_drivers_own(found), is_drivers_own(dlsym(RTLD_DEFAULT, old_names[i])));
    }
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 100));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuMemFree(17));
    MUST(cuMemGetInfo_v2(NULL, &total));
    for (unsigned i = 1; i <= 1000; i++)
        if (cuMemFree_v2(0x123450000 + i) != CUDA_ERROR_INVALID_VALUE)
            return 1;
    BOOKS();
    TRACED(books_loss(TRACE_LOSS_UNKNOWN_FREES), 1000);
    return 0;
}
