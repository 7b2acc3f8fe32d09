/*
 * The lock-free table of what is live: (space, address) -> (bytes, site, context).
 *
 * Knows no CUDA and no file: it works in zeroed memory that its owner gives. record calls it; any
 * thread. A key sits in one of two buckets of TABLE_BUCKET slots, so that a hit and a miss look at
 * no more than 2 * TABLE_BUCKET slots a table whatever was freed before: an erased slot is empty
 * again, there are no tombstones. When a table fills, one thread adds a larger one and the others
 * go on; entries stay where they are until they are freed.
 *
 * A slot's word is its whole state and changes by compare-and-swap alone:
 *
 *   EMPTY -> BUSY -> LIVE        insert: the other fields are written while BUSY
 *   LIVE -> FREEING -> EMPTY     free: marked before the driver is asked, erased after its success
 *   FREEING -> LIVE              the driver refused
 *   FREEING -> BUSY -> LIVE      insert over it: the driver handed the address out again before the
 *                                freeing thread came back; the generation tells that thread
 *   LIVE -> BUSY -> LIVE         insert over it: a free was never seen
 *
 * and of entries that are counts:
 *
 *   EMPTY -> BUSY -> JOINING     refer: its thread looks whether another one joins with the key
 *   JOINING -> LIVE              nobody does
 *   JOINING -> EMPTY             somebody does: it begins again
 *   LIVE -> LIVE                 one more or one less
 *   FREEING -> LIVE              refer to it, with another generation
 */
#ifndef CUHEAP_TABLE_H
#define CUHEAP_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuheap/trace_format.h"

#define TABLE_BUCKET 8
#define TABLE_LEVELS 16

struct table {
    /* Address of a level's slots (aligned to 64), with log2 of their number in the low 6 bits. */
    uintptr_t levels[TABLE_LEVELS];
    uint32_t used; /* levels; they fill in order */
    uint32_t growing;
    /* Zeroed memory for `count` slots (a power of two), aligned to 64; or NULL. Called without any
       lock, maybe by two threads at once. */
    struct trace_slot *(*more)(void *owner, uint32_t count);
    void *owner;
};

struct table_entry {
    uint64_t address;
    uint64_t bytes;
    uint32_t site;
    uint32_t time_ms;
    uint16_t context;
    uint16_t pool;
    uint8_t space; /* enum trace_space; of a private table, the owner's own */
    uint8_t flags;
};

enum table_result {
    TABLE_INSERTED,
    TABLE_SUPERSEDED, /* over a FREEING one, returned in *old: its free is ours to book */
    TABLE_REPLACED,   /* over a LIVE one, returned in *old: its free was never seen */
    TABLE_PRESENT,    /* table_refer: it was there, and is counted once more */
    TABLE_FULL,
};

/* What a free holds between asking the driver and its answer. */
struct table_mark {
    struct trace_slot *slot; /* NULL: no such entry */
    uint64_t word;           /* as marked */
    uint64_t bytes;
    uint32_t site;
    uint16_t context;
    uint16_t pool;
};

/* Makes the first level. False if there was no memory. */
bool table_init(struct table *t, uint32_t count, struct trace_slot *(*more)(void *, uint32_t),
                void *owner);

enum table_result table_insert(struct table *t, const struct table_entry *entry,
                               struct table_entry *old);

/* Adds flags (TRACE_SLOT_ bits) to a live entry. Its site; 0: no such entry, or being freed. */
uint32_t table_add_flags(struct table *t, unsigned space, uint64_t address, uint8_t flags);

struct table_mark table_mark_freeing(struct table *t, unsigned space, uint64_t address);

/* What an earlier step marked, and what is live: likewise, but changes nothing. */
struct table_mark table_marked(struct table *t, unsigned space, uint64_t address);
struct table_mark table_live(struct table *t, unsigned space, uint64_t address);

/*
 * Visits each entry that is in this state (TRACE_SLOT_LIVE or _FREEING). Cold. The visitor may end
 * a mark, or begin one.
 */
typedef void table_visit(void *owner, struct table_mark *mark);
void table_walk(struct table *t, unsigned state, table_visit *visit, void *owner);

/* Copies the slots that are LIVE or FREEING, as far as there is room. How many there are; cold. */
uint64_t table_copy(struct table *t, struct trace_slot *to, uint64_t room);

/* LIVE -> FREEING for an entry as it was found. False: it changed meanwhile. */
bool table_begin_freeing(struct table_mark *mark);

/* After the driver's success. False: superseded meanwhile, and booked by who did that. */
bool table_erase(const struct table_mark *mark);

/* After the driver's refusal. False: superseded meanwhile: the driver did free it. */
bool table_unmark(const struct table_mark *mark);

/*
 * Entries of a private table that are counts: no bytes, no site, and in place of context and pool
 * how often the key is referred to. However many threads come with a new key at once, it has one
 * entry. A count of one ends as other entries do: marked, then erased or superseded.
 */
enum table_result table_refer(struct table *t, unsigned space, uint64_t address);

/* Only what is there already. False: it is not, or is being freed. */
bool table_refer_again(struct table *t, unsigned space, uint64_t address);

/* One less than as it was found (table_live), of two or more. False: it changed meanwhile. */
bool table_refer_less(const struct table_mark *mark);

static inline uint32_t table_count(const struct table_mark *mark) {
    return mark->context | (uint32_t)mark->pool << 16;
}

#endif
