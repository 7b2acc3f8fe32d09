/*
 * A limiter of GPU memory as container platforms preload them: answers dlsym itself with its own
 * cuMemAlloc_v2 and cuMemFree_v2, which call the driver's. Preloaded before libcuheap.so or after
 * it. What it saw goes to stdout at exit.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef __aarch64__
#define FIRST_GLIBC "GLIBC_2.17"
#else
#define FIRST_GLIBC "GLIBC_2.2.5"
#endif

typedef void *dlsym_function(void *, const char *);

static unsigned allocs, frees;

static dlsym_function *next_dlsym(void) {
    static dlsym_function *next;
    if (!next)
        next = (dlsym_function *)dlvsym(RTLD_NEXT, "dlsym", FIRST_GLIBC);
    return next;
}

static void *in_driver(const char *name) {
    return next_dlsym()(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    __typeof__(&cuMemAlloc_v2) real = (__typeof__(&cuMemAlloc_v2))in_driver("cuMemAlloc_v2");
    __atomic_add_fetch(&allocs, 1, __ATOMIC_RELAXED);
    return real(pointer, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    __typeof__(&cuMemFree_v2) real = (__typeof__(&cuMemFree_v2))in_driver("cuMemFree_v2");
    __atomic_add_fetch(&frees, 1, __ATOMIC_RELAXED);
    return real(pointer);
}

void *dlsym(void *handle, const char *name) {
    if (!strcmp(name, "cuMemAlloc_v2"))
        return (void *)cuMemAlloc_v2;
    if (!strcmp(name, "cuMemFree_v2"))
        return (void *)cuMemFree_v2;
    return next_dlsym()(handle, name);
}

__attribute__((destructor)) static void tell(void) {
    printf("the limiter saw %u allocations, %u frees\n", allocs, frees);
    fflush(stdout);
}
