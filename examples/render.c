/*
 * The memory of a render service on a card of 16 GiB. Each scene takes textures of 2 to 10 MB, one
 * by one, from a pool that keeps what it ever reserved; a third of them stays for later scenes.
 * After five scenes the pool has reserved most of the card, uses a third of it, and the large
 * buffer for compositing does not fit any more.
 *
 *     cuheap run -- build/examples/render && cuheap report
 *
 * What helps: textures out of a few size classes that are allocated once, and loads of neighbouring
 * textures taken together: build/examples/render mended.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__has_include) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#else
#include "cuda_runtime_sim.h"
#endif

#define MB       ((size_t)1000 * 1000)
#define GIB      ((size_t)1 << 30)
#define SCENES   5
#define TEXTURES 900
#define PLACE    __attribute__((noipa)) static

static uint32_t seed = 7;

static uint32_t pick(uint32_t below) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
}

PLACE void *load_texture(size_t bytes) {
    void *block = NULL;
    if (cudaMallocAsync(&block, bytes, NULL) != cudaSuccess)
        return NULL;
    __asm__ volatile("");
    return block;
}

PLACE void *take_size_class(size_t bytes) {
    void *block = NULL;
    if (cudaMalloc(&block, bytes) != cudaSuccess)
        return NULL;
    __asm__ volatile("");
    return block;
}

/* Of a scene's textures a part stays for the scenes after it. */
PLACE bool render_scene(void) {
    static void *textures[TEXTURES];
    for (int i = 0; i < TEXTURES; i++)
        if (!(textures[i] = load_texture((2 + pick(9)) * MB)))
            return false;
    for (int i = 0; i < TEXTURES; i++)
        if (pick(100) >= 9)
            cudaFreeAsync(textures[i], NULL);
    return true;
}

PLACE bool composite(void) {
    void *image;
    bool ok = cudaMalloc(&image, 10 * GIB) == cudaSuccess;
    if (ok)
        cudaFree(image);
    return ok;
}

int main(int argc, char **argv) {
    bool mended = argc > 1 && strcmp(argv[1], "mended") == 0;
    uint64_t keep_all = UINT64_MAX;
    cudaMemPool_t pool;
    if (cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess ||
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all) != cudaSuccess)
        return 2;
    if (mended)
        for (size_t i = 0; i < 9; i++) /* classes of 100, 200 and 500 MB, divided by the service */
            if (!take_size_class((i % 3 == 0 ? 100 : i % 3 == 1 ? 200 : 500) * MB))
                return 1;
    for (int scene = 0; scene < SCENES && !mended; scene++)
        if (!render_scene()) {
            printf("render: scene %d failed\n", scene + 1);
            return 1;
        }
    if (!composite()) {
        printf("render: no memory for compositing after %d scenes\n", SCENES);
        return 1;
    }
    printf("render: %d scenes\n", SCENES);
    return 0;
}
