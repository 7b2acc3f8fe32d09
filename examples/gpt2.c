/*
 * The memory of a GPT-2 medium in training on a card of 16 GiB, without the arithmetic. In every
 * hundredth step comes a batch of long sequences, and it runs out of memory in the attention of the
 * ninth layer, whose intermediate products hold 7.2 GB by then. It skips such a batch; at the third
 * it gives up.
 *
 *     cuheap run -- build/examples/gpt2 && cuheap report
 *
 * On a larger card, cuheap run --limit 16GiB. What helps: fused attention, which does not keep the
 * products, and half the batch with two accumulation steps: build/examples/gpt2 mended.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(__has_include) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#else
#include "cuda_runtime_sim.h"
#endif

#define MB     ((size_t)1000 * 1000)
#define LAYERS 24
#define STEPS  400

#define PLACE __attribute__((noipa)) static

/* What a step has taken; given back when it ends. */
static void *step_blocks[4 * LAYERS];
static int step_count;

static void end_step(void) {
    while (step_count)
        cudaFree(step_blocks[--step_count]);
}

PLACE bool load_model(void) { /* 355 million weights and their gradients */
    static void *weights, *gradients;
    return cudaMalloc(&weights, 1420 * MB) == cudaSuccess &&
           cudaMalloc(&gradients, 1420 * MB) == cudaSuccess;
}

PLACE bool create_optimizer(void) { /* Adam: two moments a weight */
    static void *moments;
    return cudaMalloc(&moments, 2840 * MB) == cudaSuccess;
}

/* Q, K, V and the scores of each with each, which the backward pass wants again. */
PLACE bool attention_qkv(size_t bytes) {
    bool ok = cudaMalloc(&step_blocks[step_count], bytes) == cudaSuccess;
    step_count += ok;
    return ok;
}

PLACE bool feed_forward(size_t bytes) {
    bool ok = cudaMalloc(&step_blocks[step_count], bytes) == cudaSuccess;
    step_count += ok;
    return ok;
}

PLACE bool forward(size_t attention, size_t mlp) {
    for (int layer = 0; layer < LAYERS; layer++)
        if (!attention_qkv(attention) || !feed_forward(mlp))
            return false;
    return true;
}

int main(int argc, char **argv) {
    bool mended = argc > 1 && strcmp(argv[1], "mended") == 0;
    int failures = 0;
    if (!load_model() || !create_optimizer()) {
        fputs("gpt2: the model does not fit\n", stderr);
        return 1;
    }
    for (int step = 1; step <= STEPS; step++) {
        bool lengthy = step % 100 == 0;
        size_t attention = (lengthy ? 900 : 200) * MB, mlp = (lengthy ? 400 : 100) * MB;
        if (mended) { /* no scores kept; 16 sequences instead of 32, twice */
            attention /= 6;
            mlp /= 2;
        }
        for (int half = 0; half < (mended ? 2 : 1); half++) {
            bool ok = forward(attention, mlp);
            end_step();
            if (ok)
                continue;
            printf("gpt2: out of memory in step %d\n", step);
            if (++failures == 3)
                return 1;
        }
    }
    printf("gpt2: %d steps\n", STEPS);
    return 0;
}
