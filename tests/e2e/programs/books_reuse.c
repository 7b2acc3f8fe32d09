// LINK: @O@/simgpu/libcuda.so.1
/*
 * The driver hands a freed address to another thread before the first thread's free has returned.
 * Four threads take and give back the same sizes as fast as they can; whatever the order was, the
 * books must close.
 */
#include "cuda_sim.h"
#include "ledger.h"

#define THREADS 4
#define ROUNDS  4000
#define HELD    4

static CUcontext context;

PLACE int take_storm(CUdeviceptr *block, size_t bytes) {
    return TAKE("device", 0, *block, bytes, cuMemAlloc_v2(block, bytes));
}

PLACE int take_kept(CUdeviceptr *block, size_t bytes) {
    return TAKE("device", 0, *block, bytes, cuMemAlloc_v2(block, bytes));
}

static void *storm(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    CUdeviceptr held[HELD] = {0}, kept;
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned slot = rand_r(&seed) % HELD;
        if (held[slot])
            MUST(GIVE(held[slot], cuMemFree_v2(held[slot])));
        MUST(take_storm(&held[slot], 4096));
        if (i % 1000 == 0)
            MUST(take_kept(&kept, 4096));
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i])
            MUST(GIVE(held[i], cuMemFree_v2(held[i])));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    ledger.unordered = true;
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, storm, (void *)(i + 1)));
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ledger_print();
    return 0;
}
