/*
 * What is known of frameworks that hand out GPU memory themselves: which code is theirs, which of
 * the driver's blocks are their pools, which settings make the inside of those visible, and where
 * PyTorch's tensors are when its allocator does not report them.
 *
 * One table of code and one of pools; the reports and cuheap-run take from them. Called by blame.c,
 * code_owner.c, view.c, the renderers, reconcile.c and cmd_run.c; no state.
 */
#ifndef TOOLS_FRAMEWORKS_H
#define TOOLS_FRAMEWORKS_H

#include "backtrace.h"

#include <stdio.h>

/* Whether a native library, or a Python package below site-packages, is a framework's. */
bool framework_has_library(const char *path);
bool framework_has_package(const char *name, size_t bytes);

/* Whose pool a block of the driver is whose contents nobody reports. */
struct framework_pool {
    const char *name;           /* "JAX" */
    const char *const *modules; /* parts of a library's path, one of which tells; NULL-terminated */
    const char *variable;       /* what makes the inside visible; NULL: no variable does */
    const char *const *values;  /* each of which does; the first is what --see-through sets */
    const char *remedy;         /* the same for people */
};

extern const struct framework_pool framework_pools[];
extern const size_t framework_pool_count;

/* The pool that a block taken through this stack belongs to: that of the library which called the
   CUDA runtime. NULL: none that is known, or the process has a setting that makes it visible. */
const struct framework_pool *framework_pool_of(const struct trace *trace,
                                               const struct backtrace *backtrace);

/* Variables that let the driver see single buffers; name NULL ends the list. */
struct framework_setting {
    const char *name;
    const char *value;
};
extern const struct framework_setting framework_see_through[];

/* Sets them in the environment of this process, but for those that are set; says so, and whose
   pools no variable opens. */
void framework_set_see_through(FILE *messages);

/* The value of a variable as the trace has it; NULL: not set, or not recorded. */
const char *framework_variable(const struct trace *trace, const char *name);

/* Why PyTorch's tensors, if there are any, are in the driver ledger; NULL: they are not. */
const char *framework_silent_tensors(const struct trace *trace);

/* Whether PyTorch was told to map its segments bit by bit (expandable_segments). */
bool framework_expandable_segments(const struct trace *trace);

#endif
