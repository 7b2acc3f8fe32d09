#include "pools.h"

#include <errno.h>

#include "atomic.h"
#include "record.h"

#define SAMPLE_EVERY_NS 3000000000u /* at new peaks */

/* Low bits of a pool's state; above them a generation, so that a place that was looked at is not
   taken if another pool has had it since. */
enum { POOL_FREE = 0, POOL_BUSY = 1, POOL_USED = 2, POOL_STATE = 3, POOL_GENERATION = 4 };

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_used(uint32_t state) {
    return (state & POOL_STATE) == POOL_USED;
}

/* 0: not known. */
static uint16_t number_of(const struct pools *pools, CUmemoryPool handle) {
    for (uint16_t i = 0; i < POOLS_MAX; i++) {
        const struct pool *pool = &pools->pools[i];
        if (is_used(load_acquire(&pool->state)) && /* pairs with add */
            load_relaxed(&pool->handle) == (uintptr_t)handle)
            return (uint16_t)(i + 1);
    }
    return 0;
}

static struct trace_pool *describe(struct record_call *call, const struct pool *pool,
                                   unsigned flags) {
    struct trace_writer *trace = &call->recorder->trace;
    struct trace_pool *record =
        trace_append(trace, TRACE_SECTION_POOLS, sizeof *record, sizeof *record);
    if (!record) {
        trace_lose(trace, TRACE_LOSS_RECORDS_FULL, 1);
        return NULL;
    }
    record->device = pool->device;
    record->flags = (uint16_t)flags;
    record->handle = pool->handle;
    record->created_ns = trace_now(trace);
    struct stack_refs stack = record_stack(call, record->created_ns);
    record->native_stack = stack.native;
    record->python_stack = stack.python;
    store_release(&record->state, 1u); /* pairs with the reader */
    return record;
}

/* Never used; or destroyed, and its last block freed. */
static bool is_free(const struct pool *pool, uint32_t state) {
    return (state & POOL_STATE) == POOL_FREE ||
           (is_used(state) && pool->record && load_acquire(&pool->record->destroyed_ns) &&
            !load_relaxed(&pool->record->used_bytes));
}

