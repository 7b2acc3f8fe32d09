/*
 * Takes and gives back each kind of memory through the CUDA runtime on a real GPU and says what it
 * did, as one line of JSON at the end: calls and bytes a kind. Compared with the report by
 * compare.py. Built twice by run.sh: with the static runtime and with the shared one.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

struct kind {
    const char *name;
    size_t live_bytes, live_count, allocs, frees;
};

static kind kinds[] = {{"device"}, {"managed"}, {"host"}, {"pool"}};
enum { DEVICE, MANAGED, HOST, POOL };

static void must(cudaError_t rc, int line) {
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(rc));
    exit(99);
}
#define MUST(call) must(call, __LINE__)

static void took(int kind, size_t bytes) {
    kinds[kind].allocs++;
    kinds[kind].live_count++;
    kinds[kind].live_bytes += bytes;
}

static void gave(int kind, size_t bytes) {
    kinds[kind].frees++;
    kinds[kind].live_count--;
    kinds[kind].live_bytes -= bytes;
}

__global__ void fill(float *to, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = 1.5f;
}

/* 25 blocks of growing size; every fifth is given back. */
static void linear() {
    for (size_t i = 0; i < 25; i++) {
        size_t bytes = (i + 1) * 300007;
        float *block;
        MUST(cudaMalloc(&block, bytes));
        took(DEVICE, bytes);
        fill<<<64, 256>>>(block, bytes / sizeof *block);
        if (i % 5 == 4) {
            MUST(cudaFree(block));
            gave(DEVICE, bytes);
        }
    }
}

static void pitched() {
    void *image;
    size_t pitch;
    MUST(cudaMallocPitch(&image, &pitch, 1001, 77));
    took(DEVICE, pitch * 77);
}

static void managed_and_host() {
    void *kept, *gone;
    MUST(cudaMallocManaged(&kept, 123456));
    took(MANAGED, 123456);
    MUST(cudaMallocHost(&kept, 65537));
    took(HOST, 65537);
    MUST(cudaHostAlloc(&gone, 1 << 20, cudaHostAllocPortable));
    took(HOST, 1 << 20);
    MUST(cudaFreeHost(gone));
    gave(HOST, 1 << 20);
}

static void stream_ordered() {
    cudaStream_t stream;
    void *block[4];
    MUST(cudaStreamCreate(&stream));
    for (size_t i = 0; i < 4; i++) {
        MUST(cudaMallocAsync(&block[i], (i + 1) * 70001, stream));
        took(POOL, (i + 1) * 70001);
    }
    MUST(cudaFreeAsync(block[1], stream));
    gave(POOL, 2 * 70001);
    MUST(cudaStreamSynchronize(stream));
}

/* A request that cannot be met, and frees of nothing: their codes are printed. */
static void failures() {
    void *block = nullptr;
    printf("a request of 4 TiB: %d\n", (int)cudaMalloc(&block, (size_t)4 << 40));
    printf("a free of nothing: %d\n", (int)cudaFree(nullptr));
    cudaGetLastError();
}

int main() {
    linear();
    pitched();
    managed_and_host();
    stream_ordered();
    failures();
    MUST(cudaDeviceSynchronize());
    printf("{");
    for (int i = 0; i < 4; i++)
        printf("%s\"%s\": {\"allocs\": %zu, \"frees\": %zu, \"live_bytes\": %zu, "
               "\"live_count\": %zu}",
               i ? ", " : "", kinds[i].name, kinds[i].allocs, kinds[i].frees, kinds[i].live_bytes,
               kinds[i].live_count);
    printf("}\n");
    return 7;
}
