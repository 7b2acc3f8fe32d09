/*
 * The report for people: head lines, totals, tables of sites with their stacks, losses, notes.
 * Called by cmd_report.c; one thread.
 */
#include "columns.h"
#include "finding_text.h"
#include "reconcile.h"
#include "site_table.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- processes ------------------------------------------------------------------------------- */

static void describe_end(const struct job_process *process, char *out, size_t size) {
    static const char *const ends[] = {
        [PROCESS_RUNNING] = "still running",
        [PROCESS_EXITED] = "exited",
        [PROCESS_KILLED] = "killed (by a signal, or ended by _exit)",
        [PROCESS_EXEC] = "replaced itself by exec",
        [PROCESS_UNSEALED] = "end not seen (of another machine, boot or container)",
    };
    if (process->state == PROCESS_EXITED && process->exit_code >= 0)
        snprintf(out, size, "exited with %" PRId32, process->exit_code);
    else
        snprintf(out, size, "%s", ends[process->state]);
}

static const char *stack_source(const struct trace_header *header) {
    if (header->unwinder == TRACE_UNWINDER_BACKTRACE)
        return ", native stacks by the C library's backtrace(): libunwind was not found";
    if (header->unwinder == TRACE_UNWINDER_NONE ||
        !(header->features & TRACE_FEATURE_NATIVE_STACKS))
        return ", without native stacks";
    return "";
}

static bool is_about_python(const char *note) {
    return strncmp(note, "Python stacks ", 14) == 0;
}

/* The text of a note; NULL: there is none at this index. */
static const char *note_text(const struct job_process *process, size_t index) {
    const struct trace_note *note = trace_record(process->trace, TRACE_SECTION_NOTES, index);
    return note ? trace_string(process->trace, note->text) : NULL;
}

/* Why Python stacks are missing, or end at some time: what the library noted. */
static void print_python_state(const struct painter *painter, const struct job_process *process) {
    size_t count = trace_record_count(process->trace, TRACE_SECTION_NOTES);
    char clean[1024];
    bool told = false;
    for (size_t i = 0; i < count; i++) {
        const char *text = note_text(process, i);
        if (!text || !is_about_python(text))
            continue;
        fprintf(painter->out, "  %s\n", text_clean(clean, sizeof clean, text));
        told = true;
    }
    if (!told && process->header->losses[TRACE_LOSS_PYTHON_REFUSED])
        fputs("  Python stacks were not read: the interpreter is not supported\n", painter->out);
}

static void print_process(const struct painter *painter, const struct job_process *process) {
    char end[128], duration[TEXT_BYTES], rank[32] = "";
    const struct trace_header *header = process->header;
    describe_end(process, end, sizeof end);
    if (header->rank != UINT32_MAX)
        snprintf(rank, sizeof rank, ", rank %" PRIu32, header->rank);
    painter_style(painter, "1");
    fprintf(painter->out, "%s", process->name[0] ? process->name : "(unnamed)");
    painter_style(painter, "0");
    fprintf(painter->out, "  pid %" PRIu32 "%s on %s, %s, after %s", header->pid, rank,
            process->host[0] ? process->host : "an unknown host", end,
            text_duration(duration, process->duration_ns));
    if (process->profile->end_of_work_ns)
        fprintf(painter->out, ", last allocation at %s",
                text_duration(duration, process->profile->end_of_work_ns));
    fprintf(painter->out, "%s\n", stack_source(header));
    print_python_state(painter, process);
    if (framework_silent_tensors(process->trace))
        fprintf(painter->out, "  PyTorch's tensors are in the driver ledger: %s\n",
                framework_silent_tensors(process->trace));
}

static void print_device(const struct painter *painter, const struct job_device *device) {
    char size[TEXT_BYTES], uuid[UUID_BYTES];
    fprintf(painter->out, "  device %s", device->label);
    if (device->name[0])
        fprintf(painter->out, "  %s", device->name);
    if (device->total_known)
        fprintf(painter->out, "  %s", text_bytes(size, device->total_bytes));
    if (device->uuid_known)
        fprintf(painter->out, "  %s", job_uuid(device->uuid, uuid));
    fputc('\n', painter->out);
}

static void print_processes(const struct painter *painter) {
    const struct job *job = painter->report->job;
    if (job->process_count > 1)
        fprintf(painter->out, "%zu processes%s%s\n", job->process_count,
                job->name[0] ? " of job " : "", job->name);
    for (size_t i = 0; i < job->process_count; i++)
        print_process(painter, &job->processes[i]);
    for (size_t i = 0; i < job->device_count; i++)
        print_device(painter, &job->devices[i]);
}

