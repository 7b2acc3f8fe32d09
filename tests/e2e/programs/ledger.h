/*
 * A program's own books: what it took and gave back, by the line that did it. Printed at the end,
 * compared by tests/e2e/books.c with what the report says. Included by test programs, one source
 * file each; any thread.
 *
 * TAKE and GIVE make the call themselves, so that the line booked is the line of the call.
 */
#ifndef PROGRAMS_LEDGER_H
#define PROGRAMS_LEDGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function that stays a frame of its own. */
#define PLACE static __attribute__((noipa))

#define LEDGER_PLACES 256
#define LEDGER_BLOCKS 65536
#define LEDGER_HOST   (-1) /* device of pinned memory */

struct ledger_place {
    const char *function;
    int line;
    const char *kind;
    int device;
    uint64_t live, count, allocs, frees, own_peak, at_peak, at_work;
};

struct ledger_block {
    uint64_t key;
    uint64_t bytes;
    struct ledger_place *place; /* NULL: unused */
};

static struct {
    pthread_mutex_t lock;
    struct ledger_place places[LEDGER_PLACES];
    struct ledger_block blocks[LEDGER_BLOCKS];
    unsigned place_count, block_limit;
    /* Threads that take and give side by side: only what is left in the end is known for sure. */
    bool unordered;
    bool parallel; /* more than one thread took something */
    pthread_t first_thread;
} ledger = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Kinds that are summed in one total. */
static bool ledger_same_total(const struct ledger_place *a, const struct ledger_place *b) {
    bool device_a = !strcmp(a->kind, "device") || !strcmp(a->kind, "pool");
    bool device_b = !strcmp(b->kind, "device") || !strcmp(b->kind, "pool");
    return a->device == b->device && (device_a ? device_b : !strcmp(a->kind, b->kind));
}

static struct ledger_place *ledger_place(const char *function, int line, const char *kind,
                                         int device) {
    for (unsigned i = 0; i < ledger.place_count; i++) {
        struct ledger_place *place = &ledger.places[i];
        if (place->line == line && place->device == device && !strcmp(place->kind, kind))
            return place;
    }
    if (ledger.place_count == LEDGER_PLACES)
        abort();
    struct ledger_place *place = &ledger.places[ledger.place_count++];
    *place = (struct ledger_place){function, line, kind, device, 0, 0, 0, 0, 0, 0, 0};
    return place;
}

static uint64_t ledger_total_peak[LEDGER_PLACES]; /* by the first place of each total */

static unsigned ledger_total_index(const struct ledger_place *of) {
    unsigned i = 0;
    while (!ledger_same_total(&ledger.places[i], of))
        i++;
    return i;
}

/* After an allocation: its total's peak and end of work, and each place's share in them. */
static void ledger_watermarks(const struct ledger_place *changed) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < ledger.place_count; i++) {
        struct ledger_place *place = &ledger.places[i];
        if (!ledger_same_total(place, changed))
            continue;
        sum += place->live;
        place->at_work = place->live;
    }
    uint64_t *peak = &ledger_total_peak[ledger_total_index(changed)];
    if (sum <= *peak)
        return;
    *peak = sum;
    for (unsigned i = 0; i < ledger.place_count; i++)
        if (ledger_same_total(&ledger.places[i], changed))
            ledger.places[i].at_peak = ledger.places[i].live;
}

/* With the lock held. The block is forgotten; its place NULL: it was never known. */
static struct ledger_block ledger_remove(uint64_t key) {
    for (unsigned i = 0; i < ledger.block_limit; i++) {
        struct ledger_block block = ledger.blocks[i];
        if (!block.place || block.key != key)
            continue;
        ledger.blocks[i].place = NULL;
        block.place->live -= block.bytes;
        block.place->count--;
        block.place->frees++;
        return block;
    }
    return (struct ledger_block){key, 0, NULL};
}

static void ledger_insert(struct ledger_block block) {
    unsigned i = 0;
    while (i < LEDGER_BLOCKS && ledger.blocks[i].place)
        i++;
    if (i == LEDGER_BLOCKS)
        abort();
    ledger.blocks[i] = block;
    if (i >= ledger.block_limit)
        ledger.block_limit = i + 1;
    block.place->live += block.bytes;
    block.place->count++;
}

static inline void ledger_take(const char *kind, int device, uint64_t key, uint64_t bytes,
                               const char *function, int line) {
    pthread_mutex_lock(&ledger.lock);
    if (ledger.place_count == 0)
        ledger.first_thread = pthread_self();
    ledger.parallel |= !pthread_equal(ledger.first_thread, pthread_self());
    ledger_remove(key); /* an address that comes again was freed, whatever the free returned */
    struct ledger_place *place = ledger_place(function, line, kind, device);
    place->allocs++;
    ledger_insert((struct ledger_block){key, bytes, place});
    if (place->live > place->own_peak)
        place->own_peak = place->live;
    ledger_watermarks(place);
    pthread_mutex_unlock(&ledger.lock);
}

/* Before the free: afterwards the address may be another thread's already. */
static inline struct ledger_block ledger_give(uint64_t key) {
    pthread_mutex_lock(&ledger.lock);
    struct ledger_block block = ledger_remove(key);
    pthread_mutex_unlock(&ledger.lock);
    return block;
}

static inline void ledger_keep(struct ledger_block block) {
    if (!block.place)
        return;
    pthread_mutex_lock(&ledger.lock);
    block.place->frees--;
    ledger_insert(block);
    pthread_mutex_unlock(&ledger.lock);
}

/* The pointer and the size are looked at after the call, which may have set them. */
#define TAKE(kind, device, pointer, bytes, call)                                                   \
    ({                                                                                             \
        int rc_ = (int)(call);                                                                     \
        if (rc_ == 0)                                                                              \
            ledger_take(kind, device, (uint64_t)(uintptr_t)(pointer), bytes, __func__, __LINE__);  \
        rc_;                                                                                       \
    })

#define GIVE(pointer, call)                                                                        \
    ({                                                                                             \
        struct ledger_block block_ = ledger_give((uint64_t)(uintptr_t)(pointer));                  \
        int rc_ = (int)(call);                                                                     \
        if (rc_ != 0)                                                                              \
            ledger_keep(block_);                                                                   \
        rc_;                                                                                       \
    })

/* What must not fail. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (int)(call);                                                                   \
        if (must_ != 0) {                                                                          \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, must_);                  \
            exit(99);                                                                              \
        }                                                                                          \
    } while (0)

/* A counter that the trace must hold in the end; those not named must be zero. */
static inline void ledger_loss(const char *name, unsigned long count) {
    printf("loss %s %lu\n", name, count);
}

/* One line a place; "-" for what the order of the threads decides. */
static inline void ledger_print(void) {
    pthread_mutex_lock(&ledger.lock);
    if (ledger.parallel)
        printf("parallel\n");
    for (unsigned i = 0; i < ledger.place_count; i++) {
        const struct ledger_place *p = &ledger.places[i];
        printf("place %s %d %s %d live %lu count %lu allocs %lu frees %lu", p->function, p->line,
               p->kind, p->device, p->live, p->count, p->allocs, p->frees);
        if (ledger.unordered)
            printf(" peak - own - work - total -\n");
        else
            printf(" peak %lu own %lu work %lu total %lu\n", p->at_peak, p->own_peak, p->at_work,
                   ledger_total_peak[ledger_total_index(p)]);
    }
    pthread_mutex_unlock(&ledger.lock);
    fflush(stdout);
}

#endif
