/*
 * The blocks that were live at one moment, by address: from the live table, or from its copy at a
 * failure. Joined with each other: which tensors lie in which segment, which handles are mapped.
 *
 * Called by fragmentation.c, failures.c and findings; one thread.
 */
#ifndef TOOLS_BLOCKS_H
#define TOOLS_BLOCKS_H

#include "profile.h"

struct block {
    uint64_t address; /* or handle */
    uint64_t bytes;
    uint32_t site; /* index in profile.sites; SITE_NONE: names none */
    uint16_t device;
    uint16_t pool; /* by its number; 0: of none */
    uint8_t space; /* enum trace_space */
    uint8_t kind;  /* enum trace_kind; 0: not known */
    uint8_t flags; /* TRACE_SLOT_SEGMENT, TRACE_SLOT_EXPORTED */
};
#define SITE_NONE UINT32_MAX

struct blocks {
    uint64_t ns;
    struct block *list; /* by space, device and address */
    size_t count;
};

/* What is live now, or was in the end. False only when memory is exhausted. */
bool blocks_live(const struct profile *profile, uint64_t ns, struct blocks *blocks);
/* What was live at a failure; its ref names no copy: none. */
bool blocks_of_copy(const struct profile *profile, uint32_t ref, struct blocks *blocks);
void blocks_free(struct blocks *blocks);

/* Those of one space on one device. */
struct block_list {
    const struct block *list;
    size_t count;
};
struct block_list blocks_of(const struct blocks *blocks, enum trace_space space, unsigned device);

/* A stretch of memory in which smaller blocks are handed out. */
struct arena {
    uint64_t address;
    uint64_t bytes;
    uint64_t used_bytes;
    bool segment;            /* has held tensors before, if it holds none now */
    struct block_list parts; /* that begin in it */
    uint32_t site;           /* index in profile.sites; SITE_NONE: mapped bit by bit */
};

/*
 * The segments of a device, by address: blocks that hold or have held tensors, with those; where
 * PyTorch maps its segments bit by bit, the mapped stretches that hold some (from the RANGES, as
 * they are in the end). NULL with *count 0: there are none; with SIZE_MAX: memory is exhausted.
 */
struct arena *blocks_segments(const struct profile *profile, const struct blocks *blocks,
                              unsigned device, size_t *count);

#endif
