// LINK: @O@/simgpu/libcuda.so.1
/*
 * Whose the C++ exception machinery is, before and after stacks were taken: an unwinder loaded for
 * tracing may not come to stand in the program's scope.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>

static void tell(const char *when) {
    static const char *const names[] = {"_Unwind_RaiseException", "_Unwind_Backtrace",
                                        "_Unwind_Resume", "unw_backtrace", "unw_getcontext"};
    for (int i = 0; i < 5; i++) {
        Dl_info info;
        void *found = dlsym(RTLD_DEFAULT, names[i]);
        const char *object = found && dladdr(found, &info) ? strrchr(info.dli_fname, '/') : NULL;
        printf("%s: %s is %s\n", when, names[i], object ? object + 1 : "absent");
    }
}

int main(void) {
    CUcontext context;
    CUdeviceptr block;
    tell("at the start");
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemAlloc_v2(&block, 1000));
    tell("after an allocation");
    if (!dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_GLOBAL))
        return 3;
    tell("with libgcc_s");
    MUST(cuMemFree_v2(block));
    MUST(cuMemAlloc_v2(&block, 2000));
    tell("after another");
    return 0;
}