/* What the end of these processes is called in "LIVE ...". */
static const char *end_name(const struct job *job) {
    enum process_state state = job->process_count ? job->processes[0].state : PROCESS_EXITED;
    for (size_t i = 1; i < job->process_count; i++)
        if (job->processes[i].state != state)
            return "AT THE END";
    switch (state) {
    case PROCESS_RUNNING:
        return "NOW";
    case PROCESS_EXITED:
        return "AT EXIT";
    case PROCESS_KILLED:
        return "WHEN KILLED";
    case PROCESS_EXEC:
        return "AT EXEC";
    case PROCESS_UNSEALED:
        break;
    }
    return "AT THE END";
}

/* ---- totals ---------------------------------------------------------------------------------- */

static void name_sum(const struct painter *painter, const struct view_sum *sum, char *out,
                     size_t size) {
    static const char *const groups[TRACE_GROUP_LIMIT] = {
        [TRACE_GROUP_DEVICE] = "device",
        [TRACE_GROUP_MANAGED] = "managed memory of device",
        [TRACE_GROUP_IMPORTED] = "imported memory on device",
        [TRACE_GROUP_HOST] = "pinned host memory",
        [TRACE_GROUP_REGISTERED] = "registered host memory",
    };
    const char *group = sum->group < TRACE_GROUP_LIMIT ? groups[sum->group] : NULL;
    const char *ledger = trace_ledger_name(sum->ledger);
    const char *device =
        sum->device == DEVICE_NONE ? NULL : painter->report->job->devices[sum->device].label;
    snprintf(out, size, "%s%s%s, %s", group ? group : "other memory of device", device ? " " : "",
             device ? device : "", ledger ? ledger : "unknown ledger");
}

static void print_peak_time(const struct painter *painter, const struct view_sum *sum) {
    char at[TEXT_BYTES];
    if (sum->processes > 1)
        fprintf(painter->out, " the sum of the peaks of %zu processes", sum->processes);
    else if (sum->peak_bytes)
        fprintf(painter->out, " at %s", text_duration(at, sum->peak_ns));
    if (sum->below_90_ns)
        fprintf(painter->out, ", above 90 %% of it until %s", text_duration(at, sum->below_90_ns));
    fputc('\n', painter->out);
}

static void print_live(const struct painter *painter, const char *label, uint64_t bytes,
                       uint64_t count, uint64_t ns) {
    char exact[TEXT_BYTES], at[TEXT_BYTES];
    fprintf(painter->out, "  %-12s %-32s in %" PRIu64 " block%s", label,
            text_exact_bytes(exact, bytes), count, count == 1 ? "" : "s");
    if (ns)
        fprintf(painter->out, ", at %s", text_duration(at, ns));
    fputc('\n', painter->out);
}

static void print_kinds(const struct painter *painter, const struct view_sum *sum) {
    char live[TEXT_BYTES], peak[TEXT_BYTES];
    fprintf(painter->out, "  %-12s %11s %9s %11s %9s %9s\n", "KIND", "LIVE", "BLOCKS", "PEAK",
            "ALLOCS", "FREES");
    for (unsigned i = 0; i < TRACE_KIND_SLOTS; i++) {
        const struct profile_kind *kind = &sum->kinds[i];
        if (!kind->allocs && !kind->peak_bytes)
            continue;
        fprintf(painter->out, "  %-12s %11s %9" PRIu64 " %11s %9" PRIu64 " %9" PRIu64 "\n",
                trace_kind_name(i) ? trace_kind_name(i) : "unknown",
                text_bytes(live, kind->live_bytes), kind->live_count,
                text_bytes(peak, kind->peak_bytes), kind->allocs, kind->frees);
    }
}

static bool is_used(const struct view_sum *sum) {
    for (unsigned i = 0; i < TRACE_KIND_SLOTS; i++)
        if (sum->kinds[i].allocs)
            return true;
    return sum->peak_bytes || sum->live_count;
}

/* ---- from tensors to the whole device -------------------------------------------------------- */

static struct reconciliation reconcile_device(const struct job *job, uint32_t device) {
    struct reconciliation sum = {0};
    for (size_t p = 0; p < job->process_count; p++)
        for (uint16_t ordinal = 0; ordinal < TRACE_DEVICES; ordinal++)
            if (job->processes[p].devices[ordinal] == device) {
                struct reconciliation one = reconcile(job->processes[p].profile, ordinal);
                if (sum.process_count)
                    reconciliation_add(&sum, &one);
                else
                    sum = one;
            }
    return sum;
}

