/*
 * Records of the trace whose subject has ended (mappings, modules of the GPU), to be written anew
 * once enough later ones have ended, so that a program that maps and unmaps for days does not fill
 * the file. Any thread, no locks.
 */
#ifndef CUHEAP_REUSE_H
#define CUHEAP_REUSE_H

#include <stdint.h>

#include "trace_writer.h"

#define REUSE_KEPT  4096 /* the latest ended ones stay as they are */
#define REUSE_SLOTS 8192

struct reuse {
    uint32_t refs[REUSE_SLOTS];
    uint64_t ended, taken;
};

void reuse_ended(struct reuse *reuse, uint32_t ref);

/* A record to be written: an ended one, or a new one at the end of the section. Its first word, the
   state, is 0. NULL: no room (counted). */
void *reuse_record(struct reuse *reuse, struct trace_writer *trace, enum trace_section section,
                   uint32_t bytes);

#endif
