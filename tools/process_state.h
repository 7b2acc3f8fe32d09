/*
 * What became of a traced process. Called by job.c; one thread.
 */
#ifndef TOOLS_PROCESS_STATE_H
#define TOOLS_PROCESS_STATE_H

#include "trace_reader.h"

enum process_state {
    PROCESS_RUNNING,
    PROCESS_EXITED,
    PROCESS_KILLED,   /* by a signal, or ended by _exit(): nobody sealed the trace */
    PROCESS_EXEC,     /* the process lives on as another program */
    PROCESS_UNSEALED, /* of another host, boot or pid namespace: nobody here can tell */
};

const char *process_state_name(enum process_state state);
enum process_state process_state_of(const struct trace_header *header);

#endif
