/*
 * The CUDA runtime, linked statically: what a program compiled by nvcc does. Each runtime call ends
 * in one driver call, which is what is booked, under the line of the runtime call.
 */
#include "cuda_runtime_sim.h"
#include "ledger.h"

PLACE void *load_weights(size_t bytes) {
    void *weights;
    MUST(TAKE("device", 0, weights, bytes, cudaMalloc(&weights, bytes)));
    return weights;
}

PLACE void train(void) {
    void *scratch, *image, *shared, *stage;
    size_t pitch;
    MUST(TAKE("device", 0, scratch, 48 << 20, cudaMalloc(&scratch, 48 << 20)));
    MUST(TAKE("device", 0, image, pitch * 30, cudaMallocPitch(&image, &pitch, 700, 30)));
    MUST(TAKE("managed", 0, shared, 9999, cudaMallocManaged(&shared, 9999, cudaMemAttachGlobal)));
    MUST(TAKE("host", LEDGER_HOST, stage, 8192, cudaMallocHost(&stage, 8192)));
    MUST(GIVE(scratch, cudaFree(scratch)));
    MUST(GIVE(image, cudaFree(image)));
    MUST(GIVE(stage, cudaFreeHost(stage)));
}

PLACE void *keep_one(int step) {
    void *kept;
    size_t bytes = 4096 + (size_t)step * 512;
    MUST(TAKE("pool", 0, kept, bytes, cudaMallocAsync(&kept, bytes, NULL)));
    return kept;
}

PLACE void stage_all(void) {
    void *buffer[4];
    for (int i = 0; i < 4; i++)
        MUST(TAKE("host", LEDGER_HOST, buffer[i], 100u + i, cudaHostAlloc(&buffer[i], 100 + i, 0)));
    MUST(GIVE(buffer[2], cudaFreeHost(buffer[2])));
}

int main(void) {
    void *weights = load_weights(33 << 20), *kept[10];
    load_weights(1000001);
    for (int step = 0; step < 10; step++)
        kept[step] = keep_one(step);
    train();
    stage_all();
    for (int step = 0; step < 10; step += 2)
        MUST(GIVE(kept[step], cudaFreeAsync(kept[step], NULL)));
    MUST(GIVE(weights, cudaFree(weights)));
    MUST(cudaFree(NULL));
    MUST(cudaDeviceSynchronize());
    ledger_print();
    return 0;
}
