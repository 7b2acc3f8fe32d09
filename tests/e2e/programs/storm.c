// LINK: @O@/simgpu/libcuda.so.1
/*
 * Takes and gives back GPU memory on several threads until it is killed, and logs it (storm.h) in
 * the file named by the first argument; the second one seeds the sizes.
 */
#include "storm.h"

#include "cuda_sim.h"
#include "ledger.h"

#include <fcntl.h>
#include <sys/mman.h>

#define HELD 64

static CUcontext context;
static struct storm_log *storm_log;
static unsigned seed;

struct held {
    CUdeviceptr pointer;
    uint64_t bytes;
    bool pool;
};

/* Four sites; a call site of its own for each kind and size class. */
PLACE int take_small(struct held *h) {
    return cuMemAlloc_v2(&h->pointer, h->bytes);
}

PLACE int take_large(struct held *h) {
    return cuMemAlloc_v2(&h->pointer, h->bytes);
}

PLACE int take_pool(struct held *h) {
    return cuMemAllocAsync(&h->pointer, h->bytes, NULL);
}

static void take(unsigned thread, struct held *h, unsigned random) {
    h->pool = random & 1;
    h->bytes = 1 + (random >> 8) % (random & 2 ? 1 << 21 : 4096);
    if (h->bytes > storm_log->threads[thread].largest_call)
        storm_log->threads[thread].largest_call = h->bytes;
    storm_log->threads[thread].upper_bytes += h->bytes;
    storm_log->threads[thread].upper_blocks += 1;
    MUST(h->pool ? take_pool(h) : random & 2 ? take_large(h) : take_small(h));
    storm_log->threads[thread].lower_bytes += h->bytes;
    storm_log->threads[thread].lower_blocks += 1;
}

static void give(unsigned thread, struct held *h) {
    storm_log->threads[thread].lower_bytes -= h->bytes;
    storm_log->threads[thread].lower_blocks -= 1;
    MUST(h->pool ? cuMemFreeAsync(h->pointer, NULL) : cuMemFree_v2(h->pointer));
    storm_log->threads[thread].upper_bytes -= h->bytes;
    storm_log->threads[thread].upper_blocks -= 1;
    h->bytes = 0;
}

static void *storm(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument, state = seed * STORM_THREADS + thread + 1;
    struct held held[HELD] = {0};
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        unsigned random = (unsigned)rand_r(&state) << 15 ^ (unsigned)rand_r(&state);
        struct held *h = &held[(random >> 2) % HELD];
        if (h->bytes)
            give(thread, h);
        else
            take(thread, h, random);
        storm_log->threads[thread].calls += 1;
    }
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc != 3);
    int fd = open(argv[1], O_RDWR);
    storm_log = mmap(NULL, sizeof *storm_log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(storm_log == MAP_FAILED);
    seed = (unsigned)strtoul(argv[2], NULL, 10);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    pthread_t threads[STORM_THREADS];
    for (uintptr_t i = 0; i < STORM_THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, storm, (void *)i));
    pthread_join(threads[0], NULL);
    return 0;
}
