/*
 * Findings about devices, caches, pools, contexts and code loaded on the GPU. See finding_rules.h;
 * one thread.
 */
#include "finding_rules.h"
#include "reconcile.h"
#include "text.h"
#include "timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

static const struct job_process *process_of(const struct inquiry *inquiry,
                                            const struct space *space) {
    return &inquiry->view->job->processes[space->process];
}

static struct finding *add_of_space(struct inquiry *inquiry, const struct space *space,
                                    enum finding_id id, enum severity severity, uint64_t bytes) {
    struct finding *finding = finding_add(inquiry, id, severity, bytes);
    finding->process = space->process;
    finding->device = space->device;
    return finding;
}

static const char *label(const struct inquiry *inquiry, uint32_t device) {
    return device == DEVICE_NONE ? "?" : inquiry->view->job->devices[device].label;
}

/* Whether an allocation on the device failed with this verdict and the program did not go on. */
static bool has_failed(const struct inquiry *inquiry, const struct space *space,
                       enum verdict verdict) {
    const struct failures *failures = &inquiry->findings->failures;
    for (size_t i = 0; i < failures->count; i++)
        if (failures->list[i].process == space->process &&
            failures->list[i].device == space->device && failures->list[i].verdict == verdict &&
            !failures->list[i].handled)
            return true;
    return false;
}

/* What is best known of the work: its end, else the last failure, else the end of the process. */
static const struct fragmentation *moment_of_work(const struct space *space) {
    const struct fragmentation *work = fragmentation_at(&space->moments, FRAGMENTATION_END_OF_WORK);
    if (work && work->rounding_known)
        return work;
    const struct fragmentation *failure = fragmentation_at(&space->moments, FRAGMENTATION_FAILURE);
    return failure ? failure : fragmentation_at(&space->moments, FRAGMENTATION_EXIT);
}

/* ---- caches ---------------------------------------------------------------------------------- */

#define CACHE_TENSOR_SHARE 0.5 /* of the cache's gain, that the tensors have gained: they grow */

static bool is_segment_site(const struct profile_site *site, unsigned device) {
    return site->device == device && site->ledger == TRACE_LEDGER_DRIVER &&
           (site->flags & TRACE_SITE_SEGMENT);
}

/* The segments of all sites together, on the clock that sites have. */
static uint32_t segment_windows(const struct profile *profile, unsigned device, uint64_t end_ns,
                                struct timeline *sum) {
    uint32_t first = UINT32_MAX;
    memset(sum, 0, sizeof *sum);
    for (size_t i = 0; i < profile->site_count; i++) {
        const struct profile_site *site = &profile->sites[i];
        struct timeline one;
        if (!is_segment_site(site, device) || end_ns < site->last_ns)
            continue;
        timeline_of_site(site->record, end_ns, &one);
        if (!one.count || (sum->count && one.shift != sum->shift))
            continue;
        sum->shift = one.shift;
        sum->count = one.count > sum->count ? one.count : sum->count;
        sum->unsettled |= one.unsettled;
        uint32_t born = (uint32_t)(site->first_ns >> one.shift);
        first = born < first ? born : first;
        for (uint32_t w = 0; w < one.count; w++) {
            sum->windows[w].min_bytes += one.windows[w].min_bytes;
            sum->windows[w].max_bytes += one.windows[w].max_bytes;
            sum->windows[w].last_bytes += one.windows[w].last_bytes;
            sum->windows[w].allocs += one.windows[w].allocs;
            sum->windows[w].frees += one.windows[w].frees;
        }
    }
    return first;
}

/* The least that was live in a stretch of time. */
static uint64_t floor_in(const struct timeline *timeline, uint64_t from_ns, uint64_t to_ns) {
    uint64_t least = UINT64_MAX;
    for (uint64_t i = from_ns >> timeline->shift;
         i < timeline->count && i << timeline->shift < to_ns; i++)
        if (timeline->windows[i].min_bytes < least)
            least = timeline->windows[i].min_bytes;
    return least == UINT64_MAX ? 0 : least;
}

