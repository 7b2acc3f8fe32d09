/*
 * What the framework says and what the driver says, put together: allocated + cached = reserved;
 * + other libraries + pools = what the process took from the driver. At the end of work.
 *
 * The tensor ledger lies inside the driver's: the two are never summed. Called by the renderers; no
 * state.
 */
#ifndef TOOLS_RECONCILE_H
#define TOOLS_RECONCILE_H

#include "profile.h"

struct reconciliation {
    bool tensors;       /* the framework reported some: allocated and cached have a meaning */
    bool segments;      /* its segments were found: reserved and cached are known */
    uint64_t allocated; /* as torch.cuda.memory_allocated() */
    uint64_t reserved;  /* as torch.cuda.memory_reserved() */
    int64_t cached;     /* reserved - allocated */
    uint64_t pools;     /* stream-ordered */
    uint64_t other;     /* the rest: other libraries */
    uint64_t driver;    /* the device's total */
    uint64_t segment_allocs, tensor_allocs;
};

/* Adds what a process holds on the device of this ordinal. */
void reconcile(struct reconciliation *sum, const struct profile *profile, unsigned ordinal);

/* How much of the framework's demand its cache met: 1 - segments taken / tensors handed out. False:
   not known. */
bool reconcile_reuse_rate(const struct reconciliation *sum, double *rate);

#endif
