/*
 * Where the memory of a device is, as one sum that starts with what PyTorch tells of itself:
 * allocated + cached = reserved; + other libraries + pools = what the driver gave; + untracked =
 * used on the device. Taken at the end of work. What is not known is marked so and never 0.
 *
 * Called by the renderers; no state.
 */
#ifndef TOOLS_RECONCILE_H
#define TOOLS_RECONCILE_H

#include "profile.h"

/* name, JSON key, sign before it in the sum, words for it */
#define RECONCILIATION(X)                                                                          \
    X(ALLOCATED, "allocated_bytes", ' ', "allocated: tensors, as torch.cuda.memory_allocated()")   \
    X(CACHED, "cached_bytes", '+', "cached by PyTorch, free for its next tensors")                 \
    X(RESERVED, "reserved_bytes", '=', "reserved, as torch.cuda.memory_reserved()")                \
    X(OTHER, "other_bytes", '+', "other libraries and the program itself")                         \
    X(POOL, "pool_bytes", '+', "pools: cudaMallocAsync")                                           \
    X(DRIVER, "driver_bytes", '=', "taken from the driver")                                        \
    X(UNTRACKED, "untracked_bytes", '+', "untracked: contexts, code, other processes")             \
    X(USED, "used_bytes", '=', "used on the device")

enum reconciliation_line {
#define X(name, key, sign, words) RECONCILE_##name,
    RECONCILIATION(X)
#undef X
        RECONCILE_LIMIT
};

struct reconciliation {
    bool tensors; /* a tensor was reported on this device */
    bool known[RECONCILE_LIMIT];
    uint64_t bytes[RECONCILE_LIMIT];
    const char *unknown_reserved; /* why it is not known; NULL: it is */
    size_t mixed_sites;           /* took segments and other blocks: told apart one by one */
    bool reuse_known;
    double reuse_rate;    /* 1 - segments taken / tensors made */
    uint64_t tensor_ns;   /* ends of work: the ledgers' own */
    uint64_t driver_ns;   /* 0: no such allocation */
    size_t process_count; /* summed */
};

struct reconciliation reconcile(const struct profile *profile, unsigned device);

/* Adds a further process on the same device. */
void reconciliation_add(struct reconciliation *sum, const struct reconciliation *more);

#endif
