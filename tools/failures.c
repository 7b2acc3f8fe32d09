/*
 * Judges failures. See failures.h; one thread.
 */
#include "failures.h"

#include "reconcile.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

#define OUT_OF_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

const char *const verdict_names[] = {
#define X(name, key) key,
    VERDICTS(X)
#undef X
};

const char *failure_code_name(int32_t code) {
    static const struct {
        int32_t code;
        const char *name;
    } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {4, "CUDA_ERROR_DEINITIALIZED"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {304, "CUDA_ERROR_OPERATING_SYSTEM"},
        {400, "CUDA_ERROR_INVALID_HANDLE"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {800, "CUDA_ERROR_NOT_PERMITTED"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            return names[i].name;
    return NULL;
}

char *failure_call(const struct trace *trace, const struct trace_failure *record, char *out,
                   size_t size) {
    const char *name = trace_string(trace, record->call);
    text_clean(out, size, name ? name : "an unknown call");
    char *version = strstr(out, "_v");
    if (version && version[2] >= '0' && version[2] <= '9')
        *version = '\0';
    return out;
}

/* ---- which belong together ------------------------------------------------------------------- */

static bool is_host(const struct trace_failure *record) {
    enum trace_group group = trace_kind_group(record->kind);
    return group == TRACE_GROUP_HOST || group == TRACE_GROUP_REGISTERED;
}

static bool is_framework(const struct failure *failure) {
    return failure->record->flags & TRACE_FAILURE_FRAMEWORK;
}

static bool same_request(const struct failure *earlier, const struct failure *later) {
    const struct trace_failure *a = earlier->record, *b = later->record;
    return earlier->process == later->process && a->device == b->device &&
           earlier->backtrace->hash == later->backtrace->hash &&
           earlier->request_bytes == later->request_bytes && a->code == b->code && !a->retry_ns;
}

/* A framework that reports an out-of-memory asked the driver first, in segments, unless a limit of
   its own stopped it. */
static bool led_to(const struct failure *driver, const struct failure *framework) {
    return driver->process == framework->process && !is_framework(driver) &&
           driver->record->code == OUT_OF_MEMORY && !is_host(driver->record) &&
           driver->record->device == framework->record->device && !driver->record->retry_ns &&
           driver->request_bytes >= framework->request_bytes;
}

static void take_over(struct failure *from, struct failure *to) {
    from->superseded = true;
    to->count += from->count;
    to->pretended |= from->pretended;
    if (to->free_known || !from->free_known)
        return;
    to->free_known = true;
    to->free_bytes = from->free_bytes;
}

/* The last attempt at one thing tells; a framework's report tells for the driver's before it. */
static void join_attempts(struct failures *failures) {
    for (size_t i = 1; i < failures->count; i++) {
        struct failure *later = &failures->list[i], *earlier = &failures->list[i - 1];
        if (earlier->superseded || !same_request(earlier, later))
            continue;
        take_over(earlier, later);
    }
    for (size_t i = 0; i < failures->count; i++)
        for (size_t e = i; is_framework(&failures->list[i]) && e > 0; e--) {
            struct failure *driver = &failures->list[e - 1];
            if (is_framework(driver) || driver->process != failures->list[i].process)
                break;
            if (driver->superseded || !led_to(driver, &failures->list[i]))
                continue;
            failures->list[i].request_bytes = driver->request_bytes;
            take_over(driver, &failures->list[i]);
            failures->list[i].verdict = VERDICT_CAPACITY; /* any but a limit; judged below */
            failures->list[i].count = driver->count;
            break;
        }
}

/* ---- what was held --------------------------------------------------------------------------- */

/* The ledger in which people think: tensors where there are any. */
static unsigned ledger_of_holders(const struct profile *profile, unsigned device) {
    return profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, device)
               ? TRACE_LEDGER_TENSOR
               : TRACE_LEDGER_DRIVER;
}

static int compare_ids(const void *left, const void *right) {
    const struct holder *a = left, *b = right;
    return strcmp(a->row->id, b->row->id);
}

static int compare_bytes(const void *left, const void *right) {
    const struct holder *a = left, *b = right;
    return a->bytes > b->bytes ? -1 : a->bytes < b->bytes;
}

/* Several stacks that lead to one function are one holder; the largest few are kept. */
static void keep_largest(struct failure *failure, struct holder *all, size_t count) {
    size_t kept = 0;
    if (!count)
        return;
    qsort(all, count, sizeof *all, compare_ids);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(all[i].row->id, all[kept].row->id) == 0)
            all[kept].bytes += all[i].bytes;
        else
            all[++kept] = all[i];
    }
    qsort(all, ++kept, sizeof *all, compare_bytes);
    failure->holder_count = kept < FAILURE_HOLDERS ? kept : FAILURE_HOLDERS;
    memcpy(failure->holders, all, failure->holder_count * sizeof *all);
}

