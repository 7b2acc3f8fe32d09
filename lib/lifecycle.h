/*
 * Start, fork and end of tracing in a process; owns the state word. The only module that knows all
 * others.
 *
 * Whatever belongs to one process's trace lies in memory that the kernel empties in a forked child
 * (MADV_WIPEONFORK): there everything is as before the first event, without a handler having run
 * and without asking for the process id. A vfork or CLONE_VM child shares its parent's memory and
 * books.
 */
#ifndef CUHEAP_LIFECYCLE_H
#define CUHEAP_LIFECYCLE_H

#include <stddef.h>
#include <stdint.h>

#include "atomic.h"

struct recorder;

enum lifecycle_state {
    LIFECYCLE_NEW = 0, /* also a forked child that has not allocated yet */
    LIFECYCLE_STARTING,
    LIFECYCLE_ON,
    LIFECYCLE_OFF, /* asked for, or no trace could be made */
};

/* The recorder if this process has a trace; NULL otherwise. */
struct recorder *lifecycle_recorder(void);

/* The same, beginning the trace at the first call. Any thread; bounded waiting at the start only.
 */
struct recorder *lifecycle_start(void);

#endif
