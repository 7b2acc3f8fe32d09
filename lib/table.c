#include "table.h"

#include "atomic.h"

#define JOINING         (TRACE_SLOT_FREEING + 1) /* table_refer has yet to look around */
#define STATE_BITS      7ull
#define GENERATION_ONE  (1ull << 16)
#define GENERATION_MASK (0xffffull << 16)
#define COUNT_ONE       (1ull << 32)
#define GROWTH          8u                 /* each level is this many times the one before ... */
#define GROWTH_LEAST    2u                 /* ... or this, when the owner has no more */
#define FILL_LIMIT      (TABLE_BUCKET - 2) /* both buckets hold this many: time to grow */

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

static uint64_t key_hash(unsigned space, uint64_t address) {
    return mix(address + space * 0xd6e8feb86659fd93ull);
}

static uint32_t level_count(uintptr_t level) {
    return 1u << (level & 63);
}

/* The two buckets of a key: independent bits of one hash. */
static struct trace_slot *bucket_of(uintptr_t level, uint64_t hash, int which) {
    uint32_t bucket = (uint32_t)(which ? hash >> 32 : hash);
    struct trace_slot *slots = (struct trace_slot *)(level & ~(uintptr_t)63);
    return slots + (bucket & (level_count(level) / TABLE_BUCKET - 1)) * TABLE_BUCKET;
}

static uintptr_t pack_level(struct trace_slot *slots, uint32_t count) {
    return (uintptr_t)slots | (uintptr_t)__builtin_ctz(count);
}

static uint64_t word_for(const struct table_entry *entry, uint64_t before, unsigned state) {
    uint64_t generation = (before + GENERATION_ONE) & GENERATION_MASK;
    return state | (uint64_t)entry->space << 3 | (uint64_t)entry->flags << 8 | generation |
           (uint64_t)entry->context << 32 | (uint64_t)entry->pool << 48;
}

static bool holds(const struct trace_slot *slot, uint64_t word, unsigned space, uint64_t address) {
    unsigned state = TRACE_SLOT_STATE(word);
    return (state == TRACE_SLOT_LIVE || state == TRACE_SLOT_FREEING) &&
           TRACE_SLOT_SPACE(word) == space && load_relaxed(&slot->address) == address;
}

/* The slot that holds a key, newest level first, and its word; NULL if none. */
static struct trace_slot *find(struct table *t, unsigned space, uint64_t address, uint64_t *word) {
    uint64_t hash = key_hash(space, address);
    /* Pairs with the release in add_level. */
    for (uint32_t level = load_acquire(&t->used); level-- > 0;)
        for (int which = 0; which < 2; which++) {
            struct trace_slot *slot = bucket_of(t->levels[level], hash, which);
            for (int i = 0; i < TABLE_BUCKET; i++, slot++) {
                /* Pairs with the release in fill. */
                uint64_t seen = load_acquire(&slot->word);
                if (holds(slot, seen, space, address)) {
                    *word = seen;
                    return slot;
                }
            }
        }
    return NULL;
}

/* Writes the fields of a slot whose word is BUSY by our own swap. */
static inline void write_fields(struct trace_slot *slot, const struct table_entry *entry) {
    store_relaxed(&slot->address, entry->address);
    store_relaxed(&slot->bytes, entry->bytes);
    store_relaxed(&slot->site, entry->site);
    store_relaxed(&slot->time_ms, entry->time_ms);
}

/* And publishes it. */
static void fill(struct trace_slot *slot, const struct table_entry *entry, uint64_t busy) {
    write_fields(slot, entry);
    /* Pairs with the acquire in find and with the reader of the trace. */
    store_release(&slot->word, (busy & ~STATE_BITS) | TRACE_SLOT_LIVE);
}

static int bucket_used(struct trace_slot *slot, struct trace_slot **empty) {
    int used = 0;
    *empty = NULL;
    for (int i = 0; i < TABLE_BUCKET; i++, slot++) {
        if (TRACE_SLOT_STATE(load_relaxed(&slot->word)) != TRACE_SLOT_EMPTY)
            used++;
        else if (!*empty)
            *empty = slot;
    }
    return used;
}

/*
 * Takes an empty slot of the emptier bucket: BUSY for the entry, its word ours alone. NULL: there
 * was none. *crowded: both are nearly full.
 */
