/*
 * Findings about places in the program: what grows, what stayed, what made the peak, which library
 * holds how much. See finding_rules.h; one thread.
 */
#include "columns.h"
#include "finding_rules.h"
#include "text.h"
#include "timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_TOLD     3            /* of findings that are only notes, the largest */
#define SMALL         (1ull << 20) /* below that nothing is told that does not grow */
#define SMALL_SHARE   0.01         /* nor below that share of what its ledger held */
#define LIBRARY_LEAST (64ull << 20)

static bool is_host(const struct view_row *row) {
    enum trace_group group = trace_kind_group(row->kind);
    return group == TRACE_GROUP_HOST || group == TRACE_GROUP_REGISTERED;
}

/* A cache or pool is judged as such; a graph's memory is held for its next launch, and what was
   imported is another's. */
static bool can_leak(const struct view_row *row) {
    return !view_is_cache(row) && !row->pool && row->kind != TRACE_KIND_GRAPH &&
           row->kind != TRACE_KIND_IMPORTED;
}

static struct growth growth_of(const struct inquiry *inquiry, const struct view_row *row) {
    const struct job_process *owner = &inquiry->view->job->processes[row->owner];
    const struct profile_total *total = &owner->profile->totals[row->book->total];
    return growth_of_site(row->book->record, growth_work_end(total, owner->duration_ns));
}

static void say_blocks(struct finding *finding, uint64_t bytes, uint64_t count) {
    char size[TEXT_BYTES];
    finding_say(finding, "%s in %" PRIu64 " block%s", text_bytes(size, bytes), count,
                count == 1 ? "" : "s");
}

static void add_row(struct finding *finding, const struct view_row *row) {
    finding->process = row->process;
    finding->device = row->device;
    finding_site(finding, row);
    finding_evidence(finding, "allocs", EVIDENCE_COUNT, (double)row->values[MEASURE_ALLOCS]);
    finding_evidence(finding, "frees", EVIDENCE_COUNT, (double)row->values[MEASURE_FREES]);
}

static const char *kind_words(const struct view_row *row) {
    static const char *const words[TRACE_KIND_LIMIT] = {
        [TRACE_KIND_DEVICE] = "memory of the device",
        [TRACE_KIND_POOL] = "memory of a pool",
        [TRACE_KIND_VMM] = "physical memory",
        [TRACE_KIND_ARRAY] = "arrays",
        [TRACE_KIND_MANAGED] = "managed memory",
        [TRACE_KIND_HOST] = "pinned host memory",
        [TRACE_KIND_REGISTERED] = "registered host memory",
        [TRACE_KIND_TENSOR] = "tensors",
    };
    const char *known = row->kind < TRACE_KIND_LIMIT ? words[row->kind] : NULL;
    return known ? known : "memory";
}

/* ---- growing --------------------------------------------------------------------------------- */

/* Whether nearly nothing was freed in the process, and it ended out of memory: what grew may have
   been loaded. */
static bool may_be_loading(const struct inquiry *inquiry, size_t process) {
    const struct profile *profile = inquiry->view->job->processes[process].profile;
    const struct failures *failures = &inquiry->findings->failures;
    uint64_t allocs = 0, frees = 0;
    for (size_t i = 0; i < profile->total_count; i++) {
        allocs += profile->totals[i].allocs;
        frees += profile->totals[i].frees;
    }
    for (size_t i = 0; i < failures->count; i++)
        if (failures->list[i].process == process && !failures->list[i].handled &&
            failures->list[i].verdict != VERDICT_FAILED_CALL)
            return 100 * frees < allocs;
    return false;
}

