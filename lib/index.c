#include "index.h"

#include <stddef.h>

#include "atomic.h"
#include "trace_writer.h"

bool index_init(struct index *index, unsigned bits) {
    index->refs = trace_private(sizeof(uint32_t) << bits);
    index->mask = (1u << bits) - 1;
    return index->refs;
}

/* A quarter stays empty, so that every search ends soon. */
static uint32_t capacity(const struct index *index) {
    return index->mask - index->mask / 4;
}

bool index_has_room(const struct index *index) {
    return load_relaxed(&index->used) < capacity(index);
}

uint32_t index_find(const struct index *index, uint64_t hash, index_match *match, const void *owner,
                    const void *key) {
    for (uint32_t at = (uint32_t)hash & index->mask;; at = (at + 1) & index->mask) {
        /* Pairs with the swap in index_add: the record is complete. */
        uint32_t ref = load_acquire(&index->refs[at]);
        if (!ref || match(owner, ref, key))
            return ref;
    }
}

uint32_t index_add(struct index *index, uint64_t hash, uint32_t ref, index_match *match,
                   const void *owner, const void *key) {
    if (add_relaxed(&index->used, 1) >= capacity(index)) {
        add_relaxed(&index->used, -1);
        return 0;
    }
    for (uint32_t at = (uint32_t)hash & index->mask;; at = (at + 1) & index->mask) {
        uint32_t seen = 0;
        if (cas_acq_rel(&index->refs[at], &seen, ref))
            return ref;
        if (match(owner, seen, key)) {
            add_relaxed(&index->used, -1);
            return seen;
        }
    }
}