static struct trace_slot *claim_in_level(uintptr_t level, const struct table_entry *entry,
                                         bool *crowded) {
    uint64_t hash = key_hash(entry->space, entry->address);
    for (;;) {
        struct trace_slot *empty[2];
        int used[2];
        for (int which = 0; which < 2; which++)
            used[which] = bucket_used(bucket_of(level, hash, which), &empty[which]);
        *crowded = used[0] >= FILL_LIMIT && used[1] >= FILL_LIMIT;
        struct trace_slot *slot = used[1] < used[0] ? empty[1] : empty[0];
        if (!slot)
            return NULL;
        uint64_t before = load_relaxed(&slot->word);
        if (TRACE_SLOT_STATE(before) != TRACE_SLOT_EMPTY)
            continue;
        uint64_t busy = word_for(entry, before, TRACE_SLOT_BUSY);
        if (cas_acq_rel(&slot->word, &before, busy)) /* pairs with table_erase */
            return slot;
    }
}

/*
 * Adds a level after the `used` that the caller saw. Two threads may both do this: one wins, the
 * other's memory stays unused. False if the owner has no memory and nobody else added one.
 */
static bool add_level(struct table *t, uint32_t used) {
    if (used == TABLE_LEVELS)
        return false;
    uint32_t last = level_count(t->levels[used - 1]);
    uint32_t count = last * GROWTH;
    struct trace_slot *slots = NULL;
    while (!(slots = t->more(t->owner, count)) && count > last * GROWTH_LEAST)
        count /= 2;
    if (!slots)
        return load_acquire(&t->used) > used;
    uintptr_t none = 0;
    cas_acq_rel(&t->levels[used], &none, pack_level(slots, count));
    /* Winner or not: there is a level now. Pairs with the acquire in find, and with alone. */
    cas_seq_cst(&t->used, &used, used + 1);
    return true;
}

/* One winner grows the table ahead of need; whoever finds that going on leaves it alone. */
static void grow_ahead(struct table *t, uint32_t used) {
    uint32_t idle = 0;
    if (!cas_acq_rel(&t->growing, &idle, 1u))
        return;
    if (load_acquire(&t->used) == used)
        add_level(t, used);
    store_release(&t->growing, 0u);
}

static inline struct trace_slot *claim_new(struct table *t, const struct table_entry *entry) {
    for (;;) {
        uint32_t used = load_acquire(&t->used);
        bool crowded, ignored;
        struct trace_slot *slot = claim_in_level(t->levels[used - 1], entry, &crowded);
        if (crowded && used < TABLE_LEVELS)
            grow_ahead(t, used);
        if (slot)
            return slot;
        if (load_acquire(&t->used) > used)
            continue;
        for (uint32_t level = used - 1; !slot && level-- > 0;)
            slot = claim_in_level(t->levels[level], entry, &ignored);
        if (slot || !add_level(t, used))
            return slot;
    }
}

bool table_init(struct table *t, uint32_t count, struct trace_slot *(*more)(void *, uint32_t),
                void *owner) {
    t->more = more;
    t->owner = owner;
    struct trace_slot *slots = more(owner, count);
    if (!slots)
        return false;
    t->levels[0] = pack_level(slots, count);
    store_release(&t->used, 1u); /* pairs with the acquire in find */
    return true;
}

enum table_result table_insert(struct table *t, const struct table_entry *entry,
                               struct table_entry *old) {
    uint64_t word;
    struct trace_slot *slot;
    while ((slot = find(t, entry->space, entry->address, &word))) {
        uint64_t busy = word_for(entry, word, TRACE_SLOT_BUSY);
        uint64_t bytes = load_relaxed(&slot->bytes);
        uint32_t site = load_relaxed(&slot->site);
        /* Pairs with table_mark_freeing, table_erase and table_unmark: one of us sees the other. */
        if (!cas_acq_rel(&slot->word, &word, busy))
            continue; /* erased, marked or unmarked just now: look again */
        old->bytes = bytes;
        old->site = site;
        old->pool = (uint16_t)TRACE_SLOT_POOL(word);
        fill(slot, entry, busy);
        return TRACE_SLOT_STATE(word) == TRACE_SLOT_FREEING ? TABLE_SUPERSEDED : TABLE_REPLACED;
    }
    if (!(slot = claim_new(t, entry)))
        return TABLE_FULL;
    fill(slot, entry, load_relaxed(&slot->word));
    return TABLE_INSERTED;
}

/* ---- entries that are counts ----------------------------------------------------------------- */

