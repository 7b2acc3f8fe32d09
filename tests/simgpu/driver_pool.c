/*
 * Stream-ordered memory and its pools. Bodies of entry points: called with the driver's lock held,
 * from any thread.
 *
 * Sources: CUDA driver API reference, "Stream Ordered Memory Allocator"; CUDA C programming guide,
 * "Stream-Ordered Memory Allocator": reserved memory is given back at the next synchronisation,
 * down to the release threshold (0 unless set). That destroying a context leaves these blocks
 * alone: cuCtxDestroy. Under stream capture an allocation is a node of the graph: an address, and
 * no memory before a launch. Sizes and codes: as an H200 with driver 580.159 and CUDA 13.0 gave
 * them (conformance.txt). Work on the simulated streams is done at once, so memory is free for
 * reuse as soon as cuMemFreeAsync was called.
 */
#include "driver.h"

/* A block freed by cuMemFree; measured: it counts as used until the pool allocates again. */
struct late_free {
    uintptr_t address;
    size_t bytes;
    struct late_free *next;
};

struct CUmemPoolHandle_st {
    CUdevice device;
    struct range range;
    size_t used, used_high, reserved_high, most;
    uint64_t threshold;
    int reuse[3]; /* the three CU_MEMPOOL_ATTR_REUSE_* */
    size_t blocks;
    struct late_free *late;
    bool imported;  /* another process's: nothing is taken from it here */
    bool destroyed; /* goes when its last block does */
    struct CUmemPoolHandle_st *next;
};
static struct CUmemPoolHandle_st *pools;

static struct CUmemPoolHandle_st *pool_new(CUdevice device, size_t most) {
    struct CUmemPoolHandle_st *pool = store_take(sizeof *pool);

