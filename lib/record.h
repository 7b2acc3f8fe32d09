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

#include "cuda_abi.h"
#include "modules.h"
#include "python.h"
#include "resolve.h"
#include "sites.h"
#include "stacks.h"
#include "table.h"
#include "trace_writer.h"
#include "unwind.h"

#define RECORD_CONTEXTS 256
#define RECORD_FAILURES 64 /* recorded one by one; further ones are counted */

/* All that belongs to one process's trace. */
struct recorder {
    struct trace_writer trace;
    struct table table;
    struct modules modules;
    struct stacks stacks;
    struct python python;
    struct sites sites;
    uint64_t contexts[RECORD_CONTEXTS]; /* handles, in order of appearance */
    struct trace_context *context_records[RECORD_CONTEXTS];
    uint32_t row_names[ROW_COUNT + 1]; /* string refs; the last one: the framework's report */
    uint32_t driver_known;
    uint32_t failures;
    uint32_t want_stacks; /* CONFIG_STACKS_ bits */
};

struct record_call {
    struct recorder *recorder;
    struct registers from;
    struct table_mark mark; /* of a free */
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

/* The driver refused `request` bytes with this code. */
void record_failed_alloc(struct record_call *call, enum row row, enum trace_kind kind,
                         CUresult code, uint64_t request);

/* Before and after the driver is asked to free. */
void record_free_begin(struct record_call *call, enum trace_space space, uint64_t address);
void record_free_end(struct record_call *call, uint64_t address, CUresult code);

/* The framework handed out a tensor, took one back, found no memory for one. No driver calls. */
void record_tensor(struct record_call *call, uint64_t address, uint64_t bytes, int device);
void record_tensor_free(struct record_call *call, uint64_t address);
void record_failed_tensor(struct record_call *call, const char *name, uint64_t request, int device);

/* A context was made or retained. */
void record_context(struct record_call *call, CUcontext context, CUdevice device, unsigned flags);

/* A named moment. */
void record_mark(struct recorder *recorder, const char *name);

/* Lays out the parts of a new trace that the first event needs. stacks: CONFIG_STACKS_ bits; depth:
   of native ones. False: no memory. */
bool record_init(struct recorder *recorder, uint32_t stacks, uint32_t depth);

#endif