static void print_reconciliation(const struct painter *painter, const struct reconciliation *sum) {
    static const struct {
        char sign;
        const char *words;
    } lines[RECONCILE_LIMIT] = {
#define X(name, key, sign, words) {sign, words},
        RECONCILIATION(X)
#undef X
    };
    char exact[TEXT_BYTES], tensors[TEXT_BYTES], driver[TEXT_BYTES];
    for (int line = 0; line < RECONCILE_LIMIT; line++)
        fprintf(painter->out, "  %c %-34s %s\n", lines[line].sign,
                sum->known[line] ? text_exact_bytes(exact, sum->bytes[line]) : "unknown",
                lines[line].words);
    if (sum->unknown_reserved)
        fprintf(painter->out, "  reserved is unknown: %s\n", sum->unknown_reserved);
    if (sum->tensor_ns && sum->driver_ns)
        fprintf(painter->out, "  tensors as of %s, the driver's as of %s: the last of each\n",
                text_duration(tensors, sum->tensor_ns), text_duration(driver, sum->driver_ns));
    if (sum->mixed_sites)
        fprintf(painter->out,
                "  %zu site%s took segments and other memory: told apart block by block\n",
                sum->mixed_sites, sum->mixed_sites == 1 ? "" : "s");
    if (sum->reuse_known)
        fprintf(painter->out, "  %.2f %% of the tensors were made from the cache\n",
                100 * sum->reuse_rate);
}

static bool is_asked_for(const struct view *view, uint32_t device) {
    for (size_t i = 0; i < view->sum_count; i++)
        if (view->sums[i].device == device)
            return true;
    return false;
}

