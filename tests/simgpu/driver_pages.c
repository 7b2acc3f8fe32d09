/*
 * Where blocks lie in the address space of a device and of a pool. Called with the driver's lock
 * held.
 *
 * Measured on an H200, driver 580.159, CUDA 13.0. Device memory: blocks below 2 MiB are packed at
 * 512-byte steps into shared 2 MiB pages, larger ones take whole pages of their own; the footprint
 * is 2 MiB times the pages in use; an address is given out again soon after its free. Pools: blocks
 * at 512-byte steps in one run of addresses, which is backed by memory 32 MiB at a time.
 *
 * The addresses are reserved without access rights: no memory stands behind them, and a program
 * that touches one is stopped.
 */
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

#define UNITS_PER_PAGE  (PAGE / UNIT)
#define UNITS_PER_GROUP (POOL_GROUP / UNIT)
#define ROOM            2 /* addresses, in multiples of the memory, so that holes cost no memory */

static uintptr_t reserve(size_t bytes) {
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return range == MAP_FAILED ? 0 : (uintptr_t)range;
}

static size_t units_of(size_t bytes) {
    return bytes / UNIT + (bytes % UNIT != 0);
}

/* ---- bitmaps of 512-byte units ---- */

/* The lowest run of `count` clear bits from `from` on; SIZE_MAX: none. */
static size_t find_run(const uint64_t *bits, size_t from, size_t all, size_t count) {
    size_t run = 0;

    for (size_t i = from; i < all; i++) {
        if (run == 0 && i % 64 == 0 && bits[i / 64] == UINT64_MAX) {
            i += 63;
            continue;
        }
        run = bits[i / 64] >> i % 64 & 1 ? 0 : run + 1;
        if (run == count)
            return i + 1 - count;
    }
    return SIZE_MAX;
}

static void set_run(uint64_t *bits, size_t first, size_t count, bool used) {
    for (size_t i = first; i < first + count; i++)
        if (used)
            bits[i / 64] |= 1ull << i % 64;
        else
            bits[i / 64] &= ~(1ull << i % 64);
}

/* ---- a device's pages ---- */

/* A run of pages that is one large block, or one page shared by small ones. */
struct chunk {
    struct chunk *next, *previous; /* of the shared pages */
    size_t first_page, pages, used_units;
    uint64_t *units; /* NULL: one block */
};

bool space_open(struct space *space, size_t memory) {
    uintptr_t range = reserve(ROOM * memory + PAGE);

    if (!range)
        return false;
    space->base = (range + PAGE - 1) & ~(PAGE - 1);
    space->pages = ROOM * memory / PAGE;
    space->chunk_of_page = store_take((space->pages + 1) * sizeof(struct chunk *));
    return true;
}

static size_t find_free_pages(struct space *space, size_t pages) {
    size_t run = 0;

    while (space->lowest_free < space->pages && space->chunk_of_page[space->lowest_free])
        space->lowest_free++;
    for (size_t page = space->lowest_free; page < space->pages; page++) {
        run = space->chunk_of_page[page] ? 0 : run + 1;
        if (run == pages)
            return page + 1 - pages;
    }
    return SIZE_MAX;
}

static struct chunk *chunk_open(struct space *space, size_t pages, size_t limit) {
    size_t first = pages <= limit / PAGE ? find_free_pages(space, pages) : SIZE_MAX;

    if (first == SIZE_MAX)
        return NULL;
    struct chunk *chunk = store_take(sizeof *chunk);
    chunk->first_page = first;
    chunk->pages = pages;
    for (size_t i = 0; i < pages; i++)
        space->chunk_of_page[first + i] = chunk;
    space->pages_in_use += pages;
    return chunk;
}

static void chunk_close(struct space *space, struct chunk *chunk) {
    memset(space->chunk_of_page + chunk->first_page, 0, chunk->pages * sizeof(struct chunk *));
    space->pages_in_use -= chunk->pages;
    if (chunk->first_page < space->lowest_free)
        space->lowest_free = chunk->first_page;
    store_give(chunk, sizeof *chunk);
}

static struct chunk *shared_page_open(struct space *space, size_t limit) {
    struct chunk *chunk = chunk_open(space, 1, limit);

    if (!chunk)
        return NULL;
    chunk->units = store_take(UNITS_PER_PAGE / 8);
    chunk->next = space->shared;
    if (chunk->next)
        chunk->next->previous = chunk;
    space->shared = chunk;
    return chunk;
}

