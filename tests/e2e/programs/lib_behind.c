/*
 * Another interposer of the driver's functions: finds the next definition by RTLD_NEXT at each
 * call. Preloaded before libcuheap.so or after it. What it saw goes to stdout at exit.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned allocs, frees;

static void *next_of(const char *name) {
    static __thread int depth;
    if (++depth > 8) {
        fprintf(stderr, "RTLD_NEXT of %s led back here\n", name);
        exit(9);
    }
    void *next = dlsym(RTLD_NEXT, name);
    depth = 0;
    return next;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    __typeof__(&cuMemAlloc_v2) next = (__typeof__(&cuMemAlloc_v2))next_of("cuMemAlloc_v2");
    __atomic_add_fetch(&allocs, 1, __ATOMIC_RELAXED);
    return next ? next(pointer, bytes) : CUDA_ERROR_STUB_LIBRARY;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    __typeof__(&cuMemFree_v2) next = (__typeof__(&cuMemFree_v2))next_of("cuMemFree_v2");
    __atomic_add_fetch(&frees, 1, __ATOMIC_RELAXED);
    return next ? next(pointer) : CUDA_ERROR_STUB_LIBRARY;
}

__attribute__((destructor)) static void tell(void) {
    printf("the other interposer saw %u allocations, %u frees\n", allocs, frees);
    fflush(stdout);
}
