/*
 * Arrays, mipmapped arrays and their levels. Bodies of entry points: called with the driver's lock
 * held, from any thread.
 *
 * Sources: CUDA driver API reference, "Memory Management"; measured on an H200, driver 580.159:
 * cuArrayGetMemoryRequirements refuses arrays without deferred mapping, and one with it takes
 * nothing. The size is that of the elements; a real device rounds it up.
 */
#include "driver.h"

enum { ARRAY = 1, MIPMAP };

static size_t bits_of(CUarray_format format, unsigned int channels) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
        return 8 * channels;
    case CU_AD_FORMAT_HALF:
        return 16 * channels;
    case CU_AD_FORMAT_FLOAT:
        return 32 * channels;
    case CU_AD_FORMAT_BC1_UNORM: /* 8 bytes for 4 x 4 elements */
        return 4;
    }
    return 0;
}

static size_t side(size_t length, unsigned int level, bool blocks) {
    size_t l = length >> level ? length >> level : 1;

    return blocks ? (l + 3) / 4 * 4 : l;
}

static size_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels) {
    bool blocks = d->Format == CU_AD_FORMAT_BC1_UNORM;
    bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t bytes = 0;

    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned int level = 0; level < levels; level++)
        bytes += side(d->Width, level, blocks) * side(d->Height, level, blocks) *
                 side(d->Depth, layers ? 0 : level, false) * bits_of(d->Format, d->NumChannels) / 8;
    return bytes;
}

/* The handle is the address of a record, which no block of memory has. */
static CUresult make(void **handle, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels,
                     unsigned int what) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!handle || !d || !d->Width || !levels || !bits_of(d->Format, d->NumChannels))
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = bytes_of(d, levels);
    if (bytes > device_free(context->device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUDA_ARRAY3D_DESCRIPTOR *record = store_take(sizeof *record);
    *record = *d;
    block_add(&(struct block){.address = (uintptr_t)record,
                              .bytes = bytes,
                              .kind = SIMGPU_ARRAY,
                              .device = context->device,
                              .context = context,
                              .flags = what,
                              .bare = true});
    *handle = record;
    return CUDA_SUCCESS;
}

static CUresult destroy(void *handle, unsigned int what) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct block *block = handle ? block_find((uintptr_t)handle) : NULL;
    if (!block || block->flags != what ||
        (block->kind != SIMGPU_ARRAY && block->kind != SIMGPU_IMPORTED))
        return CUDA_ERROR_INVALID_HANDLE;
    block_remove(block, FREED);
    return CUDA_SUCCESS;
}

CUresult sim_array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};

    if (d)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return make((void **)array, &flat, 1, ARRAY);
}

CUresult sim_array_3d_create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return make((void **)array, d, 1, ARRAY);
}

/* A level or plane is no array of its own. */
CUresult sim_array_destroy(CUarray array) {
    return destroy(array, ARRAY);
}

CUresult sim_array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array,
                                CUdevice device) {
    CUresult code = device_check(device);

    if (code)
        return code;
    const struct block *block = block_find((uintptr_t)array);
    const CUDA_ARRAY3D_DESCRIPTOR *d = (const void *)array;
    if (!block || block->kind != SIMGPU_ARRAY || !(d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = PAGE / 2, .alignment = PAGE / 32};
    return CUDA_SUCCESS;
}

CUresult sim_mipmap_create(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *d,
                           unsigned int levels) {
    return make((void **)mipmap, d, levels, MIPMAP);
}

CUresult sim_mipmap_get_level(CUarray *array, CUmipmappedArray mipmap, unsigned int level) {
    const struct block *block = driver_initialized ? block_find((uintptr_t)mipmap) : NULL;

    if (!block || block->flags != MIPMAP || level > 16)
        return CUDA_ERROR_INVALID_VALUE;
    *array = (CUarray)((uintptr_t)mipmap + level + 1);
    return CUDA_SUCCESS;
}

CUresult sim_mipmap_destroy(CUmipmappedArray mipmap) {
    return destroy(mipmap, MIPMAP);
}

CUresult sim_external_mipmap(CUmipmappedArray *mipmap, CUexternalMemory memory,
                             const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!mipmap || !description || !block_find((uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR *record = store_take(sizeof *record);
    *record = description->arrayDesc;
    block_add(&(struct block){.address = (uintptr_t)record,
                              .kind = SIMGPU_IMPORTED,
                              .device = context->device,
                              .context = context,
                              .flags = MIPMAP,
                              .bare = true});
    *mipmap = (CUmipmappedArray)record;
    return CUDA_SUCCESS;
}
