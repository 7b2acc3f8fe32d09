/*
 * A look-alike of the CUDA runtime: it finds the driver's functions the way libcudart 13.0 does and
 * turns runtime calls into driver calls. Test programs and examples link it (static or shared) in
 * place of the real one, which cannot be had without a CUDA toolkit; it also works on a real
 * driver. Called from any thread.
 *
 * The way in, as seen of libcudart 13.0 (static and shared): dlopen("libcuda.so.1"), one dlsym of
 * cuGetProcAddress_v2, a first look-up of "" at version 0, then every name with its version and
 * flags and without a status; without cuGetProcAddress_v2 every exported name by dlsym. Contexts
 * are primary ones, retained at the first call that needs one or by cudaSetDevice (CUDA runtime API
 * reference, "Initialization", since CUDA 12).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cuda_runtime_sim.h"
#include "cuda_sim.h"

#define MAX_DEVICES     64
#define RUNTIME_VERSION 13000
#define ELEMENT_BYTES   4

static struct {
#define LOOKUP(symbol, base, version, flags) __typeof__(&symbol) symbol;
#include "cudart_lookups.def"
#undef LOOKUP
} driver;

static const struct lookup {
    void **function;
    const char *symbol, *base;
    int version;
    cuuint64_t flags;
} lookups[] = {
#define LOOKUP(symbol, base, version, flags)                                                       \
    {(void **)&driver.symbol, #symbol, #base, version, flags},
#include "cudart_lookups.def"
#undef LOOKUP
};

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static cudaError_t load_error;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext retained[MAX_DEVICES];
static unsigned int resets; /* of any device */

static __thread int device_of_thread;
static __thread unsigned int resets_seen;
static __thread cudaError_t last_error;

static cudaError_t result(CUresult code) {
    if (code)
        last_error = (cudaError_t)code;
    return (cudaError_t)code;
}

/* A driver too old to have the function is told by the runtime's own code. */
#define CALL(symbol, ...)                                                                          \
    result(driver.symbol ? driver.symbol(__VA_ARGS__) : (CUresult)cudaErrorCallRequiresNewerDriver)

/* ---- finding the driver ---- */

static void look_up_by_version(__typeof__(&cuGetProcAddress_v2) get_proc_address) {
    void *nothing;

    get_proc_address("", &nothing, 0, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
    for (size_t i = 0; i < sizeof lookups / sizeof *lookups; i++)
        if (get_proc_address(lookups[i].base, lookups[i].function, lookups[i].version,
                             lookups[i].flags, NULL))
            *lookups[i].function = NULL;
}

static void look_up_by_name(void *handle) {
    for (size_t i = 0; i < sizeof lookups / sizeof *lookups; i++)
        *lookups[i].function = dlsym(handle, lookups[i].symbol);
}

static void load(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY);

    load_error = cudaErrorInsufficientDriver;
    if (!handle)
        return;
    void *get_proc_address = dlsym(handle, "cuGetProcAddress_v2");
    if (get_proc_address)
        look_up_by_version((__typeof__(&cuGetProcAddress_v2))get_proc_address);
    else
        look_up_by_name(handle);
    if (driver.cuInit)
        load_error = (cudaError_t)driver.cuInit(0);
}

static cudaError_t ensure_loaded(void) {
    pthread_once(&loaded, load);
    return result((CUresult)load_error);
}

/* ---- contexts ---- */

static cudaError_t use_device(int device) {
    CUresult code = CUDA_SUCCESS;

    if (device < 0 || device >= MAX_DEVICES)
        return result(CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&lock);
    if (!retained[device])
        code = driver.cuDevicePrimaryCtxRetain(&retained[device], device);
    CUcontext context = retained[device];
    resets_seen = resets;
    pthread_mutex_unlock(&lock);
    return code ? result(code) : CALL(cuCtxSetCurrent, context);
}

/* The thread's context: its own if it has one, the primary one of its device if not. */
static cudaError_t ensure_context(void) {
    CUcontext current = NULL;
    cudaError_t error = ensure_loaded();

    if (error || (error = CALL(cuCtxGetCurrent, &current)))
        return error;
    if (current && resets_seen == __atomic_load_n(&resets, __ATOMIC_ACQUIRE))
        return cudaSuccess;
    return use_device(device_of_thread);
}

cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t error = ensure_loaded();

    if (error)
        *count = 0;
    return error ? error : CALL(cuDeviceGetCount, count);
}

cudaError_t cudaGetDevice(int *device) {
    cudaError_t error = ensure_loaded();

    if (!error)
        *device = device_of_thread;
    return error;
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t error = ensure_loaded();

    if (!error && !(error = use_device(device)))
        device_of_thread = device;
    return error;
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuCtxSynchronize);
}

cudaError_t cudaDeviceReset(void) {
    cudaError_t error = ensure_loaded();

    if (error)
        return error;
    pthread_mutex_lock(&lock);
    retained[device_of_thread] = NULL;
    __atomic_add_fetch(&resets, 1, __ATOMIC_RELEASE);
    CUresult code = driver.cuDevicePrimaryCtxReset(device_of_thread);
    pthread_mutex_unlock(&lock);
    return result(code);
}

