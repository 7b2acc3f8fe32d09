// LINK: @O@/simgpu/libcuda.so.1
/*
 * Eight threads in step: all take, then all give back, so that the peak and the end of work are
 * sure although the order of the threads is not.
 */
#include "cuda_sim.h"
#include "ledger.h"

#define THREADS 8
#define BLOCKS  200

static CUcontext context;
static pthread_barrier_t barrier;

PLACE CUdeviceptr take_weights(unsigned thread, unsigned i) {
    CUdeviceptr block;
    size_t bytes = 1000 + thread * 7 + i;
    MUST(TAKE("device", 0, block, bytes, cuMemAlloc_v2(&block, bytes)));
    return block;
}

PLACE CUdeviceptr take_activations(unsigned i) {
    CUdeviceptr block;
    size_t bytes = 64 + i * 512;
    MUST(TAKE("pool", 0, block, bytes, cuMemAllocAsync(&block, bytes, NULL)));
    return block;
}

static void *work(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument;
    CUdeviceptr weights[BLOCKS], activations[BLOCKS];
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < BLOCKS; i++) {
        weights[i] = take_weights(thread, i);
        activations[i] = take_activations(i);
    }
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < BLOCKS; i++) {
        MUST(GIVE(activations[i], cuMemFreeAsync(activations[i], NULL)));
        if (i % 10)
            MUST(GIVE(weights[i], cuMemFree_v2(weights[i])));
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, work, (void *)i));
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* The threads met at the peak, but each thread's own last step is in no order. */
    ledger_print();
    return 0;
}
