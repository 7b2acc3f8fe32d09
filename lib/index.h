/*
 * A lock-free index of records that are only ever added: hash -> ref in the trace.
 *
 * sites and stacks find their records by it. It lives in private memory, since a reader does not
 * need it. Any thread. Records are published by their owner before they are added here; when two
 * threads add the same record at once, one wins and the other takes the winner's.
 */
#ifndef CUHEAP_INDEX_H
#define CUHEAP_INDEX_H

#include <stdbool.h>
#include <stdint.h>

struct index {
    uint32_t *refs; /* 0: empty */
    uint32_t mask;
    uint32_t used;
};

/* Does the record at `ref` have this key? */
typedef bool index_match(const void *owner, uint32_t ref, const void *key);

/* Room for 2^bits entries, of which three quarters are used. False if there was no memory. */
bool index_init(struct index *index, unsigned bits);

/* Can another record be added? To be asked before one is made. */
bool index_has_room(const struct index *index);

/* The ref, or 0. */
uint32_t index_find(const struct index *index, uint64_t hash, index_match *match, const void *owner,
                    const void *key);

/*
 * Adds `ref`. Returns it; or the ref of the same key that another thread added first; or 0 if the
 * index is full.
 */
uint32_t index_add(struct index *index, uint64_t hash, uint32_t ref, index_match *match,
                   const void *owner, const void *key);

#endif
