// LINK: @O@/simgpu/libcuda.so.1
/*
 * Threads that retain a device's primary context at once, for each device: all of them are inside
 * the driver's call before any comes back from it.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

#define THREADS 8

static pthread_barrier_t barrier;

static void meet(const char *name, void *unused) {
    (void)name;
    (void)unused;
    pthread_barrier_wait(&barrier);
}

static void *retain(void *devices) {
    CUcontext context;
    for (int device = 0; device < *(int *)devices; device++)
        MUST(cuDevicePrimaryCtxRetain(&context, device));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int devices;
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    MUST(pthread_barrier_init(&barrier, NULL, THREADS));
    simgpu_hook("cuDevicePrimaryCtxRetain", SIMGPU_AFTER, meet, NULL);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, retain, &devices));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("devices %d\n", devices);
    return 0;
}