/* How much the floor of the tensors rose from the first to the last of the windows judged. */
static uint64_t tensor_gain(const struct profile_total *tensors, uint64_t end_ns, uint64_t from_ns,
                            uint64_t to_ns, uint64_t width) {
    struct timeline timeline;
    timeline_of_total(tensors->record, end_ns, &timeline);
    uint64_t first = floor_in(&timeline, from_ns, from_ns + width);
    uint64_t last = floor_in(&timeline, to_ns - width, to_ns);
    return last > first ? last - first : 0;
}

/* The one that took most comes first. */
static void name_segment_sites(struct finding *finding, const struct view *view,
                               const struct space *space) {
    const struct view_row *most = NULL;
    for (size_t i = 0; i < view->site_count; i++) {
        const struct view_row *row = &view->sites[i];
        if (row->owner == space->process && is_segment_site(row->book, space->ordinal) &&
            (!most || row->book->alloc_bytes > most->book->alloc_bytes))
            most = row;
    }
    for (size_t i = 0; most && i <= view->site_count; i++) {
        const struct view_row *row = i ? &view->sites[i - 1] : most;
        if (row->owner == space->process && is_segment_site(row->book, space->ordinal))
            finding_site(finding, row);
    }
}

static void judge_cache(struct inquiry *inquiry, const struct space *space,
                        const struct profile_total *tensors) {
    const struct job_process *owner = process_of(inquiry, space);
    struct timeline segments;
    double chance;
    uint32_t first = segment_windows(owner->profile, space->ordinal, owner->duration_ns, &segments);
    uint64_t end = growth_work_end(tensors, owner->duration_ns) >> segments.shift;
    if (segments.unsettled || end >= segments.count || first + 3ull > end ||
        growth_of_windows(segments.windows + first, (uint32_t)(end - first + 1), (uint32_t)end + 1,
                          &chance) != GROWTH_GROWING)
        return;
    uint64_t from = segments.windows[first + 1].min_bytes, to = segments.windows[end - 1].min_bytes;
    uint64_t gain = to > from ? to - from : 0, width = 1ull << segments.shift;
    uint64_t tensor = tensor_gain(tensors, owner->duration_ns, (first + 1ull) << segments.shift,
                                  end << segments.shift, width);
    if (!gain || (double)tensor > CACHE_TENSOR_SHARE * (double)gain)
        return;
    char grown[TEXT_BYTES], last[TEXT_BYTES];
    struct finding *finding =
        add_of_space(inquiry, space, FINDING_CACHE_GROWING, SEVERITY_WARNING, gain);
    finding->certainty = 1 - chance;
    finding_say(finding,
                "PyTorch's cache on device %s keeps growing, by %s to %s, while its tensors do "
                "not: its free pieces do not fit what is asked for",
                label(inquiry, space->device), text_bytes(grown, gain), text_bytes(last, to));
    name_segment_sites(finding, inquiry->view, space);
    finding_evidence(finding, "gain_bytes", EVIDENCE_BYTES, (double)gain);
    finding_evidence(finding, "tensor_gain_bytes", EVIDENCE_BYTES, (double)tensor);
    finding_evidence(finding, "segment_bytes", EVIDENCE_BYTES, (double)to);
}

static const struct profile_total *tensors_of(const struct inquiry *inquiry,
                                              const struct space *space) {
    const struct profile_total *total =
        profile_total(process_of(inquiry, space)->profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE,
                      space->ordinal);
    return total && total->record ? total : NULL;
}

void find_growing_caches(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        const struct profile_total *tensors = tensors_of(inquiry, space);
        if (tensors && process_of(inquiry, space)->duration_ns >= tensors->record->last_ns)
            judge_cache(inquiry, space, tensors);
    }
}

/* ---- reuse ----------------------------------------------------------------------------------- */

#define REUSE_RATE    0.7
#define REUSE_TENSORS 300 /* the least that tell */

static uint64_t allocs_from(const struct timeline *timeline, uint64_t from_ns) {
    uint64_t allocs = 0;
    for (uint64_t i = from_ns >> timeline->shift; i < timeline->count; i++)
        allocs += timeline->windows[i].allocs;
    return allocs;
}

