/*
 * Plain, pitched, managed and pinned memory, and copies and fills. Bodies of entry points: called
 * with the driver's lock held, from any thread.
 *
 * Sources: CUDA driver API reference, "Memory Management" and "Unified Addressing"; sizes, places
 * and codes as an H200 with driver 580.159 and CUDA 13.0 gave them (conformance.txt).
 */
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

#define PITCH 512

CUresult sim_mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (free_bytes)
        *free_bytes = device_free(context->device);
    if (total_bytes)
        *total_bytes = settings.memory;
    return CUDA_SUCCESS;
}

/* ---- device memory; a failing allocation sets its out-parameter to 0, as the real one does ----
 */

CUresult sim_mem_alloc(CUdeviceptr *pointer, size_t bytes) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = 0;
    if (code || !bytes)
        return code ? code : CUDA_ERROR_INVALID_VALUE;
    struct device *device = &devices[context->device];
    uintptr_t address = space_take(&device->space, bytes, device_free(context->device));
    if (!address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block_add(&(struct block){.address = address,
                              .bytes = bytes,
                              .kind = SIMGPU_DEVICE,
                              .device = context->device,
                              .context = context});
    *pointer = address;
    return CUDA_SUCCESS;
}

static CUresult alloc_rows(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height) {
    size_t bytes;

    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    if (*pitch < width || __builtin_mul_overflow(*pitch, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return sim_mem_alloc(pointer, bytes);
}

CUresult sim_mem_alloc_pitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                             unsigned int element) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!pointer || !pitch)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = *pitch = 0;
    if (code)
        return code;
    if (!width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    return alloc_rows(pointer, pitch, width, height);
}

/* Freeing needs no current context, only one that is not destroyed. */
static CUresult free_allowed(void) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    return code == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : code;
}

CUresult sim_mem_free(CUdeviceptr pointer) {
    CUresult code = free_allowed();

    if (code || !pointer)
        return code;
    struct block *block = block_find(pointer);
    if (!block_freeable(block))
        return CUDA_ERROR_INVALID_VALUE;
    block_remove(block, FREED);
    return CUDA_SUCCESS;
}

