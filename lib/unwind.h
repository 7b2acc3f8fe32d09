/*
 * Walks the native stack of the calling thread.
 *
 * A frame rule says how to get from one frame to its caller: where the frame begins, where return
 * address and frame pointer are. libunwind works it out once for a return address, by a step over a
 * made-up frame whose every register and memory word names itself; it never touches the real stack,
 * opens no pipe, asks the loader nothing. The rules are kept in a fixed cache, and walking a warm
 * stack is loads and additions. After a dlclose all rules are made anew.
 *
 * stacks calls this; any thread; no locks and no malloc but in unwind_load. What is read from the
 * stack lies in pages that were found readable.
 */
#ifndef CUHEAP_UNWIND_H
#define CUHEAP_UNWIND_H

#include <stdbool.h>
#include <stdint.h>

#include "modules.h"

struct registers {
    uintptr_t pc; /* a return address */
    uintptr_t sp; /* of the frame that pc returns to */
    uintptr_t fp;
    const uintptr_t *return_slot; /* where pc is kept on the stack, maybe with a signature */
};

struct code_range {
    uintptr_t start, end;
};

/* The registers of the caller of the function that uses it (compiled with a frame pointer). */
#define CALLER_REGISTERS()                                                                         \
    ((struct registers){(uintptr_t)__builtin_return_address(0), (uintptr_t)__builtin_dwarf_cfa(),  \
                        *(const uintptr_t *)__builtin_frame_address(0),                            \
                        (const uintptr_t *)__builtin_frame_address(0) + 1})

typedef void *dlsym_function(void *handle, const char *name);

/*
 * Finds and loads libunwind, once, beside this library or on the system. Takes the loader's lock
 * and uses malloc: to be called where the program itself is in the loader. Without libunwind the C
 * library's backtrace is made ready instead. `find` is the real dlsym.
 */
void unwind_load(dlsym_function *find);

/* After a fork: may new rules be made? (The unwinder's own lock may have been held.) */
void unwind_forked(void);

enum trace_unwinder unwind_kind(void);

/*
 * Fills pcs, innermost first, with at most `max` return addresses from `from` on, up to the first
 * one in `stop`; returns their number. *flags gets TRACE_STACK_TRUNCATED, _INCOMPLETE or
 * _TO_PYTHON; losses are counted in the trace.
 */
unsigned unwind_walk(struct modules *modules, const struct registers *from,
                     const struct code_range *stop, uint64_t *pcs, unsigned max, uint32_t *flags);

#endif
