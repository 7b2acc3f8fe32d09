/*
 * Where libcuheap.so is. Called by cmd_lib.c and cmd_run.c.
 */
#ifndef TOOLS_LIBRARY_H
#define TOOLS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* The absolute path: beside the tool itself, in ../lib/cuheap from there, or where it was
   configured to be installed. False: in none of them; `path` then lists where it was sought. */
bool library_find(char *path, size_t size);

#endif
