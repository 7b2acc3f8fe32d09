/*
 * A small "training" program with the two faults that cuheap is there to find: train_step() forgets
 * one block a step, and build_index() makes a short, high peak. It keeps its own log of what it
 * allocated and prints it at the end, so that the report can be checked against it.
 *
 *     make demo
 *     gcc -g examples/leak.c -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -o leak
 *     cuheap run -- ./leak && cuheap report
 */
#include <stdio.h>
#include <stdlib.h>

#if defined(__has_include) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#else
#include "cuda_runtime_sim.h"
#endif

#define MIB    ((size_t)1 << 20)
#define LAYERS 12
#define STEPS  40

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The program's own log. */
static size_t live_bytes, live_blocks, peak_bytes;
static unsigned long allocations, frees;

static void log_alloc(size_t bytes) {
    allocations++;
    live_blocks++;
    live_bytes += bytes;
    if (live_bytes > peak_bytes)
        peak_bytes = live_bytes;
}

static void log_free(size_t bytes) {
    frees++;
    live_blocks--;
    live_bytes -= bytes;
}

static void *weights[LAYERS];
static const size_t layer_bytes = 8 * MIB, activation_bytes = 24 * MIB, loss_bytes = 3 * MIB + 512;
static int leak_line, peak_line;

static void load_weights(void *staging, size_t staging_bytes) {
    for (int layer = 0; layer < LAYERS; layer++) {
        CHECK(cudaMalloc(&weights[layer], layer_bytes));
        log_alloc(layer_bytes);
        CHECK(cudaMemcpy(weights[layer], staging, staging_bytes, cudaMemcpyHostToDevice));
    }
}

static void train_step(void) {
    void *activations, *loss;

    CHECK(cudaMalloc(&activations, activation_bytes));
    log_alloc(activation_bytes);
    leak_line = __LINE__ + 1;
    CHECK(cudaMalloc(&loss, loss_bytes));
    log_alloc(loss_bytes);
    CHECK(cudaMemset(loss, 0, loss_bytes));
    CHECK(cudaFree(activations));
    log_free(activation_bytes);
    /* and loss is never freed: the leak */
}

static void build_index(void) {
    const size_t index_bytes = 384 * MIB, scratch_bytes = 128 * MIB;
    void *index, *scratch;

    peak_line = __LINE__ + 1;
    CHECK(cudaMalloc(&index, index_bytes));
    log_alloc(index_bytes);
    CHECK(cudaMalloc(&scratch, scratch_bytes));
    log_alloc(scratch_bytes);
    CHECK(cudaFree(scratch));
    log_free(scratch_bytes);
    CHECK(cudaFree(index));
    log_free(index_bytes);
}

int main(void) {
    const size_t staging_bytes = 4 * MIB;
    void *staging;

    CHECK(cudaMallocHost(&staging, staging_bytes));
    load_weights(staging, staging_bytes);
    for (int step = 0; step < STEPS; step++) {
        train_step();
        if (step == STEPS / 2)
            build_index();
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        CHECK(cudaFree(weights[layer]));
        log_free(layer_bytes);
    }
    CHECK(cudaFreeHost(staging));

    printf("leaked: %zu bytes in %zu blocks, from line %d\n", live_bytes, live_blocks, leak_line);
    printf("peak: %zu bytes, at line %d and the next allocation\n", peak_bytes, peak_line);
    printf("device calls: %lu allocations, %lu frees\n", allocations, frees);
    printf("pinned host memory: %zu bytes in 1 block, freed\n", staging_bytes);
    return 0;
}
