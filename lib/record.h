/*
 * The only way into table and sites: one hooked call, from its beginning to its books.
 *
 * interpose calls record_enter before the driver, one of the record_ functions around or after it,
 * and record_leave. Any thread; no locks, malloc or stdio; errno is kept.
 *
 * Ordering (see table.h): an allocation is published after the driver has returned it; a free is
 * marked before the driver is asked and erased after its success. Stack before site before entry;
 * entry before counters.
 */
#ifndef CUHEAP_RECORD_H
#define CUHEAP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "contexts.h"
#include "cuda_abi.h"
#include "failures.h"
#include "gpu_modules.h"
#include "graphs.h"
#include "handles.h"
#include "limits.h"
#include "modules.h"
#include "pools.h"
#include "python.h"
#include "resolve.h"
#include "sites.h"
#include "stacks.h"
#include "table.h"
#include "trace_writer.h"
#include "unwind.h"

#define RECORD_DEVICE_CURRENT 0xfffdu /* of struct record_block: the current context's */

/* All that belongs to one process's trace. */
struct recorder {
    struct trace_writer trace;
    struct table table;
    struct modules modules;
    struct stacks stacks;
    struct python python;
    struct sites sites;
    struct contexts contexts;
    struct handles handles;
    struct pools pools;
    struct graphs graphs;
    struct gpu_modules gpu_modules;
    struct failures failures;
    struct limits limits;
    uint32_t driver_known;
    uint32_t attention;   /* who follows each block: open watches of failures; 1 for limits */
    uint32_t want_stacks; /* CONFIG_STACKS_ bits */
};

struct record_call {
    struct recorder *recorder;
    struct registers from;
    enum row row;
    struct table_mark mark; /* of a free */
    bool known;             /* what is given back was known (handles) */
    bool capturing;         /* the call's stream is (graphs) */
    uint64_t key;
    uint16_t ending;    /* number of the context that the call may end; 0: none */
    uint32_t *released; /* the count that lost a hold by it; NULL: none */
};

/* Memory that the driver gave. */
struct record_block {
    enum trace_kind kind;
    enum trace_space space;
    uint16_t device; /* or RECORD_DEVICE_CURRENT */
    uint16_t pool;   /* number, from 1; 0: none */
    uint64_t address;
    uint64_t bytes;
};

struct stack_refs {
    uint32_t native, python;
};

/*
 * Begins a hooked call. False: not to be recorded (inside another one: the driver's own; or there
 * is no trace); then nothing else may be called for it. Begins the process's trace if need be.
 */
bool record_enter(struct record_call *call, struct registers from);
void record_leave(void);

/* The driver returned memory: `bytes` at `address` of that kind. */
void record_alloc(struct record_call *call, enum trace_kind kind, enum trace_space space,
                  uint64_t address, uint64_t bytes);

void record_block(struct record_call *call, const struct record_block *block);

/* Before and after the driver is asked to free. */
void record_free_begin(struct record_call *call, enum trace_space space, uint64_t address);
void record_free_end(struct record_call *call, uint64_t address, CUresult code);

/* A block was shared with another process. */
void record_exported(struct record_call *call, CUresult code, enum trace_space space,
                     uint64_t address);

/* The framework handed out a tensor, took one back. No driver calls. */
void record_tensor(struct record_call *call, uint64_t address, uint64_t bytes, int device);
void record_tensor_free(struct record_call *call, uint64_t address);
/* Its number for a device as the trace names devices. */
uint16_t record_tensor_device(int device);

/* ---- for the modules that know one kind of memory -------------------------------------------- */

/* The calling thread, told by an address that each has of its own. */
const void *record_thread(void);

static inline bool record_is_host(enum trace_kind kind) {
    return kind == TRACE_KIND_HOST || kind == TRACE_KIND_REGISTERED;
}

/* This thread has mapped physical memory. */
void record_mapped(uint64_t address, uint64_t bytes);

/* A block of the driver has turned out to be a segment of the framework. */
void record_segment(struct recorder *recorder, enum trace_space space, uint64_t key);

/* The stack of the call, as it is recorded with whatever it made. */
struct stack_refs record_stack(struct record_call *call, uint64_t ns);

/* An ordinal as the trace names devices; describes one that is met first. */
uint16_t record_device(struct recorder *recorder, CUdevice ordinal);
/* The current context's; no context is no loss here. */
uint16_t record_device_if_known(struct recorder *recorder);
/* The same; none is counted. */
uint16_t record_current_device(struct recorder *recorder);

/* The site of this call for a kind of memory; NULL: no room. */
struct trace_site *record_site(struct record_call *call, enum trace_kind kind, uint16_t device,
                               uint64_t ns);
/* Books an entry at it: address, bytes, context, pool and space are filled in. */
void record_publish(struct recorder *recorder, struct trace_site *site, struct table_entry *entry,
                    uint64_t ns);
/* Ends a mark: what was being freed is gone. */
void record_erase(struct recorder *recorder, const struct table_mark *mark, uint64_t ns);
/*
 * Ends it as the driver has decided: gone, or live as before. Superseded in either case: handed out
 * again meanwhile, so that the driver did free it, whatever it returned; whoever got it has booked
 * that.
 */
static inline void record_settle(struct recorder *recorder, const struct table_mark *mark,
                                 CUresult code) {
    if (mark->slot && code != CUDA_SUCCESS)
        table_unmark(mark);
    else if (mark->slot)
        record_erase(recorder, mark, trace_now(&recorder->trace));
}

/* A named moment. */
void record_mark(struct recorder *recorder, const char *name);

/* Lays out the parts of a new trace that the first event needs. stacks: CONFIG_STACKS_ bits; depth:
   of native ones. False: no memory. */
bool record_init(struct recorder *recorder, uint32_t stacks, uint32_t depth);

#endif
