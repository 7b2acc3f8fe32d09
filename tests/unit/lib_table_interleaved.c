/*
 * The live table against a sequential model, under interleavings of our choosing.
 *
 * table.c is compiled a second time here, its atomic operations given a place to stop. Several
 * coroutines allocate and free on one table; at each stop a seeded generator may switch to another.
 * So every order of atomic steps can come about, repeatably, and the model, which changes at the
 * moment of the "driver call", knows what must be in the table when all are done.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "atomic.h"
#include "interleave.h"

static uint64_t probes;

#undef load_acquire
#undef cas_acq_rel
#define load_acquire(p) (stop(), probes++, __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define cas_acq_rel(p, expected, desired)                                                          \
    (stop(), __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_ACQ_REL,      \
                                         __ATOMIC_ACQUIRE))
#define STEPPED(name) stepped_##name
#include "stepped_table.h"

#include "../../lib/table.c"

/* ---- the driver and the model
 * --------------------------------------------------------------------------- */

#define ADDRESSES 96

struct block {
    bool live;   /* in the driver */
    bool booked; /* a free that the driver did but refused to own up to leaves it booked */
    uint64_t bytes;
};

static struct table t;
static struct block model[ADDRESSES + 1];
static uint64_t free_list[ADDRESSES];
static int free_count;
static int64_t blocks, bytes; /* the books: what sites would say */
static uint64_t operations_left, superseded, replaced, refused;

static struct trace_slot *give(void *owner, uint32_t count) {
    (void)owner;
    stop();
    size_t size = count * sizeof(struct trace_slot);
    struct trace_slot *slots = aligned_alloc(65536, size < 65536 ? 65536 : size);
    memset(slots, 0, size);
    return slots;
}

/* As record does it. */
static bool allocate(uint64_t *address) {
    if (!free_count)
        return false;
    uint64_t n = free_list[--free_count]; /* the driver call: address and size are settled here */
    struct table_entry old, entry = {.address = n * 512,
                                     .bytes = next_random() % 1000 + 1,
                                     .site = 1,
                                     .space = TRACE_SPACE_POINTER};
    model[n] = (struct block){true, true, entry.bytes};
    enum table_result result = table_insert(&t, &entry, &old);
    cr_assert_neq(result, TABLE_FULL);
    superseded += result == TABLE_SUPERSEDED;
    replaced += result == TABLE_REPLACED;
    if (result != TABLE_INSERTED) {
        blocks--;
        bytes -= (int64_t)old.bytes;
    }
    blocks++;
    bytes += (int64_t)entry.bytes;
    *address = n;
    return true;
}

static bool deallocate(uint64_t n) {
    struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, n * 512);
    cr_assert_not_null(mark.slot, "a live block is in the table");
    uint64_t verdict = next_random() % 16;
    bool freed = verdict != 0; /* 0: refused; 1: freed, but an older error is returned */
    if (freed) {
        model[n].live = false;
        model[n].booked = verdict == 1;
        free_list[free_count++] = n;
    }
    stop();
    bool gone = verdict > 1 ? table_erase(&mark) : (refused += table_unmark(&mark), false);
    if (gone) {
        blocks--;
        bytes -= (int64_t)mark.bytes;
    }
    return freed;
}

static void body(void) {
    uint64_t mine[24];
    int me = running, held = 0;
    while (operations_left) {
        operations_left--;
        if (held == 24 || (held && next_random() & 1)) {
            int which = (int)(next_random() % (uint64_t)held);
            if (deallocate(mine[which]))
                mine[which] = mine[--held];
        } else if (allocate(&mine[held])) {
            held++;
        }
        stop();
    }
    finished[me] = true;
}

static void begin(uint32_t slots) {
    memset(&t, 0, sizeof t);
    memset(model, 0, sizeof model);
    blocks = bytes = 0;
    free_count = 0;
    for (uint64_t n = 1; n <= ADDRESSES; n++)
        free_list[free_count++] = n;
    cr_assert(table_init(&t, slots, give, NULL));
}

static void end(void) {
    for (uint32_t level = 0; level < t.used; level++)
        free((void *)(t.levels[level] & ~(uintptr_t)63));
}

/* Every booked block of the model is in the table once, with its size; nothing else is. */
static void compare(void) {
    uint64_t seen[ADDRESSES + 1] = {0};
    int64_t table_blocks = 0, table_bytes = 0;
    for (uint32_t level = 0; level < t.used; level++) {
        const struct trace_slot *slot = (void *)(t.levels[level] & ~(uintptr_t)63);
        for (uint32_t n = 1u << (t.levels[level] & 63); n--; slot++) {
            if (TRACE_SLOT_STATE(slot->word) == TRACE_SLOT_EMPTY)
                continue;
            cr_assert_eq(TRACE_SLOT_STATE(slot->word), TRACE_SLOT_LIVE);
            uint64_t at = slot->address / 512;
            cr_assert_eq(seen[at]++, 0, "no block twice");
            cr_assert(model[at].booked);
            cr_assert_eq(slot->bytes, model[at].bytes);
            table_blocks++;
            table_bytes += (int64_t)slot->bytes;
        }
    }
    for (uint64_t n = 1; n <= ADDRESSES; n++)
        cr_assert_eq(seen[n], model[n].booked);
    cr_assert_eq(table_blocks, blocks);
    cr_assert_eq(table_bytes, bytes);
}

Test(table_interleaved, no_entry_and_no_byte_is_lost_or_doubled) {
    /* Many short rounds: each begins with a table that must grow, in another order of steps. */
    uint64_t per_round = OPERATIONS / 1000, levels = 0;
    superseded = replaced = refused = 0;
    for (uint64_t round = 1; round <= 1000; round++) {
        seed = round;
        begin(16);
        operations_left = per_round;
        run_all(body);
        compare();
        levels += t.used;
        end();
    }
    cr_assert_gt(superseded, OPERATIONS / 10000, "addresses were reused before the free came back");
    cr_assert_gt(replaced, 0);
    cr_assert_gt(refused, 0);
    cr_assert_gt(levels, 1000, "tables grew meanwhile");
}

Test(table_interleaved, a_miss_looks_at_a_bounded_number_of_slots) {
    struct table_entry old;
    begin(64);
    for (uint64_t i = 0; i < 1000000; i++) {
        struct table_entry entry = {
            .address = (i + 1) << 9, .bytes = 1, .site = 1, .space = TRACE_SPACE_POINTER};
        table_insert(&t, &entry, &old);
        if (i >= 1000) {
            struct table_mark mark = table_mark_freeing(&t, TRACE_SPACE_POINTER, (i - 999) << 9);
            cr_assert(mark.slot && table_erase(&mark));
        }
    }
    for (uint64_t i = 0; i < 1000; i++) {
        probes = 0;
        cr_assert_null(table_mark_freeing(&t, TRACE_SPACE_POINTER, (i << 9) + 256).slot);
        cr_assert_leq(probes, 1 + t.used * 2 * TABLE_BUCKET);
    }
    cr_assert_leq(t.used, 4, "a thousand live blocks need no more");
    end();
}
