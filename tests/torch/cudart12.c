/*
 * What libc10_cuda.so.2.6 calls of libcudart.so.12 beyond the look-alike of tests/simgpu, so that
 * the real allocator runs on the simulated driver. Called by it, from any thread.
 *
 * Each call makes sure of a context, as the real runtime does, and goes on to the driver. What the
 * tests do not use and the simulated driver does not have is refused.
 */
#include "cuda_runtime_api.h"
#include "cuda_sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define DRIVER_CALLS(X)                                                                            \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceTotalMem_v2)                                                                         \
    X(cuDeviceCanAccessPeer)                                                                       \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy_v2)                                                                           \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuEventElapsedTime)                                                                          \
    X(cuStreamCreateWithPriority)                                                                  \
    X(cuStreamQuery)                                                                               \
    X(cuStreamWaitEvent)                                                                           \
    X(cuStreamIsCapturing)                                                                         \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuMemPoolTrimTo)                                                                             \
    X(cuMemPoolGetAttribute)

static struct {
#define X(name) __typeof__(&name) name;
    DRIVER_CALLS(X)
#undef X
} driver;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void load(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY);
#define X(name) driver.name = handle ? (__typeof__(&name))dlsym(handle, #name) : NULL;
    DRIVER_CALLS(X)
#undef X
}

static cudaError_t ensure_context(void) {
    pthread_once(&loaded, load);
    return cudaFree(NULL);
}

/* A runtime function that is one driver call. */
#define FORWARD(function, parameters, call, ...)                                                   \
    cudaError_t function parameters {                                                              \
        cudaError_t error = ensure_context();                                                      \
        return error ? error : (cudaError_t)driver.call(__VA_ARGS__);                              \
    }

#define REFUSE(function, parameters)                                                               \
    cudaError_t function parameters {                                                              \
        return (cudaError_t)cudaErrorNotSupported;                                                 \
    }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    cudaError_t error = ensure_context();
    memset(prop, 0, sizeof *prop);
    if (!error)
        error = (cudaError_t)driver.cuDeviceGetName(prop->name, sizeof prop->name, device);
    return error ? error : (cudaError_t)driver.cuDeviceTotalMem_v2(&prop->totalGlobalMem, device);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    *leastPriority = 0;
    *greatestPriority = -5;
    return cudaSuccess;
}

FORWARD(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), cuEventCreate, event,
        flags)
FORWARD(cudaEventDestroy, (cudaEvent_t event), cuEventDestroy_v2, event)
FORWARD(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), cuEventRecord, event, stream)
FORWARD(cudaEventQuery, (cudaEvent_t event), cuEventQuery, event)
FORWARD(cudaEventSynchronize, (cudaEvent_t event), cuEventSynchronize, event)
FORWARD(cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end), cuEventElapsedTime,
        ms, start, end)
FORWARD(cudaStreamCreateWithPriority, (cudaStream_t * pStream, unsigned int flags, int priority),
        cuStreamCreateWithPriority, pStream, flags, priority)
FORWARD(cudaStreamQuery, (cudaStream_t stream), cuStreamQuery, stream)
FORWARD(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
        cuStreamWaitEvent, stream, event, flags)
FORWARD(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus),
        cuStreamIsCapturing, stream, (CUstreamCaptureStatus *)pCaptureStatus)
FORWARD(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
        cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *)mode)
FORWARD(cudaDeviceCanAccessPeer, (int *canAccessPeer, int device, int peerDevice),
        cuDeviceCanAccessPeer, canAccessPeer, device, peerDevice)
FORWARD(cudaMemPoolTrimTo, (cudaMemPool_t memPool, size_t minBytesToKeep), cuMemPoolTrimTo, memPool,
        minBytesToKeep)
FORWARD(cudaMemPoolGetAttribute, (cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value),
        cuMemPoolGetAttribute, memPool, (CUmemPool_attribute)attr, value)

REFUSE(cudaDeviceEnablePeerAccess,
       (int peerDevice __attribute__((unused)), unsigned int flags __attribute__((unused))))
REFUSE(cudaStreamGetPriority,
       (cudaStream_t hStream __attribute__((unused)), int *priority __attribute__((unused))))
REFUSE(cudaMemcpyPeerAsync,
       (void *dst __attribute__((unused)), int dstDevice __attribute__((unused)),
        const void *src __attribute__((unused)), int srcDevice __attribute__((unused)),
        size_t count __attribute__((unused)), cudaStream_t stream __attribute__((unused))))
REFUSE(cudaIpcGetMemHandle,
       (cudaIpcMemHandle_t * handle __attribute__((unused)), void *devPtr __attribute__((unused))))
REFUSE(cudaIpcOpenMemHandle,
       (void **devPtr __attribute__((unused)), cudaIpcMemHandle_t handle __attribute__((unused)),
        unsigned int flags __attribute__((unused))))
REFUSE(cudaIpcCloseMemHandle, (void *devPtr __attribute__((unused))))
REFUSE(cudaMemPoolSetAccess, (cudaMemPool_t memPool __attribute__((unused)),
                              const struct cudaMemAccessDesc *descList __attribute__((unused)),
                              size_t count __attribute__((unused))))
