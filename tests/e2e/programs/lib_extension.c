// LINK: @O@/simgpu/libcuda.so.1
/*
 * An extension module linked with the driver and loaded RTLD_LOCAL, as Python's are: no libcuda is
 * in the global scope. doors_extension loads it.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>

void extension_run(void);

PLACE void from_extension(void) {
    CUdeviceptr kept, gone;
    void *host;
    MUST(TAKE("device", 0, kept, 4321, cuMemAlloc_v2(&kept, 4321)));
    MUST(TAKE("device", 0, gone, 99999, cuMemAlloc_v2(&gone, 99999)));
    MUST(TAKE("host", LEDGER_HOST, host, 512, cuMemHostAlloc(&host, 512, 0)));
    MUST(GIVE(gone, cuMemFree_v2(gone)));
}

PLACE void by_default_scope(void) {
    CUdeviceptr kept;
    __typeof__(&cuMemAlloc_v2) found =
        (__typeof__(&cuMemAlloc_v2))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    const char *error = dlerror();
    printf("found in the default scope: %s, dlerror %s\n", found ? "yes" : "no",
           error ? error : "none");
    MUST(TAKE("device", 0, kept, 111, found(&kept, 111)));
}

void extension_run(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    from_extension();
    by_default_scope();
    ledger_print();
}
