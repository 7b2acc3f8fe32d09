// LINK: @O@/simgpu/libcuda.so.1
/*
 * Threads that are cancelled, one while it makes the first event of the process, one while the
 * trace has to grow. Neither the thread nor the others may lose anything by that.
 */
#include "cuda_sim.h"
#include "ledger.h"

#define BLOCKS 60000

static CUcontext context;

PLACE void take(size_t bytes) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, bytes));
}

static void *retain(void *unused) {
    (void)unused;
    MUST(pthread_cancel(pthread_self()));
    return (void *)(intptr_t)(cuDevicePrimaryCtxRetain(&context, 0) + 1);
}

static void *take_many(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    MUST(pthread_cancel(pthread_self()));
    for (int i = 0; i < BLOCKS; i++)
        take(512);
    return (void *)1;
}

static void tell(const char *what, void *(*body)(void *)) {
    pthread_t thread;
    void *result;
    MUST(pthread_create(&thread, NULL, body, NULL));
    MUST(pthread_join(thread, &result));
    printf("%s: %s\n", what,
           result == (void *)1          ? "came back"
           : result == PTHREAD_CANCELED ? "cancelled inside"
                                        : "failed");
}

int main(void) {
    MUST(cuInit(0));
    tell("retain", retain);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    take(1000);
    tell("take", take_many);
    for (int i = 0; i < BLOCKS; i++)
        take(512);
    printf("blocks %d\n", 2 * BLOCKS + 1);
    return 0;
}
