/*
 * What the driver or the framework refused: records with what was known at that moment, copies of
 * the live table, and whether the program got over it.
 *
 * interpose and the modules of each kind of memory call this after a refusal, record for what came
 * after it: cold. Any thread, no locks. After an out of memory
 * the driver is asked once what is free, unless a capture is open; the framework's own report comes
 * with its allocator's lock held and asks nothing.
 *
 * What comes after: a refused allocation is watched until its thread has taken memory of that
 * group (device, host...) and device again. If that is the same size, and the thread gave memory
 * back meanwhile, it was a flush and retry. Success of any thread makes it handled.
 */
#ifndef CUHEAP_FAILURES_H
#define CUHEAP_FAILURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "cuheap/trace_format.h"
#include "resolve.h"

#define FAILURES_KEPT    64 /* kinds of refused allocations that have a record ... */
#define FAILURES_ROLLING 16 /* ... the last of which are written anew when more come */
#define FAILURES_CALLS   32 /* other calls: one record for each call and code */
#define FAILURES_WATCHED 8  /* at one time */
#define FAILURES_COPIES  8  /* of the live table: of the first failures ... */
#define FAILURES_LATEST  4  /* ... and of the latest */

struct record_call;
struct recorder;

struct failure_kind {
    uint64_t key; /* hash of what makes failures alike; enum in failures.c */
    struct trace_failure *record;
};

struct failure_watch {
    uint32_t state; /* enum in failures.c; the rest is its thread's to write, anyone's to look at */
    uint8_t ledger;
    uint8_t group;
    uint16_t device;
    const void *thread;
    uint64_t request;
    uint64_t ns;
    uint64_t freed_bytes; /* by that thread since */
    struct trace_failure *record;
};

struct failure_copy {
    struct trace_region *region;
    struct trace_failure *of;
};

/* A device's free memory as last told: it holds until the process takes or gives back. */
struct failure_free {
    uint32_t writing;
    uint64_t events; /* of the device's total then, and 1; 0: never told */
    uint64_t total_bytes;
};

struct failures {
    struct failure_kind kinds[FAILURES_KEPT];
    uint32_t rolled;
    struct trace_failure *calls[FAILURES_CALLS];
    uint32_t names[ROW_COUNT + 1]; /* string refs; the last one: the framework's report */
    struct failure_watch watches[FAILURES_WATCHED];
    uint32_t replaced;
    struct failure_copy copies[FAILURES_COPIES];
    uint32_t copying;
    uint32_t copied; /* failures with a copy so far */
    uint64_t copied_ns;
    uint64_t copied_bytes; /* of regions */
    struct failure_free told[TRACE_DEVICES];
};

/* The driver refused `request` bytes of that kind, on the current device or another one. */
void failures_alloc(struct record_call *call, enum trace_kind kind, CUresult code,
                    uint64_t request);
void failures_block(struct record_call *call, enum trace_kind kind, uint16_t device, CUresult code,
                    uint64_t request);

/* It refused something that is not an allocation of memory, or a free. */
void failures_call(struct record_call *call, enum trace_kind kind, CUresult code, uint64_t bytes);
void failures_free(struct record_call *call, CUresult code);

/* The framework found no memory for a tensor. No driver calls. */
void failures_tensor(struct record_call *call, const char *name, uint64_t request, uint16_t device);

/* The program asked what is free; before limits changes the answer. Either may be NULL. */
void failures_told(struct record_call *call, CUresult code, size_t *free_bytes, size_t *total);

/* While there are watches: memory was taken, or given back, at that site. */
void failures_took(struct recorder *recorder, const struct trace_site *site, uint64_t bytes,
                   uint64_t ns);
void failures_gave(struct recorder *recorder, const struct trace_site *site, uint64_t bytes);

#endif
