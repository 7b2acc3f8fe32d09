/*
 * See segment_map.h; one thread.
 */
#include "segment_map.h"

#include <stdlib.h>
#include <string.h>

static uint32_t last_copy(const struct profile *profile, unsigned device) {
    size_t count = trace_record_count(profile->trace, TRACE_SECTION_FAILURES);
    uint64_t latest = 0, ns;
    uint32_t copy = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trace_failure *failure =
            trace_record(profile->trace, TRACE_SECTION_FAILURES, i);
        if (failure && failure->device == device && failure->ns >= latest &&
            trace_failure_copy(profile->trace, failure->copy, &ns).count) {
            latest = failure->ns;
            copy = failure->copy;
        }
    }
    return copy;
}

bool segment_map_build(const struct profile *profile, unsigned device, uint64_t end_ns,
                       struct segment_map *map) {
    uint32_t copy = last_copy(profile, device);
    *map = (struct segment_map){.at = copy ? FRAGMENTATION_FAILURE : FRAGMENTATION_EXIT};
    if (!(copy ? blocks_of_copy(profile, copy, &map->blocks)
               : blocks_live(profile, end_ns, &map->blocks)))
        return false;
    map->segments = blocks_segments(profile, &map->blocks, device, &map->count);
    if (map->count != SIZE_MAX)
        return true;
    map->count = 0;
    segment_map_free(map);
    return false;
}

void segment_map_free(struct segment_map *map) {
    free(map->segments);
    blocks_free(&map->blocks);
    *map = (struct segment_map){0};
}

/* Bytes of the parts within a stretch. */
static uint64_t used_in(const struct arena *segment, size_t *part, uint64_t from, uint64_t to) {
    uint64_t used = 0;
    for (size_t i = *part; i < segment->parts.count; i++) {
        const struct block *block = &segment->parts.list[i];
        uint64_t begin = block->address > from ? block->address : from;
        uint64_t end = block->address + block->bytes;
        if (block->address >= to)
            break;
        if (end <= to)
            *part = i + 1; /* nothing of it lies in the next cell */
        if (end > to)
            end = to;
        used += end > begin ? end - begin : 0;
    }
    return used;
}

void segment_map_draw(const struct arena *segment, char *out, size_t cells) {
    size_t part = 0;
    for (size_t i = 0; i < cells; i++) {
        double width = (double)segment->bytes / (double)cells;
        uint64_t from = segment->address + (uint64_t)((double)i * width);
        uint64_t to = segment->address + (uint64_t)((double)(i + 1) * width);
        uint64_t used = used_in(segment, &part, from, to);
        out[i] = used == 0 ? '.' : used >= to - from ? '#' : '+';
    }
    out[cells] = '\0';
}