static void tell_growing(struct inquiry *inquiry, const struct view_row *row) {
    struct growth growth = growth_of(inquiry, row);
    bool young = growth.windows < GROWTH_WINDOWS;
    bool loading = may_be_loading(inquiry, row->owner);
    uint64_t bytes = row->values[MEASURE_GROWING_BYTES];
    uint64_t minute = row->values[MEASURE_GROWING_A_MINUTE];
    uint64_t step = row->values[MEASURE_GROWING_A_STEP];
    uint64_t allocs = row->values[MEASURE_ALLOCS];
    struct finding *finding = finding_add(
        inquiry, FINDING_LEAK_GROWING, young || loading ? SEVERITY_WARNING : SEVERITY_ERROR, bytes);
    char place[PLACE_BYTES], size[TEXT_BYTES];
    finding->certainty = 1 - growth.chance;
    finding_say(finding, "%s keeps ever more %s: ", finding_place(row, place), kind_words(row));
    say_blocks(finding, bytes, row->values[MEASURE_GROWING_COUNT]);
    finding_say(finding, " at end of work, %s more a minute", text_bytes(size, minute));
    if (step)
        finding_say(finding, ", %s more a step", text_bytes(size, step));
    finding_say(finding, "; %" PRIu64 " of its %" PRIu64 " allocations were %sfreed before that",
                allocs - row->values[MEASURE_GROWING_COUNT], allocs,
                row->values[MEASURE_GROWING_COUNT] == allocs ? "ever " : "");
    if (young)
        finding_say(finding, "; it began late in the run and was seen only for a short time");
    if (loading)
        finding_say(finding, "; nothing was freed in this process before it ran out of memory: it "
                             "may have been loading");
    add_row(finding, row);
    finding_evidence(finding, "bytes_a_minute", EVIDENCE_BYTES, (double)minute);
    if (step)
        finding_evidence(finding, "bytes_a_step", EVIDENCE_BYTES, (double)step);
    finding_evidence(finding, "gain_bytes", EVIDENCE_BYTES, (double)growth.gain_bytes);
    finding_evidence(finding, "windows", EVIDENCE_COUNT, growth.windows);
}

void find_growing(struct inquiry *inquiry) {
    struct view_rows rows;
    if (!finding_rows(inquiry, MEASURE_GROWING_BYTES, 0, &rows))
        return;
    for (size_t i = 0; i < rows.count; i++)
        if (can_leak(&rows.rows[i]))
            tell_growing(inquiry, &rows.rows[i]);
    view_rows_free(&rows);
}

/* ---- what stayed ----------------------------------------------------------------------------- */

static uint64_t least_of(const struct view *view, const struct view_row *row) {
    uint64_t share = (uint64_t)(SMALL_SHARE * (double)view->sums[row->total].end_of_work_bytes);
    return share > SMALL ? share : SMALL;
}

static bool exited(const struct inquiry *inquiry, const struct view_row *row) {
    return inquiry->view->job->processes[row->process].state == PROCESS_EXITED;
}

/* Of the lines of one class, the largest few. */
static void tell_class(struct inquiry *inquiry, enum finding_id id, enum measure sort,
                       bool (*fits)(const struct inquiry *inquiry, const struct view_row *row),
                       const char *what) {
    struct view_rows rows;
    unsigned told = 0;
    if (!finding_rows(inquiry, sort, 0, &rows))
        return;
    for (size_t i = 0; i < rows.count && told < ROWS_TOLD; i++) {
        const struct view_row *row = &rows.rows[i];
        bool live = sort == MEASURE_LIVE_BYTES;
        char place[PLACE_BYTES];
        if (!can_leak(row) || row->values[sort] < least_of(inquiry->view, row) ||
            !fits(inquiry, row))
            continue;
        struct finding *finding = finding_add(inquiry, id, SEVERITY_NOTE, row->values[sort]);
        finding_say(finding, "%s holds ", finding_place(row, place));
        say_blocks(finding, row->values[sort],
                   row->values[live ? MEASURE_LIVE_COUNT : MEASURE_END_OF_WORK_COUNT]);
        finding_say(finding, "%s", what);
        finding->certainty = row->growth == GROWTH_CANNOT_TELL ? 0.5 : 1;
        add_row(finding, row);
        told++;
    }
    view_rows_free(&rows);
}

static bool is_saturating(const struct inquiry *inquiry, const struct view_row *row) {
    (void)inquiry;
    return row->growth == GROWTH_SATURATING;
}

static bool is_retained(const struct inquiry *inquiry, const struct view_row *row) {
    return row->growth == GROWTH_RETAINED && row->ledger == TRACE_LEDGER_DRIVER &&
           exited(inquiry, row);
}