/* By what each site of the process held then. */
static bool name_holders(struct failure *failure, const struct view *view, const uint64_t *bytes) {
    const struct profile *profile = view->job->processes[failure->process].profile;
    unsigned ledger = ledger_of_holders(profile, failure->record->device);
    struct holder *all = calloc(profile->site_count + 1, sizeof *all);
    size_t count = 0;
    for (size_t i = 0; all && i < profile->site_count; i++) {
        const struct profile_site *site = &profile->sites[i];
        const struct view_row *row = view_row_of(view, failure->process, i);
        if (!bytes[i] || site->ledger != ledger || site->device != failure->record->device ||
            trace_kind_group(site->kind) != TRACE_GROUP_DEVICE)
            continue;
        failure->held_bytes += bytes[i];
        if (row)
            all[count++] = (struct holder){row, bytes[i]};
    }
    if (all)
        keep_largest(failure, all, count);
    free(all);
    return all != NULL;
}

/* From the copy of the live table, or as near to it as is known. */
static bool hold(struct failure *failure, const struct view *view, const struct blocks *blocks) {
    const struct profile *profile = view->job->processes[failure->process].profile;
    unsigned ledger = ledger_of_holders(profile, failure->record->device);
    const struct profile_total *total = profile_total(profile, (enum trace_ledger)ledger,
                                                      TRACE_GROUP_DEVICE, failure->record->device);
    bool after_work = total && failure->ns >= total->last_alloc_ns;
    bool after_all = total && failure->ns >= total->last_ns;
    uint64_t *bytes = calloc(profile->site_count + 1, sizeof *bytes);
    if (!bytes)
        return false;
    for (size_t i = 0; i < blocks->count; i++)
        if (blocks->list[i].site != SITE_NONE)
            bytes[blocks->list[i].site] += blocks->list[i].bytes;
    for (size_t i = 0; !blocks->count && i < profile->site_count; i++)
        bytes[i] = after_all    ? profile->sites[i].live_bytes
                   : after_work ? profile->sites[i].end_of_work_bytes
                                : profile->sites[i].at_peak_bytes;
    failure->held_at = blocks->count || after_all ? "then"
                       : after_work               ? "at the end of work"
                                                  : "at the peak";
    bool ok = name_holders(failure, view, bytes);
    free(bytes);
    return ok;
}

/* ---- slack ----------------------------------------------------------------------------------- */

/* What its cache held beyond the tensors. */
static bool add_cache_slack(struct failure *failure, const struct profile *profile,
                            const struct blocks *blocks) {
    size_t count;
    struct arena *arenas = blocks_segments(profile, blocks, failure->record->device, &count);
    if (count == SIZE_MAX)
        return false;
    for (size_t i = 0; i < count; i++)
        failure->cache_slack_bytes += arenas[i].bytes - arenas[i].used_bytes;
    free(arenas);
    failure->slack_known = true;
    return true;
}

