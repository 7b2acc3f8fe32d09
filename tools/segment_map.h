/*
 * The segments of one device of a process with what lay in each, at the last failure of which there
 * is a copy, else in the end. Called by the renderers; one thread.
 */
#ifndef TOOLS_SEGMENT_MAP_H
#define TOOLS_SEGMENT_MAP_H

#include "fragmentation.h"

struct segment_map {
    enum fragmentation_moment at;
    struct blocks blocks;
    struct arena *segments; /* by address; NULL: there are none */
    size_t count;
};

/* False only when memory is exhausted. */
bool segment_map_build(const struct profile *profile, unsigned device, uint64_t end_ns,
                       struct segment_map *map);
void segment_map_free(struct segment_map *map);

/* One cell a character: '#' used, '+' in part, '.' free; NUL-terminated. */
void segment_map_draw(const struct arena *segment, char *out, size_t cells);

#endif
