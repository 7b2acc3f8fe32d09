// LINK: '-Wl,-rpath,$ORIGIN' @O@/e2e/libnccl_stub.so
/*
 * Memory of all kinds that leaks, stays, peaks or is a library's, and healthy programs beside each:
 * one case a name, see tests/e2e/test_findings.c.
 */
#include "cuda_runtime_sim.h"
#include "findings.h"

static void *kept[8192];
static size_t kept_count;

static void keep(void *block) {
    kept[kept_count++ % 8192] = block;
}

PLACE void *take(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    return block;
}

static void balanced(size_t bytes) {
    MUST(cudaFree(take(bytes)));
}

/* ---- leaks ----------------------------------------------------------------------------------- */

/* An execution context's state is never given back. */
PLACE void create_context_state(void) {
    void *block;
    MUST(cudaMalloc(&block, 4 * MIB));
    keep(block);
}

static void leak_linear(void) {
    for (int i = 0; i < STEPS; i++) {
        create_context_state();
        balanced(MIB);
        pace();
    }
}

PLACE void *create_and_destroy_state(void) {
    void *block;
    MUST(cudaMalloc(&block, 4 * MIB));
    return block;
}

static void leak_linear_healthy(void) {
    for (int i = 0; i < STEPS; i++) {
        void *state = create_and_destroy_state();
        balanced(MIB);
        pace();
        MUST(cudaFree(state));
    }
}

/* A counter and two images of a camera each frame. */
PLACE void new_counter(void) {
    void *block;
    MUST(cudaMalloc(&block, 4));
    keep(block);
}

PLACE void grab_images(void) {
    for (int i = 0; i < 2; i++) {
        void *block;
        MUST(cudaMalloc(&block, 307200));
        keep(block);
    }
}

static void leak_small(void) {
    for (int i = 0; i < STEPS; i++) {
        new_counter();
        grab_images();
        pace();
    }
}

/* Each request is a little larger than the one before, so that a pool finds nothing to reuse. */
PLACE void grow_cache(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    keep(block);
}

static void leak_larger_each_time(void) {
    for (int i = 0; i < STEPS; i++) {
        grow_cache(MIB + (size_t)i * 256);
        pace();
    }
}

/* One in ten stays. */
PLACE void *make_batch(void) {
    void *block;
    MUST(cudaMalloc(&block, 64 * KIB));
    return block;
}

static void leak_one_in_ten(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int n = 0; n < 10; n++) {
            void *batch = make_batch();
            if (n == 7)
                keep(batch);
            else
                MUST(cudaFree(batch));
        }
        pace();
    }
}

/* Begins when three fifths of the run are over. */
PLACE void log_metrics(void) {
    void *block;
    MUST(cudaMalloc(&block, 8 * KIB));
    keep(block);
}

static void leak_from_60_percent(void) {
    for (int i = 0; i < 2 * STEPS; i++) {
        balanced(MIB);
        if (i >= 77)
            log_metrics();
        pace();
    }
}

PLACE void leak_managed_block(void) {
    void *block;
    MUST(cudaMallocManaged(&block, MIB, cudaMemAttachGlobal));
    keep(block);
}

static void leak_managed(void) {
    for (int i = 0; i < STEPS; i++) {
        leak_managed_block();
        pace();
    }
}

PLACE void stage_on_host(void) {
    void *block;
    MUST(cudaMallocHost(&block, 96 * KIB));
    keep(block);
}

static void leak_host(void) {
    for (int i = 0; i < STEPS; i++) {
        stage_on_host();
        pace();
    }
}

PLACE void request_scratch(void) {
    void *block;
    MUST(cudaMallocAsync(&block, 256 * KIB, NULL));
    keep(block);
}

static void leak_pool(void) {
    for (int i = 0; i < STEPS; i++) {
        request_scratch();
        pace();
    }
}

/* A growing buffer is replaced by a longer one each step: the count of blocks stays one. */
PLACE void *concatenate(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    return block;
}

static void leak_by_concatenation(void) {
    void *all = concatenate(64 * KIB);
    for (size_t i = 2; i < STEPS; i++) {
        void *longer = concatenate(i * 64 * KIB);
        MUST(cudaFree(all));
        all = longer;
        pace();
    }
}

/* ---- what stays and is no leak --------------------------------------------------------------- */

PLACE void fill_static_cache(void) {
    void *block;
    MUST(cudaMalloc(&block, 0xE00000));
    keep(block);
}

static void retained_once(void) {
    fill_static_cache();
    for (int i = 0; i < STEPS; i++) {
        balanced(MIB);
        pace();
    }
}

PLACE void cublas_workspace(void) {
    void *block;
    MUST(cudaMalloc(&block, 8519680));
    keep(block);
}

static void retained_workspace(void) {
    for (int i = 0; i < STEPS; i++) {
        if (i == 3)
            cublas_workspace();
        balanced(512 * KIB);
        pace();
    }
}

/* Plans of a transform are cached up to a number. */
PLACE void cache_plan(void) {
    void *block;
    MUST(cudaMalloc(&block, 512 * KIB));
    keep(block);
}

static void saturating(void) {
    for (int i = 0; i < 2 * STEPS; i++) {
        for (int n = 0; n < 128 && i < 32; n++)
            cache_plan();
        balanced(MIB);
        pace();
    }
}

/* The states of an optimizer that is made in a second phase. */
PLACE void create_states(void) {
    void *block;
    MUST(cudaMalloc(&block, 2 * MIB));
    keep(block);
}

static void second_phase(void) {
    for (int i = 0; i < 2 * STEPS; i++) {
        for (int n = 0; n < 40 && i == STEPS; n++)
            create_states();
        balanced(MIB);
        pace();
    }
}

