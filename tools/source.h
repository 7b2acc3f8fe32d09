/*
 * One line of a source file that a trace names, for a report that was asked for it.
 *
 * The name is not trusted. A file is read only if it is a regular one that lies, links resolved,
 * below the current directory; nothing outside is opened on the way. Called by site_table.c; no
 * state.
 */
#ifndef TOOLS_SOURCE_H
#define TOOLS_SOURCE_H

#include <stdbool.h>

#define SOURCE_BYTES 1024

/* Cleaned, without what indents it, cut to fit. False: not to be had. file may be NULL. */
bool source_line(const char *file, unsigned line, char text[SOURCE_BYTES]);

#endif