static bool add_slack(struct failure *failure, const struct view *view,
                      const struct blocks *blocks) {
    const struct profile *profile = view->job->processes[failure->process].profile;
    unsigned device = failure->record->device;
    failure->pool_slack_bytes = fragmentation_pools_slack(profile->trace, device);
    if (blocks->count && !add_cache_slack(failure, profile, blocks))
        return false;
    if (!failure->slack_known) {
        struct reconciliation sum = reconcile(profile, device);
        failure->slack_known = !sum.tensors || sum.known[RECONCILE_CACHED];
        failure->cache_slack_bytes = sum.known[RECONCILE_CACHED] ? sum.bytes[RECONCILE_CACHED] : 0;
    }
    failure->slack_bytes = failure->cache_slack_bytes + failure->pool_slack_bytes;
    return true;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static enum verdict verdict_of(const struct failure *failure) {
    const struct trace_failure *record = failure->record;
    if (record->code != OUT_OF_MEMORY)
        return VERDICT_FAILED_CALL;
    if (record->retry_ns)
        return VERDICT_FLUSH_RETRY;
    if (is_host(record))
        return VERDICT_HOST;
    if (is_framework(failure) && failure->verdict != VERDICT_CAPACITY)
        return VERDICT_LIMIT;
    if (!failure->free_known)
        return VERDICT_UNKNOWN;
    if (failure->free_bytes >= failure->request_bytes)
        return VERDICT_REFUSED;
    if (failure->request_bytes - failure->free_bytes <= failure->slack_bytes)
        return VERDICT_FRAGMENTATION;
    return VERDICT_CAPACITY;
}

static bool judge(struct failure *failure, const struct view *view) {
    const struct profile *profile = view->job->processes[failure->process].profile;
    struct blocks blocks;
    if (failure->record->code == OUT_OF_MEMORY && !is_host(failure->record)) {
        if (!blocks_of_copy(profile, failure->record->copy, &blocks))
            return false;
        bool ok = add_slack(failure, view, &blocks) && hold(failure, view, &blocks);
        blocks_free(&blocks);
        if (!ok)
            return false;
    }
    failure->verdict = verdict_of(failure);
    return true;
}

/* ---- all of a job ---------------------------------------------------------------------------- */

static void read_failure(struct failure *failure, const struct view *view, size_t process,
                         const struct trace_failure *record, struct backtraces *backtraces) {
    const struct job_process *owner = &view->job->processes[process];
    bool known = record->flags & TRACE_FAILURE_FREE_KNOWN;
    bool again = record->repeats && record->last_ns > record->ns;
    uint64_t free_bytes = again ? record->last_free_bytes : record->free_bytes;
    *failure = (struct failure){
        .record = record,
        .process = process,
        .device = job_device_of(view->job, owner, record->device),
        .handled = record->flags & TRACE_FAILURE_HANDLED,
        .pretended = record->flags & TRACE_FAILURE_PRETENDED,
        .count = 1 + record->repeats,
        .ns = again ? record->last_ns : record->ns,
        .request_bytes = again ? record->last_request_bytes : record->request_bytes,
        .free_known = known && free_bytes <= record->total_bytes,
        .free_bytes = known ? free_bytes : 0,
        .backtrace =
            backtraces_find(backtraces, owner->trace, record->native_stack, record->python_stack),
    };
}

static int compare(const void *left, const void *right) {
    const struct failure *a = left, *b = right;
    if (a->process != b->process)
        return a->process < b->process ? -1 : 1;
    if (a->ns != b->ns)
        return a->ns < b->ns ? -1 : 1;
    return a->record < b->record ? -1 : a->record > b->record;
}

bool failures_build(const struct view *view, struct backtraces *backtraces,
                    struct failures *failures) {
    const struct job *job = view->job;
    size_t room = 0;
    bool ok = true;
    for (size_t p = 0; p < job->process_count; p++)
        room += trace_record_count(job->processes[p].trace, TRACE_SECTION_FAILURES);
    *failures = (struct failures){.list = calloc(room + 1, sizeof *failures->list)};
    if (!failures->list)
        return false;
    for (size_t p = 0; p < job->process_count; p++) {
        const struct trace *trace = job->processes[p].trace;
        size_t count = trace_record_count(trace, TRACE_SECTION_FAILURES);
        for (size_t i = 0; i < count && failures->count < room; i++) {
            const struct trace_failure *record = trace_record(trace, TRACE_SECTION_FAILURES, i);
            if (record)
                read_failure(&failures->list[failures->count++], view, p, record, backtraces);
        }
    }
    if (failures->count)
        qsort(failures->list, failures->count, sizeof *failures->list, compare);
    join_attempts(failures);
    for (size_t i = 0; ok && i < failures->count; i++)
        ok = judge(&failures->list[i], view);
    if (!ok)
        failures_free(failures);
    return ok;
}

void failures_free(struct failures *failures) {
    free(failures->list);
    *failures = (struct failures){0};
}
