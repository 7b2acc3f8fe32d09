/*
 * Which of the driver's blocks are segments: memory that a framework took to hand out tensors from.
 * They are its cache, not anybody's leak.
 *
 * A block is a segment if the library saw a tensor land in it, or if a live tensor lies in it now;
 * physical memory, as of expandable segments, by the former alone.
 * Called by profile.c; one thread.
 */
#ifndef TOOLS_SEGMENTS_H
#define TOOLS_SEGMENTS_H

#include "profile.h"

/* Fills the cache_ fields of the sites of a profile that is complete otherwise. False only when
   memory is exhausted. */
bool segments_find(struct profile *profile);

/* Whether the site took blocks of both sorts: they were told apart one by one. */
bool segments_mixed(const struct profile_site *site);

#endif
