/*
 * Where the traces of a run are to be found: the places that the library chooses from, as file
 * names. Called by cmd_run.c.
 */
#ifndef TOOLS_RUN_TRACES_H
#define TOOLS_RUN_TRACES_H

#include <stdbool.h>
#include <stddef.h>

struct run_traces {
    char **paths; /* files that may be traces of the run */
    size_t count;
    char looked[4096]; /* where, for a message */
};

/* `out` is CUHEAP_OUT; NULL or empty: the library's default places, seen from this directory. */
bool run_traces_find(struct run_traces *traces, const char *out);
void run_traces_free(struct run_traces *traces);

#endif
