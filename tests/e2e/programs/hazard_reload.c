// LINK: @O@/simgpu/libcuda.so.1
/*
 * Calls through a library, unloads it, and calls through another one at the same address: each
 * stack must be that of the library that was there. Arguments: the two libraries.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>

typedef int through_function(int (*)(int), int);

PLACE int take(int bytes) {
    CUdeviceptr block;
    MUST(TAKE("device", 0, block, (size_t)bytes, cuMemAlloc_v2(&block, (size_t)bytes)));
    return 1;
}

PLACE void *call_through(const char *library, int bytes) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    through_function *through = (through_function *)dlsym(handle, "through");
    for (int i = 0; i < 3; i++)
        through(take, bytes);
    dlclose(handle);
    return (void *)through;
}

int main(int argc, char **argv) {
    CUcontext context;
    MUST(argc != 3);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    void *first = call_through(argv[1], 1000);
    void *second = call_through(argv[2], 20000);
    void *again = call_through(argv[1], 300000);
    printf("%s\n", first == again && labs((char *)first - (char *)second) < 4096
                       ? "same addresses"
                       : "other addresses");
    ledger_print();
    return 0;
}
