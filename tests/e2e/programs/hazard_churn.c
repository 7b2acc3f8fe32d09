// LINK: @O@/simgpu/libcuda.so.1
/*
 * Loads a plug-in, takes a block through it and unloads it, again and again; two plug-ins take
 * turns. Arguments: rounds, one or two libraries. Blocks have 1000 bytes through the first, 20000
 * through the second; one that is taken and given back between has 512.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>

typedef int through_function(int (*)(int), int);

PLACE int take(int bytes) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, (size_t)bytes));
    return 1;
}

/* Far from main: with no rules in memory each frame is a chance to get lost. */
PLACE int pair(int depth) {
    volatile char room[100];
    CUdeviceptr block;
    room[0] = (char)depth;
    if (depth > 0)
        return pair(depth - 1) + room[0];
    MUST(cuMemAlloc_v2(&block, 512));
    MUST(cuMemFree_v2(block));
    return 0;
}

PLACE void *visit(const char *library, int bytes) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    MUST(!handle);
    through_function *through = (through_function *)dlsym(handle, "through");
    MUST(!through);
    through(take, bytes);
    MUST(dlclose(handle));
    pair(20);
    return (void *)through;
}

int main(int argc, char **argv) {
    CUcontext context;
    void *where[2] = {NULL, NULL};
    bool moved = false;
    MUST(argc != 3 && argc != 4);
    int rounds = atoi(argv[1]), libraries = argc - 2;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 0; i < rounds; i++) {
        int which = i % libraries;
        void *here = visit(argv[2 + which], which ? 20000 : 1000);
        moved |= where[which] && where[which] != here;
        where[which] = here;
    }
    if (libraries == 2)
        moved |= labs((char *)where[0] - (char *)where[1]) > 4096;
    printf("%s\n", moved ? "other addresses" : "same addresses");
    return 0;
}