/* From the window in which the last third of the work begins. */
static void measure_late_reuse(const struct inquiry *inquiry, struct space *space,
                               const struct profile_total *tensors) {
    const struct job_process *owner = process_of(inquiry, space);
    struct timeline segments, all;
    uint32_t first = segment_windows(owner->profile, space->ordinal, owner->duration_ns, &segments);
    if (first == UINT32_MAX || owner->duration_ns < tensors->record->last_ns)
        return;
    timeline_of_total(tensors->record, owner->duration_ns, &all);
    uint64_t work = tensors->last_alloc_ns - tensors->first_ns;
    uint64_t from = (tensors->last_alloc_ns - work / 3) >> segments.shift << segments.shift;
    uint64_t made = allocs_from(&all, from), taken = allocs_from(&segments, from);
    if (segments.count < GROWTH_WINDOWS || made < REUSE_TENSORS || taken > made)
        return;
    space->late_reuse_known = true;
    space->late_reuse_rate = 1 - (double)taken / (double)made;
}

void find_low_reuse(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        struct space *space = &inquiry->findings->spaces[i];
        const struct profile_total *tensors = tensors_of(inquiry, space);
        if (!tensors)
            continue;
        measure_late_reuse(inquiry, space, tensors);
        struct reconciliation sum = reconcile(process_of(inquiry, space)->profile, space->ordinal);
        bool late = space->late_reuse_known && space->late_reuse_rate < REUSE_RATE;
        bool overall = sum.reuse_known && sum.reuse_rate < REUSE_RATE;
        if (tensors->allocs < REUSE_TENSORS || !(late || (overall && !space->late_reuse_known)))
            continue;
        double rate = late ? space->late_reuse_rate : sum.reuse_rate;
        struct finding *finding = add_of_space(inquiry, space, FINDING_CACHE_REUSE,
                                               late ? SEVERITY_WARNING : SEVERITY_NOTE, 0);
        finding_say(
            finding,
            "Only %.1f %% of the tensors on device %s were made from PyTorch's cache%s: for "
            "the others the driver was asked",
            100 * rate, label(inquiry, space->device), late ? " in the last third of the run" : "");
        finding_evidence(finding, "reuse_rate", EVIDENCE_RATIO, rate);
        finding_evidence(finding, "tensors", EVIDENCE_COUNT, (double)tensors->allocs);
    }
}

/* ---- fragmentation --------------------------------------------------------------------------- */

#define ROUNDING_SHARE 0.25 /* of the pages taken */
#define ROUNDING_LEAST (64 * MIB)
#define SLACK_SHARE    0.3 /* of what a pool reserved */
#define SLACK_LEAST    (64 * MIB)
#define HOLES_SHARE    0.3 /* of the segments */
#define HOLES_LEAST    (256 * MIB)

static const char *moment_words(const struct fragmentation *moment) {
    static const char *const words[] = {[FRAGMENTATION_END_OF_WORK] = "at end of work",
                                        [FRAGMENTATION_FAILURE] = "at the last failure",
                                        [FRAGMENTATION_EXIT] = "in the end"};
    return words[moment->at];
}

void find_rounding(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        const struct fragmentation *moment = moment_of_work(space);
        char waste[TEXT_BYTES], plain[TEXT_BYTES];
        if (!moment || !moment->rounding_known || moment->rounding_waste_bytes < ROUNDING_LEAST)
            continue;
        double share = (double)moment->rounding_waste_bytes /
                       (double)(moment->rounding_waste_bytes + moment->plain_bytes);
        if (share < ROUNDING_SHARE)
            continue;
        struct finding *finding = add_of_space(inquiry, space, FINDING_FRAG_ROUNDING,
                                               SEVERITY_WARNING, moment->rounding_waste_bytes);
        finding_say(finding,
                    "Rounding to pages of 2 MiB took %s more than the %s that were asked for on "
                    "device %s, %s: %.0f %% of it is unused",
                    text_bytes(waste, moment->rounding_waste_bytes),
                    text_bytes(plain, moment->plain_bytes), label(inquiry, space->device),
                    moment_words(moment), 100 * share);
        finding_evidence(finding, "rounding_waste_bytes", EVIDENCE_BYTES,
                         (double)moment->rounding_waste_bytes);
        finding_evidence(finding, "asked_bytes", EVIDENCE_BYTES, (double)moment->plain_bytes);
    }
}

