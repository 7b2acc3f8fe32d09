/*
 * The live table: single steps, bounds, real threads, and forced interleavings.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "table.h"

/* ---- memory for tables
 * ------------------------------------------------------------------------------ */

struct pool {
    int allowed; /* levels that may still be given */
    int given;
    void *memory[64]; /* of those: also of the loser's, where two threads made one */
};

static struct trace_slot *give(void *owner, uint32_t count) {
    struct pool *pool = owner;
    if (__atomic_fetch_sub(&pool->allowed, 1, __ATOMIC_RELAXED) <= 0)
        return NULL;
    int number = __atomic_fetch_add(&pool->given, 1, __ATOMIC_RELAXED);
    size_t bytes = count * sizeof(struct trace_slot);
    struct trace_slot *slots = aligned_alloc(65536, bytes < 65536 ? 65536 : bytes);
    memset(slots, 0, bytes);
    pool->memory[number % 64] = slots;
    return slots;
}

static void make(struct table *t, struct pool *pool, uint32_t count, int allowed) {
    *pool = (struct pool){.allowed = allowed};
    memset(t, 0, sizeof *t);
    cr_assert(table_init(t, count, give, pool));
}

static void drop(struct table *t) {
    struct pool *pool = t->owner;
    cr_assert_leq(pool->given, 64);
    for (int i = 0; i < pool->given; i++)
        free(pool->memory[i]);
}

static struct table_entry entry_of(uint64_t address, uint64_t bytes, uint32_t site) {
    return (struct table_entry){
        .address = address, .bytes = bytes, .site = site, .space = TRACE_SPACE_POINTER};
}

struct sum {
    uint64_t blocks, bytes;
};

static struct sum add_up(const struct table *t) {
    struct sum sum = {0};
    for (uint32_t level = 0; level < t->used; level++) {
        const struct trace_slot *slot = (void *)(t->levels[level] & ~(uintptr_t)63);
        for (uint32_t n = 1u << (t->levels[level] & 63); n--; slot++) {
            unsigned state = TRACE_SLOT_STATE(slot->word);
            if (state == TRACE_SLOT_LIVE || state == TRACE_SLOT_FREEING) {
                sum.blocks++;
                sum.bytes += slot->bytes;
            }
        }
    }
    return sum;
}

/* ---- single steps
 * ------------------------------------------------------------------------------------ */

Test(table, allocation_is_found_and_erased) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry entry = entry_of(0x7f0000000200, 1000, 5), old;
    cr_assert_eq(table_insert(&t, &entry, &old), TABLE_INSERTED);
    struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x7f0000000200);
    cr_assert_not_null(mark.slot);
    cr_assert_eq(mark.bytes, 1000);
    cr_assert_eq(mark.site, 5);
    cr_assert_eq(add_up(&t).bytes, 1000, "a block is live until the driver has said yes");
    cr_assert(table_erase(&mark));
    cr_assert_eq(add_up(&t).blocks, 0);
    cr_assert_null(table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x7f0000000200).slot);
    drop(&t);
}

Test(table, refused_free_leaves_the_block) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry entry = entry_of(0x1000, 7, 1), old;
    table_insert(&t, &entry, &old);
    struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000);
    cr_assert(table_unmark(&mark));
    mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000);
    cr_assert_not_null(mark.slot);
    drop(&t);
}

Test(table, second_free_at_once_gets_nothing) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry entry = entry_of(0x1000, 7, 1), old;
    table_insert(&t, &entry, &old);
    cr_assert_not_null(table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000).slot);
    cr_assert_null(table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000).slot);
    drop(&t);
}

Test(table, address_reused_before_the_free_came_back) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry first = entry_of(0x1000, 7, 1), second = entry_of(0x1000, 9, 2), old;
    table_insert(&t, &first, &old);
    struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000);
    cr_assert_eq(table_insert(&t, &second, &old), TABLE_SUPERSEDED);
    cr_assert_not(table_erase(&mark), "the slot belongs to the new block");
    cr_assert_not(table_unmark(&mark));
    struct sum sum = add_up(&t);
    cr_assert_eq(sum.blocks, 1);
    cr_assert_eq(sum.bytes, 9);
    drop(&t);
}

Test(table, allocation_over_a_live_block_tells_what_was_lost) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry first = entry_of(0x1000, 7, 1), second = entry_of(0x1000, 9, 2), old;
    table_insert(&t, &first, &old);
    cr_assert_eq(table_insert(&t, &second, &old), TABLE_REPLACED);
    cr_assert_eq(old.bytes, 7);
    cr_assert_eq(old.site, 1);
    cr_assert_eq(add_up(&t).blocks, 1);
    drop(&t);
}