static void shared_page_close(struct space *space, struct chunk *chunk) {
    *(chunk->previous ? &chunk->previous->next : &space->shared) = chunk->next;
    if (chunk->next)
        chunk->next->previous = chunk->previous;
    store_give(chunk->units, UNITS_PER_PAGE / 8);
    chunk_close(space, chunk);
}

static uintptr_t take_shared(struct space *space, size_t bytes, size_t limit) {
    size_t count = units_of(bytes), unit = SIZE_MAX;
    struct chunk *chunk;

    for (chunk = space->shared; chunk; chunk = chunk->next) {
        if (UNITS_PER_PAGE - chunk->used_units < count)
            continue;
        unit = find_run(chunk->units, 0, UNITS_PER_PAGE, count);
        if (unit != SIZE_MAX)
            break;
    }
    if (!chunk) {
        chunk = shared_page_open(space, limit);
        unit = 0;
    }
    if (!chunk)
        return 0;
    set_run(chunk->units, unit, count, true);
    chunk->used_units += count;
    return space->base + chunk->first_page * PAGE + unit * UNIT;
}

uintptr_t space_take(struct space *space, size_t bytes, size_t limit) {
    if (bytes < PAGE)
        return take_shared(space, bytes, limit);
    struct chunk *chunk = chunk_open(space, bytes / PAGE + (bytes % PAGE != 0), limit);
    return chunk ? space->base + chunk->first_page * PAGE : 0;
}

void space_give(struct space *space, uintptr_t address, size_t bytes) {
    struct chunk *chunk = space->chunk_of_page[(address - space->base) / PAGE];

    if (!chunk->units) {
        chunk_close(space, chunk);
        return;
    }
    uintptr_t start = space->base + chunk->first_page * PAGE;
    set_run(chunk->units, (address - start) / UNIT, units_of(bytes), false);
    chunk->used_units -= units_of(bytes);
    if (!chunk->used_units)
        shared_page_close(space, chunk);
}

/* ---- a pool's run of addresses ---- */

bool range_open(struct range *range, size_t memory) {
    range->groups = ROOM * memory / POOL_GROUP + 1;
    range->base = reserve(range->groups * POOL_GROUP);
    if (!range->base)
        return false;
    range->units = store_take(range->groups * UNITS_PER_GROUP / 8);
    range->used_in_group = store_take(range->groups * sizeof *range->used_in_group);
    range->backed = store_take(range->groups * sizeof *range->backed);
    return true;
}

void range_close(struct range *range) {
    munmap((void *)range->base, range->groups * POOL_GROUP);
    store_give(range->units, range->groups * UNITS_PER_GROUP / 8);
    store_give(range->used_in_group, range->groups * sizeof *range->used_in_group);
    store_give(range->backed, range->groups * sizeof *range->backed);
}

static void mark_range(struct range *range, size_t first, size_t count, bool used) {
    set_run(range->units, first, count, used);
    for (size_t unit = first, next; unit < first + count; unit = next) {
        size_t group = unit / UNITS_PER_GROUP;
        next = (group + 1) * UNITS_PER_GROUP;
        size_t here = (next < first + count ? next : first + count) - unit;
        if (used)
            range->used_in_group[group] += here;
        else
            range->used_in_group[group] -= here;
    }
    if (!used && first < range->lowest_free)
        range->lowest_free = first;
    else if (used && first == range->lowest_free)
        range->lowest_free = first + count;
}

uintptr_t range_take(struct range *range, size_t bytes, size_t limit) {
    size_t count = units_of(bytes), missing = 0;
    size_t unit =
        find_run(range->units, range->lowest_free, range->groups * UNITS_PER_GROUP, count);

    if (unit == SIZE_MAX)
        return 0;
    size_t first = unit / UNITS_PER_GROUP, last = (unit + count - 1) / UNITS_PER_GROUP;
    for (size_t group = first; group <= last; group++)
        missing += !range->backed[group];
    if (missing > limit / POOL_GROUP)
        return 0;
    for (size_t group = first; group <= last; group++)
        range->backed[group] = true;
    range->reserved += missing * POOL_GROUP;
    mark_range(range, unit, count, true);
    return range->base + unit * UNIT;
}

void range_give(struct range *range, uintptr_t address, size_t bytes) {
    mark_range(range, (address - range->base) / UNIT, units_of(bytes), false);
}

void range_shrink(struct range *range, size_t keep) {
    for (size_t group = range->groups; group-- > 0 && range->reserved > keep;)
        if (range->backed[group] && !range->used_in_group[group]) {
            range->backed[group] = false;
            range->reserved -= POOL_GROUP;
        }
}
