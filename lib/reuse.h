/*
 * Records of the trace whose subject has ended (mappings, modules of the GPU), to be written anew
 * once enough later ones have ended, so that a program that maps and unmaps for days does not fill
 * the file. Any thread, no locks.
 */
#ifndef CUHEAP_REUSE_H
#define CUHEAP_REUSE_H

#include <stdint.h>

#define REUSE_KEPT  4096 /* the latest ended ones stay as they are */
#define REUSE_SLOTS 8192

struct reuse {
    uint32_t refs[REUSE_SLOTS];
    uint64_t ended, taken;
};

void reuse_ended(struct reuse *reuse, uint32_t ref);

/* The ref of a record to write anew; 0: none yet. */
uint32_t reuse_take(struct reuse *reuse);

#endif
