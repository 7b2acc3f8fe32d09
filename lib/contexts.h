/*
 * Contexts of the driver: by which number slots name them, how often they are held, and what goes
 * with them when they end.
 *
 * interpose calls this for each entry point that makes, holds or ends a context; any thread. The
 * walk over the live table at an end is cold.
 */
#ifndef CUHEAP_CONTEXTS_H
#define CUHEAP_CONTEXTS_H

#include <stdint.h>

#include "cuda_abi.h"
#include "cuheap/trace_format.h"

#define CONTEXTS_MAX 256 /* at one time */

struct record_call;
struct recorder;

struct contexts {
    uint64_t handles[CONTEXTS_MAX]; /* by number - 1; CONTEXTS_ENDED: the number may come again */
    struct trace_context *records[CONTEXTS_MAX];
    uint32_t references[CONTEXTS_MAX]; /* held: created, attached */
    /* Retained; a reset leaves that as it is (measured on an H200, driver 580.159). */
    uint32_t primary_references[TRACE_DEVICES];
};

/* The number of the thread's current context, from 1; 0: none, or not known. */
uint16_t contexts_current(struct recorder *recorder);

/* A context was made or retained; flags of enum trace_context_flag. */
void contexts_made(struct record_call *call, CUresult code, const CUcontext *context,
                   CUdevice device, unsigned flags);
void contexts_attached(struct record_call *call, CUresult code, const CUcontext *context);

/*
 * Before a call that ends a context, or may: cuCtxDestroy, cuCtxDetach; and by device, the release
 * and the reset of a primary one. What it would free is marked.
 */
void contexts_destroy_begin(struct record_call *call, CUcontext context);
void contexts_detach_begin(struct record_call *call, CUcontext context);
void contexts_release_begin(struct record_call *call, CUdevice device);
void contexts_reset_begin(struct record_call *call, CUdevice device);

/* After it. */
void contexts_end(struct record_call *call, CUresult code);

#endif
