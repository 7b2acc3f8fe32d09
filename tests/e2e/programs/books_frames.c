// LINK: @O@/simgpu/libcuda.so.1
/*
 * Stacks: inlined functions, recursion of a known depth, recursion beyond the limit, a function
 * with a C++ name, and calls through a pointer.
 */
#include "cuda_sim.h"
#include "ledger.h"

#define INLINED static inline __attribute__((always_inline))

INLINED CUdeviceptr innermost(size_t bytes) {
    CUdeviceptr block;
    MUST(TAKE("device", 0, block, bytes, cuMemAlloc_v2(&block, bytes)));
    return block;
}

INLINED CUdeviceptr middle(size_t bytes) {
    return innermost(bytes + 1);
}

PLACE CUdeviceptr outer(size_t bytes) {
    return middle(bytes + 1) + 1;
}

PLACE void at_depth(unsigned depth, size_t bytes) {
    CUdeviceptr block;
    if (depth > 0)
        at_depth(depth - 1, bytes);
    else
        MUST(TAKE("device", 0, block, bytes, cuMemAlloc_v2(&block, bytes)));
    __asm__ volatile("");
}

PLACE void beyond_limit(unsigned depth, size_t bytes) {
    CUdeviceptr block;
    if (depth > 0)
        beyond_limit(depth - 1, bytes);
    else
        MUST(TAKE("device", 0, block, bytes, cuMemAlloc_v2(&block, bytes)));
    __asm__ volatile("");
}

void model_load(size_t bytes) __asm__("_ZN5model7Encoder4loadEm");
__attribute__((noipa)) void model_load(size_t bytes) {
    CUdeviceptr block;
    MUST(TAKE("device", 0, block, bytes, cuMemAlloc_v2(&block, bytes)));
    __asm__ volatile("");
}

PLACE void by_pointer(void (*function)(size_t), size_t bytes) {
    function(bytes);
    __asm__ volatile("");
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    outer(100);
    at_depth(10, 2000);
    beyond_limit(100, 30000);
    by_pointer(model_load, 400000);
    ledger_loss("stack_truncated", 1);
    ledger_print();
    return 0;
}
