// LINK: @O@/simgpu/libcuda.so.1
/*
 * Arrays by handle, and memory of other processes and interfaces. The process is forked before CUDA
 * comes up; the child exports. After each step the books are the driver's.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#include <sys/wait.h>

static CUipcMemHandle exported_by_another_process(void) {
    CUipcMemHandle handle = {0};
    int ends[2];
    MUST(pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        CUcontext context;
        CUdeviceptr pointer;
        MUST(cuInit(0));
        MUST(cuCtxCreate_v2(&context, 0, 0));
        MUST(cuMemAlloc_v2(&pointer, 8 << 20));
        MUST(cuIpcGetMemHandle(&handle, pointer));
        _exit(write(ends[1], &handle, sizeof handle) != sizeof handle);
    }
    MUST(read(ends[0], &handle, sizeof handle) != sizeof handle);
    waitpid(child, NULL, 0);
    return handle;
}

static void opened(CUipcMemHandle handle) {
    CUcontext first, second;
    CUdeviceptr pointer, again, third, own;
    CUipcMemHandle mine;
    MUST(cuCtxCreate_v2(&first, 0, 0));
    STEP(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    STEP(cuIpcOpenMemHandle(&again, handle, 1));
    printf("the pointer is %s\n", pointer == again ? "the same" : "another");
    STEP(cuIpcCloseMemHandle(pointer));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(pointer));
    STEP(cuIpcCloseMemHandle(pointer)); /* opened twice, closed twice */
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(pointer));
    STEP(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    MUST(cuCtxCreate_v2(&second, 0, 1));
    STEP(cuIpcOpenMemHandle_v2(&third, handle, 1));
    STEP(cuIpcOpenMemHandle_v2(&third, handle, 1));
    STEP(cuCtxDestroy_v2(second)); /* closes what it had opened */
    MUST(cuCtxSetCurrent(first));
    STEP(cuIpcCloseMemHandle(pointer));
    STEP(cuMemAlloc_v2(&own, 4096));
    STEP(cuIpcGetMemHandle(&mine, own));
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&third, mine, 1));
}

static void external(void) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .size = 16 << 20};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = 1 << 20};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC image = {
        .arrayDesc = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0}, .numLevels = 1};
    CUexternalMemory memory;
    CUmipmappedArray mipmap;
    CUdeviceptr buffer;
    STEP(cuImportExternalMemory(&memory, &from));
    STEP(cuExternalMemoryGetMappedBuffer(&buffer, memory, &part));
    STEP(cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &image));
    STEP(cuMemFree_v2(buffer));
    STEP(cuMipmappedArrayDestroy(mipmap));
    STEP(cuDestroyExternalMemory(memory));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, NULL));
}

static void arrays(void) {
    CUDA_ARRAY_DESCRIPTOR flat = {100, 30, CU_AD_FORMAT_HALF, 4},
                          line = {77, 0, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {64, 32, 16, CU_AD_FORMAT_UNSIGNED_INT8, 2, 0};
    CUDA_ARRAY3D_DESCRIPTOR layers = {64, 32, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED};
    CUDA_ARRAY3D_DESCRIPTOR blocks = {30, 30, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0};
    CUDA_ARRAY3D_DESCRIPTOR sparse = {512, 512, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarray array[6], level;
    CUmipmappedArray mipmap[2];
    uint64_t asked = simgpu_calls("cuArrayGetMemoryRequirements");
    STEP(cuArrayCreate_v2(&array[0], &flat));
    STEP(cuArrayCreate_v2(&array[1], &line));
    STEP(cuArray3DCreate_v2(&array[2], &deep));
    STEP(cuArray3DCreate_v2(&array[3], &layers));
    STEP(cuArray3DCreate_v2(&array[4], &blocks));
    STEP(cuArray3DCreate_v2(&array[5], &sparse)); /* nothing until memory is mapped */
    STEP(cuMipmappedArrayCreate(&mipmap[0], &deep, 7));
    STEP(cuMipmappedArrayCreate(&mipmap[1], &layers, 3));
    STEP(cuMipmappedArrayGetLevel(&level, mipmap[0], 2)); /* part of it, no array of its own */
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
    REFUSED(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy((CUmipmappedArray)array[0]));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate_v2(&array[0], NULL));
    deep.Width = 1 << 20;
    deep.Height = 1 << 20;
    REFUSED(CUDA_ERROR_OUT_OF_MEMORY, cuArray3DCreate_v2(&level, &deep));
    for (int i = 0; i < 6; i++)
        STEP(cuArrayDestroy(array[i]));
    STEP(cuMipmappedArrayDestroy(mipmap[0]));
    STEP(cuMipmappedArrayDestroy(mipmap[1]));
    printf("requirements asked for: %lu\n", simgpu_calls("cuArrayGetMemoryRequirements") - asked);
}

int main(void) {
    CUipcMemHandle handle = exported_by_another_process();
    MUST(cuInit(0));
    opened(handle);
    external();
    arrays();
    TRACED(books_loss(TRACE_LOSS_LOST_FREES), 0);
    TRACED(books_loss(TRACE_LOSS_DEVICE_UNKNOWN), 0);
    return 0;
}