static bool is_late(const struct inquiry *inquiry, const struct view_row *row) {
    (void)inquiry;
    return row->growth == GROWTH_LATE && !view_is_released(row) &&
           row->values[MEASURE_END_OF_WORK_COUNT] >= GROWTH_INCREMENTS;
}

static bool is_unfreed(const struct inquiry *inquiry, const struct view_row *row) {
    bool judged = row->growth == GROWTH_GROWING || row->growth == GROWTH_RETAINED ||
                  row->growth == GROWTH_SATURATING || row->growth == GROWTH_LATE;
    return !judged && row->ledger == TRACE_LEDGER_DRIVER && exited(inquiry, row);
}

void find_saturating(struct inquiry *inquiry) {
    tell_class(inquiry, FINDING_LEAK_SATURATING, MEASURE_END_OF_WORK_BYTES, is_saturating,
               ": it grew and then stayed, as a cache that has filled does; no leak");
}

void find_retained(struct inquiry *inquiry) {
    tell_class(inquiry, FINDING_LEAK_RETAINED, MEASURE_LIVE_BYTES, is_retained,
               " that it took once and never gave back; it does not grow: no leak");
}

void find_late(struct inquiry *inquiry) {
    tell_class(inquiry, FINDING_LEAK_LATE, MEASURE_END_OF_WORK_BYTES, is_late,
               ": it rose only at the end of the run; whether it goes on, a longer run tells");
}

void find_unfreed(struct inquiry *inquiry) {
    tell_class(inquiry, FINDING_LEAK_UNFREED, MEASURE_LIVE_BYTES, is_unfreed,
               " that were never freed; the run does not tell whether it grows");
}

/* ---- peaks ----------------------------------------------------------------------------------- */

#define SPIKE_WINDOWS 8    /* the least that tell */
#define SPIKE_TIME    0.1  /* of the work, above 90 % of the peak, at most */
#define SPIKE_USUAL   0.75 /* of the peak, that the usual height has at most */

