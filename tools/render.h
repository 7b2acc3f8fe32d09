/*
 * One interface for what prints a report. A renderer prints what the report holds, and decides
 * nothing about its meaning. Called by cmd_report.c.
 */
#ifndef TOOLS_RENDER_H
#define TOOLS_RENDER_H

#include "findings.h"

#include <stdio.h>

enum render_part {
    PART_PEAK = 1u << 0,
    PART_LEAKS = 1u << 1,
    PART_REST = 1u << 2, /* processes, findings, totals, losses, notes */
    PART_FAILURES = 1u << 3,
    PART_FRAGMENTATION = 1u << 4, /* with the map of the segments */
};

struct report {
    const struct job *job;
    const struct view *view;
    const struct findings *findings;
    unsigned parts; /* enum render_part */
    enum view_by by;
    size_t top; /* rows a table shows; the rest is one more row */
    bool full_stacks;
    bool source;           /* with the source text of each blame's line */
    const char *directory; /* cleaned; files in it are named relative to it; NULL: none are */
    bool colour;
    size_t width; /* columns of the terminal */
};

/* False when memory is exhausted. */
bool render_table(const struct report *report, FILE *out);
bool render_csv(const struct report *report, FILE *out);
bool render_json(const struct report *report, FILE *out);

#endif
