// LINK: @O@/simgpu/libcuda.so.1
/*
 * Threads that retain a device's primary context at once, for each device: all of them are inside
 * the driver's call before any comes back from it; and where the device is asked for its name,
 * which is while the context is described, that waits until all other threads are back.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

#include <sched.h>
#include <stdatomic.h>

#define THREADS 8
#define DEVICES 16

static pthread_barrier_t barrier;
static _Atomic int back[DEVICES]; /* threads that have the context of that device */
static __thread int current;

static void meet(const char *name, void *unused) {
    (void)name;
    (void)unused;
    pthread_barrier_wait(&barrier);
}

static void let_others_pass(const char *name, void *unused) {
    (void)name;
    (void)unused;
    while (atomic_load(&back[current]) < THREADS - 1)
        sched_yield();
}

static void *retain(void *devices) {
    CUcontext context;
    for (current = 0; current < *(int *)devices; current++) {
        MUST(cuDevicePrimaryCtxRetain(&context, current));
        atomic_fetch_add(&back[current], 1);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int devices;
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    MUST(devices > DEVICES);
    MUST(pthread_barrier_init(&barrier, NULL, THREADS));
    simgpu_hook("cuDevicePrimaryCtxRetain", SIMGPU_AFTER, meet, NULL);
    simgpu_hook("cuDeviceGetName", SIMGPU_BEFORE, let_others_pass, NULL);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, retain, &devices));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("devices %d\n", devices);
    return 0;
}
