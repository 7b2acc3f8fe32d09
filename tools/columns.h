/*
 * What can be told of a row of sites, as one table: key, title, unit, value. The text report, CSV
 * and JSON all take their figures from here. Called by the renderers; no state.
 */
#ifndef TOOLS_COLUMNS_H
#define TOOLS_COLUMNS_H

#include "view.h"

enum column_unit {
    UNIT_TEXT,
    UNIT_BYTES,
    UNIT_COUNT,
};

enum column_use {
    IN_CSV = 1u << 0,
    IN_JSON = 1u << 1, /* figures of a site */
};

struct column {
    const char *key;   /* in CSV and JSON */
    const char *title; /* in the text report */
    enum column_unit unit;
    enum measure measure; /* of figures */
    /* Of texts: writes the value; "" where it is not known. */
    void (*write)(const struct view *view, const struct view_row *row, char *out, size_t size);
    int width; /* in the text report; negative: to the left */
    unsigned use;
};

extern const struct column column_table[];
extern const size_t column_count;

/* NULL: no such key. */
const struct column *column_by_key(const char *key);

#define CELL_BYTES 16384
/* The cell as the text report shows it (readable) or as CSV does (exact). */
char *column_cell(const struct column *column, const struct view *view, const struct view_row *row,
                  bool readable, char out[CELL_BYTES]);

/* In CSV and JSON, of a site whose line is that of the thread that waited for it. */
#define COLUMN_VIA_CALLER "waiting_thread"

/* "load_weights" or, without a name, "libfoo.so+0x1234"; without a stack, why there is none. */
char *column_frame_name(const struct frame *frame, char *out, size_t size);

#endif
