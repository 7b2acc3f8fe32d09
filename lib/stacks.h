/*
 * Stacks of the calling thread, each kept once in the trace.
 *
 * record calls this for every allocation; any thread; no locks.
 */
#ifndef CUHEAP_STACKS_H
#define CUHEAP_STACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "index.h"
#include "modules.h"
#include "trace_writer.h"
#include "unwind.h"

#define STACKS_DEPTH_MAX  64
#define STACKS_INDEX_BITS 18

struct stacks {
    struct trace_writer *trace;
    struct modules *modules;
    struct index index;
    uint32_t depth;
};

bool stacks_init(struct stacks *stacks, struct trace_writer *trace, struct modules *modules,
                 uint32_t depth);

/*
 * The ref of the native stack that begins at `from` and ends before `stop`; 0: empty, or none to be
 * had (counted). ns: now.
 */
uint32_t stacks_capture(struct stacks *stacks, const struct registers *from,
                        const struct code_range *stop, uint64_t ns);

#endif