static int compare_heights(const void *left, const void *right) {
    const uint64_t *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* How high the live bytes came in most of the windows of the work; and in how many near the top. */
struct heights {
    uint32_t windows;
    uint32_t high;
    uint64_t usual;
};

static struct heights heights_of(const struct profile_total *total, uint64_t end_ns) {
    struct timeline timeline;
    struct heights heights = {0};
    uint64_t tops[TRACE_TOTAL_WINDOWS];
    if (!total->record || end_ns < total->record->last_ns)
        return heights;
    timeline_of_total(total->record, end_ns, &timeline);
    uint64_t first = total->first_ns >> timeline.shift;
    uint64_t last = growth_work_end(total, end_ns) >> timeline.shift;
    for (uint64_t i = first; i <= last && i < timeline.count; i++) {
        tops[heights.windows++] = timeline.windows[i].max_bytes;
        heights.high += (double)timeline.windows[i].max_bytes >= 0.9 * (double)total->peak_bytes;
    }
    if (timeline.unsettled || heights.windows < SPIKE_WINDOWS)
        return (struct heights){0};
    qsort(tops, heights.windows, sizeof *tops, compare_heights);
    heights.usual = tops[heights.windows / 2];
    return heights;
}

/* The lines that held more at the peak than they hold in the end. */
static void say_spike_makers(struct inquiry *inquiry, struct finding *finding,
                             const struct view_sum *sum) {
    struct view_grouping grouping = {.by = BY_LINE, .sort = MEASURE_AT_PEAK_BYTES, .sum = sum};
    struct view_rows rows;
    char place[PLACE_BYTES], size[TEXT_BYTES];
    const char *before = "; it was made by ";
    if (!view_group(inquiry->view, &grouping, &rows)) {
        inquiry->failed = true;
        return;
    }
    for (size_t i = 0; i < rows.count && finding->site_count < 3; i++) {
        const struct view_row *row = &rows.rows[i];
        uint64_t then = row->values[MEASURE_AT_PEAK_BYTES];
        uint64_t later = row->values[MEASURE_END_OF_WORK_BYTES];
        if (then < later || (double)(then - later) < 0.2 * (double)finding->bytes)
            continue;
        finding_say(finding, "%s%s, %s", before, finding_place(row, place), text_bytes(size, then));
        finding_site(finding, row);
        before = "; ";
    }
    view_rows_free(&rows);
}

static void tell_spike(struct inquiry *inquiry, size_t process, const struct profile_total *total,
                       const struct view_sum *sum) {
    const struct job_process *owner = &inquiry->view->job->processes[process];
    struct heights heights = heights_of(total, owner->duration_ns);
    char peak[TEXT_BYTES], at[TEXT_BYTES], usual[TEXT_BYTES];
    if (!heights.windows || heights.high > SPIKE_TIME * heights.windows + 1 ||
        (double)heights.usual > SPIKE_USUAL * (double)total->peak_bytes ||
        total->peak_bytes - heights.usual < SMALL)
        return;
    struct finding *finding =
        finding_add(inquiry, FINDING_PEAK_SPIKE, SEVERITY_NOTE, total->peak_bytes - heights.usual);
    finding->process = process;
    finding->device = sum->device;
    finding_say(finding,
                "The peak of %s at %s is a spike: most of the time no more than %s was live",
                text_bytes(peak, total->peak_bytes), text_duration(at, total->peak_ns),
                text_bytes(usual, heights.usual));
    say_spike_makers(inquiry, finding, sum);
    finding_evidence(finding, "peak_bytes", EVIDENCE_BYTES, (double)total->peak_bytes);
    finding_evidence(finding, "usual_bytes", EVIDENCE_BYTES, (double)heights.usual);
    finding_evidence(finding, "peak_time", EVIDENCE_SECONDS, (double)total->peak_ns / 1e9);
    finding_evidence(finding, "high_share", EVIDENCE_RATIO, (double)heights.high / heights.windows);
}

static const struct view_sum *sum_of(const struct view *view, const struct profile_total *total,
                                     uint32_t device) {
    for (size_t i = 0; i < view->sum_count; i++)
        if (view->sums[i].ledger == total->ledger && view->sums[i].group == total->group &&
            view->sums[i].device == device)
            return &view->sums[i];
    return NULL;
}

/* Of the driver's memory only where no tensors are reported: a cache keeps what a spike took. */
void find_spikes(struct inquiry *inquiry) {
    const struct job *job = inquiry->view->job;
    for (size_t p = 0; p < job->process_count; p++) {
        const struct profile *profile = job->processes[p].profile;
        for (size_t i = 0; i < profile->total_count; i++) {
            const struct profile_total *total = &profile->totals[i];
            uint32_t device = job_device_of(job, &job->processes[p], total->device);
            const struct view_sum *sum = sum_of(inquiry->view, total, device);
            bool hidden =
                total->ledger == TRACE_LEDGER_DRIVER &&
                profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, total->device);
            if (sum && !hidden && total->group == TRACE_GROUP_DEVICE)
                tell_spike(inquiry, p, total, sum);
        }
    }
}

#define NEAR_CAPACITY 0.9

void find_near_capacity(struct inquiry *inquiry) {
    const struct view *view = inquiry->view;
    for (size_t i = 0; i < view->sum_count; i++) {
        const struct view_sum *sum = &view->sums[i];
        const struct job_device *device =
            sum->device == DEVICE_NONE ? NULL : &view->job->devices[sum->device];
        char peak[TEXT_BYTES], all[TEXT_BYTES];
        if (sum->ledger != TRACE_LEDGER_DRIVER || sum->group != TRACE_GROUP_DEVICE || !device ||
            !device->total_known || sum->processes != 1 ||
            (double)sum->peak_bytes < NEAR_CAPACITY * (double)device->total_bytes)
            continue;
        struct finding *finding =
            finding_add(inquiry, FINDING_PEAK_NEAR_CAPACITY, SEVERITY_NOTE, sum->peak_bytes);
        finding->device = sum->device;
        finding_say(finding, "The peak of %s comes to %.0f %% of the %s of device %s",
                    text_bytes(peak, sum->peak_bytes),
                    100 * (double)sum->peak_bytes / (double)device->total_bytes,
                    text_bytes(all, device->total_bytes), device->label);
        finding_evidence(finding, "peak_bytes", EVIDENCE_BYTES, (double)sum->peak_bytes);
        finding_evidence(finding, "total_bytes", EVIDENCE_BYTES, (double)device->total_bytes);
    }
}