static void tell_pool(struct inquiry *inquiry, const struct space *space,
                      const struct pool_slack *slack) {
    const struct trace_pool *pool = slack->pool;
    const struct job_device *device = &inquiry->view->job->devices[space->device];
    bool needed = has_failed(inquiry, space, VERDICT_FRAGMENTATION) ||
                  has_failed(inquiry, space, VERDICT_CAPACITY);
    bool large =
        device->total_known && (double)pool->reserved_bytes > 0.5 * (double)device->total_bytes;
    char size[TEXT_BYTES], reserved[TEXT_BYTES], used[TEXT_BYTES], at[TEXT_BYTES];
    struct finding *finding =
        add_of_space(inquiry, space, FINDING_FRAG_POOL_SLACK,
                     needed || large ? SEVERITY_WARNING : SEVERITY_NOTE, slack->slack_bytes);
    finding_say(finding,
                "The %s pool of device %s has %s that is not used: it reserved %s for %s used "
                "(%.1f %%), as of %s",
                pool->flags & TRACE_POOL_DEFAULT ? "default" : "program's",
                label(inquiry, space->device), text_bytes(size, slack->slack_bytes),
                text_bytes(reserved, pool->reserved_bytes), text_bytes(used, pool->used_bytes),
                100 - 100 * slack->slack_ratio, text_duration(at, pool->sampled_ns));
    for (size_t i = 0; i < inquiry->view->site_count; i++)
        if (inquiry->view->sites[i].owner == space->process &&
            inquiry->view->sites[i].kind == TRACE_KIND_POOL &&
            inquiry->view->sites[i].device == space->device)
            finding_site(finding, &inquiry->view->sites[i]);
    finding_evidence(finding, "reserved_bytes", EVIDENCE_BYTES, (double)pool->reserved_bytes);
    finding_evidence(finding, "used_bytes", EVIDENCE_BYTES, (double)pool->used_bytes);
    finding_evidence(finding, "slack_ratio", EVIDENCE_RATIO, slack->slack_ratio);
    finding_evidence(finding, "sample_time", EVIDENCE_SECONDS, (double)pool->sampled_ns / 1e9);
    if (pool->flags & TRACE_POOL_THRESHOLD_SET)
        finding_evidence(finding, "threshold_bytes", EVIDENCE_BYTES, (double)pool->threshold);
}

void find_pool_slack(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        const struct trace *trace = process_of(inquiry, space)->trace;
        size_t count = trace_record_count(trace, TRACE_SECTION_POOLS);
        for (size_t p = 0; p < count; p++) {
            const struct trace_pool *pool = trace_record(trace, TRACE_SECTION_POOLS, p);
            if (!pool || pool->device != space->ordinal || pool->destroyed_ns)
                continue;
            struct pool_slack slack = fragmentation_pool(pool);
            if (slack.slack_bytes >= SLACK_LEAST && slack.slack_ratio >= SLACK_SHARE)
                tell_pool(inquiry, space, &slack);
        }
    }
}

void find_holes(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        const struct fragmentation *moment = moment_of_work(space);
        const struct fragmentation *failure =
            fragmentation_at(&space->moments, FRAGMENTATION_FAILURE);
        bool failed = failure && has_failed(inquiry, space, VERDICT_FRAGMENTATION);
        char sum[TEXT_BYTES], all[TEXT_BYTES], largest[TEXT_BYTES], request[TEXT_BYTES];
        if (failed)
            moment = failure;
        /* Holes after the end freed its tensors are no holes of the work. */
        if (!moment || moment->at == FRAGMENTATION_EXIT || !moment->holes_known ||
            moment->holes_bytes < HOLES_LEAST ||
            (double)moment->holes_bytes < HOLES_SHARE * (double)moment->segment_bytes)
            continue;
        struct finding *finding =
            add_of_space(inquiry, space, FINDING_FRAG_HOLES,
                         failed ? SEVERITY_WARNING : SEVERITY_NOTE, moment->holes_bytes);
        finding_say(finding,
                    "%" PRIu64
                    " holes between the tensors on device %s hold %s, of %s in segments, "
                    "%s; the largest has %s",
                    moment->holes, label(inquiry, space->device),
                    text_bytes(sum, moment->holes_bytes), text_bytes(all, moment->segment_bytes),
                    moment_words(moment), text_bytes(largest, moment->largest_hole_bytes));
        if (moment->request_bytes)
            finding_say(finding, "; %.0f %% of it is in holes smaller than the %s asked for",
                        100 * moment->unusable_ratio, text_bytes(request, moment->request_bytes));
        finding_evidence(finding, "holes", EVIDENCE_COUNT, (double)moment->holes);
        finding_evidence(finding, "holes_bytes", EVIDENCE_BYTES, (double)moment->holes_bytes);
        finding_evidence(finding, "largest_hole_bytes", EVIDENCE_BYTES,
                         (double)moment->largest_hole_bytes);
        finding_evidence(finding, "external_ratio", EVIDENCE_RATIO, moment->external_ratio);
    }
}

