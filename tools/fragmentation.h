/*
 * Fragmentation as five numbers, never as one: what rounding to pages costs, what pools keep, what
 * a framework keeps, the holes inside its segments, and memory that is held but mapped nowhere.
 *
 * At the end of work, at each failure that has a copy of the live table, and in the end. What is
 * not known is marked so: addresses at the end of work are known only where nothing was freed
 * afterwards, or where a failure came later.
 *
 * Called by the findings and the renderers; one thread.
 */
#ifndef TOOLS_FRAGMENTATION_H
#define TOOLS_FRAGMENTATION_H

#include "blocks.h"

#define FRAGMENTATION_PAGE (2ull << 20) /* what the driver takes memory by */

#define FRAGMENTATION_MOMENTS(X)                                                                   \
    X(END_OF_WORK, "end_of_work")                                                                  \
    X(FAILURE, "failure")                                                                          \
    X(EXIT, "exit")

enum fragmentation_moment {
#define X(name, key) FRAGMENTATION_##name,
    FRAGMENTATION_MOMENTS(X)
#undef X
};
extern const char *const fragmentation_moments[];

struct fragmentation {
    enum fragmentation_moment at;
    uint16_t device;
    uint64_t ns;

    bool rounding_known;
    uint64_t plain_bytes;          /* of cuMemAlloc and cuMemAllocPitch */
    uint64_t rounding_waste_bytes; /* the pages they touch, less their bytes */

    bool cached_known;
    int64_t cached_bytes; /* segments less tensors */

    bool holes_known;
    uint64_t segment_bytes;
    uint64_t segments;
    uint64_t holes_bytes;
    uint64_t holes;
    uint64_t largest_hole_bytes;
    double external_ratio;  /* 1 - largest / sum; 0 without holes */
    uint64_t request_bytes; /* of the failure; 0: none */
    double unusable_ratio;  /* share of the holes' bytes in holes smaller than that */

    bool virtual_known;      /* of now; at other moments it is not kept */
    uint64_t reserved_bytes; /* addresses */
    uint64_t mapped_bytes;
    uint64_t held_unmapped_bytes; /* physical memory that is mapped nowhere */
    uint64_t held_unmapped;       /* handles */
};

/* What a pool reserved beyond what is used, when that was last asked of the driver. */
struct pool_slack {
    const struct trace_pool *pool;
    bool known;
    uint64_t slack_bytes;
    double slack_ratio; /* of what is reserved */
};
struct pool_slack fragmentation_pool(const struct trace_pool *pool);
/* Of all live pools of a device that were ever sampled. */
uint64_t fragmentation_pools_slack(const struct trace *trace, unsigned device);

struct fragmentations {
    struct fragmentation *list;
    size_t count;
};
/* Of one device of a process, in the order of time, from what is live in the end and from the
   copies in the trace. False only when memory is exhausted. */
bool fragmentation_build(const struct profile *profile, unsigned device, const struct blocks *live,
                         struct fragmentations *found);
void fragmentation_free(struct fragmentations *found);

/* The latest of a moment; NULL: there is none. */
const struct fragmentation *fragmentation_at(const struct fragmentations *found,
                                             enum fragmentation_moment at);

#endif
