/*
 * Where the text report is written to, its means of emphasis, and how it names files. Called by
 * render_table.c and site_table.c; one thread.
 */
#ifndef TOOLS_PAINTER_H
#define TOOLS_PAINTER_H

#include "render.h"

struct painter {
    const struct report *report;
    FILE *out;
};

/* An SGR code, "0" to end it; nothing where colours are not wanted. */
void painter_style(const struct painter *painter, const char *code);

/* A heading after an empty line. */
void painter_title(const struct painter *painter, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A path as people would name the file from where they are. */
const char *painter_file(const struct painter *painter, const char *path);

#endif
