/*
 * Runs programs as their users would, with libcuheap.so preloaded or without, on the simulated
 * driver, and reads what the reader reports of them.
 *
 * Used by the Criterion programs of tests/e2e and tests/stress, each test in a process of its own;
 * one thread a process. What goes wrong in the harness itself fails the test with a message.
 */
#ifndef TESTS_E2E_HARNESS_H
#define TESTS_E2E_HARNESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BUILD_LIBRARY CUHEAP_BUILD "/libcuheap.so"
#define BUILD_SIMGPU  CUHEAP_BUILD "/simgpu"
#define BUILD_TOOL    CUHEAP_BUILD "/cuheap"
#define PROGRAM(name) CUHEAP_BUILD "/e2e/" name

#define RUN_TRACES      512
#define RUN_UNTRACEABLE 124 /* exit code where ptrace is refused */

/* How to start a program. Only `program` is needed. */
struct launch {
    const char *program;
    const char *args[16];
    const char *env[24];       /* "NAME=value", over the test's own environment; "NAME": unset */
    bool plain;                /* without libcuheap.so */
    bool no_driver;            /* without the simulated libcuda.so.1 */
    const char *preload_front; /* further preloaded libraries, before ours and behind it */
    const char *preload_behind;
    const char *work_dir; /* default: the run's own fresh folder */
    bool traced;          /* by ptrace, from its exec on; addresses are the same in each run */
    int limit_s;          /* SIGKILL to the whole process group after that; default 60 */
};

/* What came of it. */
struct run {
    char dir[64]; /* fresh, mode 0700: CUHEAP_OUT and the working folder unless told otherwise */
    pid_t pid;
    int code;   /* of exit(); -1 when ended by a signal */
    int signal; /* 0: none */
    bool timed_out;
    char *out; /* all of stdout and stderr */
    char *err;
    unsigned trace_count;
    char *traces[RUN_TRACES]; /* paths in dir, sorted by name */
};

struct run *run_start(const struct launch *launch); /* returns at once */
void run_wait(struct run *run, int limit_s);
struct run *run_program(const struct launch *launch); /* both */
/* With the library and without; both must succeed with equal output. The traced run. */
struct run *run_same_output(struct launch launch);
void run_free(struct run *run); /* removes the folder */

/* Ended by exit(0) in time, with nothing on stderr; else the test fails and shows both. */
void run_must_succeed(const struct run *run);
/* The only trace that it left; the test fails if there is none or another. */
const char *run_trace(const struct run *run);

/* `cuheap COMMAND --json ARGS... PATH`; must exit with 0. The caller owns the result. */
json_t *cuheap_json(const char *command, const char *path);
/* Any other command of the tool. */
struct run *cuheap_run(const char *const args[]);

/* ---- look-ups in a report; each fails the test when the thing is not there ---- */

/* A value by a path such as "processes.0.devices.1.driver.total.live_bytes". */
json_t *json_at(json_t *root, const char *path);
uint64_t json_number(json_t *root, const char *path);
const char *json_text(json_t *root, const char *path);

/* The frames of a site, innermost first: "function" or, if inlined, "function (inlined)". */
unsigned site_frames(json_t *report, json_t *site, const char **names, unsigned limit);
/* The only site whose blamed function this is. */
json_t *site_of(json_t *report, const char *function);
/* Loss counter of the first process; 0 where the report leaves out what did not happen. */
uint64_t report_loss(json_t *report, const char *name);

#endif
