/*
 * Joins tensors to the driver's blocks by address. See segments.h; one thread.
 */
#include "segments.h"

#include <stdlib.h>

struct block {
    uint64_t address;
    uint64_t bytes;
    uint32_t site; /* ref */
    bool segment;
};

struct finder {
    struct profile *profile;
    struct block *blocks; /* live device blocks, by address once they are sorted */
    size_t count;
    bool failed;
};

static void for_each_block(struct finder *finder, unsigned space,
                           void (*visit)(struct finder *finder, const struct trace_slot *block)) {
    for (unsigned t = 0; !finder->failed; t++) {
        struct trace_slots table = trace_live_table(finder->profile->trace, t);
        if (table.count == 0)
            return;
        for (size_t i = 0; i < table.count; i++) {
            struct trace_slot block;
            unsigned state = trace_slot_read(trace_slot_at(&table, i), &block);
            if ((state == TRACE_SLOT_LIVE || state == TRACE_SLOT_FREEING) &&
                TRACE_SLOT_SPACE(block.word) == space)
                visit(finder, &block);
        }
    }
}

/* The array's capacity is the power of two at or above its count. */
static void keep_block(struct finder *finder, const struct trace_slot *slot) {
    size_t count = finder->count;
    if (finder->failed)
        return;
    if ((count & (count - 1)) == 0) {
        struct block *grown =
            realloc(finder->blocks, (count ? 2 * count : 1) * sizeof *finder->blocks);
        if (!grown) {
            finder->failed = true;
            return;
        }
        finder->blocks = grown;
    }
    finder->blocks[finder->count++] = (struct block){
        slot->address, slot->bytes, slot->site, TRACE_SLOT_FLAGS(slot->word) & TRACE_SLOT_SEGMENT};
}

static int compare_blocks(const void *left, const void *right) {
    const struct block *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

static void mark_block_of(struct finder *finder, const struct trace_slot *tensor) {
    size_t low = 0, high = finder->count;
    while (low < high) { /* the first block that begins after the tensor */
        size_t middle = low + (high - low) / 2;
        if (finder->blocks[middle].address <= tensor->address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return;
    struct block *block = &finder->blocks[low - 1];
    if (tensor->address - block->address < block->bytes)
        block->segment = true;
}

static struct profile_site *site_of(const struct profile *profile, uint32_t ref) {
    ptrdiff_t index = trace_record_index(profile->trace, TRACE_SECTION_SITES, ref);
    size_t low = 0, high = profile->site_count;
    while (index >= 0 && low < high) { /* sites stand in the order of their records */
        size_t middle = low + (high - low) / 2;
        if (profile->sites[middle].index == (uint32_t)index)
            return &profile->sites[middle];
        if (profile->sites[middle].index < (uint32_t)index)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void count_segment(const struct finder *finder, uint32_t site_ref, uint64_t bytes) {
    struct profile_site *site = site_of(finder->profile, site_ref);
    if (!site)
        return;
    site->cache_bytes += bytes;
    site->cache_count++;
}

static void count_segments(const struct finder *finder) {
    for (size_t i = 0; i < finder->count; i++)
        if (finder->blocks[i].segment)
            count_segment(finder, finder->blocks[i].site, finder->blocks[i].bytes);
}

/* Physical memory has a handle in place of an address: the library saw the tensor land. */
static void count_handle(struct finder *finder, const struct trace_slot *slot) {
    if (TRACE_SLOT_FLAGS(slot->word) & TRACE_SLOT_SEGMENT)
        count_segment(finder, slot->site, slot->bytes);
}

static uint64_t difference(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* After the end of work blocks are only freed. Those that are left and are no segments were there
   then; what else was there were segments. */
static void count_end_of_work(struct profile *profile) {
    for (size_t i = 0; i < profile->site_count; i++) {
        struct profile_site *site = &profile->sites[i];
        if (!(site->flags & TRACE_SITE_SEGMENT) && !site->cache_count)
            continue;
        site->cache_end_of_work_bytes =
            difference(site->end_of_work_bytes, difference(site->live_bytes, site->cache_bytes));
        site->cache_end_of_work_count =
            difference(site->end_of_work_count, difference(site->live_count, site->cache_count));
    }
}

static bool has_tensors(const struct profile *profile) {
    for (size_t i = 0; i < profile->total_count; i++)
        if (profile->totals[i].ledger == TRACE_LEDGER_TENSOR)
            return true;
    return false;
}

bool segments_find(struct profile *profile) {
    struct finder finder = {.profile = profile};
    if (!has_tensors(profile))
        return true;
    for_each_block(&finder, TRACE_SPACE_VMM, count_handle);
    for_each_block(&finder, TRACE_SPACE_POINTER, keep_block);
    if (!finder.failed && finder.count) {
        qsort(finder.blocks, finder.count, sizeof *finder.blocks, compare_blocks);
        for_each_block(&finder, TRACE_SPACE_TENSOR, mark_block_of);
        count_segments(&finder);
    }
    count_end_of_work(profile);
    free(finder.blocks);
    return !finder.failed;
}

bool segments_mixed(const struct profile_site *site) {
    return ((site->flags & TRACE_SITE_SEGMENT) || site->cache_count) &&
           site->live_count > site->cache_count;
}
