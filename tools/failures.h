/*
 * Why calls failed: what each failure of a process was, with the numbers that tell, who asked and
 * who held the memory then.
 *
 * Called by the findings and the renderers; one thread.
 */
#ifndef TOOLS_FAILURES_H
#define TOOLS_FAILURES_H

#include "fragmentation.h"
#include "view.h"

/* name, JSON name */
#define VERDICTS(X)                                                                                \
    X(UNKNOWN, "unknown")             /* out of memory; how much was free is not known */          \
    X(REFUSED, "refused")             /* as much was free as was asked for: another reason */      \
    X(FRAGMENTATION, "fragmentation") /* the process itself holds enough that is not used */       \
    X(CAPACITY, "capacity")           /* more than is free and than it could give back */          \
    X(LIMIT, "limit")                 /* the framework refused by itself: a limit set for it */    \
    X(FLUSH_RETRY, "flush_retry")     /* after frees the same size was granted */                  \
    X(HOST, "host")                   /* pinned or registered memory of the host */                \
    X(FAILED_CALL, "failed_call")     /* no out-of-memory */

enum verdict {
#define X(name, key) VERDICT_##name,
    VERDICTS(X)
#undef X
};
extern const char *const verdict_names[];

#define FAILURE_HOLDERS 5

/* Who held memory when it failed. */
struct holder {
    const struct view_row *row;
    uint64_t bytes;
};

struct failure {
    const struct trace_failure *record;
    size_t process;
    uint32_t device; /* index in job.devices; DEVICE_NONE: host memory */
    enum verdict verdict;
    bool handled;    /* the program went on */
    bool pretended;  /* asked for by CUHEAP_LIMIT or CUHEAP_FAIL */
    bool superseded; /* an attempt before a later one of the same request: that one tells */
    uint64_t count;  /* this one, its repeats, and the attempts that it supersedes */
    /* As of the last of them: */
    uint64_t ns;
    uint64_t request_bytes;
    bool free_known;
    uint64_t free_bytes;
    bool slack_known;
    uint64_t slack_bytes; /* what the process held and did not use: cache, pools */
    uint64_t cache_slack_bytes;
    uint64_t pool_slack_bytes;
    const struct backtrace *backtrace; /* who asked */
    struct holder holders[FAILURE_HOLDERS];
    size_t holder_count;
    uint64_t held_bytes; /* by all sites of the driver's ledger on the device; 0: not known */
    const char *held_at; /* "then", "at the end of work" or "at the peak" */
};

struct failures {
    struct failure *list; /* by process, then in the order of time */
    size_t count;
};

/* False only when memory is exhausted. */
bool failures_build(const struct view *view, struct backtraces *backtraces,
                    struct failures *failures);
void failures_free(struct failures *failures);

/* "CUDA_ERROR_OUT_OF_MEMORY"; NULL: not known by name. */
const char *failure_code_name(int32_t code);

/* The driver function without its version: "cuMemAlloc"; cleaned. */
char *failure_call(const struct trace *trace, const struct trace_failure *record, char *out,
                   size_t size);

#endif
