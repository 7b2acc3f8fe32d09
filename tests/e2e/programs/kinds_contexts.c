// LINK: @O@/simgpu/libcuda.so.1
/*
 * What ends with a context and what does not; primary contexts by both names of each function; host
 * memory that is registered; code on the GPU. After each step the books are the driver's.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

static char own[3][1 << 16] __attribute__((aligned(4096)));

static CUmemGenericAllocationHandle take_all(int device) {
    CUmemAllocationProp there = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .size = 4096};
    CUmemGenericAllocationHandle handle;
    CUexternalMemory external;
    CUdeviceptr pointer;
    CUarray array;
    size_t pitch;
    void *host;
    STEP(cuMemAlloc_v2(&pointer, 1000));
    STEP(cuMemAllocPitch_v2(&pointer, &pitch, 100, 7, 4));
    STEP(cuMemAllocManaged(&pointer, 4096, CU_MEM_ATTACH_GLOBAL));
    STEP(cuMemHostAlloc(&host, 12345, 0));
    STEP(cuMemHostRegister_v2(own[device], sizeof own[device], 0));
    STEP(cuArrayCreate_v2(&array, &flat));
    STEP(cuImportExternalMemory(&external, &from));
    STEP(cuMemAllocAsync(&pointer, 555, NULL));
    STEP(cuMemCreate(&handle, 2 << 20, &there, 0));
    return handle;
}

#define GONE 7 /* blocks of take_all that end with the context */

static void created(void) {
    CUcontext first, second, attached;
    CUdeviceptr kept;
    MUST(cuCtxCreate_v2(&first, 0, 0));
    CUmemGenericAllocationHandle handle = take_all(0);
    MUST(cuCtxCreate_v4(&second, NULL, 0, 1));
    STEP(cuMemAlloc_v2(&kept, 999));
    MUST(cuCtxSetCurrent(second));
    STEP(cuCtxDestroy_v2(first));
    TRACED(books_counter(TRACE_COUNTER_IMPLICIT_FREES), GONE);
    REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDestroy_v2(first));
    STEP(cuMemRelease(handle));
    STEP(cuCtxAttach(&attached, 0));
    STEP(cuCtxDetach(second));
    STEP(cuCtxDetach(second));
    TRACED(books_counter(TRACE_COUNTER_IMPLICIT_FREES), GONE + 1);
    REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&kept, 1));
}

/* A driver that refuses to destroy one keeps everything, and so do the books. */
static void refused(void) {
    CUcontext context;
    CUdeviceptr pointer;
    MUST(cuCtxCreate(&context, 0, 2));
    STEP(cuMemAlloc_v2(&pointer, 4321));
    simgpu_script("cuCtxDestroy:1=999");
    REFUSED(CUDA_ERROR_UNKNOWN, cuCtxDestroy(context));
    STEP(cuMemFree_v2(pointer));
    STEP(cuMemAlloc_v2(&pointer, 4321));
    STEP(cuCtxDestroy(context));
}

static void primary(void) {
    CUcontext context;
    CUdeviceptr pointer;
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    CUmemGenericAllocationHandle handle = take_all(1);
    STEP(cuDevicePrimaryCtxRelease(1));
    STEP(cuMemAlloc_v2(&pointer, 100));
    STEP(cuDevicePrimaryCtxRelease_v2(1)); /* the last one */
    STEP(cuMemRelease(handle));
    /* a reset leaves the references: three releases are needed */
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    handle = take_all(1);
    STEP(cuDevicePrimaryCtxReset(1));
    STEP(cuMemRelease(handle));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    STEP(cuMemAlloc_v2(&pointer, 200));
    STEP(cuDevicePrimaryCtxRelease_v2(1));
    STEP(cuDevicePrimaryCtxRelease(1));
    STEP(cuMemAlloc_v2(&pointer, 300));
    STEP(cuDevicePrimaryCtxReset_v2(1));
    STEP(cuDevicePrimaryCtxRelease(1));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    STEP(cuMemAlloc_v2(&pointer, 400));
}

static void registered(void) {
    STEP(cuMemHostRegister(own[0], 4096, 0));
    STEP(cuMemHostRegister_v2(own[2], 8192, 1));
    REFUSED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own[2], 8192, 1));
    STEP(cuMemHostUnregister(own[0]));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostUnregister(NULL));
    REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own[0]));
}

static unsigned code_loaded(bool still) {
    const struct trace_gpu_module *module;
    unsigned count = 0;
    for (unsigned i = 0; (module = books_record(TRACE_SECTION_GPU_MODULES, i)); i++)
        count += !still || !module->unloaded_ns;
    return count;
}

static void code(void) {
    CUmodule module[3];
    CUlibrary library;
    for (int i = 0; i < 3; i++)
        STEP(cuModuleLoadData(&module[i], own));
    STEP(cuLibraryLoadData(&library, own, NULL, NULL, 0, NULL, NULL, 0));
    STEP(cuModuleUnload(module[1]));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module[1]));
    TRACED(code_loaded(false), 4);
    TRACED(code_loaded(true), 3);
    const struct trace_gpu_module *first = books_record(TRACE_SECTION_GPU_MODULES, 0);
    TRACED(first->handle, (uintptr_t)module[0]);
    TRACED(first->device, 1);
    TRACED(first->native_stack != 0, 1);
    STEP(cuLibraryUnload(library));
    STEP(cuModuleUnload(module[0]));
    TRACED(code_loaded(true), 1);
}

/* More contexts one after the other than can be at one time. */
static void many(void) {
    for (int i = 0; i < 1000; i++) {
        CUcontext context;
        CUdeviceptr pointer;
        MUST(cuCtxCreate_v3(&context, NULL, 0, 0, i % 3));
        MUST(cuMemAlloc_v2(&pointer, 100 + i));
        MUST(cuCtxDestroy_v2(context));
    }
    BOOKS();
}

int main(void) {
    MUST(cuInit(0));
    created();
    refused();
    primary();
    registered();
    code();
    many();
    TRACED(books_loss(TRACE_LOSS_LOST_FREES), 0);
    TRACED(books_loss(TRACE_LOSS_RECORDS_FULL), 0);
    return 0;
}