/* ---- errors and versions ---- */

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary", "CUDA driver is a stub library"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorCallRequiresNewerDriver, "cudaErrorCallRequiresNewerDriver",
     "API call is not supported in the installed CUDA driver"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *driverVersion) {
    cudaError_t error = ensure_loaded();

    return error ? error : CALL(cuDriverGetVersion, driverVersion);
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion) {
    *runtimeVersion = RUNTIME_VERSION;
    return cudaSuccess;
}

/* ---- memory: a size of 0 gives NULL without a driver call, as the real runtime does ---- */

static cudaError_t take_pointer(void **to, cudaError_t error, CUdeviceptr pointer) {
    if (!error)
        *to = (void *)(uintptr_t)pointer;
    return error;
}

cudaError_t cudaMalloc(void **devPtr, size_t size) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && size)
        error = CALL(cuMemAlloc_v2, &pointer, size);
    return take_pointer(devPtr, error, pointer);
}

cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && width && height)
        error = CALL(cuMemAllocPitch_v2, &pointer, pitch, width, height, ELEMENT_BYTES);
    return take_pointer(devPtr, error, pointer);
}

cudaError_t cudaMallocManaged(void **devPtr, size_t size, unsigned int flags) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error)
        error = CALL(cuMemAllocManaged, &pointer, size, flags);
    return take_pointer(devPtr, error, pointer);
}

cudaError_t cudaFree(void *devPtr) {
    cudaError_t error = ensure_context();

    return error || !devPtr ? error : CALL(cuMemFree_v2, (uintptr_t)devPtr);
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags) {
    cudaError_t error = ensure_context();

    if (!error && !size)
        *pHost = NULL;
    return error || !size ? error : CALL(cuMemHostAlloc, pHost, size, flags);
}

/*
 * libcudart never asks for cuMemAllocHost. Not by way of cudaHostAlloc: a stack must show the
 * function that the program called.
 */
cudaError_t cudaMallocHost(void **ptr, size_t size) {
    cudaError_t error = ensure_context();

    if (!error && !size)
        *ptr = NULL;
    return error || !size ? error : CALL(cuMemHostAlloc, ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *ptr) {
    cudaError_t error = ensure_context();

    return error || !ptr ? error : CALL(cuMemFreeHost, ptr);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuMemGetInfo_v2, free, total);
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && size)
        error = CALL(cuMemAllocAsync, &pointer, size, hStream);
    return take_pointer(devPtr, error, pointer);
}

cudaError_t cudaMallocAsync_ptsz(void **devPtr, size_t size, cudaStream_t hStream) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && size)
        error = CALL(cuMemAllocAsync_ptsz, &pointer, size, hStream);
    return take_pointer(devPtr, error, pointer);
}

cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t memPool,
                                    cudaStream_t stream) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && size)
        error = CALL(cuMemAllocFromPoolAsync, &pointer, size, memPool, stream);
    return take_pointer(ptr, error, pointer);
}

cudaError_t cudaMallocFromPoolAsync_ptsz(void **ptr, size_t size, cudaMemPool_t memPool,
                                         cudaStream_t stream) {
    CUdeviceptr pointer = 0;
    cudaError_t error = ensure_context();

    if (!error && size)
        error = CALL(cuMemAllocFromPoolAsync_ptsz, &pointer, size, memPool, stream);
    return take_pointer(ptr, error, pointer);
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream) {
    cudaError_t error = ensure_context();

    return error || !devPtr ? error : CALL(cuMemFreeAsync, (uintptr_t)devPtr, hStream);
}

cudaError_t cudaFreeAsync_ptsz(void *devPtr, cudaStream_t hStream) {
    cudaError_t error = ensure_context();

    return error || !devPtr ? error : CALL(cuMemFreeAsync_ptsz, (uintptr_t)devPtr, hStream);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *memPool, int device) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuDeviceGetDefaultMemPool, memPool, device);
}

/* The attributes have the driver's numbers. */
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuMemPoolSetAttribute, memPool, (int)attr, value);
}

/* ---- streams, copies, fills ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuStreamCreate, pStream, flags);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream) {
    return cudaStreamCreateWithFlags(pStream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuStreamDestroy_v2, stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = ensure_context();

    return error ? error : CALL(cuStreamSynchronize, stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    cudaError_t error = ensure_context();

    if (error || !count)
        return error;
    switch (kind) {
    case cudaMemcpyHostToHost:
        memmove(dst, src, count);
        return cudaSuccess;
    case cudaMemcpyHostToDevice:
        return CALL(cuMemcpyHtoD_v2, to, src, count);
    case cudaMemcpyDeviceToHost:
        return CALL(cuMemcpyDtoH_v2, dst, from, count);
    case cudaMemcpyDeviceToDevice:
        return CALL(cuMemcpyDtoD_v2, to, from, count);
    default:
        return CALL(cuMemcpy, to, from, count);
    }
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    cudaError_t error = ensure_context();

    (void)kind; /* addresses are unified: the driver sees from them which way it goes */
    if (error || !count)
        return error;
    return CALL(cuMemcpyAsync, (uintptr_t)dst, (uintptr_t)src, count, stream);
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    cudaError_t error = ensure_context();

    if (error || !count)
        return error;
    return CALL(cuMemsetD8_v2, (uintptr_t)devPtr, (unsigned char)value, count);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    cudaError_t error = ensure_context();

    if (error || !count)
        return error;
    return CALL(cuMemsetD8Async, (uintptr_t)devPtr, (unsigned char)value, count, stream);
}
