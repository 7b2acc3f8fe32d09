/*
 * Programs that run out of memory, each for another reason, and some that know how to go on: one
 * case a name, see tests/e2e/test_findings.c.
 */
#include "cuda_runtime_sim.h"
#include "findings.h"
#undef MIB
#include "c10.h"

#include <unistd.h>

static void *kept[1024];
static unsigned kept_count;

PLACE void *hold_activations(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    return block;
}

PLACE int ask_for(size_t bytes) {
    void *block;
    return cudaMalloc(&block, bytes);
}

static void fill(size_t bytes, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        kept[kept_count++] = hold_activations(bytes);
}

static void must_fail(int code) {
    if (code != cudaErrorMemoryAllocation)
        exit(4);
}

/* 15 of 15.5 GiB are taken. */
static void capacity(void) {
    fill(GIB, 15);
    must_fail(ask_for(2 * GIB));
}

/* Doubles a batch until it does not fit, and works with the last that did. */
PLACE void find_batch_size(void) {
    size_t bytes = GIB;
    void *block;
    while (cudaMalloc(&block, bytes) == cudaSuccess) {
        MUST(cudaFree(block));
        bytes *= 2;
    }
}

static void probe(void) {
    find_batch_size();
    for (int i = 0; i < STEPS; i++) {
        MUST(cudaFree(hold_activations(8 * GIB)));
        pace();
    }
}

/* The driver says no although there is room: SIMGPU_FAIL tells it to. */
static void refused(void) {
    fill(GIB, 2);
    must_fail(ask_for(GIB));
}

/* 29 times the cache has to be emptied to make room. */
#define FLUSHES 29

PLACE void *take_cached(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    return block;
}

PLACE void *take_or_flush(size_t bytes, void **cache, unsigned count) {
    void *block;
    if (cudaMalloc(&block, bytes) == cudaSuccess)
        return block;
    for (unsigned i = 0; i < count; i++)
        MUST(cudaFree(cache[i]));
    MUST(cudaMalloc(&block, bytes));
    return block;
}

static void flush_retry(void) {
    void *cache[7];
    for (int i = 0; i < FLUSHES; i++) {
        for (unsigned n = 0; n < 7; n++)
            cache[n] = take_cached(2 * GIB);
        MUST(cudaFree(take_or_flush(4 * GIB, cache, 7)));
    }
}

static void host(void) {
    void *block;
    for (int i = 0; i < 3; i++)
        if (cudaMallocHost(&block, MIB) == cudaSuccess)
            kept[kept_count++] = block;
}

/* ---- PyTorch's ------------------------------------------------------------------------------- */

static struct c10 c10;

static void start(void) {
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    path[length > 0 ? length : 0] = '\0';
    strcpy(strrchr(path, '/'), "/libc10_cuda_stub.so");
    c10 = c10_load(path);
}

PLACE void small_tensor(char *at, int64_t bytes) {
    c10.report(2, at, bytes, CUDA(0));
    __asm__ volatile("");
}

PLACE void *large_tensor(size_t bytes) {
    void *segment = c10.segment(bytes);
    if (!segment)
        c10.report_oom(2, (int64_t)bytes, CUDA(0));
    __asm__ volatile("");
    return segment;
}

#define LARGE 11643387904ull

/* The large segment is used again for small tensors, and then the large one is needed once more. */
static void segment_split(void) {
    start();
    char *segment = large_tensor(LARGE);
    for (size_t i = 0; i < 240; i++)
        small_tensor(segment + i * 34 * MIB, 17 * MIB);
    if (large_tensor(LARGE))
        exit(4);
}

/* Tensors fill the device. */
PLACE char *reserve(size_t bytes) {
    return c10.segment(bytes);
}

static void tensors_fill(void) {
    start();
    for (unsigned i = 0; i < 15; i++)
        small_tensor(reserve(GIB), GIB);
    if (large_tensor(GIB))
        exit(4);
}

static const struct findings_case cases[] = {
    {"capacity", capacity},         {"probe", probe}, {"refused", refused},
    {"flush_retry", flush_retry},   {"host", host},   {"segment_split", segment_split},
    {"tensors_fill", tensors_fill},
};

MAIN(cases)
