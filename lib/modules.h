/*
 * The loaded objects that stacks point into, with their build-ids, and when they were unloaded.
 *
 * stacks asks for the object of an address; any thread. The list is scanned when an address is in
 * no known object, and after a dlclose. One thread scans at a time; another that comes meanwhile
 * waits a bounded while and goes on without.
 */
#ifndef CUHEAP_MODULES_H
#define CUHEAP_MODULES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuheap/trace_format.h"
#include "trace_writer.h"

#define MODULES_MAX        4096
#define MODULES_REMAPS_MAX 256

struct module {
    uintptr_t start, end, bias;
    const uint8_t *eh_frame_hdr; /* NULL: no unwind table */
    struct trace_module *record; /* NULL: the trace had no room */
    uint64_t identity;           /* of path and build-id: another object can take the same range */
    uint32_t unloaded;
    uint32_t seen; /* stamp of the last scan that met it */
};

struct remap { /* addresses whose code was replaced */
    uintptr_t start, end;
    uint32_t times;
};

struct modules {
    struct trace_writer *trace;
    struct module *list;
    uint32_t count;
    uint32_t scanning;
    uint32_t stamp;
    uint32_t unloads_seen;
    uint64_t changes_seen;
    uint32_t remap_count;
    struct remap remaps[MODULES_REMAPS_MAX];
    char path[4096]; /* the scanning thread's */
};

/* dlclose calls since the program began; resolve raises it before and after each. */
extern uint32_t modules_unloads;

bool modules_init(struct modules *m, struct trace_writer *trace);

/* The loaded object that holds pc; NULL: none known. */
const struct module *modules_find(const struct modules *m, uintptr_t pc);

/* Looks at what is loaded and unloaded since. ns: now. */
void modules_scan(struct modules *m, uint64_t ns);

/* Scans if a dlclose has happened since the last scan. */
static inline void modules_catch_up(struct modules *m, uint64_t ns) {
    if (__builtin_expect(load_acquire(&modules_unloads) != load_relaxed(&m->unloads_seen), 0))
        modules_scan(m, ns);
}

/* A number that tells two stacks of equal addresses apart if code at one of them was replaced. */
uint32_t modules_remap(const struct modules *m, const uint64_t *pcs, unsigned depth);

#endif