/* ---- physical memory ------------------------------------------------------------------------- */

#define UNMAPPED_LEAST (64 * MIB)

void find_held_unmapped(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        const struct fragmentation *moment = fragmentation_at(&space->moments, FRAGMENTATION_EXIT);
        char held[TEXT_BYTES], mapped[TEXT_BYTES];
        if (!moment || !moment->virtual_known || !moment->held_unmapped_bytes)
            continue;
        struct finding *finding = add_of_space(
            inquiry, space, FINDING_VMM_HELD_UNMAPPED,
            moment->held_unmapped_bytes >= UNMAPPED_LEAST ? SEVERITY_WARNING : SEVERITY_NOTE,
            moment->held_unmapped_bytes);
        finding_say(finding,
                    "%s of physical memory in %" PRIu64 " handle%s of device %s is mapped nowhere "
                    "and not released (%s is mapped)",
                    text_bytes(held, moment->held_unmapped_bytes), moment->held_unmapped,
                    moment->held_unmapped == 1 ? "" : "s", label(inquiry, space->device),
                    text_bytes(mapped, moment->mapped_bytes));
        for (size_t s = 0; s < inquiry->view->site_count; s++) {
            const struct view_row *row = &inquiry->view->sites[s];
            if (row->owner == space->process && row->kind == TRACE_KIND_VMM &&
                row->device == space->device && row->values[MEASURE_LIVE_BYTES])
                finding_site(finding, row);
        }
        finding_evidence(finding, "handles", EVIDENCE_COUNT, (double)moment->held_unmapped);
        finding_evidence(finding, "mapped_bytes", EVIDENCE_BYTES, (double)moment->mapped_bytes);
        finding_evidence(finding, "reserved_bytes", EVIDENCE_BYTES, (double)moment->reserved_bytes);
    }
}

#define GRAPH_LEAST (16 * MIB)

void find_graph_memory(struct inquiry *inquiry) {
    for (size_t i = 0; i < inquiry->findings->space_count; i++) {
        const struct space *space = &inquiry->findings->spaces[i];
        uint64_t bytes = 0, blocks = 0;
        char size[TEXT_BYTES];
        for (size_t s = 0; s < inquiry->view->site_count; s++) {
            const struct view_row *row = &inquiry->view->sites[s];
            if (row->owner != space->process || row->kind != TRACE_KIND_GRAPH ||
                row->device != space->device)
                continue;
            bytes += row->values[MEASURE_LIVE_BYTES];
            blocks += row->values[MEASURE_LIVE_COUNT];
        }
        if (bytes < GRAPH_LEAST)
            continue;
        bool needed = has_failed(inquiry, space, VERDICT_CAPACITY);
        struct finding *finding = add_of_space(inquiry, space, FINDING_GRAPH_RESERVED,
                                               needed ? SEVERITY_WARNING : SEVERITY_NOTE, bytes);
        finding_say(finding,
                    "CUDA graphs keep %s in %" PRIu64 " block%s of device %s for their next "
                    "launch; the driver gives it back when it is told to trim, or when the graph "
                    "is destroyed",
                    text_bytes(size, bytes), blocks, blocks == 1 ? "" : "s",
                    label(inquiry, space->device));
        for (size_t s = 0; s < inquiry->view->site_count; s++)
            if (inquiry->view->sites[s].owner == space->process &&
                inquiry->view->sites[s].kind == TRACE_KIND_GRAPH)
                finding_site(finding, &inquiry->view->sites[s]);
        finding_evidence(finding, "blocks", EVIDENCE_COUNT, (double)blocks);
    }
}

