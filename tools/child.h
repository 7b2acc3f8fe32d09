/*
 * Runs the traced program: starts it, passes signals on, waits. Called by cmd_run.c; the process
 * has one thread.
 */
#ifndef TOOLS_CHILD_H
#define TOOLS_CHILD_H

#include <sys/types.h>

struct child_end {
    pid_t pid;  /* 0: it could not be started, `error` says why */
    int error;  /* errno */
    int code;   /* its exit code; 128 + n after signal n */
    int signal; /* 0: it exited */
};

struct child_end child_run(const char *path, char **argv);

#endif
