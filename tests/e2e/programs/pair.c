// LINK: @O@/simgpu/libcuda.so.1
/*
 * One allocate-and-free pair, for tests/stress/test_step.c to single-step. It stops itself where
 * the tracer is to look:
 *
 *     pair warm          three blocks and 20 pairs done; then stops before, between and after a
 * pair pair first         stops before its context is made, then likewise pair grow COUNT    COUNT
 * blocks taken, then likewise; with "stops" as third argument it stops after each block instead
 *
 * Every block of the pair has PAIR_BYTES, every other one BLOCK_BYTES.
 */
#include "pair.h"
#include "cuda_sim.h"
#include "ledger.h"

#include <signal.h>

static CUdeviceptr pair_block;

PLACE void take_block(void) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, BLOCK_BYTES));
}

PLACE void take_pair(size_t bytes) {
    MUST(cuMemAlloc_v2(&pair_block, bytes));
}

PLACE void give_pair(void) {
    MUST(cuMemFree_v2(pair_block));
}

static void start(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
}

/* The last round is the one that is stepped: warm, its sites and stacks are known. Not optimised,
   since jump threading would give the last round a call of its own, and so another site. */
__attribute__((optimize("O0"))) static void pairs(int rounds) {
    for (int i = 0; i < rounds; i++) {
        bool stepped = i == rounds - 1;
        if (stepped)
            raise(SIGSTOP);
        take_pair(stepped ? PAIR_BYTES : PAIR_WARM_BYTES);
        if (stepped)
            raise(SIGSTOP);
        give_pair();
        if (stepped)
            raise(SIGSTOP);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "first")) {
        MUST(cuInit(0));
        raise(SIGSTOP);
        start();
        take_pair(PAIR_BYTES);
        raise(SIGSTOP);
        give_pair();
        raise(SIGSTOP);
        return 0;
    }
    start();
    int blocks = argc > 2 ? atoi(argv[2]) : 3;
    for (int i = 0; i < blocks; i++) {
        take_block();
        if (argc > 3)
            raise(SIGSTOP);
    }
    pairs(!strcmp(mode, "warm") ? PAIR_WARM + 1 : 1);
    return 0;
}
