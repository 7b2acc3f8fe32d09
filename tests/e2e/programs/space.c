// LINK: @O@/simgpu/libcuda.so.1
/*
 * Makes the trace grow, on file systems of all tempers; fallocate.so is to be preloaded but for the
 * first mode:
 *
 *     space many COUNT    that many blocks
 *     space threads       no fallocate at all; eight threads, from many stacks
 *     space refused       no space for a while
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <errno.h>

#define THREADS 8
#define BLOCKS  4000 /* of each thread */

void fallocate_fails(int error) __attribute__((weak));

static CUcontext context;

static void start(void) {
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
}

static CUdeviceptr take(void) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, 512));
    return block;
}

static void many(int count) {
    start();
    for (int i = 0; i < count; i++)
        take();
    printf("taken %d\n", count);
}

/* ---- threads ---- */

/* A stack for each pattern of `bits`. */
PLACE CUdeviceptr take_by(unsigned bits, int depth) {
    CUdeviceptr block;
    if (depth == 0)
        return take();
    if (bits & 1) {
        block = take_by(bits >> 1, depth - 1);
        __asm__ volatile("nop; nop" : "+r"(block));
    } else {
        block = take_by(bits >> 1, depth - 1);
        __asm__ volatile("nop" : "+r"(block));
    }
    return block;
}

static void *storm(void *number) {
    static CUdeviceptr blocks[THREADS][BLOCKS];
    unsigned thread = (unsigned)(uintptr_t)number;
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[thread][i] = take_by(thread * 2654435761u + i * 40503u, 12);
    for (unsigned i = 0; i < BLOCKS; i++)
        MUST(cuMemFree_v2(blocks[thread][i]));
    return NULL;
}

static void threads(void) {
    pthread_t ids[THREADS];
    fallocate_fails(EOPNOTSUPP);
    start();
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&ids[i], NULL, storm, (void *)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
}

/* ---- refused ---- */

#define PHASE(name, count)                                                                         \
    PLACE void name(void) {                                                                        \
        CUdeviceptr block;                                                                         \
        for (int i = 0; i < count; i++)                                                            \
            MUST(cuMemAlloc_v2(&block, 512));                                                      \
    }
PHASE(take_before, 1000)
PHASE(take_during, 40000)
PHASE(take_while_it_waits, 1100) /* the library asks again only after a thousand requests */
PHASE(take_after, 40000)

static void refused(void) {
    start();
    take_before();
    fallocate_fails(ENOSPC);
    take_during();
    fallocate_fails(0);
    take_while_it_waits();
    take_after();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "many") && argc > 2)
        many(atoi(argv[2]));
    else if (!strcmp(mode, "threads") && fallocate_fails)
        threads();
    else if (!strcmp(mode, "refused") && fallocate_fails)
        refused();
    else
        return 2;
    return 0;
}