    if (!range_open(&pool->range, settings.memory))
        return NULL;
    pool->device = device;
    pool->most = most ? most : SIZE_MAX;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

bool pool_set_up(CUdevice device) {
    devices[device].default_pool = devices[device].pool = pool_new(device, 0);
    return devices[device].pool;
}

static CUresult pool_check(const struct CUmemPoolHandle_st *pool) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    for (const struct CUmemPoolHandle_st *p = pools; p; p = p->next)
        if (p == pool)
            return pool->destroyed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

static void pool_shrink(struct CUmemPoolHandle_st *pool, size_t keep) {
    size_t before = pool->range.reserved;

    range_shrink(&pool->range, keep);
    devices[pool->device].pool_bytes -= before - pool->range.reserved;
}

static void give_place(struct CUmemPoolHandle_st *pool, uintptr_t address, size_t bytes) {
    range_give(&pool->range, address, bytes);
    pool->used -= bytes;
}

static void settle_late_frees(struct CUmemPoolHandle_st *pool) {
    while (pool->late) {
        struct late_free *late = pool->late;
        pool->late = late->next;
        give_place(pool, late->address, late->bytes);
        store_give(late, sizeof *late);
    }
}

static void pool_end(struct CUmemPoolHandle_st *pool) {
    struct CUmemPoolHandle_st **link = &pools;

    settle_late_frees(pool);
    pool_shrink(pool, 0);
    range_close(&pool->range);
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    store_give(pool, sizeof *pool);
}

void pool_release(const struct block *block, enum block_end how) {
    struct CUmemPoolHandle_st *pool = block->pool;

    if (how == FREED) {
        struct late_free *late = store_take(sizeof *late);
        *late = (struct late_free){block->address, block->bytes, pool->late};
        pool->late = late;
    } else {
        give_place(pool, block->address, block->bytes);
    }
    if (--pool->blocks == 0 && pool->destroyed)
        pool_end(pool);
}

void pools_synchronize(CUdevice device) {
    for (struct CUmemPoolHandle_st *pool = pools; pool; pool = pool->next)
        if (pool->device == device)
            pool_shrink(pool, pool->threshold);
}

/* ---- allocation ---- */

static CUresult capture_alloc(CUdeviceptr *pointer, size_t bytes, CUdevice device,
                              struct CUgraph_st *graph) {
    *pointer = graph_alloc_node(graph, bytes, device);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult pool_alloc(CUdeviceptr *pointer, size_t bytes, struct CUmemPoolHandle_st *pool) {
    size_t before = pool->range.reserved, limit = device_free(pool->device);
    size_t room = pool->most > before ? pool->most - before : 0;

    settle_late_frees(pool);
    uintptr_t address = range_take(&pool->range, bytes, limit < room ? limit : room);
    if (!address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    devices[pool->device].pool_bytes += pool->range.reserved - before;
    pool->blocks++;
    pool->used += bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (pool->range.reserved > pool->reserved_high)
        pool->reserved_high = pool->range.reserved;
    block_add(&(struct block){.address = address,
                              .bytes = bytes,
                              .kind = SIMGPU_POOL,
                              .device = pool->device,
                              .pool = pool});
    *pointer = address;
    return CUDA_SUCCESS;
}

/* `pool` NULL: the current one of the stream's device. */
static CUresult alloc_async(CUdeviceptr *pointer, size_t bytes, struct CUmemPoolHandle_st *pool,
                            CUstream stream) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = 0;
    if (code)
        return code;
    if (!stream_known(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pool)
        pool = devices[context->device].pool;
    if ((code = pool_check(pool)))
        return code;
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraph_st *graph = stream_capture(stream);
    if (!graph && capture_forbids("an allocation on a stream that is not capturing"))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!bytes) /* succeeds with 0 */
        return CUDA_SUCCESS;
    return graph ? capture_alloc(pointer, bytes, pool->device, graph)
                 : pool_alloc(pointer, bytes, pool);
}

CUresult sim_mem_alloc_async(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return alloc_async(pointer, bytes, NULL, stream);
}

CUresult sim_mem_alloc_async_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return alloc_async(pointer, bytes, NULL, stream ? stream : CU_STREAM_PER_THREAD);
}

CUresult sim_mem_alloc_from_pool_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                       CUstream stream) {
    return pool ? alloc_async(pointer, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_mem_alloc_from_pool_async_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                            CUstream stream) {
    return sim_mem_alloc_from_pool_async(pointer, bytes, pool,
                                         stream ? stream : CU_STREAM_PER_THREAD);
}

/* Takes plain memory too. */
CUresult sim_mem_free_async(CUdeviceptr pointer, CUstream stream) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!stream_known(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    struct CUgraph_st *graph = stream_capture(stream);
    if (!graph && capture_forbids("a free on a stream that is not capturing"))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct block *block = block_find(pointer);
    if (!pointer)
        return CUDA_SUCCESS;
    if (graph)
        return graph_free_node(graph, pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!block_freeable(block))
        return CUDA_ERROR_INVALID_VALUE;
    if (block->kind == SIMGPU_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    block_remove(block, FREED_IN_ORDER);
    return CUDA_SUCCESS;
}

CUresult sim_mem_free_async_ptsz(CUdeviceptr pointer, CUstream stream) {
    return sim_mem_free_async(pointer, stream ? stream : CU_STREAM_PER_THREAD);
}

/* ---- pools ---- */

CUresult sim_pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (!pool || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = device_check(properties->location.id);
    if (code == CUDA_ERROR_INVALID_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (code)
        return code;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_new(properties->location.id, properties->maxSize);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Another process's pool, whoever that is: only pointers of it can be imported. */
CUresult sim_pool_import(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                         unsigned long long flags) {
    (void)handle;
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pool || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = pool_new(0, 0);
    if (*pool)
        (*pool)->imported = true;
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_pool_import_pointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                 CUmemPoolPtrExportData *data) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!code)
        code = pool_check(pool);
    if (code)
        return code;
    if (!pool->imported || !data)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = imported_addresses(PAGE, context);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    const struct block *block = block_find(pointer);

    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || !block || block->kind != SIMGPU_POOL)
        return CUDA_ERROR_INVALID_VALUE;
    data->reserved[0] = 1;
    return CUDA_SUCCESS;
}

CUresult sim_pool_destroy(CUmemoryPool pool) {
    CUresult code = pool_check(pool);

    if (code)
        return code;
    struct device *device = &devices[pool->device];
    if (pool == device->default_pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (device->pool == pool)
        device->pool = device->default_pool;
    pool->destroyed = true;
    if (!pool->blocks)
        pool_end(pool);
    return CUDA_SUCCESS;
}

CUresult sim_pool_trim_to(CUmemoryPool pool, size_t keep) {
    CUresult code = pool_check(pool);

    if (!code)
        pool_shrink(pool, keep);
    return code;
}

static bool is_reuse(CUmemPool_attribute attribute) {
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult sim_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult code = pool_check(pool);

    if (code)
        return code;
    if (is_reuse(attribute)) {
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    }
    uint64_t number = *(uint64_t *)value;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = number;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && !number)
        pool->reserved_high = pool->range.reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && !number)
        pool->used_high = pool->used;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sim_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult code = pool_check(pool);

    if (code)
        return code;
    if (is_reuse(attribute)) {
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    }
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->range.reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_device_get_default_pool(CUmemoryPool *pool, CUdevice device) {
    CUresult code = device_check(device);

    if (!code)
        *pool = devices[device].default_pool;
    return code;
}

CUresult sim_device_get_pool(CUmemoryPool *pool, CUdevice device) {
    CUresult code = device_check(device);

    if (!code)
        *pool = devices[device].pool;
    return code;
}

CUresult sim_device_set_pool(CUdevice device, CUmemoryPool pool) {
    CUresult code = device_check(device);

    if (!code)
        code = pool_check(pool);
    if (!code && pool->device != device)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        devices[device].pool = pool;
    return code;
}