/* A buffer of the last 16 batches. */
PLACE void *record_batch(void) {
    void *block;
    MUST(cudaMalloc(&block, 3 * MIB));
    return block;
}

static void replay_buffer(void) {
    void *ring[16] = {NULL};
    for (int i = 0; i < 2 * STEPS; i++) {
        if (ring[i % 16])
            MUST(cudaFree(ring[i % 16]));
        ring[i % 16] = record_batch();
        pace();
    }
}

/* An evaluation every 32 steps, the last one included. */
PLACE void *predict(void) {
    void *block;
    MUST(cudaMalloc(&block, MIB));
    return block;
}

static void evaluation(void) {
    for (int i = 0; i < 4 * 32; i++) {
        void *predictions[64];
        balanced(2 * MIB);
        pace();
        if (i % 32 != 31)
            continue;
        for (int n = 0; n < 64; n++) {
            predictions[n] = predict();
            if (n % 16 == 0)
                pace();
        }
        for (int n = 0; n < 64; n++)
            MUST(cudaFree(predictions[n]));
    }
}

static void few_steps(void) {
    for (int i = 0; i < 12; i++)
        keep(take(8 * MIB));
    for (int i = 0; i < 20; i++) {
        balanced(MIB);
        pace();
    }
}

/* Sizes at random, all given back. */
static void variable_lengths(void) {
    uint32_t seed = 12345;
    for (int i = 0; i < 2 * STEPS; i++) {
        seed = seed * 1664525 + 1013904223;
        balanced(MIB + (seed >> 12) % (4 * MIB));
        pace();
    }
}

/* ---- peaks ----------------------------------------------------------------------------------- */

#define WEIGHTS 26

PLACE void *load_checkpoint(void) {
    void *block;
    MUST(cudaMalloc(&block, 32 * MIB));
    return block;
}

PLACE void *make_model(void) {
    void *block;
    MUST(cudaMalloc(&block, 32 * MIB));
    return block;
}

static void doubled_at_load(void) {
    void *loaded[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++)
        keep(make_model());
    for (int i = 0; i < WEIGHTS; i++)
        loaded[i] = load_checkpoint();
    for (int i = 0; i < WEIGHTS; i++)
        MUST(cudaFree(loaded[i]));
    for (int i = 0; i < STEPS; i++) {
        balanced(MIB);
        pace();
    }
}

static void plateau(void) {
    for (int i = 0; i < 2 * WEIGHTS; i++)
        keep(make_model());
    for (int i = 0; i < STEPS; i++) {
        balanced(MIB);
        pace();
    }
}

/* One block that is most of the device; what is inside, nobody says. */
PLACE void preallocate(void) {
    void *block;
    MUST(cudaMalloc(&block, 12 * GIB));
    keep(block);
}

static void preallocated(void) {
    preallocate();
    for (int i = 0; i < STEPS; i++)
        pace();
}

/* ---- libraries ------------------------------------------------------------------------------- */

void ncclCommInitRank(int blocks, size_t bytes, size_t host_bytes);

static void nccl(void) {
    ncclCommInitRank(12, 688 * MIB / 12, 0);
    for (int i = 0; i < STEPS; i++) {
        balanced(MIB);
        pace();
    }
}

static void nccl_host(void) {
    ncclCommInitRank(64, 0, 9641984);
}

/* ---- pinned memory --------------------------------------------------------------------------- */

PLACE void pin_buffers(size_t odd) {
    for (int i = 0; i < 37; i++) {
        void *block;
        MUST(cudaHostAlloc(&block, (KIB << (i % 8 + 5)) - odd, cudaHostAllocDefault));
        keep(block);
    }
}

static void host_rounded(void) {
    pin_buffers(0);
}

static void host_odd(void) {
    pin_buffers(48);
}

/* ---- storms ---------------------------------------------------------------------------------- */

PLACE void *load_texture(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    return block;
}

static void storm(void) {
    for (size_t i = 0; i < 2000; i++)
        MUST(cudaFree(load_texture((2 + i % 8) * MIB)));
}

/* ---- rounding -------------------------------------------------------------------------------- */

PLACE void take_odd(size_t bytes) {
    void *block;
    MUST(cudaMalloc(&block, bytes));
    keep(block);
}

static void rounding(void) {
    for (int i = 0; i < 200; i++)
        take_odd(2 * MIB + 4096);
}

static void rounding_healthy(void) {
    for (int i = 0; i < 200; i++)
        take_odd(2 * MIB);
    for (int i = 0; i < 200; i++)
        take_odd(20 * KIB);
}

static const struct findings_case cases[] = {
    {"leak_linear", leak_linear},
    {"leak_linear_healthy", leak_linear_healthy},
    {"leak_small", leak_small},
    {"leak_larger_each_time", leak_larger_each_time},
    {"leak_one_in_ten", leak_one_in_ten},
    {"leak_from_60_percent", leak_from_60_percent},
    {"leak_managed", leak_managed},
    {"leak_host", leak_host},
    {"leak_pool", leak_pool},
    {"leak_by_concatenation", leak_by_concatenation},
    {"retained_once", retained_once},
    {"retained_workspace", retained_workspace},
    {"saturating", saturating},
    {"second_phase", second_phase},
    {"replay_buffer", replay_buffer},
    {"evaluation", evaluation},
    {"few_steps", few_steps},
    {"variable_lengths", variable_lengths},
    {"doubled_at_load", doubled_at_load},
    {"plateau", plateau},
    {"preallocated", preallocated},
    {"nccl", nccl},
    {"nccl_host", nccl_host},
    {"host_rounded", host_rounded},
    {"host_odd", host_odd},
    {"storm", storm},
    {"rounding", rounding},
    {"rounding_healthy", rounding_healthy},
};

MAIN(cases)