/* ---- libraries ------------------------------------------------------------------------------- */

static const struct library {
    const char *file; /* how its name begins */
    const char *name;
} libraries[] = {
    {"libnccl", "NCCL"},         {"libcudnn", "cuDNN"},
    {"libcublas", "cuBLAS"},     {"libcufft", "cuFFT"},
    {"libcusparse", "cuSPARSE"}, {"libcusolver", "cuSOLVER"},
    {"libnvinfer", "TensorRT"},  {"libonnxruntime", "ONNX Runtime"},
    {"libcutensor", "cuTENSOR"}, {"libnvshmem", "NVSHMEM"},
    {"libmagma", "MAGMA"},       {"libopencv", "OpenCV"},
    {"libnvjpeg", "nvJPEG"},
};
#define LIBRARIES (sizeof libraries / sizeof *libraries)

/* The outermost of them that the call came through; segments are the framework's, whoever asked. */
static size_t library_of(const struct view_row *row) {
    for (unsigned i = row->backtrace->count; i-- > 0;) {
        const char *module = row->backtrace->frames[i]->module;
        const char *name = module ? text_basename(module) : "";
        for (size_t l = 0; l < LIBRARIES; l++)
            if (strncmp(name, libraries[l].file, strlen(libraries[l].file)) == 0)
                return l;
    }
    return LIBRARIES;
}

static void tell_library(struct inquiry *inquiry, size_t library, bool host) {
    const struct view *view = inquiry->view;
    uint64_t bytes = 0, count = 0, first = UINT64_MAX;
    struct finding *finding = NULL;
    char size[TEXT_BYTES], at[TEXT_BYTES];
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < view->site_count; i++) {
            const struct view_row *row = &view->sites[i];
            if (row->ledger != TRACE_LEDGER_DRIVER || is_host(row) != host || view_is_cache(row) ||
                !row->values[MEASURE_END_OF_WORK_BYTES] || library_of(row) != library)
                continue;
            if (finding) {
                finding_site(finding, row);
                continue;
            }
            bytes += row->values[MEASURE_END_OF_WORK_BYTES];
            count += row->values[MEASURE_END_OF_WORK_COUNT];
            first = row->book->first_ns < first ? row->book->first_ns : first;
        }
        if (bytes < LIBRARY_LEAST)
            return;
        if (!finding)
            finding = finding_add(inquiry, FINDING_LIBRARY_HOLDS, SEVERITY_NOTE, bytes);
    }
    finding_say(finding, "%s holds %s of %s in %" PRIu64 " block%s, the first from %s",
                libraries[library].name, text_bytes(size, bytes),
                host ? "pinned host memory" : "device memory", count, count == 1 ? "" : "s",
                text_duration(at, first));
    finding_evidence(finding, "blocks", EVIDENCE_COUNT, (double)count);
    finding_evidence(finding, "first_time", EVIDENCE_SECONDS, (double)first / 1e9);
}

void find_libraries(struct inquiry *inquiry) {
    for (size_t library = 0; library < LIBRARIES; library++) {
        tell_library(inquiry, library, false);
        tell_library(inquiry, library, true);
    }
}

/* ---- storms ---------------------------------------------------------------------------------- */

#define STORM_FIRST  20 /* sizes from 1 MiB ... */
#define STORM_LAST   23 /* ... up to 16 MiB */
#define STORM_BLOCKS 1000
#define STORM_FREED  0.5

