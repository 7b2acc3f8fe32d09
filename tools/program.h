/*
 * The program that is to be run: where it is, and whether a library can be preloaded into it.
 * Called by cmd_run.c.
 */
#ifndef TOOLS_PROGRAM_H
#define TOOLS_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Finds `name` as execvp(3) would. 0; else the exit code for it: 127 not found, 126 found but not
   executable. */
int program_find(const char *name, char path[PATH_MAX]);

/* Whether the dynamic loader will load `library` into it; false: `reason` says why not. Scripts are
   followed to their interpreters. What cannot be read is let pass. */
bool program_can_be_traced(const char *path, const char *library, char *reason, size_t size);

#endif
