// LINK: @O@/simgpu/libcuda.so.1
/*
 * Measures what an allocate-and-free pair costs, ten frames deep.
 *
 *     bench_pairs THREADS PAIRS ROUNDS
 *
 * Prints the fastest and the median round, in ns a pair and thread. tests/bench runs it plain and
 * preloaded in turns, and under callgrind, which counts inside measured() alone.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <time.h>

#define WARM_PAIRS 1000
#define ROUNDS_MAX 1000

static CUcontext context;
static long pairs, rounds;
static double ns_a_pair[ROUNDS_MAX];

/* callgrind is told to count inside this function alone. */
void measured(long count);
__attribute__((noipa)) void measured(long count) {
    CUdeviceptr block;
    for (long i = 0; i < count; i++) {
        MUST(cuMemAlloc_v2(&block, 4096));
        MUST(cuMemFree_v2(block));
    }
}

PLACE void at_depth(int depth, long count) {
    if (depth > 0)
        at_depth(depth - 1, count);
    else
        measured(count);
    __asm__ volatile("");
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *other_thread(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    for (;;)
        at_depth(7, 1000);
    return NULL;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MUST(argc != 4);
    pairs = atol(argv[2]);
    rounds = atol(argv[3]);
    MUST(rounds < 1 || rounds > ROUNDS_MAX);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    for (int i = atoi(argv[1]); i > 1; i--) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, other_thread, NULL));
    }
    at_depth(7, WARM_PAIRS);
    for (long i = 0; i < rounds; i++) {
        double began = now_ns();
        at_depth(7, pairs);
        ns_a_pair[i] = (now_ns() - began) / (double)pairs;
    }
    qsort(ns_a_pair, (size_t)rounds, sizeof ns_a_pair[0], compare);
    printf("%.0f %.0f\n", ns_a_pair[0], ns_a_pair[rounds / 2]);
    return 0;
}