/* ---- other processes' memory ----------------------------------------------------------------- */

#define IPC_MANY 16

static void tell_imports(struct inquiry *inquiry) {
    struct view_rows rows;
    if (!finding_rows(inquiry, MEASURE_LIVE_COUNT, TRACE_LEDGER_DRIVER, &rows))
        return;
    for (size_t i = 0; i < rows.count; i++) {
        const struct view_row *row = &rows.rows[i];
        uint64_t open = row->values[MEASURE_LIVE_COUNT];
        char place[PLACE_BYTES];
        if (row->kind != TRACE_KIND_IMPORTED || !open)
            continue;
        bool many = open >= IPC_MANY && 2 * open > row->values[MEASURE_ALLOCS];
        struct finding *finding =
            finding_add(inquiry, FINDING_IPC_UNCLOSED, many ? SEVERITY_WARNING : SEVERITY_NOTE, 0);
        finding->process = row->process;
        finding->device = row->device;
        finding_say(finding,
                    "%s opened another process's memory %" PRIu64
                    " times and did not close %" PRIu64 " of them (pid %" PRIu32
                    "): their owner's memory cannot be given back",
                    finding_place(row, place), row->values[MEASURE_ALLOCS], open,
                    inquiry->view->job->processes[row->process].header->pid);
        finding_site(finding, row);
        finding_evidence(finding, "opened", EVIDENCE_COUNT, (double)row->values[MEASURE_ALLOCS]);
        finding_evidence(finding, "unclosed", EVIDENCE_COUNT, (double)open);
    }
    view_rows_free(&rows);
}

static void tell_exports(struct inquiry *inquiry, size_t process) {
    const struct job_process *owner = &inquiry->view->job->processes[process];
    const struct blocks *live = &inquiry->findings->live[process];
    struct finding *finding = NULL;
    uint64_t count = 0, bytes = 0;
    char size[TEXT_BYTES];
    for (size_t i = 0; i < live->count; i++) {
        const struct block *block = &live->list[i];
        if (!(block->flags & TRACE_SLOT_EXPORTED))
            continue;
        if (!count++)
            finding = finding_add(inquiry, FINDING_IPC_UNCLOSED, SEVERITY_NOTE, 0);
        bytes += block->bytes;
        const struct view_row *row =
            block->site == SITE_NONE ? NULL : view_row_of(inquiry->view, process, block->site);
        if (row)
            finding_site(finding, row);
    }
    if (!finding)
        return;
    finding->severity = count >= IPC_MANY ? SEVERITY_WARNING : SEVERITY_NOTE;
    finding->bytes = bytes;
    finding->process = process;
    finding_say(finding,
                "%" PRIu64 " block%s shared with other processes by pid %" PRIu32
                " (%s) %s not freed: shared memory stays while a consumer has it open",
                count, count == 1 ? "" : "s", owner->header->pid, text_bytes(size, bytes),
                count == 1 ? "was" : "were");
    finding_evidence(finding, "exported", EVIDENCE_COUNT, (double)count);
}

void find_unclosed(struct inquiry *inquiry) {
    tell_imports(inquiry);
    for (size_t p = 0; p < inquiry->view->job->process_count; p++)
        tell_exports(inquiry, p);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static bool allocates_on(const struct job_process *process, unsigned ordinal) {
    for (size_t i = 0; i < process->profile->total_count; i++)
        if (process->profile->totals[i].device == ordinal && process->profile->totals[i].allocs)
            return true;
    return false;
}

static bool overlap(const struct trace_context *a, const struct trace_context *b) {
    return (!a->destroyed_ns || a->destroyed_ns > b->created_ns) &&
           (!b->destroyed_ns || b->destroyed_ns > a->created_ns);
}

/* How many contexts of the device were there when this one was made, itself included. */
static unsigned contexts_with(const struct trace *trace, const struct trace_context *context) {
    size_t count = trace_record_count(trace, TRACE_SECTION_CONTEXTS);
    unsigned sum = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trace_context *other = trace_record(trace, TRACE_SECTION_CONTEXTS, i);
        sum += other && other->device == context->device &&
               other->created_ns <= context->created_ns && overlap(other, context);
    }
    return sum;
}

