/*
 * Findings about calls that failed: why, by how much, who asked and who held the memory. See
 * finding_rules.h; one thread.
 */
#include "finding_rules.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FLUSHES_TOLD  5  /* flush-and-retries that are more than a note */
#define REPEATS_WORSE 16 /* failed calls of one sort that are a grade worse */

/* Failures that are told as one: of one place and verdict, and the same end. */
struct bunch {
    const struct failure *last;
    uint64_t count;
    uint64_t largest;
};

static bool belongs(const struct bunch *bunch, const struct failure *failure) {
    return bunch->last->process == failure->process && bunch->last->verdict == failure->verdict &&
           bunch->last->handled == failure->handled &&
           bunch->last->record->code == failure->record->code &&
           bunch->last->record->device == failure->record->device &&
           bunch->last->record->call == failure->record->call &&
           bunch->last->backtrace->hash == failure->backtrace->hash;
}

static void add_failure(struct bunch *bunch, const struct failure *failure) {
    bunch->last = failure;
    bunch->count += failure->count;
    if (failure->request_bytes > bunch->largest)
        bunch->largest = failure->request_bytes;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void say_holders(struct finding *finding, const struct failure *failure) {
    char place[PLACE_BYTES], size[TEXT_BYTES];
    if (!failure->holder_count)
        return;
    finding_say(finding, ". Who held memory %s: ", failure->held_at);
    for (size_t i = 0; i < failure->holder_count && i < 3; i++) {
        const struct holder *holder = &failure->holders[i];
        finding_say(finding, "%s%s %s", i ? ", " : "", finding_place(holder->row, place),
                    text_bytes(size, holder->bytes));
        finding_site(finding, holder->row);
    }
    finding_say(finding, ", of %s in all", text_bytes(size, failure->held_bytes));
}

static void say_free(struct finding *finding, const struct failure *failure) {
    char free_text[TEXT_BYTES], all[TEXT_BYTES];
    if (!failure->free_known) {
        finding_say(finding, "; how much was free is not known");
        return;
    }
    finding_say(finding, "; %s of %s was free", text_bytes(free_text, failure->free_bytes),
                text_bytes(all, failure->record->total_bytes));
}

static void say_slack(struct finding *finding, const struct failure *failure) {
    char slack[TEXT_BYTES], part[TEXT_BYTES];
    finding_say(finding, ", and the process itself held %s that it did not use",
                text_bytes(slack, failure->slack_bytes));
    if (failure->cache_slack_bytes)
        finding_say(finding, " (%s between tensors in PyTorch's segments)",
                    text_bytes(part, failure->cache_slack_bytes));
    if (failure->pool_slack_bytes)
        finding_say(finding, " (%s in pools)", text_bytes(part, failure->pool_slack_bytes));
}

static void say_refused(struct finding *finding, const struct failure *failure) {
    say_free(finding, failure);
    if (failure->pretended) {
        finding_say(finding, ": enough; it was refused because that was asked for");
        return;
    }
    finding_say(finding,
                ": enough, so it was refused for another reason: a limit of a container, a vGPU or "
                "MIG partition, memory for page tables, or another process that took it between");
}

static void say_capacity(struct finding *finding, const struct failure *failure) {
    char slack[TEXT_BYTES];
    say_free(finding, failure);
    if (failure->slack_known)
        finding_say(finding, ", and the process held %s that it did not use: too little",
                    text_bytes(slack, failure->slack_bytes));
    say_holders(finding, failure);
}

static void say_fragmentation(struct finding *finding, const struct failure *failure) {
    say_free(finding, failure);
    say_slack(finding, failure);
    finding_say(finding, ": enough in all, but in pieces");
    say_holders(finding, failure);
}

static void say_limit(struct finding *finding, const struct failure *failure) {
    finding_say(finding,
                "; PyTorch refused it without asking the driver: a limit set for the process, as "
                "set_per_process_memory_fraction() does");
    say_holders(finding, failure);
}

static void say_unknown(struct finding *finding, const struct failure *failure) {
    finding_say(finding, "; how much was free then is not known, and so is the reason");
    say_holders(finding, failure);
}

static void say_host(struct finding *finding, const struct failure *failure) {
    (void)failure;
    finding_say(finding, "; it is memory of the host, pinned: its RAM or a limit on locked memory "
                         "was exhausted, not the device");
}

static void say_nothing(struct finding *finding, const struct failure *failure) {
    (void)finding;
    (void)failure;
}

/* ---- out of memory --------------------------------------------------------------------------- */

static const struct {
    enum finding_id id;
    void (*say)(struct finding *finding, const struct failure *failure);
} by_verdict[] = {
    [VERDICT_UNKNOWN] = {FINDING_OOM_UNKNOWN, say_unknown},
    [VERDICT_REFUSED] = {FINDING_OOM_REFUSED, say_refused},
    [VERDICT_FRAGMENTATION] = {FINDING_OOM_FRAGMENTATION, say_fragmentation},
    [VERDICT_CAPACITY] = {FINDING_OOM_CAPACITY, say_capacity},
    [VERDICT_LIMIT] = {FINDING_OOM_LIMIT, say_limit},
    [VERDICT_FLUSH_RETRY] = {FINDING_OOM_FLUSH_RETRY, say_nothing},
    [VERDICT_HOST] = {FINDING_OOM_HOST, say_host},
    [VERDICT_FAILED_CALL] = {FINDING_CALL_FAILED, say_nothing},
};

static void name_failure(struct finding *finding, const struct bunch *bunch) {
    const struct failure *failure = bunch->last;
    finding->process = failure->process;
    finding->device = failure->device;
    finding_stack(finding, failure->backtrace, failure->record->ledger, failure->record->kind);
    finding_evidence(finding, "count", EVIDENCE_COUNT, (double)bunch->count);
    finding_evidence(finding, "request_bytes", EVIDENCE_BYTES, (double)bunch->largest);
    finding_evidence(finding, "last_time", EVIDENCE_SECONDS, (double)failure->ns / 1e9);
    if (failure->free_known) {
        finding_evidence(finding, "free_bytes", EVIDENCE_BYTES, (double)failure->free_bytes);
        finding_evidence(finding, "total_bytes", EVIDENCE_BYTES,
                         (double)failure->record->total_bytes);
    }
    if (failure->pretended)
        finding_evidence(finding, "pretended", EVIDENCE_COUNT, 1);
    if (failure->slack_known)
        finding_evidence(finding, "slack_bytes", EVIDENCE_BYTES, (double)failure->slack_bytes);
}

static void tell_out_of_memory(struct inquiry *inquiry, const struct bunch *bunch) {
    const struct failure *failure = bunch->last;
    char place[PLACE_BYTES], size[TEXT_BYTES];
    struct finding *finding =
        finding_add(inquiry, by_verdict[failure->verdict].id,
                    failure->handled ? SEVERITY_NOTE : SEVERITY_ERROR, bunch->largest);
    finding->certainty = failure->verdict == VERDICT_UNKNOWN ? 0.5 : 1;
    finding_say(finding, "Out of memory%s%s: %s asked for %s",
                failure->pretended ? ", pretended" : "", failure->handled ? ", handled" : "",
                finding_place_of(failure->backtrace, place), text_bytes(size, bunch->largest));
    if (bunch->count > 1)
        finding_say(finding, " (%" PRIu64 " times failed)", bunch->count);
    name_failure(finding, bunch);
    by_verdict[failure->verdict].say(finding, failure);
    if (failure->handled)
        finding_say(finding, ". The program went on");
}

/* ---- flush and retry ------------------------------------------------------------------------- */

static void tell_flushes(struct inquiry *inquiry, const struct bunch *bunches, size_t count,
                         size_t process) {
    const struct job_process *owner = &inquiry->view->job->processes[process];
    uint64_t flushes = owner->header->counters[TRACE_COUNTER_FLUSH_RETRIES];
    uint64_t freed = owner->header->counters[TRACE_COUNTER_FLUSH_RETRY_BYTES];
    uint64_t ns = owner->header->counters[TRACE_COUNTER_FLUSH_RETRY_NS], seen = 0;
    struct bunch largest = {0};
    char size[TEXT_BYTES], time[TEXT_BYTES], place[PLACE_BYTES];
    for (size_t i = 0; i < count; i++)
        if (bunches[i].last->process == process &&
            bunches[i].last->verdict == VERDICT_FLUSH_RETRY) {
            seen += bunches[i].count;
            if (!largest.last || bunches[i].count > largest.count)
                largest = bunches[i];
        }
    flushes = flushes > seen ? flushes : seen;
    if (!largest.last)
        return;
    struct finding *finding =
        finding_add(inquiry, FINDING_OOM_FLUSH_RETRY,
                    flushes >= FLUSHES_TOLD ? SEVERITY_WARNING : SEVERITY_NOTE, freed);
    finding_say(finding,
                "%" PRIu64 " time%s an allocation failed, memory was freed, and the same size was "
                "granted: %s freed and taken anew, in %s; mostly for %s",
                flushes, flushes == 1 ? "" : "s", text_bytes(size, freed), text_duration(time, ns),
                finding_place_of(largest.last->backtrace, place));
    name_failure(finding, &largest);
    finding_evidence(finding, "flushes", EVIDENCE_COUNT, (double)flushes);
    finding_evidence(finding, "freed_bytes", EVIDENCE_BYTES, (double)freed);
    finding_evidence(finding, "flush_time", EVIDENCE_SECONDS, (double)ns / 1e9);
}

/* ---- other failed calls ---------------------------------------------------------------------- */

/* What a call does, by a word in its name; the first that fits. */
static const struct call_sort {
    const char *word;
    enum finding_id id;
    const char *says;
} call_sorts[] = {
    {"AddressFree", FINDING_FREE_FAILED, "Giving back addresses"},
    {"Unregister", FINDING_FREE_FAILED, "Unregistering host memory"},
    {"Register", FINDING_REGISTER_FAILED, "Registering host memory"},
    {"Free", FINDING_FREE_FAILED, "Freeing memory"},
    {"MemRelease", FINDING_FREE_FAILED, "Releasing physical memory"},
    {"Close", FINDING_FREE_FAILED, "Closing another process's memory"},
    {"Destroy", FINDING_FREE_FAILED, "Destroying"},
    {"Unmap", FINDING_MAP_FAILED, "Unmapping"},
    {"MemMap", FINDING_MAP_FAILED, "Mapping"},
    {"SetAccess", FINDING_MAP_FAILED, "Setting access to a mapping"},
    {"AddressReserve", FINDING_MAP_FAILED, "Reserving addresses"},
    {"Import", FINDING_IMPORT_FAILED, "Importing memory"},
    {"Ipc", FINDING_IMPORT_FAILED, "Opening another process's memory"},
    {"MemAlloc", FINDING_ALLOC_FAILED, "Allocating"},
    {"MemHostAlloc", FINDING_ALLOC_FAILED, "Allocating"},
    {"MemCreate", FINDING_ALLOC_FAILED, "Allocating physical memory"},
    {"ArrayCreate", FINDING_ALLOC_FAILED, "Making an array"},
    {"", FINDING_CALL_FAILED, "A call"},
};

static const struct call_sort *sort_of(const char *call) {
    const struct call_sort *sort = call_sorts;
    while (!strstr(call, sort->word))
        sort++;
    return sort;
}

/* What fails because the driver or the context is gone already, at the end of a process, or because
   a program tries out what a device can do. */
static bool is_harmless(int32_t code) {
    return code == 4 || code == 201 || code == 709 || code == 801;
}

static void tell_failed_call(struct inquiry *inquiry, const struct bunch *bunch) {
    const struct failure *failure = bunch->last;
    char call[256], place[PLACE_BYTES], size[TEXT_BYTES];
    const struct trace *trace = inquiry->view->job->processes[failure->process].trace;
    const struct call_sort *sort = sort_of(failure_call(trace, failure->record, call, sizeof call));
    int grade = sort->id == FINDING_FREE_FAILED || sort->id == FINDING_ALLOC_FAILED
                    ? SEVERITY_WARNING
                    : SEVERITY_NOTE;
    if (bunch->count >= REPEATS_WORSE)
        grade++;
    if (is_harmless(failure->record->code) || failure->handled)
        grade = SEVERITY_NOTE;
    struct finding *finding =
        finding_add(inquiry, sort->id, (enum severity)grade, bunch->largest * bunch->count);
    const char *code = failure_code_name(failure->record->code);
    finding_say(finding, "%s failed", sort->says);
    if (bunch->count > 1)
        finding_say(finding, " %" PRIu64 " times", bunch->count);
    finding_say(finding, " with %s (%" PRId32 "), no out of memory: %s in %s",
                code ? code : "an error", failure->record->code, call,
                finding_place_of(failure->backtrace, place));
    if (sort->id == FINDING_FREE_FAILED && finding->bytes)
        finding_say(finding, "; %s of memory stayed", text_bytes(size, finding->bytes));
    name_failure(finding, bunch);
    finding_evidence(finding, "code", EVIDENCE_COUNT, failure->record->code);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static size_t gather(const struct failures *failures, struct bunch *bunches) {
    size_t count = 0;
    for (size_t i = 0; i < failures->count; i++) {
        const struct failure *failure = &failures->list[i];
        size_t at = 0;
        if (failure->superseded)
            continue;
        while (at < count && !belongs(&bunches[at], failure))
            at++;
        if (at == count)
            count++;
        add_failure(&bunches[at], failure);
    }
    return count;
}

void find_failures(struct inquiry *inquiry) {
    const struct failures *failures = &inquiry->findings->failures;
    struct bunch *bunches = calloc(failures->count + 1, sizeof *bunches);
    if (!bunches) {
        inquiry->failed = true;
        return;
    }
    size_t count = gather(failures, bunches);
    for (size_t i = 0; i < count; i++) {
        const struct failure *last = bunches[i].last;
        if (!view_shows_device(inquiry->view, &inquiry->view->job->processes[last->process],
                               last->record->device))
            continue;
        if (last->verdict == VERDICT_FAILED_CALL)
            tell_failed_call(inquiry, &bunches[i]);
        else if (last->verdict != VERDICT_FLUSH_RETRY)
            tell_out_of_memory(inquiry, &bunches[i]);
    }
    for (size_t p = 0; p < inquiry->view->job->process_count; p++)
        tell_flushes(inquiry, bunches, count, p);
    free(bunches);
}

/* Frees after the driver's end are counted only. */
void find_lost_frees(struct inquiry *inquiry) {
    const struct job *job = inquiry->view->job;
    for (size_t p = 0; p < job->process_count; p++) {
        uint64_t late = job->processes[p].header->losses[TRACE_LOSS_FAILED_FREES];
        for (size_t i = 0; i < inquiry->findings->failures.count; i++) {
            const struct failure *failure = &inquiry->findings->failures.list[i];
            char call[256];
            failure_call(job->processes[p].trace, failure->record, call, sizeof call);
            if (failure->process == p && sort_of(call)->id == FINDING_FREE_FAILED)
                late -= failure->count < late ? failure->count : late;
        }
        if (!late)
            continue;
        struct finding *finding = finding_add(inquiry, FINDING_FREE_FAILED, SEVERITY_NOTE, 0);
        finding->process = p;
        finding_say(finding,
                    "%" PRIu64 " free%s came after the driver's end, as those of static objects "
                    "do: harmless",
                    late, late == 1 ? "" : "s");
        finding_evidence(finding, "count", EVIDENCE_COUNT, (double)late);
    }
}
