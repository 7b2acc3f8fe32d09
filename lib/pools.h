/*
 * Pools of stream-ordered memory: used bytes, which move at the call, and reserved bytes, which are
 * the driver's and known as last sampled.
 *
 * interpose calls this around the driver's functions, record for each block that names a pool; any
 * thread, no locks. Which pool cuMemAllocAsync takes from is followed, not asked: the device's
 * default one until the program sets another. The default pool's handle is known when the program
 * has asked for it.
 */
#ifndef CUHEAP_POOLS_H
#define CUHEAP_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "cuheap/trace_format.h"
#include "graphs.h"
#include "limits.h"

#define POOLS_MAX 256 /* at one time */

struct record_call;
struct recorder;

struct pool {
    uint32_t state; /* enum in pools.c */
    uint16_t device;
    uint8_t kind;              /* enum trace_kind of its blocks */
    uint64_t handle;           /* 0: not known */
    struct trace_pool *record; /* NULL: no room for one */
};

struct pools {
    struct pool pools[POOLS_MAX];           /* by number - 1 */
    uint16_t default_number[TRACE_DEVICES]; /* 0: not met yet */
    uint16_t current_number[TRACE_DEVICES]; /* 0: the default one */
};

/* ---- blocks ---------------------------------------------------------------------------------- */

/* cuMemAllocAsync has returned; `pool` NULL: the device's current one. */
void pools_allocated(struct record_call *call, CUresult code, const CUdeviceptr *address,
                     uint64_t bytes, CUmemoryPool pool);

/* Before the driver is asked: is it to fail? */
bool pools_decide(struct record_call *call, uint64_t bytes, CUmemoryPool pool);

static inline bool pools_refuse(struct record_call *call, uint64_t bytes, CUmemoryPool pool) {
    return __builtin_expect(limits_active, 0) && pools_decide(call, bytes, pool);
}

/* A block of that pool was booked, or its end. */
void pools_take(struct pools *pools, uint16_t number, uint64_t bytes);
void pools_give(struct pools *pools, uint16_t number, uint64_t bytes);

/* Asks the driver what its pools hold, unless a capture is open anywhere in the process. */
void pools_sample_all(struct recorder *recorder);

/* ---- pools ----------------------------------------------------------------------------------- */

void pools_created(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                   const CUmemPoolProps *properties);
void pools_imported(struct record_call *call, CUresult code, const CUmemoryPool *pool);
void pools_destroy_begin(struct record_call *call, CUmemoryPool pool);
void pools_destroyed(struct record_call *call, CUresult code, CUmemoryPool pool);
/* cuMemFreeAsync: of a block, or under capture a free node. */
void pools_free_begin(struct record_call *call, CUdeviceptr address, CUstream stream,
                      is_capturing *ask);
void pools_free_end(struct record_call *call, CUresult code, CUdeviceptr address);

void pools_set_current(struct record_call *call, CUresult code, CUdevice device, CUmemoryPool pool);
/* The program asked for a device's default pool, or for its current one. */
void pools_seen_default(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                        CUdevice device);
void pools_seen_current(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                        CUdevice device);
/* The same, for the functions of CUDA 13, which name a location and a type of memory. */
void pools_seen_default_at(struct record_call *call, CUresult code, const CUmemoryPool *pool,
                           const CUmemLocation *location, int type);
void pools_set_current_at(struct record_call *call, CUresult code, const CUmemLocation *location,
                          int type, CUmemoryPool pool);
/* An attribute was set by the program, or told to it. */
void pools_attribute_set(struct record_call *call, CUresult code, CUmemoryPool pool, int attribute,
                         const void *value);
void pools_attribute_seen(struct record_call *call, CUresult code, CUmemoryPool pool, int attribute,
                          const void *value);

#endif
