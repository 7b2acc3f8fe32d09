// LINK: -L@O@/simgpu -lcudart
/*
 * A library linked with the shared CUDA runtime, as wheels are; doors_extension loads it. Each
 * cudaMalloc is one driver call and must be booked once.
 */
#include "cuda_runtime_sim.h"
#include "ledger.h"

void extension_run(void);

PLACE void from_shared_runtime(void) {
    void *block[25], *host, *async;
    for (unsigned i = 0; i < 25; i++)
        MUST(TAKE("device", 0, block[i], 1000u + i, cudaMalloc(&block[i], 1000u + i)));
    MUST(TAKE("host", LEDGER_HOST, host, 777, cudaMallocHost(&host, 777)));
    MUST(TAKE("pool", 0, async, 88, cudaMallocAsync(&async, 88, NULL)));
    for (unsigned i = 0; i < 4; i++)
        MUST(GIVE(block[i * 5], cudaFree(block[i * 5])));
}

void extension_run(void) {
    from_shared_runtime();
    ledger_print();
}
