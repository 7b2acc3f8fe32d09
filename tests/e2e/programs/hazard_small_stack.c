// LINK: @O@/simgpu/libcuda.so.1
/* Threads with the smallest stack there is: they must start, and their blocks must be booked. */
#include "cuda_sim.h"
#include "ledger.h"

static CUcontext context;

PLACE void take(void) {
    CUdeviceptr block;
    MUST(TAKE("device", 0, block, 5000, cuMemAlloc_v2(&block, 5000)));
}

static void *work(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    take();
    take();
    return NULL;
}

int main(void) {
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 0; i < 4; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        MUST(pthread_attr_init(&attributes));
        MUST(pthread_attr_setstacksize(&attributes, 16384));
        MUST(pthread_create(&thread, &attributes, work, NULL));
        pthread_join(thread, NULL);
    }
    ledger_print();
    return 0;
}