Test(table, spaces_do_not_meet) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry entry = entry_of(0x1000, 7, 1), old;
    table_insert(&t, &entry, &old);
    entry.space = TRACE_SPACE_VMM;
    cr_assert_eq(table_insert(&t, &entry, &old), TABLE_INSERTED);
    cr_assert_null(table_mark_freeing(&t, TRACE_SPACE_ARRAY, 0x1000).slot);
    cr_assert_not_null(table_mark_freeing(&t, TRACE_SPACE_VMM, 0x1000).slot);
    cr_assert_not_null(table_mark_freeing(&t, TRACE_SPACE_POINTER, 0x1000).slot);
    drop(&t);
}

Test(table, grows_and_keeps_every_entry) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, TABLE_LEVELS);
    struct table_entry old;
    uint64_t n = 100000, bytes = 0;
    for (uint64_t i = 1; i <= n; i++) {
        struct table_entry entry = entry_of(i * 512, i, (uint32_t)i);
        cr_assert_eq(table_insert(&t, &entry, &old), TABLE_INSERTED);
        bytes += i;
    }
    cr_assert_gt(t.used, 2);
    struct sum sum = add_up(&t);
    cr_assert_eq(sum.blocks, n);
    cr_assert_eq(sum.bytes, bytes);
    for (uint64_t i = 1; i <= n; i++) {
        struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, i * 512);
        cr_assert(mark.slot && mark.bytes == i && mark.site == i && table_erase(&mark));
    }
    cr_assert_eq(add_up(&t).blocks, 0);
    drop(&t);
}

Test(table, full_is_said_and_nothing_is_overwritten) {
    struct table t;
    struct pool pool;
    make(&t, &pool, 64, 1);
    struct table_entry old;
    uint64_t held = 0, refused = 0;
    for (uint64_t i = 1; i <= 200; i++) {
        struct table_entry entry = entry_of(i * 512, 1, 1);
        if (table_insert(&t, &entry, &old) == TABLE_INSERTED)
            held++;
        else
            refused++;
    }
    cr_assert_leq(held, 64);
    cr_assert_geq(held, 48);
    cr_assert_eq(held + refused, 200);
    cr_assert_eq(add_up(&t).blocks, held);
    drop(&t);
}

/* ---- real threads
 * ------------------------------------------------------------------------------------- */

/* A driver with few addresses, so that they are reused at once. */
#define ADDRESSES 512

struct shared_driver {
    pthread_mutex_t lock;
    uint64_t free[ADDRESSES];
    int count;
};

struct worker {
    struct table *table;
    struct shared_driver *driver;
    uint64_t seed, operations;
    int64_t blocks, bytes; /* this thread's books */
    bool failed;
};

static uint64_t take_address(struct shared_driver *driver) {
    pthread_mutex_lock(&driver->lock);
    uint64_t address = driver->count ? driver->free[--driver->count] : 0;
    pthread_mutex_unlock(&driver->lock);
    return address;
}

static void give_address(struct shared_driver *driver, uint64_t address) {
    pthread_mutex_lock(&driver->lock);
    driver->free[driver->count++] = address;
    pthread_mutex_unlock(&driver->lock);
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 33;
}

static void *work(void *argument) {
    struct worker *w = argument;
    uint64_t mine[64];
    int held = 0;
    for (uint64_t i = 0; i < w->operations; i++) {
        if (held == 64 || (held && next_random(&w->seed) & 1)) {
            uint64_t address = mine[--held];
            struct table_mark mark = table_mark_freeing(w->table, TRACE_SPACE_POINTER, address);
            w->failed |= !mark.slot;
            give_address(w->driver, address);
            if (table_erase(&mark)) {
                w->blocks--;
                w->bytes -= (int64_t)mark.bytes;
            }
            continue;
        }
        struct table_entry old, entry = entry_of(take_address(w->driver), 0, 1);
        if (!entry.address)
            continue;
        entry.bytes = next_random(&w->seed) % 4096 + 1;
        enum table_result result = table_insert(w->table, &entry, &old);
        w->failed |= result == TABLE_REPLACED || result == TABLE_FULL;
        if (result == TABLE_SUPERSEDED) { /* its free is ours to account for */
            w->blocks--;
            w->bytes -= (int64_t)old.bytes;
        }
        mine[held++] = entry.address;
        w->blocks++;
        w->bytes += (int64_t)entry.bytes;
    }
    return NULL;
}

Test(table, eight_threads_lose_and_double_nothing) {
    struct table t;
    struct pool pool;
    struct shared_driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .count = ADDRESSES};
    struct worker workers[8];
    pthread_t threads[8];
    make(&t, &pool, 64, TABLE_LEVELS);
    for (int i = 0; i < ADDRESSES; i++)
        driver.free[i] = 0x7f0000000000 + (uint64_t)i * 512;
    for (int i = 0; i < 8; i++) {
        workers[i] = (struct worker){&t, &driver, (uint64_t)i + 1, 200000, 0, 0, false};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    int64_t blocks = 0, bytes = 0;
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_not(workers[i].failed);
        blocks += workers[i].blocks;
        bytes += workers[i].bytes;
    }
    struct sum sum = add_up(&t);
    cr_assert_eq(sum.blocks, (uint64_t)blocks);
    cr_assert_eq(sum.bytes, (uint64_t)bytes);
    drop(&t);
}