/* The 32-bit forms of CUDA 2 refuse every context that a 64-bit process can have. */
CUresult sim_mem_alloc_v1(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    (void)pointer, (void)bytes;
    return code ? code : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_mem_get_info_v1(unsigned int *free_bytes, unsigned int *total_bytes) {
    (void)total_bytes;
    return sim_mem_alloc_v1(free_bytes, 0);
}

CUresult sim_mem_alloc_pitch_v1(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                                unsigned int height, unsigned int element) {
    (void)pitch, (void)height, (void)element;
    return sim_mem_alloc_v1(pointer, width);
}

CUresult sim_mem_free_v1(CUdeviceptr_v1 pointer) {
    return sim_mem_alloc_v1(&pointer, 0);
}

/* ---- memory that the host can touch: real memory ---- */

static CUresult map_block(struct block block, void **pointer) {
    void *memory = mmap(NULL, block.bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block.address = (uintptr_t)memory;
    block_add(&block);
    *pointer = memory;
    return CUDA_SUCCESS;
}

CUresult sim_mem_alloc_managed(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    struct CUctx_st *context;
    void *memory = NULL;
    CUresult code = current_context(&context);

    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = 0;
    if (code)
        return code;
    if (!bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    code = map_block(
        (struct block){
            .bytes = bytes, .kind = SIMGPU_MANAGED, .device = context->device, .context = context},
        &memory);
    *pointer = (uintptr_t)memory;
    return code;
}

CUresult sim_mem_host_alloc(void **pointer, size_t bytes, unsigned int flags) {
    const unsigned int known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = NULL;
    if (code || flags & ~known)
        return code ? code : CUDA_ERROR_INVALID_VALUE;
    if (!bytes) /* succeeds with NULL */
        return CUDA_SUCCESS;
    return map_block((struct block){.bytes = bytes,
                                    .kind = SIMGPU_PINNED,
                                    .device = context->device,
                                    .context = context,
                                    .flags = flags},
                     pointer);
}

CUresult sim_mem_alloc_host(void **pointer, size_t bytes) {
    return sim_mem_host_alloc(pointer, bytes, 0);
}

CUresult sim_mem_alloc_host_v1(void **pointer, unsigned int bytes) {
    return sim_mem_host_alloc(pointer, bytes, 0);
}

static CUresult find_pinned(void *pointer, struct block **block) {
    CUresult code = free_allowed();

    if (code)
        return code;
    *block = block_find((uintptr_t)pointer);
    return *block && (*block)->kind == SIMGPU_PINNED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_mem_free_host(void *pointer) {
    struct block *block;
    CUresult code = find_pinned(pointer, &block);

    if (code == CUDA_ERROR_INVALID_VALUE && !pointer)
        return CUDA_SUCCESS;
    if (!code)
        block_remove(block, FREED);
    return code;
}

/* ---- memory of the program ---- */

CUresult sim_host_register(void *pointer, size_t bytes, unsigned int flags) {
    const unsigned int known = 0x1f; /* PORTABLE, DEVICEMAP, IOMEMORY, READ_ONLY */
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!pointer || !bytes || flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    if (block_find((uintptr_t)pointer))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    block_add(&(struct block){.address = (uintptr_t)pointer,
                              .bytes = bytes,
                              .kind = SIMGPU_REGISTERED,
                              .device = context->device,
                              .context = context,
                              .bare = true});
    return CUDA_SUCCESS;
}

CUresult sim_host_unregister(void *pointer) {
    CUresult code = free_allowed();

    if (code || !pointer)
        return code ? code : CUDA_ERROR_INVALID_VALUE;
    struct block *block = block_find((uintptr_t)pointer);
    if (!block || block->kind != SIMGPU_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    block_remove(block, FREED);
    return CUDA_SUCCESS;
}

CUresult sim_host_get_device_pointer(CUdeviceptr *device, void *pointer, unsigned int flags) {
    struct block *block;
    CUresult code = find_pinned(pointer, &block);

    if (!code && flags)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        *device = (uintptr_t)pointer;
    return code;
}

CUresult sim_host_get_device_pointer_v1(CUdeviceptr_v1 *device, void *pointer, unsigned int flags) {
    (void)pointer, (void)flags;
    return sim_mem_alloc_v1(device, 0);
}

CUresult sim_host_get_flags(unsigned int *flags, void *pointer) {
    struct block *block;
    CUresult code = find_pinned(pointer, &block);

    if (!code)
        *flags = block->flags;
    return code;
}

/* ---- questions about an address ---- */

CUresult sim_get_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    const struct block *block = block_containing(pointer);
    if (!block)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block->address;
    if (bytes)
        *bytes = block->bytes;
    return CUDA_SUCCESS;
}

CUresult sim_get_address_range_v1(CUdeviceptr_v1 *base, unsigned int *bytes,
                                  CUdeviceptr_v1 pointer) {
    (void)base, (void)bytes;
    return sim_mem_alloc_v1(&pointer, 0);
}

CUresult sim_pointer_get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    const struct block *block;

    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || !(block = block_containing(pointer)))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = block->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data =
            block->kind == SIMGPU_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = pointer;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *)data = block->kind == SIMGPU_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = block->device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = block->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = block->bytes;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- copies and fills: no memory stands behind device addresses, so nothing is moved ---- */

static CUresult accept(void) {
    struct CUctx_st *context;

    return current_context(&context);
}

static CUresult accept_on(CUstream stream) {
    CUresult code = accept();

    return code || stream_known(stream) ? code : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_fill_v1(CUdeviceptr_v1 to, unsigned char value, unsigned int bytes) {
    (void)value, (void)bytes;
    return sim_mem_alloc_v1(&to, 0);
}

CUresult sim_fill(CUdeviceptr to, unsigned char value, size_t bytes) {
    (void)to, (void)value, (void)bytes;
    return accept();
}

CUresult sim_fill_async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    (void)to, (void)value, (void)bytes;
    return accept_on(stream);
}

CUresult sim_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return accept();
}

CUresult sim_copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)to, (void)from, (void)bytes;
    return accept_on(stream);
}

CUresult sim_copy_htod(CUdeviceptr to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return accept();
}

CUresult sim_copy_dtoh(void *to, CUdeviceptr from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return accept();
}