static void tell_second_context(struct inquiry *inquiry, size_t process) {
    const struct job_process *owner = &inquiry->view->job->processes[process];
    size_t count = trace_record_count(owner->trace, TRACE_SECTION_CONTEXTS);
    const struct trace_context *worst = NULL;
    unsigned most = 1;
    for (size_t i = 0; i < count; i++) {
        const struct trace_context *context = trace_record(owner->trace, TRACE_SECTION_CONTEXTS, i);
        unsigned there = context ? contexts_with(owner->trace, context) : 0;
        if (there > most) {
            most = there;
            worst = context;
        }
    }
    if (!worst)
        return;
    struct finding *finding = finding_add(inquiry, FINDING_CONTEXT_EXTRA, SEVERITY_WARNING, 0);
    finding->process = process;
    finding->device = job_device_of(inquiry->view->job, owner, worst->device);
    finding_say(finding,
                "pid %" PRIu32 " had %u contexts on device %s at once: each takes memory of its "
                "own, which passes no allocation",
                owner->header->pid, most, label(inquiry, finding->device));
    finding_evidence(finding, "contexts", EVIDENCE_COUNT, most);
}

static bool has_context(const struct job_process *process, unsigned ordinal) {
    size_t count = trace_record_count(process->trace, TRACE_SECTION_CONTEXTS);
    for (size_t i = 0; i < count; i++) {
        const struct trace_context *context =
            trace_record(process->trace, TRACE_SECTION_CONTEXTS, i);
        if (context && context->device == ordinal)
            return true;
    }
    return false;
}

/* Whether somebody works on the device, or this process on another: else it is not extra. */
static bool is_extra(const struct job *job, size_t process, uint32_t device) {
    for (size_t p = 0; p < job->process_count; p++)
        for (unsigned ordinal = 0; ordinal < TRACE_DEVICES; ordinal++)
            if ((p == process || job->processes[p].devices[ordinal] == device) &&
                job->processes[p].devices[ordinal] != DEVICE_NONE &&
                allocates_on(&job->processes[p], ordinal))
                return true;
    return false;
}

static void tell_unused_contexts(struct inquiry *inquiry, uint32_t device) {
    const struct job *job = inquiry->view->job;
    struct finding *finding = NULL;
    unsigned count = 0, first = 0;
    for (size_t p = 0; p < job->process_count; p++)
        for (unsigned ordinal = 0; ordinal < TRACE_DEVICES; ordinal++) {
            const struct job_process *process = &job->processes[p];
            if (process->devices[ordinal] != device || !has_context(process, ordinal) ||
                allocates_on(process, ordinal) || !is_extra(job, p, device))
                continue;
            if (!count++)
                first = process->header->pid;
            if (!finding)
                finding = finding_add(inquiry, FINDING_CONTEXT_EXTRA, SEVERITY_WARNING, 0);
            if (count == 1)
                finding->process = p;
        }
    if (!finding)
        return;
    finding->device = device;
    finding_say(finding,
                "%u process%s (pid %u%s) made a context on device %s and allocated nothing there: "
                "it takes memory that passes no allocation",
                count, count == 1 ? "" : "es", first, count == 1 ? "" : " and others",
                label(inquiry, device));
    finding_evidence(finding, "processes", EVIDENCE_COUNT, count);
}

void find_contexts(struct inquiry *inquiry) {
    for (size_t p = 0; p < inquiry->view->job->process_count; p++)
        tell_second_context(inquiry, p);
    for (uint32_t device = 0; device < inquiry->view->job->device_count; device++)
        tell_unused_contexts(inquiry, device);
}

/* ---- code loaded on the GPU ------------------------------------------------------------------ */

#define MODULES_LEAST  32
#define MODULES_SLICES 8   /* of the time from the first load to the end */
#define MODULES_RISING 0.8 /* share of them, and both of the last two, with further ones */

/* What of it stayed, and when that was loaded. */
struct loads {
    uint64_t first_ns, last_ns;
    size_t stayed;
    uint16_t device;
    uint64_t slices[MODULES_SLICES];
};

static void count_load(struct loads *loads, const struct trace_gpu_module *module) {
    double share = ((double)module->loaded_ns - (double)loads->first_ns) /
                   ((double)loads->last_ns - (double)loads->first_ns + 1);
    if (module->unloaded_ns || !(share >= 0 && share < 1))
        return;
    loads->slices[(unsigned)(share * MODULES_SLICES)]++;
    loads->device = module->device;
    loads->stayed++;
}