/* A new number; 0: none is left. */
static uint16_t add(struct record_call *call, uint64_t handle, uint16_t device, uint8_t kind,
                    unsigned flags) {
    struct pools *pools = &call->recorder->pools;
    for (uint16_t i = 0; i < POOLS_MAX; i++) {
        struct pool *pool = &pools->pools[i];
        uint32_t state = load_acquire(&pool->state);
        uint32_t mine = (state & ~(uint32_t)POOL_STATE) + POOL_GENERATION;
        if (!is_free(pool, state) || !cas_acq_rel(&pool->state, &state, mine | POOL_BUSY))
            continue;
        pool->device = device;
        pool->kind = kind;
        pool->handle = handle;
        pool->record = describe(call, pool, flags);
        if (pool->record)
            store_release(&pool->record->number, (uint32_t)(i + 1));
        store_release(&pool->state, mine | POOL_USED); /* pairs with number_of */
        return (uint16_t)(i + 1);
    }
    trace_lose(&call->recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
    return 0;
}

/* Two threads may both meet a device's default pool first: one number stays without blocks. */
static uint16_t default_of(struct record_call *call, uint16_t device) {
    uint16_t *place = &call->recorder->pools.default_number[device];
    uint16_t number = load_acquire(place), none = 0;
    if (number)
        return number;
    number = add(call, 0, device, TRACE_KIND_POOL, TRACE_POOL_DEFAULT);
    return !number || cas_acq_rel(place, &none, number) ? number : none;
}

static uint16_t current_of(struct record_call *call, uint16_t device) {
    if (device >= TRACE_DEVICES)
        return 0;
    uint16_t number = load_acquire(&call->recorder->pools.current_number[device]);
    return number ? number : default_of(call, device);
}

/* A pool made before the trace, or in a way not seen, is met here first. */
static uint16_t known(struct record_call *call, CUmemoryPool handle) {
    uint16_t number = number_of(&call->recorder->pools, handle);
    return number ? number
                  : add(call, (uintptr_t)handle, record_device_if_known(call->recorder),
                        TRACE_KIND_POOL, 0);
}

/* ---- reserved bytes -------------------------------------------------------------------------- */

static void note_reserved(struct recorder *recorder, struct trace_pool *record, uint64_t bytes) {
    store_relaxed(&record->reserved_bytes, bytes);
    store_release(&record->sampled_ns, trace_now(&recorder->trace)); /* pairs with the reader */
}

static void sample(struct recorder *recorder, const struct pool *pool) {
    uint64_t bytes;
    if (!pool->record || !load_relaxed(&pool->handle) || !driver.cuMemPoolGetAttribute ||
        !graphs_capture_hold_off(&recorder->graphs))
        return;
    CUresult code = driver.cuMemPoolGetAttribute((CUmemoryPool)load_relaxed(&pool->handle),
                                                 CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    graphs_capture_go_on(&recorder->graphs);
    if (code == CUDA_SUCCESS)
        note_reserved(recorder, pool->record, bytes);
}

void pools_sample_all(struct recorder *recorder) {
    for (int i = 0; i < POOLS_MAX; i++)
        if (is_used(load_acquire(&recorder->pools.pools[i].state)))
            sample(recorder, &recorder->pools.pools[i]);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

void pools_take(struct pools *pools, uint16_t number, uint64_t bytes) {
    struct trace_pool *record = pools->pools[number - 1].record;
    if (record)
        raise_relaxed(&record->used_high_bytes, add_relaxed(&record->used_bytes, bytes) + bytes);
}

void pools_give(struct pools *pools, uint16_t number, uint64_t bytes) {
    struct trace_pool *record = pools->pools[number - 1].record;
    if (record)
        add_relaxed(&record->used_bytes, -bytes);
}

static void sample_at_peak(struct recorder *recorder, uint16_t number) {
    const struct pool *pool = number ? &recorder->pools.pools[number - 1] : NULL;
    if (!pool || !pool->record || pool->record->used_bytes < pool->record->used_high_bytes ||
        trace_now(&recorder->trace) - pool->record->sampled_ns < SAMPLE_EVERY_NS)
        return;
    sample(recorder, pool);
}

/* Where a block comes from: of the pool named, else of the device's current one. */
struct source {
    uint16_t number, device;
    enum trace_kind kind;
};

static struct source source_of(struct record_call *call, CUmemoryPool handle) {
    uint16_t device = record_device_if_known(call->recorder);
    uint16_t number = handle ? known(call, handle) : current_of(call, device);
    const struct pool *pool = &call->recorder->pools.pools[number ? number - 1 : 0];
    return number ? (struct source){number, pool->device, (enum trace_kind)pool->kind}
                  : (struct source){0, device, TRACE_KIND_POOL};
}

bool pools_decide(struct record_call *call, uint64_t bytes, CUmemoryPool handle) {
    int saved = errno;
    struct source source = source_of(call, handle);
    /* What is captured takes no memory yet. */
    bool refused = !call->capturing && limits_decide(call, source.kind, source.device, bytes);
    errno = saved;
    return refused;
}

void pools_allocated(struct record_call *call, CUresult code, const CUdeviceptr *address,
                     uint64_t bytes, CUmemoryPool handle) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    if (code != CUDA_SUCCESS) {
        failures_alloc(call, call->capturing ? TRACE_KIND_GRAPH : TRACE_KIND_POOL, code, bytes);
        return;
    }
    if (!*address) /* of 0 bytes: see record_alloc */
        return;
    struct source source = source_of(call, handle);
    if (call->capturing) {
        graphs_node(call, CUDA_SUCCESS, 0, *address, bytes, source.device);
    } else {
        struct record_block block = {
            .kind = source.kind,
            .space = TRACE_SPACE_POINTER,
            .device = source.device,
            .pool = source.number,
            .address = *address,
            .bytes = bytes,
        };
        record_block(call, &block);
        sample_at_peak(recorder, source.number);
    }
    errno = saved;
}

void pools_free_begin(struct record_call *call, CUdeviceptr address, CUstream stream,
                      is_capturing *ask) {
    graphs_ask(call, stream, ask);
    if (!call->capturing)
        record_free_begin(call, TRACE_SPACE_POINTER, address);
}

void pools_free_end(struct record_call *call, CUresult code, CUdeviceptr address) {
    if (call->capturing)
        graphs_free_node(call, code, NULL, address);
    else
        record_free_end(call, address, code);
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* Since CUDA 13 a pool can hold managed or pinned memory. */
static uint8_t kind_of(const CUmemPoolProps *properties) {
    if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return TRACE_KIND_MANAGED;
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? TRACE_KIND_POOL
                                                                    : TRACE_KIND_HOST;
}

void pools_created(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                   const CUmemPoolProps *properties) {
    int saved = errno;
    if (code != CUDA_SUCCESS) {
        failures_call(call, TRACE_KIND_POOL, code, 0);
    } else {
        uint8_t kind = kind_of(properties);
        uint16_t device = TRACE_DEVICE_HOST;
        if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            device = record_device(call->recorder, properties->location.id);
        else if (kind == TRACE_KIND_MANAGED)
            device = record_device_if_known(call->recorder);
        add(call, (uintptr_t)*pool, device, kind, 0);
    }
    errno = saved;
}

void pools_imported(struct record_call *call, CUresult code, const CUmemoryPool *pool) {
    int saved = errno;
    if (code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_IMPORTED, code, 0);
    else
        add(call, (uintptr_t)*pool, record_device_if_known(call->recorder), TRACE_KIND_POOL,
            TRACE_POOL_IMPORTED);
    errno = saved;
}

static void forget_current(struct pools *pools, uint16_t number) {
    for (int device = 0; device < TRACE_DEVICES; device++) {
        uint16_t seen = number;
        cas_acq_rel(&pools->current_number[device], &seen, (uint16_t)0);
    }
}

/* Its handle may come again before the call has returned: from now on it has none. */
void pools_destroy_begin(struct record_call *call, CUmemoryPool handle) {
    struct pools *pools = &call->recorder->pools;
    call->key = handle ? number_of(pools, handle) : 0;
    if (call->key)
        store_release(&pools->pools[call->key - 1].handle, (uint64_t)0);
}

/* Its blocks live on, and so does its number until they are gone. */
void pools_destroyed(struct record_call *call, CUresult code, CUmemoryPool handle) {
    struct pools *pools = &call->recorder->pools;
    uint16_t number = (uint16_t)call->key;
    struct pool *pool = number ? &pools->pools[number - 1] : NULL;
    if (code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_POOL, code, 0);
    if (pool && code != CUDA_SUCCESS)
        store_release(&pool->handle, (uint64_t)(uintptr_t)handle);
    if (!pool || code != CUDA_SUCCESS)
        return;
    forget_current(pools, number);
    if (pool->record)
        store_release(&pool->record->destroyed_ns, trace_now(&call->recorder->trace));
}

void pools_set_current(struct record_call *call, CUresult code, CUdevice device,
                       CUmemoryPool handle) {
    if (code == CUDA_SUCCESS && device >= 0 && device < TRACE_DEVICES)
        store_release(&call->recorder->pools.current_number[device], known(call, handle));
}

static void learn_handle(struct record_call *call, uint16_t number, CUmemoryPool handle) {
    struct pool *pool = number ? &call->recorder->pools.pools[number - 1] : NULL;
    uint64_t none = 0;
    if (pool && cas_acq_rel(&pool->handle, &none, (uint64_t)(uintptr_t)handle) && pool->record)
        store_relaxed(&pool->record->handle, (uint64_t)(uintptr_t)handle);
}

void pools_seen_default(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                        CUdevice device) {
    int saved = errno;
    if (code == CUDA_SUCCESS && device >= 0 && device < TRACE_DEVICES)
        learn_handle(call, default_of(call, record_device(call->recorder, device)), *pool);
    errno = saved;
}

void pools_seen_current(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                        CUdevice device) {
    if (code == CUDA_SUCCESS && device >= 0 && device < TRACE_DEVICES &&
        !load_acquire(&call->recorder->pools.current_number[device]))
        pools_seen_default(call, code, pool, device);
}

static bool is_device_pool(const CUmemLocation *location, int type) {
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
           type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

void pools_seen_default_at(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                           const CUmemLocation *location, int type) {
    if (is_device_pool(location, type))
        pools_seen_default(call, code, pool, location->id);
}

void pools_set_current_at(struct record_call *call, CUresult code, const CUmemLocation *location,
                          int type, CUmemoryPool pool) {
    if (is_device_pool(location, type))
        pools_set_current(call, code, location->id, pool);
}

static struct trace_pool *record_of(struct record_call *call, CUresult code, CUmemoryPool pool) {
    uint16_t number = code == CUDA_SUCCESS ? known(call, pool) : 0;
    return number ? call->recorder->pools.pools[number - 1].record : NULL;
}

void pools_attribute_set(struct record_call *call, CUresult code, CUmemoryPool pool, int attribute,
                         const void *value) {
    struct trace_pool *record = record_of(call, code, pool);
    if (!record || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        return;
    store_relaxed(&record->threshold, *(const uint64_t *)value);
    store_release(&record->flags, (uint16_t)(record->flags | TRACE_POOL_THRESHOLD_SET));
}

void pools_attribute_seen(struct record_call *call, CUresult code, CUmemoryPool pool, int attribute,
                          const void *value) {
    struct trace_pool *record = record_of(call, code, pool);
    if (record && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        note_reserved(call->recorder, record, *(const uint64_t *)value);
}
