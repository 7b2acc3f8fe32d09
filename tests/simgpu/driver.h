/*
 * What the files of the simulated driver share. All state is under one lock: an exported function
 * (driver_entry.c) takes it around its body, so everything declared here runs with the lock held
 * unless it says otherwise. Nothing here uses the C heap: a program's malloc may itself call CUDA.
 */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_sim.h"
#include "simgpu.h"

#define PAGE        ((size_t)2 << 20)
#define POOL_GROUP  ((size_t)32 << 20)
#define UNIT        ((size_t)512)
#define MAX_DEVICES 16

/* Only cu* and simgpu_* are exported: what follows stays inside the library. */
#pragma GCC visibility push(hidden)

/* ---- settings: driver_settings.c ---- */

struct settings {
    int devices;           /* SIMGPU_DEVICES */
    size_t memory;         /* SIMGPU_MEMORY, of each device */
    size_t context_memory; /* SIMGPU_CONTEXT_MEMORY, taken by each context */
    int driver_version;    /* SIMGPU_DRIVER_VERSION */
    bool self_lookup;      /* SIMGPU_SELF_LOOKUP */
    bool unload_at_exit;   /* SIMGPU_UNLOAD_AT_EXIT */
    bool refuse_fork;      /* SIMGPU_FORK=refuse */
    bool spoil_capture;    /* SIMGPU_CAPTURE=invalidate */
};
extern struct settings settings;

/* ---- entry points: driver_entry.c, driver_script.c ---- */

enum entry {
#define ENTRY(symbol, base, version, stream, capture, body, params, args) ENTRY_##symbol,
#include "driver_api.def"
#undef ENTRY
    ENTRY_COUNT
};
extern const char *const entry_names[ENTRY_COUNT];
extern uint64_t entry_calls[ENTRY_COUNT]; /* atomic */

int entry_find(const char *name); /* -1: not exported */

/* What the script says about this call; `skip`: return the code without doing the work. */
struct verdict {
    bool scripted, skip;
    CUresult code;
};
struct verdict script_verdict(enum entry entry, uint64_t call);
void script_load(const char *rules); /* without the lock */

void driver_lock(void);
void driver_unlock(void);
void driver_unload(void); /* every further call gives CUDA_ERROR_DEINITIALIZED */

__attribute__((noreturn, format(printf, 1, 2))) void driver_abort(const char *format, ...);

/* ---- storage: driver_store.c ---- */

/* Zeroed memory for records, from anonymous mappings; sizes above 64 KiB are mapped on their own.
 */
void *store_take(size_t bytes);
void store_give(void *record, size_t bytes);

/* ---- address layout: driver_pages.c ---- */

/* A device's addresses, in 2 MiB pages. */
struct space {
    uintptr_t base;
    size_t pages, pages_in_use;
    size_t lowest_free; /* no free page below it */
    struct chunk **chunk_of_page;
    struct chunk *shared; /* pages that small blocks share */
};

bool space_open(struct space *space, size_t memory);
/* Place for a block that may take `limit` more bytes of pages; 0: there is none. */
uintptr_t space_take(struct space *space, size_t bytes, size_t limit);
void space_give(struct space *space, uintptr_t address, size_t bytes);

/* A pool's addresses, backed by memory in groups of 32 MiB. */
struct range {
    uintptr_t base;
    size_t groups, reserved; /* bytes */
    size_t lowest_free;      /* no free unit below it */
    uint64_t *units;
    size_t *used_in_group;
    bool *backed;
};

bool range_open(struct range *range, size_t memory);
void range_close(struct range *range);
uintptr_t range_take(struct range *range, size_t bytes, size_t limit);
void range_give(struct range *range, uintptr_t address, size_t bytes);
/* Takes the memory of empty groups away until no more than `keep` bytes are reserved. */
void range_shrink(struct range *range, size_t keep);

/* ---- devices and contexts: driver_device.c, driver_context.c ---- */

struct CUmemPoolHandle_st;

struct device {
    struct space space;
    struct CUmemPoolHandle_st *default_pool, *pool;
    size_t context_bytes, pool_bytes;
    size_t other_bytes; /* physical memory, arrays, graph memory */
    struct simgpu_books books;
    struct CUctx_st *primary;
};
extern bool driver_initialized;
extern struct device devices[MAX_DEVICES];
extern struct simgpu_books host_books;

struct CUctx_st {
    CUdevice device;
    bool active, primary; /* an inactive one is destroyed, or a primary one between two lives */
    unsigned int references, flags, api_version;
    struct CUctx_st *next;
};

CUresult device_check(CUdevice device);
size_t device_free(CUdevice device);
/* The thread's context, checked. */
CUresult current_context(struct CUctx_st **context);

/* ---- blocks: driver_block.c ---- */

struct block {
    uintptr_t address;
    size_t bytes;
    enum simgpu_kind kind;
    CUdevice device;
    struct CUctx_st *context; /* destroyed with it; NULL: pool and graph blocks */
    struct CUmemPoolHandle_st *pool;
    unsigned int flags;
    bool bare;                         /* holds no addresses of its own */
    bool freed_inside;                 /* a graph's own: cuMemFree does not take it */
    unsigned int references, mappings; /* of physical memory; references: of what was opened, too */
    struct block *next;
};

struct block *block_add(const struct block *block);
struct block *block_find(uintptr_t address);
struct block *block_containing(uintptr_t address);
enum block_end { FREED, FREED_IN_ORDER /* by cuMemFreeAsync */, IMPLICITLY_FREED };
/* Takes a block off the books and gives its place back. */
void block_remove(struct block *block, enum block_end how);
void blocks_of_context(struct CUctx_st *context); /* removes them */

/* ---- pools, streams ---- */

void pool_release(const struct block *block, enum block_end how);
void pools_synchronize(CUdevice device);
bool pool_set_up(CUdevice device);
bool stream_known(CUstream stream);
/* The graph that this stream's capture makes; NULL: it is not capturing. */
struct CUgraph_st *stream_capture(CUstream stream);
/* Nodes of a graph: driver_graph.c. An address of `bytes` for an allocation node; 0: none. */
uintptr_t graph_alloc_node(struct CUgraph_st *graph, size_t bytes, CUdevice device);
/* False: no allocation node has this address. */
bool graph_free_node(struct CUgraph_st *graph, uintptr_t address);
struct CUgraph_st *graph_new(void);
CUresult graph_end(struct CUgraph_st *graph); /* destroys it */
/* Memory that can be freed by the program: no pinned memory, nothing that its graph frees. */
bool block_freeable(const struct block *block);
/* Addresses for memory of another process or interface, booked to the context; 0: none. */
uintptr_t imported_addresses(size_t bytes, struct CUctx_st *context);
/* Whether a stream capture forbids this thread unsafe calls; if it does, aborts or spoils it. */
bool capture_forbids(const char *what);

/* ---- look-up: driver_lookup.c ---- */

void self_lookup(void); /* without the lock */
extern int self_lookup_result;

/* ---- bodies: one for each row of driver_api.def ---- */

#define ENTRY(symbol, base, version, stream, capture, body, params, args) CUresult body params;
#include "driver_api.def"
#undef ENTRY

#pragma GCC visibility pop
#endif