static struct loads count_loads(const struct job_process *process) {
    size_t count = trace_record_count(process->trace, TRACE_SECTION_GPU_MODULES);
    struct loads loads = {.first_ns = UINT64_MAX, .last_ns = process->profile->last_ns};
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            const struct trace_gpu_module *module =
                trace_record(process->trace, TRACE_SECTION_GPU_MODULES, i);
            if (module && pass)
                count_load(&loads, module);
            else if (module && module->loaded_ns < loads.first_ns)
                loads.first_ns = module->loaded_ns;
            if (module && !pass && module->loaded_ns > loads.last_ns)
                loads.last_ns = module->loaded_ns;
        }
    return loads;
}

static void judge_modules(struct inquiry *inquiry, size_t process) {
    const struct job_process *owner = &inquiry->view->job->processes[process];
    struct loads loads = count_loads(owner);
    unsigned rising = 0;
    for (unsigned i = 0; i < MODULES_SLICES; i++)
        rising += loads.slices[i] > 0;
    if (loads.stayed < MODULES_LEAST || rising < MODULES_RISING * MODULES_SLICES ||
        !loads.slices[MODULES_SLICES - 1] || !loads.slices[MODULES_SLICES - 2])
        return;
    struct finding *finding = finding_add(inquiry, FINDING_MODULES_GROWING, SEVERITY_WARNING, 0);
    finding->process = process;
    finding->device = job_device_of(inquiry->view->job, owner, loads.device);
    finding->certainty = (double)rising / MODULES_SLICES;
    finding_say(finding,
                "Modules of GPU code are loaded again and again and not unloaded: %zu are there, "
                "and still more at the end; their memory passes no allocation",
                loads.stayed);
    finding_evidence(finding, "modules", EVIDENCE_COUNT, (double)loads.stayed);
}

void find_growing_modules(struct inquiry *inquiry) {
    for (size_t p = 0; p < inquiry->view->job->process_count; p++)
        judge_modules(inquiry, p);
}

/* ---- pinned memory --------------------------------------------------------------------------- */

#define ROUNDED_BLOCKS 8
#define ROUNDED_SIZES  3
#define ROUNDED_LEAST  (16 * MIB)

static void judge_host_sizes(struct inquiry *inquiry, size_t process,
                             const struct block_list *host) {
    uint64_t bytes = 0, sizes = 0;
    char size[TEXT_BYTES];
    for (size_t i = 0; i < host->count; i++) {
        uint64_t one = host->list[i].bytes;
        if (!one || (one & (one - 1)))
            return;
        sizes |= one;
        bytes += one;
    }
    if (host->count < ROUNDED_BLOCKS || __builtin_popcountll(sizes) < ROUNDED_SIZES ||
        bytes < ROUNDED_LEAST)
        return;
    struct finding *finding = finding_add(inquiry, FINDING_HOST_ROUNDED, SEVERITY_NOTE, bytes);
    finding->process = process;
    finding_say(finding,
                "All %zu pinned host blocks (%s) have sizes that are powers of two: the caller "
                "rounds, and up to half of it may be unused",
                host->count, text_bytes(size, bytes));
    for (size_t s = 0; s < inquiry->view->site_count; s++)
        if (inquiry->view->sites[s].owner == process &&
            inquiry->view->sites[s].kind == TRACE_KIND_HOST)
            finding_site(finding, &inquiry->view->sites[s]);
    finding_evidence(finding, "blocks", EVIDENCE_COUNT, (double)host->count);
    finding_evidence(finding, "sizes", EVIDENCE_COUNT, __builtin_popcountll(sizes));
    finding->certainty = 1 - 1 / (double)(1ull << __builtin_popcountll(sizes));
}

void find_rounded_host(struct inquiry *inquiry) {
    for (size_t p = 0; p < inquiry->view->job->process_count; p++) {
        struct block_list host =
            blocks_of(&inquiry->findings->live[p], TRACE_SPACE_HOST, TRACE_DEVICE_HOST);
        judge_host_sizes(inquiry, p, &host);
    }
}
