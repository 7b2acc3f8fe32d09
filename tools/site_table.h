/*
 * A table of sites in the text report: figures, share, place, and the stack under each row. What it
 * does not list one by one it sums in rows of its own, so that its first column adds up. Called by
 * render_table.c; one thread.
 */
#ifndef TOOLS_SITE_TABLE_H
#define TOOLS_SITE_TABLE_H

#include "painter.h"

/* Which figure it sorts by and how it presents itself. */
struct site_table {
    const char *title;       /* "PEAK BY SITE" */
    const char *what;        /* "device 0, driver" */
    enum measure measure;    /* bytes */
    const char *const *keys; /* columns before WHERE; the first is `measure` */
    uint64_t bytes;          /* what the rows add up to */
    const char *tail;        /* after the bytes in the title */
    int64_t residue;         /* of it in no row: events in flight */
    uint64_t cache_bytes;    /* of it PyTorch's cache, left out of the rows */
    uint64_t cache_count;    /* its segments */
};

void site_table_print(const struct painter *painter, const struct site_table *table,
                      const struct view_rows *rows);

#endif
