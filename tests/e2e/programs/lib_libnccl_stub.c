// LINK: @O@/simgpu/libcudart.a
/*
 * Stands for NCCL by its name: takes device or pinned memory when a communicator is made, through a
 * runtime of its own.
 */
#include "cuda_runtime_sim.h"

#include <stdlib.h>

void ncclCommInitRank(int blocks, size_t bytes, size_t host_bytes);
void ncclCommInitRank(int blocks, size_t bytes, size_t host_bytes) {
    for (int i = 0; i < blocks; i++) {
        void *block;
        if (bytes ? cudaMalloc(&block, bytes)
                  : cudaHostAlloc(&block, host_bytes, cudaHostAllocDefault))
            abort();
    }
}