/* False: the key is there. Who is only joining has to begin again. */
static bool gives_way(struct trace_slot *slot, const struct table_entry *entry) {
    uint64_t word = load_seq_cst(&slot->word);
    for (;;) {
        if (holds(slot, word, entry->space, entry->address))
            return false;
        if (TRACE_SLOT_STATE(word) != JOINING || TRACE_SLOT_SPACE(word) != entry->space ||
            load_relaxed(&slot->address) != entry->address)
            return true;
        if (cas_acq_rel(&slot->word, &word, word & GENERATION_MASK)) /* pairs with join */
            return true;
    }
}

/* Of two who join at once, at least one sees the other: each has published itself first. */
static bool alone(struct table *t, const struct table_entry *entry, const struct trace_slot *mine) {
    uint64_t hash = key_hash(entry->space, entry->address);
    for (uint32_t level = load_seq_cst(&t->used); level-- > 0;)
        for (int which = 0; which < 2; which++) {
            struct trace_slot *slot = bucket_of(t->levels[level], hash, which);
            for (int i = 0; i < TABLE_BUCKET; i++, slot++)
                if (slot != mine && !gives_way(slot, entry))
                    return false;
        }
    return true;
}

/* False: somebody else has joined first, or made us begin again. */
static bool join(struct table *t, const struct table_entry *entry, struct trace_slot *slot) {
    uint64_t word = (load_relaxed(&slot->word) & ~STATE_BITS) | JOINING;
    write_fields(slot, entry);
    exchange_seq_cst(&slot->word, word);
    bool joins = alone(t, entry, slot);
    uint64_t next = joins ? (word & ~STATE_BITS) | TRACE_SLOT_LIVE : word & GENERATION_MASK;
    return cas_acq_rel(&slot->word, &word, next) && joins; /* pairs with gives_way and find */
}

/* One more of a live entry; of one that is being freed, a first one of the next. */
static uint64_t counted_once_more(uint64_t word) {
    if (TRACE_SLOT_STATE(word) == TRACE_SLOT_LIVE)
        return word + COUNT_ONE;
    uint64_t generation = (word + GENERATION_ONE) & GENERATION_MASK;
    return (word & 0xffffu & ~STATE_BITS) | TRACE_SLOT_LIVE | generation | COUNT_ONE;
}

enum table_result table_refer(struct table *t, unsigned space, uint64_t address) {
    const struct table_entry entry = {.space = (uint8_t)space, .address = address, .context = 1};
    for (;;) {
        uint64_t word;
        struct trace_slot *slot = find(t, space, address, &word);
        if (slot) {
            bool live = TRACE_SLOT_STATE(word) == TRACE_SLOT_LIVE;
            /* Pairs with table_recount, table_mark_freeing and table_erase. */
            if (cas_acq_rel(&slot->word, &word, counted_once_more(word)))
                return live ? TABLE_PRESENT : TABLE_SUPERSEDED;
            continue;
        }
        if (!(slot = claim_new(t, &entry)))
            return TABLE_FULL;
        if (join(t, &entry, slot))
            return TABLE_INSERTED;
    }
}

bool table_refer_again(struct table *t, unsigned space, uint64_t address) {
    uint64_t word;
    struct trace_slot *slot;
    while ((slot = find(t, space, address, &word)) && TRACE_SLOT_STATE(word) == TRACE_SLOT_LIVE)
        if (cas_acq_rel(&slot->word, &word, word + COUNT_ONE)) /* pairs as in table_refer */
            return true;
    return false;
}

bool table_refer_less(const struct table_mark *mark) {
    uint64_t word = mark->word;
    return cas_acq_rel(&mark->slot->word, &word, word - COUNT_ONE); /* pairs as in table_refer */
}

uint32_t table_add_flags(struct table *t, unsigned space, uint64_t address, uint8_t flags) {
    uint64_t word;
    struct trace_slot *slot;
    while ((slot = find(t, space, address, &word)) && TRACE_SLOT_STATE(word) == TRACE_SLOT_LIVE) {
        uint32_t site = load_relaxed(&slot->site);
        /* Pairs with table_mark_freeing: a mark holds the word with or without the flags. */
        if (cas_acq_rel(&slot->word, &word, word | (uint64_t)flags << 8))
            return site;
    }
    return 0;
}

