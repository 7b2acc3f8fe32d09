/*
 * What a report shows: sites with their stacks, filtered, grouped and sorted; totals of several
 * processes and devices summed.
 *
 * This is where symbols meet the books. Called by cmd_report.c and the renderers; one thread.
 */
#ifndef TOOLS_VIEW_H
#define TOOLS_VIEW_H

#include "backtrace.h"
#include "frameworks.h"
#include "growth.h"
#include "job.h"

#include <regex.h>

/* What is known in numbers of a site or of several together. */
enum measure {
    MEASURE_AT_PEAK_BYTES,
    MEASURE_END_OF_WORK_BYTES,
    MEASURE_END_OF_WORK_COUNT,
    MEASURE_LIVE_BYTES,
    MEASURE_LIVE_COUNT,
    MEASURE_OWN_PEAK_BYTES,
    MEASURE_ALLOCS,
    MEASURE_FREES,
    MEASURE_GROWING_BYTES, /* at end of work, of sites that grow and are no framework's cache */
    MEASURE_GROWING_COUNT,
    MEASURE_GROWING_A_MINUTE, /* bytes */
    MEASURE_GROWING_A_STEP,   /* bytes; 0: no marks tell steps */
    MEASURE_LIMIT
};

enum view_by { BY_LINE, BY_FUNCTION, BY_LIBRARY, BY_STACK };
extern const char *const view_by_names[]; /* in that order; NULL-terminated */

struct view_filter {
    int ledger;            /* enum trace_ledger; 0: all */
    const char *device;    /* ordinal or beginning of a UUID; NULL: all */
    const regex_t *focus;  /* only sites with such a frame; NULL: all */
    const regex_t *ignore; /* no site with such a frame */
};

/* Sites that are shown as one. */
struct view_row {
    size_t process; /* the only one, or the first */
    size_t processes;
    size_t stacks;
    uint8_t ledger;
    uint8_t kind;
    uint8_t growth;                    /* enum growth_class; of the largest of them */
    bool segments;                     /* its blocks have held tensors of PyTorch */
    const struct framework_pool *pool; /* whose pool its blocks are; NULL: nobody's */
    bool other;                        /* takes the events of sites that found no room */
    uint16_t ordinal;                  /* the device in its process */
    uint32_t device;                   /* index in job.devices, or DEVICE_NONE */
    uint32_t total;                    /* index in view.sums */
    const struct profile_site *book;   /* of the largest of them, in process `owner` */
    size_t owner;
    const struct backtrace *backtrace; /* likewise */
    const struct backtrace *caller;    /* of the thread that waited for it; NULL: not known */
    bool caller_varies;                /* or it was another one at another time */
    bool blames_vary;                  /* its sites have blames of several names */
    char id[SITE_ID_BYTES];
    uint64_t values[MEASURE_LIMIT];
    uint64_t cache[MEASURE_LIMIT]; /* of live and end of work, what is PyTorch's cache */
};

/* A ledger's group of kinds on one device, over all processes. */
struct view_sum {
    uint8_t ledger;
    uint8_t group;
    uint32_t device;
    size_t processes;
    uint64_t live_bytes, live_count;
    uint64_t end_of_work_bytes, end_of_work_count;
    uint64_t peak_bytes;   /* of several processes: the sum of each one's own */
    int64_t residue_bytes; /* peak_bytes less the shares of all sites */
    uint64_t peak_ns, below_90_ns, last_alloc_ns; /* of one process; of several 0 */
    struct profile_kind kinds[TRACE_KIND_SLOTS];
};

struct view {
    const struct job *job;
    struct view_row *sites; /* one a site of each process that passed the filter */
    size_t site_count;
    struct view_sum *sums;
    size_t sum_count;
    bool sites_filtered; /* by focus or ignore: rows do not add up to the sums */
    int ledger;          /* the only one asked for; 0: all */
    const char *wanted;  /* device, as in the filter */
};

/* Whether a device of a process, by its ordinal there, was asked for. */
bool view_shows_device(const struct view *view, const struct job_process *process,
                       uint16_t ordinal);

/* Whether a row has segments: memory in which PyTorch hands out its tensors. */
bool view_is_cache(const struct view_row *row);

/* Whether it was live at the end of work and less than a tenth of it was left at exit: not what a
   program keeps, but what its end freed. */
bool view_is_released(const struct view_row *row);

/* The frame whose line a row stands under: the blame, or where that is no line of the program's
   own, the blame of the thread that waited for it. NULL: nobody. */
const struct frame *view_line(const struct view_row *row);
/* Whether that is the waiting thread's. */
bool view_is_via_caller(const struct view_row *row);

/* The row of a site of a process; NULL: it did not pass the filter. */
const struct view_row *view_row_of(const struct view *view, size_t process, size_t site);

/* False only when memory is exhausted. */
bool view_build(struct view *view, const struct job *job, struct backtraces *backtraces,
                const struct view_filter *filter);
void view_free(struct view *view);

struct view_rows {
    struct view_row *rows; /* the largest first */
    size_t count;
    uint64_t sums[MEASURE_LIMIT];  /* of all rows */
    uint64_t cache[MEASURE_LIMIT]; /* what was left out as cache */
};

/*
 * Groups the sites. The largest by `sort` come first; where that
 * is zero a row is left out, unless `all`. Rows of several processes are one unless `per_process`.
 */
struct view_grouping {
    enum view_by by;
    enum measure sort;
    bool per_process;
    bool all;
    bool without_cache;         /* PyTorch's cache is left out of the rows */
    int ledger;                 /* 0: all */
    const struct view_sum *sum; /* only sites of this one; NULL: all */
};
bool view_group(const struct view *view, const struct view_grouping *grouping,
                struct view_rows *rows);
void view_rows_free(struct view_rows *rows);

#endif