void find_storms(struct inquiry *inquiry) {
    struct view_rows rows;
    if (!finding_rows(inquiry, MEASURE_ALLOCS, TRACE_LEDGER_DRIVER, &rows))
        return;
    for (size_t i = 0; i < rows.count; i++) {
        const struct view_row *row = &rows.rows[i];
        uint64_t blocks = 0;
        char place[PLACE_BYTES];
        for (unsigned size = STORM_FIRST; size <= STORM_LAST; size++)
            blocks += row->book->record->sizes[size];
        if (blocks < STORM_BLOCKS || view_is_cache(row) || row->pool ||
            (double)row->values[MEASURE_FREES] < STORM_FREED * (double)blocks)
            continue;
        struct finding *finding = finding_add(inquiry, FINDING_ALLOC_STORM, SEVERITY_NOTE,
                                              row->values[MEASURE_OWN_PEAK_BYTES]);
        finding_say(finding,
                    "%s takes and gives back blocks of 1 to 16 MiB in a storm: %" PRIu64
                    " times in this run",
                    finding_place(row, place), blocks);
        add_row(finding, row);
        finding_evidence(finding, "storm_blocks", EVIDENCE_COUNT, (double)blocks);
    }
    view_rows_free(&rows);
}

/* ---- pools whose inside is not seen ---------------------------------------------------------- */

#define OPAQUE_SHARE                                                                               \
    0.5 /* of the device, that one block of a program without a pool has at most                   \
         */

static void tell_framework_pool(struct inquiry *inquiry, const struct framework_pool *pool) {
    const struct view *view = inquiry->view;
    uint64_t bytes = 0;
    char size[TEXT_BYTES];
    for (size_t i = 0; i < view->site_count; i++)
        if (view->sites[i].pool == pool)
            bytes += view->sites[i].values[MEASURE_END_OF_WORK_BYTES];
    if (!bytes)
        return;
    struct finding *finding = finding_add(inquiry, FINDING_POOL_OPAQUE, SEVERITY_NOTE, bytes);
    bool variable = pool->variable != NULL;
    finding_say(finding,
                "%s held %s at end of work%s: what lies inside is not seen, and whether it leaks "
                "is not known; %s%s%s",
                pool->name, text_bytes(size, bytes),
                variable ? " as its pool" : ", as its pool unless the program has turned that off",
                variable ? "" : "it is turned off by ", pool->remedy,
                variable ? " shows it (cuheap run --see-through sets it)" : "");
    for (size_t i = 0; i < view->site_count; i++)
        if (view->sites[i].pool == pool)
            finding_site(finding, &view->sites[i]);
}

/* One block that is most of the device. */
static void tell_large_block(struct inquiry *inquiry, const struct view_row *row) {
    const struct job_device *device =
        row->device == DEVICE_NONE ? NULL : &inquiry->view->job->devices[row->device];
    uint64_t bytes = row->values[MEASURE_OWN_PEAK_BYTES];
    char size[TEXT_BYTES], place[PLACE_BYTES];
    if (!device || !device->total_known || row->values[MEASURE_ALLOCS] != 1 ||
        trace_kind_group(row->kind) != TRACE_GROUP_DEVICE ||
        (double)bytes < OPAQUE_SHARE * (double)device->total_bytes)
        return;
    struct finding *finding = finding_add(inquiry, FINDING_POOL_OPAQUE, SEVERITY_NOTE, bytes);
    finding_say(finding,
                "%s took %s in one block, %.0f %% of the device: if that is a pool, what lies "
                "inside is not seen, and whether it leaks is not known",
                finding_place(row, place), text_bytes(size, bytes),
                100 * (double)bytes / (double)device->total_bytes);
    finding->certainty = 0.5;
    add_row(finding, row);
}

void find_opaque_pools(struct inquiry *inquiry) {
    struct view_rows rows;
    for (size_t i = 0; i < framework_pool_count; i++)
        tell_framework_pool(inquiry, &framework_pools[i]);
    if (!finding_rows(inquiry, MEASURE_OWN_PEAK_BYTES, TRACE_LEDGER_DRIVER, &rows))
        return;
    for (size_t i = 0; i < rows.count; i++)
        if (!view_is_cache(&rows.rows[i]) && !rows.rows[i].pool)
            tell_large_block(inquiry, &rows.rows[i]);
    view_rows_free(&rows);
}