static inline struct table_mark as_found(struct trace_slot *slot, uint64_t word) {
    return (struct table_mark){
        .slot = slot,
        .word = word,
        .bytes = load_relaxed(&slot->bytes),
        .site = load_relaxed(&slot->site),
        .context = (uint16_t)TRACE_SLOT_CONTEXT(word),
        .pool = (uint16_t)TRACE_SLOT_POOL(word),
    };
}

static inline bool begin_freeing(struct table_mark *mark) {
    uint64_t word = mark->word;
    mark->word = (word & ~STATE_BITS) | TRACE_SLOT_FREEING;
    /* Pairs with table_insert. Success also proves that bytes and site belong to this word. */
    return cas_acq_rel(&mark->slot->word, &word, mark->word);
}

bool table_begin_freeing(struct table_mark *mark) {
    return begin_freeing(mark);
}

struct table_mark table_mark_freeing(struct table *t, unsigned space, uint64_t address) {
    struct table_mark mark = {0};
    uint64_t word;
    struct trace_slot *slot;
    while ((slot = find(t, space, address, &word))) {
        if (TRACE_SLOT_STATE(word) == TRACE_SLOT_FREEING)
            break; /* freed twice at once: the other one answers for it */
        mark = as_found(slot, word);
        if (begin_freeing(&mark))
            return mark;
        mark.slot = NULL;
    }
    return mark;
}

/* The entry if it is in this state. */
static struct table_mark find_in_state(struct table *t, unsigned space, uint64_t address,
                                       unsigned state) {
    uint64_t word;
    struct trace_slot *slot = find(t, space, address, &word);
    return slot && TRACE_SLOT_STATE(word) == state ? as_found(slot, word) : (struct table_mark){0};
}

struct table_mark table_marked(struct table *t, unsigned space, uint64_t address) {
    return find_in_state(t, space, address, TRACE_SLOT_FREEING);
}

struct table_mark table_live(struct table *t, unsigned space, uint64_t address) {
    return find_in_state(t, space, address, TRACE_SLOT_LIVE);
}

void table_walk(struct table *t, unsigned state, table_visit *visit, void *owner) {
    /* Pairs with the release in add_level. */
    for (uint32_t level = load_acquire(&t->used); level-- > 0;) {
        struct trace_slot *slot = (struct trace_slot *)(t->levels[level] & ~(uintptr_t)63);
        for (uint32_t n = level_count(t->levels[level]); n-- > 0; slot++) {
            uint64_t word = load_acquire(&slot->word); /* pairs with the release in fill */
            if (TRACE_SLOT_STATE(word) != state)
                continue;
            struct table_mark mark = as_found(slot, word);
            visit(owner, &mark);
        }
    }
}

/* False: it is not live, or another entry took the slot while it was looked at. */
static bool read_slot(const struct trace_slot *slot, struct trace_slot *copy) {
    uint64_t word = load_acquire(&slot->word); /* pairs with the release in fill */
    unsigned state = TRACE_SLOT_STATE(word);
    if (state != TRACE_SLOT_LIVE && state != TRACE_SLOT_FREEING)
        return false;
    /* Acquire, so that the word is looked at again after them. */
    *copy = (struct trace_slot){
        .word = word,
        .address = load_acquire(&slot->address),
        .bytes = load_acquire(&slot->bytes),
        .site = load_acquire(&slot->site),
        .time_ms = load_acquire(&slot->time_ms),
    };
    return (load_relaxed(&slot->word) & GENERATION_MASK) == (word & GENERATION_MASK);
}

uint64_t table_copy(struct table *t, struct trace_slot *to, uint64_t room) {
    uint64_t count = 0;
    for (uint32_t level = load_acquire(&t->used); level-- > 0;) {
        struct trace_slot *slot = (struct trace_slot *)(t->levels[level] & ~(uintptr_t)63), copy;
        for (uint32_t n = level_count(t->levels[level]); n-- > 0; slot++) {
            if (!read_slot(slot, &copy))
                continue;
            if (count < room)
                to[count] = copy;
            count++;
        }
    }
    return count;
}

bool table_erase(const struct table_mark *mark) {
    uint64_t word = mark->word;
    /* The generation stays, so that a late look at this slot sees that it changed. */
    return cas_acq_rel(&mark->slot->word, &word, word & GENERATION_MASK);
}

bool table_unmark(const struct table_mark *mark) {
    uint64_t word = mark->word;
    return cas_acq_rel(&mark->slot->word, &word, (word & ~STATE_BITS) | TRACE_SLOT_LIVE);
}
