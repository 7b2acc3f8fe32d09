// LINK: @O@/simgpu/libcuda.so.1
/* A library that takes GPU memory while it is being loaded: see hazard_constructor.c. */
#include "cuda_sim.h"

#include <stdlib.h>

static __attribute__((noipa)) void from_constructor(void) {
    CUdeviceptr kept, gone;
    if (cuMemAlloc_v2(&kept, 1000) || cuMemAlloc_v2(&gone, 70000) || cuMemFree_v2(gone))
        abort();
}

__attribute__((constructor)) static void start(void) {
    from_constructor();
}
