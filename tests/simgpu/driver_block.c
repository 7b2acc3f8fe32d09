/*
 * The blocks that are live, found by address, and the books kept of them. Called with the driver's
 * lock held.
 */
#include <sys/mman.h>

#include "driver.h"

#define FIRST_BUCKETS ((size_t)1 << 12)

static struct block **buckets;
static size_t bucket_count, block_count;

static size_t bucket_of(uintptr_t address, size_t count) {
    return (address / UNIT * 0x9e3779b97f4a7c15u >> 20) & (count - 1);
}

static void grow(void) {
    size_t count = buckets ? bucket_count * 4 : FIRST_BUCKETS;
    struct block **wider = store_take(count * sizeof *wider), *next;

    for (size_t i = 0; i < bucket_count; i++)
        for (struct block *block = buckets[i]; block; block = next) {
            size_t bucket = bucket_of(block->address, count);
            next = block->next;
            block->next = wider[bucket];
            wider[bucket] = block;
        }
    if (buckets)
        store_give(buckets, bucket_count * sizeof *buckets);
    buckets = wider;
    bucket_count = count;
}

struct block *block_find(uintptr_t address) {
    if (!buckets)
        return NULL;
    for (struct block *block = buckets[bucket_of(address, bucket_count)]; block;
         block = block->next)
        if (block->address == address)
            return block;
    return NULL;
}

struct block *block_containing(uintptr_t address) {
    for (size_t i = 0; i < bucket_count; i++)
        for (struct block *block = buckets[i]; block; block = block->next)
            if (address - block->address < block->bytes)
                return block;
    return NULL;
}

/* ---- books ---- */

static bool of_host(enum simgpu_kind kind) {
    return kind == SIMGPU_PINNED || kind == SIMGPU_REGISTERED;
}

/* What is another's has no bytes here. */
static size_t booked(const struct block *block) {
    return block->kind == SIMGPU_IMPORTED || block->kind == SIMGPU_MULTICAST ? 0 : block->bytes;
}

static bool is_other(enum simgpu_kind kind) {
    return kind == SIMGPU_GRAPH || kind == SIMGPU_VMM || kind == SIMGPU_ARRAY;
}

static void count_in(struct simgpu_count *count, size_t bytes) {
    count->allocs++;
    count->live_count++;
    count->live_bytes += bytes;
    if (count->live_bytes > count->peak_bytes)
        count->peak_bytes = count->live_bytes;
}

static void count_out(struct simgpu_count *count, size_t bytes, enum block_end how) {
    *(how == IMPLICITLY_FREED ? &count->implicit_frees : &count->frees) += 1;
    count->live_count--;
    count->live_bytes -= bytes;
}

static struct simgpu_books *books_of(const struct block *block) {
    return of_host(block->kind) ? &host_books : &devices[block->device].books;
}

static bool in_total(enum simgpu_kind kind) {
    return kind == SIMGPU_DEVICE || kind == SIMGPU_POOL || kind == SIMGPU_PINNED || is_other(kind);
}

struct block *block_add(const struct block *given) {
    struct block *block = store_take(sizeof *block);

    if (block_count >= bucket_count)
        grow();
    *block = *given;
    size_t bucket = bucket_of(block->address, bucket_count);
    block->next = buckets[bucket];
    buckets[bucket] = block;
    block_count++;
    count_in(&books_of(block)->kinds[block->kind], booked(block));
    if (in_total(block->kind))
        count_in(&books_of(block)->total, booked(block));
    if (is_other(block->kind))
        devices[block->device].other_bytes += block->bytes;
    return block;
}

static void give_back_place(const struct block *block, enum block_end how) {
    if (block->bare)
        return;
    switch (block->kind) {
    case SIMGPU_POOL:
        pool_release(block, how);
        break;
    case SIMGPU_DEVICE:
        space_give(&devices[block->device].space, block->address, block->bytes);
        break;
    default: /* managed, pinned, graph, imported: mappings of their own */
        munmap((void *)block->address, block->bytes);
    }
}

void block_remove(struct block *block, enum block_end how) {
    struct block **link = &buckets[bucket_of(block->address, bucket_count)];

    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    block_count--;
    count_out(&books_of(block)->kinds[block->kind], booked(block), how);
    if (in_total(block->kind))
        count_out(&books_of(block)->total, booked(block), how);
    if (is_other(block->kind))
        devices[block->device].other_bytes -= block->bytes;
    give_back_place(block, how);
    store_give(block, sizeof *block);
}

void blocks_of_context(struct CUctx_st *context) {
    struct block *next;

    for (size_t i = 0; i < bucket_count; i++)
        for (struct block *block = buckets[i]; block; block = next) {
            next = block->next;
            if (block->context == context)
                block_remove(block, IMPLICITLY_FREED);
        }
}

bool block_freeable(const struct block *block) {
    return block && !block->freed_inside && !block->references &&
           (block->kind == SIMGPU_DEVICE || block->kind == SIMGPU_POOL ||
            block->kind == SIMGPU_MANAGED || block->kind == SIMGPU_GRAPH ||
            (block->kind == SIMGPU_IMPORTED && !block->bare));
}

uint64_t simgpu_pages_touched(int device) {
    if (device < 0 || device >= settings.devices)
        return 0;
    driver_lock();
    uint64_t pages = devices[device].space.pages_in_use;
    driver_unlock();
    return pages;
}