static void print_reconciliations(const struct painter *painter) {
    const struct job *job = painter->report->job;
    for (uint32_t device = 0; device < job->device_count; device++) {
        struct reconciliation sum = reconcile_device(job, device);
        if (!sum.tensors || !is_asked_for(painter->report->view, device))
            continue;
        painter_title(painter, "WHERE THE MEMORY IS  device %s, at end of work",
                      job->devices[device].label);
        print_reconciliation(painter, &sum);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void print_sums(const struct painter *painter) {
    const struct view *view = painter->report->view;
    bool any = false;
    for (size_t i = 0; i < view->sum_count; i++) {
        const struct view_sum *sum = &view->sums[i];
        char name[128], exact[TEXT_BYTES], end[32];
        if (!is_used(sum))
            continue;
        any = true;
        name_sum(painter, sum, name, sizeof name);
        painter_title(painter, "TOTAL  %s", name);
        fprintf(painter->out, "  %-12s %-32s", "peak", text_exact_bytes(exact, sum->peak_bytes));
        print_peak_time(painter, sum);
        print_live(painter, "end of work", sum->end_of_work_bytes, sum->end_of_work_count,
                   sum->last_alloc_ns);
        snprintf(end, sizeof end, "%s", end_name(painter->report->job));
        for (char *c = end; *c; c++)
            *c = (char)(*c >= 'A' && *c <= 'Z' ? *c | 0x20 : *c);
        print_live(painter, end, sum->live_bytes, sum->live_count, 0);
        print_kinds(painter, sum);
    }
    if (!any)
        fprintf(painter->out, "\nNo allocation was recorded%s.\n",
                painter->report->view->sum_count ? "" : " that the options ask for");
}

/* ---- tables of sites ------------------------------------------------------------------------- */

static const char *const peak_keys[] = {"at_peak_bytes", "allocs", "kind", "device", NULL};
static const char *const work_keys[] = {"end_of_work_bytes", "end_of_work_count", "kind", "device",
                                        NULL};
static const char *const live_keys[] = {"live_bytes", "live_count", "kind", "device", NULL};

static bool print_peaks(const struct painter *painter) {
    const struct view *view = painter->report->view;
    for (size_t i = 0; i < view->sum_count; i++) {
        const struct view_sum *sum = &view->sums[i];
        struct view_grouping grouping = {
            .by = painter->report->by, .sort = MEASURE_AT_PEAK_BYTES, .sum = sum};
        struct view_rows rows;
        char name[128], at[TEXT_BYTES], tail[64] = "";
        if (!sum->peak_bytes)
            continue;
        if (!view_group(view, &grouping, &rows))
            return false;
        name_sum(painter, sum, name, sizeof name);
        if (sum->processes == 1)
            snprintf(tail, sizeof tail, " at %s", text_duration(at, sum->peak_ns));
        struct site_table table = {.title = "PEAK BY SITE",
                                   .what = name,
                                   .measure = MEASURE_AT_PEAK_BYTES,
                                   .keys = peak_keys,
                                   .bytes = view->sites_filtered ? rows.sums[MEASURE_AT_PEAK_BYTES]
                                                                 : sum->peak_bytes,
                                   .tail = view->sites_filtered ? " of the sites asked for" : tail,
                                   .residue = view->sites_filtered ? 0 : sum->residue_bytes};
        site_table_print(painter, &table, &rows);
        view_rows_free(&rows);
    }
    return true;
}

static void describe_blocks(char *out, size_t size, uint64_t count, bool filtered) {
    snprintf(out, size, " in %" PRIu64 " block%s%s", count, count == 1 ? "" : "s",
             filtered ? " of the sites asked for" : "");
}

/* Whether exit found just what was live at the end of work, which one table then tells. */
static bool same_at_exit(const struct view *view, int ledger) {
    for (size_t i = 0; i < view->site_count; i++) {
        const uint64_t *values = view->sites[i].values;
        if (view->sites[i].ledger == ledger &&
            (values[MEASURE_LIVE_BYTES] != values[MEASURE_END_OF_WORK_BYTES] ||
             values[MEASURE_LIVE_COUNT] != values[MEASURE_END_OF_WORK_COUNT]))
            return false;
    }
    return true;
}

/* Sites whose floor keeps rising: what a leak looks like, whatever the end freed. */
static bool print_growing(const struct painter *painter, int ledger) {
    static const char *const by_time[] = {
        "growing_a_minute", "growing_bytes", "growing_count", "kind", "device", NULL};
    static const char *const by_step[] = {"growing_a_minute",
                                          "growing_a_step",
                                          "growing_bytes",
                                          "growing_count",
                                          "kind",
                                          "device",
                                          NULL};
    struct view_grouping grouping = {
        .by = painter->report->by, .sort = MEASURE_GROWING_A_MINUTE, .ledger = ledger};
    struct view_rows rows;
    char tail[128], size[TEXT_BYTES];
    if (!view_group(painter->report->view, &grouping, &rows))
        return false;
    snprintf(tail, sizeof tail, " a minute, to %s in %" PRIu64 " blocks at end of work",
             text_bytes(size, rows.sums[MEASURE_GROWING_BYTES]), rows.sums[MEASURE_GROWING_COUNT]);
    struct site_table table = {.title = "GROWING",
                               .what = trace_ledger_name((unsigned)ledger),
                               .measure = MEASURE_GROWING_A_MINUTE,
                               .keys = rows.sums[MEASURE_GROWING_A_STEP] ? by_step : by_time,
                               .bytes = rows.sums[MEASURE_GROWING_A_MINUTE],
                               .tail = tail};
    if (rows.count)
        site_table_print(painter, &table, &rows);
    view_rows_free(&rows);
    return true;
}

static bool print_live_table(const struct painter *painter, int ledger, bool at_exit) {
    const struct view *view = painter->report->view;
    enum measure bytes = at_exit ? MEASURE_LIVE_BYTES : MEASURE_END_OF_WORK_BYTES;
    enum measure count = at_exit ? MEASURE_LIVE_COUNT : MEASURE_END_OF_WORK_COUNT;
    struct view_grouping grouping = {
        .by = painter->report->by,
        .sort = bytes,
        .ledger = ledger,
        .without_cache = ledger == TRACE_LEDGER_DRIVER && view->ledger != TRACE_LEDGER_DRIVER,
    };
    struct view_rows rows;
    if (!view_group(view, &grouping, &rows))
        return false;
    char head[64], tail[96];
    snprintf(head, sizeof head, "LIVE %s",
             at_exit ? end_name(painter->report->job) : "AT END OF WORK");
    describe_blocks(tail, sizeof tail, rows.sums[count] + rows.cache[count], view->sites_filtered);
    struct site_table table = {.title = head,
                               .what = trace_ledger_name((unsigned)ledger),
                               .measure = bytes,
                               .keys = at_exit ? live_keys : work_keys,
                               .bytes = rows.sums[bytes] + rows.cache[bytes],
                               .cache_bytes = rows.cache[bytes],
                               .cache_count = rows.cache[count],
                               .tail = tail};
    char exact[TEXT_BYTES];
    if (at_exit && table.bytes && same_at_exit(view, ledger))
        painter_title(painter, "%s  %s: %s%s, the same as at end of work", head, table.what,
                      text_exact_bytes(exact, table.bytes), tail);
    else
        site_table_print(painter, &table, &rows);
    view_rows_free(&rows);
    return true;
}

static bool has_ledger(const struct view *view, int ledger) {
    for (size_t i = 0; i < view->sum_count; i++)
        if (view->sums[i].ledger == ledger && is_used(&view->sums[i]))
            return true;
    return false;
}

static bool print_leaks(const struct painter *painter) {
    for (int ledger = TRACE_LEDGER_TENSOR; ledger >= TRACE_LEDGER_DRIVER; ledger--)
        if (has_ledger(painter->report->view, ledger) &&
            !(print_growing(painter, ledger) && print_live_table(painter, ledger, false) &&
              print_live_table(painter, ledger, true)))
            return false;
    return true;
}

/* ---- losses and notes ------------------------------------------------------------------------ */

static void print_losses(const struct painter *painter, const struct job_process *process) {
    static const char *const meanings[] = {
#define X(name, key, meaning) meaning,
        TRACE_LOSSES(X)
#undef X
    };
    bool any = false;
    for (size_t i = 0; i < TRACE_LOSS_COUNT; i++) {
        if (!process->header->losses[i])
            continue;
        if (!any)
            painter_title(painter, "LOST OR NOT KNOWN  %s, pid %" PRIu32, process->name,
                          process->header->pid);
        any = true;
        fprintf(painter->out, "  %10" PRIu64 "  %s\n", process->header->losses[i], meanings[i]);
    }
}

static void print_note(const struct painter *painter, bool *any, const char *text) {
    if (!*any)
        painter_title(painter, "NOTES");
    *any = true;
    fprintf(painter->out, "  %s\n", text);
}

static void print_state_notes(const struct painter *painter, const struct job_process *process,
                              bool *any) {
    char line[256];
    const struct profile *profile = process->profile;
    if (profile->busy_slots) {
        snprintf(line, sizeof line,
                 "pid %" PRIu32 ": %" PRIu64 " allocation%s in flight when the trace ended",
                 process->header->pid, profile->busy_slots, profile->busy_slots == 1 ? "" : "s");
        print_note(painter, any, line);
    }
    if (profile->orphan_slots) {
        snprintf(line, sizeof line,
                 "pid %" PRIu32 ": %" PRIu64 " live blocks (%" PRIu64
                 " bytes) name no site: the trace is damaged",
                 process->header->pid, profile->orphan_slots, profile->orphan_bytes);
        print_note(painter, any, line);
    }
    if (process->header->features & TRACE_FEATURE_WEAK) {
        snprintf(line, sizeof line,
                 "pid %" PRIu32 ": the trace could not be mapped where it lies; "
                 "a kill may have lost the latest events",
                 process->header->pid);
        print_note(painter, any, line);
    }
}

static void print_notes(const struct painter *painter) {
    const struct job *job = painter->report->job;
    bool any = false;
    for (size_t i = 0; i < job->process_count; i++) {
        const struct job_process *process = &job->processes[i];
        print_state_notes(painter, process, &any);
        size_t count = trace_record_count(process->trace, TRACE_SECTION_NOTES);
        for (size_t n = 0; n < count; n++) {
            const char *text = note_text(process, n);
            char clean[1024], line[1100];
            if (!text || is_about_python(text) || /* which the head has told */
                findings_pretended(process->trace, n))
                continue;
            snprintf(line, sizeof line, "pid %" PRIu32 ": %s", process->header->pid,
                     text_clean(clean, sizeof clean, text));
            print_note(painter, &any, line);
        }
    }
}

static void print_overview(const struct painter *painter) {
    print_reconciliations(painter);
    finding_text_findings(painter);
    print_sums(painter);
}

bool render_table(const struct report *report, FILE *out) {
    struct painter painter = {report, out};
    print_processes(&painter);
    finding_text_pretended(&painter);
    if (report->parts & PART_FAILURES)
        finding_text_failures(&painter);
    if ((report->parts & PART_FRAGMENTATION) && !finding_text_fragmentation(&painter))
        return false;
    if (report->parts & PART_REST)
        print_overview(&painter);
    if ((report->parts & PART_PEAK) && !print_peaks(&painter))
        return false;
    if ((report->parts & PART_LEAKS) && !print_leaks(&painter))
        return false;
    if (report->parts & PART_REST) {
        for (size_t i = 0; i < report->job->process_count; i++)
            print_losses(&painter, &report->job->processes[i]);
        print_notes(&painter);
    }
    return true;
}
