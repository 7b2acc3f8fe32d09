/*
 * What the numbers mean: findings in plain words, each with its evidence, how certain it is and
 * what can be done, the worst and most costly first.
 *
 * All that is analysed beyond the view of the sites is kept here for the renderers: the failures
 * with their verdicts, and the fragmentation of each device of each process. Called by
 * cmd_report.c; one thread.
 */
#ifndef TOOLS_FINDINGS_H
#define TOOLS_FINDINGS_H

#include "failures.h"

enum severity { SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_ERROR };
extern const char *const severity_names[]; /* "note", "warning", "error" */

/* name, id. Which rule makes them stands in findings.c. */
#define FINDINGS(X)                                                                                \
    X(LEAK_GROWING, "leak.growing")                                                                \
    X(LEAK_SATURATING, "leak.saturating")                                                          \
    X(LEAK_RETAINED, "leak.retained")                                                              \
    X(LEAK_LATE, "leak.late")                                                                      \
    X(LEAK_UNFREED, "leak.unfreed")                                                                \
    X(CACHE_GROWING, "cache.growing")                                                              \
    X(CACHE_REUSE, "cache.reuse")                                                                  \
    X(OOM_CAPACITY, "oom.capacity")                                                                \
    X(OOM_FRAGMENTATION, "oom.fragmentation")                                                      \
    X(OOM_REFUSED, "oom.refused")                                                                  \
    X(OOM_LIMIT, "oom.limit")                                                                      \
    X(OOM_FLUSH_RETRY, "oom.flush_retry")                                                          \
    X(OOM_HOST, "oom.host")                                                                        \
    X(OOM_UNKNOWN, "oom.unknown")                                                                  \
    X(ALLOC_FAILED, "alloc.failed")                                                                \
    X(FREE_FAILED, "free.failed")                                                                  \
    X(MAP_FAILED, "map.failed")                                                                    \
    X(REGISTER_FAILED, "register.failed")                                                          \
    X(IMPORT_FAILED, "import.failed")                                                              \
    X(CALL_FAILED, "call.failed")                                                                  \
    X(PEAK_SPIKE, "peak.spike")                                                                    \
    X(PEAK_NEAR_CAPACITY, "peak.near_capacity")                                                    \
    X(FRAG_ROUNDING, "frag.rounding")                                                              \
    X(FRAG_POOL_SLACK, "frag.pool_slack")                                                          \
    X(FRAG_HOLES, "frag.holes")                                                                    \
    X(POOL_OPAQUE, "pool.opaque")                                                                  \
    X(ALLOC_STORM, "alloc.storm")                                                                  \
    X(IPC_UNCLOSED, "ipc.unclosed")                                                                \
    X(VMM_HELD_UNMAPPED, "vmm.held_unmapped")                                                      \
    X(GRAPH_RESERVED, "graph.reserved")                                                            \
    X(CONTEXT_EXTRA, "context.extra")                                                              \
    X(MODULES_GROWING, "modules.growing")                                                          \
    X(HOST_ROUNDED, "host.rounded")                                                                \
    X(LIBRARY_HOLDS, "library.holds")

enum finding_id {
#define X(name, id) FINDING_##name,
    FINDINGS(X)
#undef X
        FINDING_LIMIT
};
extern const char *const finding_ids[];

enum evidence_unit { EVIDENCE_BYTES, EVIDENCE_COUNT, EVIDENCE_SECONDS, EVIDENCE_RATIO };

struct evidence {
    const char *key;
    enum evidence_unit unit;
    double value;
};

/* What can be done, and who says so. */
struct advice {
    const char *text;
    const char *source; /* a page of somebody's documentation */
};

#define FINDING_SITES    8
#define FINDING_EVIDENCE 12
#define FINDING_ADVICE   4

struct finding {
    enum finding_id id;
    enum severity severity;
    double certainty; /* 0 to 1; by which formula says cuheap-report(1) */
    uint64_t bytes;   /* that it costs, or is about; 0: not known */
    char text[768];
    size_t process;  /* the only one, or the first */
    uint32_t device; /* index in job.devices; DEVICE_NONE: of no one device */
    char sites[FINDING_SITES][SITE_ID_BYTES];
    const struct backtrace *stacks[FINDING_SITES]; /* of those */
    size_t site_count;
    struct evidence evidence[FINDING_EVIDENCE];
    size_t evidence_count;
    const struct advice *advice[FINDING_ADVICE];
    size_t advice_count;
};

/* One device of one process. */
struct space {
    size_t process;
    unsigned ordinal;
    uint32_t device; /* index in job.devices */
    struct fragmentations moments;
    bool late_reuse_known;
    double late_reuse_rate; /* in the last third of the work */
};

struct findings {
    struct finding *list; /* errors first, then by bytes */
    size_t count;
    struct failures failures;
    struct space *spaces;
    size_t space_count;
    struct blocks *live; /* of each process, in the end */
    size_t process_count;
};

/* Only of what the view shows. False only when memory is exhausted. */
bool findings_build(const struct view *view, struct backtraces *backtraces,
                    struct findings *findings);
void findings_free(struct findings *findings);

/* NULL: the process has no such device. */
const struct space *findings_space(const struct findings *findings, size_t process,
                                   unsigned ordinal);

/* What the user asked to be pretended (a capacity, failures): the text at this index of the notes;
   NULL: the note is about something else. */
const char *findings_pretended(const struct trace *trace, size_t index);

#endif
