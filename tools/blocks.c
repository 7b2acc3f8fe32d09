/*
 * Blocks of a moment, sorted and joined. See blocks.h; one thread.
 */
#include "blocks.h"

#include <stdlib.h>

static uint32_t site_index(const struct profile *profile, uint32_t ref) {
    ptrdiff_t index = trace_record_index(profile->trace, TRACE_SECTION_SITES, ref);
    size_t low = 0, high = profile->site_count;
    while (index >= 0 && low < high) { /* sites stand in the order of their records */
        size_t middle = low + (high - low) / 2;
        if (profile->sites[middle].index == (uint32_t)index)
            return (uint32_t)middle;
        if (profile->sites[middle].index < (uint32_t)index)
            low = middle + 1;
        else
            high = middle;
    }
    return SITE_NONE;
}

/* The array's capacity is the power of two at or above its count. */
static bool keep(const struct profile *profile, struct blocks *blocks,
                 const struct trace_slot *slot) {
    size_t count = blocks->count;
    if ((count & (count - 1)) == 0) {
        struct block *grown = realloc(blocks->list, (count ? 2 * count : 1) * sizeof *blocks->list);
        if (!grown)
            return false;
        blocks->list = grown;
    }
    uint32_t site = site_index(profile, slot->site);
    const struct profile_site *known = site == SITE_NONE ? NULL : &profile->sites[site];
    blocks->list[blocks->count++] = (struct block){
        .address = slot->address,
        .bytes = slot->bytes,
        .site = site,
        .device = known ? known->device : TRACE_DEVICE_UNKNOWN,
        .pool = (uint16_t)TRACE_SLOT_POOL(slot->word),
        .space = (uint8_t)TRACE_SLOT_SPACE(slot->word),
        .kind = known ? known->kind : 0,
        .flags = (uint8_t)TRACE_SLOT_FLAGS(slot->word),
    };
    return true;
}

static bool keep_all(const struct profile *profile, struct blocks *blocks,
                     const struct trace_slots *slots) {
    for (size_t i = 0; i < slots->count; i++) {
        struct trace_slot slot;
        unsigned state = trace_slot_read(trace_slot_at(slots, i), &slot);
        if ((state == TRACE_SLOT_LIVE || state == TRACE_SLOT_FREEING) &&
            !keep(profile, blocks, &slot))
            return false;
    }
    return true;
}

static int compare(const void *left, const void *right) {
    const struct block *a = left, *b = right;
    if (a->space != b->space)
        return a->space < b->space ? -1 : 1;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return a->address < b->address ? -1 : a->address > b->address;
}

static bool finish(struct blocks *blocks, bool ok) {
    if (!ok)
        blocks_free(blocks);
    else if (blocks->count)
        qsort(blocks->list, blocks->count, sizeof *blocks->list, compare);
    return ok;
}

bool blocks_live(const struct profile *profile, uint64_t ns, struct blocks *blocks) {
    bool ok = true;
    *blocks = (struct blocks){.ns = ns};
    for (unsigned t = 0; ok; t++) {
        struct trace_slots table = trace_live_table(profile->trace, t);
        if (table.count == 0)
            break;
        ok = keep_all(profile, blocks, &table);
    }
    return finish(blocks, ok);
}

bool blocks_of_copy(const struct profile *profile, uint32_t ref, struct blocks *blocks) {
    *blocks = (struct blocks){0};
    struct trace_slots copy = trace_failure_copy(profile->trace, ref, &blocks->ns);
    return finish(blocks, keep_all(profile, blocks, &copy));
}

void blocks_free(struct blocks *blocks) {
    free(blocks->list);
    *blocks = (struct blocks){0};
}

/* The first block at or after this key. */
static size_t first_from(const struct blocks *blocks, const struct block *key) {
    size_t low = 0, high = blocks->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&blocks->list[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct block_list blocks_of(const struct blocks *blocks, enum trace_space space, unsigned device) {
    struct block key = {.space = (uint8_t)space, .device = (uint16_t)device};
    size_t from = first_from(blocks, &key), to = from;
    while (to < blocks->count && blocks->list[to].space == space &&
           blocks->list[to].device == device)
        to++;
    return (struct block_list){to > from ? &blocks->list[from] : NULL, to - from};
}

/* ---- segments -------------------------------------------------------------------------------- */

static int compare_arenas(const void *left, const void *right) {
    const struct arena *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

static size_t add_driver_blocks(const struct blocks *blocks, unsigned device,
                                struct arena *arenas) {
    struct block_list plain = blocks_of(blocks, TRACE_SPACE_POINTER, device);
    for (size_t i = 0; i < plain.count; i++)
        arenas[i] = (struct arena){.address = plain.list[i].address,
                                   .bytes = plain.list[i].bytes,
                                   .segment = plain.list[i].flags & TRACE_SLOT_SEGMENT,
                                   .site = plain.list[i].site};
    return plain.count;
}

/* Mappings side by side are one stretch. */
static size_t add_mappings(const struct profile *profile, unsigned device, struct arena *arenas) {
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_RANGES), kept = 0, last = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trace_range *range = trace_record(profile->trace, TRACE_SECTION_RANGES, i);
        if (range && range->type == TRACE_RANGE_MAPPING && !range->removed_ns &&
            range->device == device)
            arenas[kept++] =
                (struct arena){.address = range->address, .bytes = range->bytes, .site = SITE_NONE};
    }
    if (kept)
        qsort(arenas, kept, sizeof *arenas, compare_arenas);
    for (size_t i = 1; i < kept; i++) {
        if (arenas[last].address + arenas[last].bytes == arenas[i].address)
            arenas[last].bytes += arenas[i].bytes;
        else
            arenas[++last] = arenas[i];
    }
    return kept ? last + 1 : 0;
}

/* What a tensor takes of the stretch that it begins in. */
static void put(struct arena *arenas, size_t count, const struct block *tensor) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (arenas[middle].address <= tensor->address)
            low = middle + 1;
        else
            high = middle;
    }
    struct arena *arena = low ? &arenas[low - 1] : NULL;
    if (!arena || tensor->address - arena->address >= arena->bytes)
        return;
    uint64_t room = arena->bytes - (tensor->address - arena->address);
    arena->used_bytes += tensor->bytes < room ? tensor->bytes : room;
    if (!arena->parts.count)
        arena->parts.list = tensor;
    arena->parts.count++;
}

struct arena *blocks_segments(const struct profile *profile, const struct blocks *blocks,
                              unsigned device, size_t *count) {
    size_t room = blocks_of(blocks, TRACE_SPACE_POINTER, device).count +
                  trace_record_count(profile->trace, TRACE_SECTION_RANGES);
    struct arena *arenas = calloc(room + 1, sizeof *arenas);
    *count = arenas ? 0 : SIZE_MAX;
    if (!arenas)
        return NULL;
    size_t all = add_driver_blocks(blocks, device, arenas);
    all += add_mappings(profile, device, arenas + all);
    if (all)
        qsort(arenas, all, sizeof *arenas, compare_arenas);
    struct block_list tensors = blocks_of(blocks, TRACE_SPACE_TENSOR, device);
    for (size_t i = 0; i < tensors.count; i++)
        put(arenas, all, &tensors.list[i]);
    size_t kept = 0;
    for (size_t i = 0; i < all; i++)
        if (arenas[i].parts.count || arenas[i].segment)
            arenas[kept++] = arenas[i];
    *count = kept;
    if (kept)
        return arenas;
    free(arenas);
    return NULL;
}
