// LINK: @O@/simgpu/libcuda.so.1
/*
 * The race of an address, forced: while one thread's free has done its work but not yet returned,
 * another thread is given the same address. Its block lives, the first one's does not.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

static CUcontext context;
static CUdeviceptr first, second;

PLACE void take_second(void) {
    MUST(TAKE("device", 0, second, 70000, cuMemAlloc_v2(&second, 70000)));
}

static void *other_thread(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    take_second();
    return NULL;
}

/* Inside the free, after it has freed. */
static void hand_over(const char *name, void *unused) {
    pthread_t thread;
    (void)name;
    (void)unused;
    simgpu_hook("cuMemFree_v2", SIMGPU_AFTER, NULL, NULL);
    MUST(pthread_create(&thread, NULL, other_thread, NULL));
    pthread_join(thread, NULL);
}

PLACE void take_first(void) {
    MUST(TAKE("device", 0, first, 70000, cuMemAlloc_v2(&first, 70000)));
}

int main(void) {
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    for (int round = 0; round < 5; round++) {
        take_first();
        simgpu_hook("cuMemFree_v2", SIMGPU_AFTER, hand_over, NULL);
        MUST(GIVE(first, cuMemFree_v2(first)));
        printf("round %d: %s\n", round, first == second ? "the same address" : "another address");
        if (round < 4)
            MUST(GIVE(second, cuMemFree_v2(second)));
    }
    ledger_print();
    return 0;
}
