/*
 * Runs the rules and orders what they found. See findings.h; one thread.
 */
#include "findings.h"

#include "columns.h"
#include "finding_rules.h"
#include "text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const severity_names[] = {"note", "warning", "error"};

const char *const finding_ids[] = {
#define X(name, id) id,
    FINDINGS(X)
#undef X
};

static finding_rule *const rules[] = {
    find_growing,    find_saturating,      find_retained,      find_late,
    find_unfreed,    find_growing_caches,  find_low_reuse,     find_failures,
    find_lost_frees, find_spikes,          find_near_capacity, find_rounding,
    find_pool_slack, find_holes,           find_opaque_pools,  find_storms,
    find_unclosed,   find_held_unmapped,   find_graph_memory,  find_contexts,
    find_libraries,  find_growing_modules, find_rounded_host,
};

/* ---- one finding ----------------------------------------------------------------------------- */

struct finding *finding_add(struct inquiry *inquiry, enum finding_id id, enum severity severity,
                            uint64_t bytes) {
    static struct finding spare;
    struct findings *findings = inquiry->findings;
    struct finding *grown = realloc(findings->list, (findings->count + 1) * sizeof *findings->list);
    struct finding *added = grown ? &grown[findings->count++] : &spare;
    if (grown)
        findings->list = grown;
    inquiry->failed |= !grown;
    *added = (struct finding){
        .id = id, .severity = severity, .certainty = 1, .bytes = bytes, .device = DEVICE_NONE};
    return added;
}

void finding_say(struct finding *finding, const char *format, ...) {
    size_t used = strlen(finding->text);
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text + used, sizeof finding->text - used, format, args);
    va_end(args);
}

void finding_evidence(struct finding *finding, const char *key, enum evidence_unit unit,
                      double value) {
    if (finding->evidence_count < FINDING_EVIDENCE)
        finding->evidence[finding->evidence_count++] = (struct evidence){key, unit, value};
}

static void add_site(struct finding *finding, const char *id, const struct backtrace *backtrace) {
    for (size_t i = 0; i < finding->site_count; i++)
        if (strcmp(finding->sites[i], id) == 0)
            return;
    if (finding->site_count == FINDING_SITES)
        return;
    memcpy(finding->sites[finding->site_count], id, SITE_ID_BYTES);
    finding->stacks[finding->site_count++] = backtrace;
}

void finding_site(struct finding *finding, const struct view_row *row) {
    add_site(finding, row->id, row->backtrace);
}

void finding_stack(struct finding *finding, const struct backtrace *backtrace, unsigned ledger,
                   unsigned kind) {
    char id[SITE_ID_BYTES];
    backtrace_site_id(backtrace, ledger, kind, false, id);
    add_site(finding, id, backtrace);
}

/* ---- places ---------------------------------------------------------------------------------- */

static void append_line(char out[PLACE_BYTES], const struct frame *frame, const char *before) {
    size_t used = strlen(out);
    if (frame && frame->file && frame->line)
        snprintf(out + used, PLACE_BYTES - used, " (%s%s:%u)", before, text_basename(frame->file),
                 frame->line);
}

char *finding_place_of(const struct backtrace *backtrace, char out[PLACE_BYTES]) {
    const struct frame *blame = backtrace_blame(backtrace);
    if (!blame)
        return strcpy(out, "a place that is not known");
    column_frame_name(blame, out, PLACE_BYTES - 64);
    append_line(out, blame, "");
    return out;
}

char *finding_place(const struct view_row *row, char out[PLACE_BYTES]) {
    if (row->other)
        return strcpy(out, "sites that found no room in the trace");
    if (!view_is_via_caller(row) || !backtrace_blame(row->backtrace))
        return finding_place_of(row->backtrace, out);
    column_frame_name(backtrace_blame(row->backtrace), out, PLACE_BYTES - 128);
    append_line(out, view_line(row), "called from ");
    return out;
}

bool finding_rows(struct inquiry *inquiry, enum measure sort, int ledger, struct view_rows *rows) {
    struct view_grouping grouping = {.by = BY_LINE, .sort = sort, .ledger = ledger};
    bool ok = view_group(inquiry->view, &grouping, rows);
    inquiry->failed |= !ok;
    return ok;
}

/* ---- devices --------------------------------------------------------------------------------- */

static bool add_space(struct findings *findings, const struct view *view, size_t process,
                      unsigned ordinal) {
    const struct job_process *owner = &view->job->processes[process];
    struct space *grown =
        realloc(findings->spaces, (findings->space_count + 1) * sizeof *findings->spaces);
    if (!grown)
        return false;
    findings->spaces = grown;
    struct space *space = &grown[findings->space_count];
    *space =
        (struct space){.process = process, .ordinal = ordinal, .device = owner->devices[ordinal]};
    if (!fragmentation_build(owner->profile, ordinal, &findings->live[process], &space->moments))
        return false;
    findings->space_count++;
    return true;
}

static bool read_live_blocks(struct findings *findings, const struct job *job) {
    findings->live = calloc(job->process_count + 1, sizeof *findings->live);
    for (size_t p = 0; findings->live && p < job->process_count; p++) {
        const struct job_process *process = &job->processes[p];
        if (!blocks_live(process->profile, process->duration_ns, &findings->live[p]))
            return false;
        findings->process_count++;
    }
    return findings->live != NULL;
}

static bool measure_spaces(struct findings *findings, const struct view *view) {
    for (size_t p = 0; p < view->job->process_count; p++)
        for (unsigned ordinal = 0; ordinal < TRACE_DEVICES; ordinal++) {
            const struct job_process *owner = &view->job->processes[p];
            if (owner->devices[ordinal] != DEVICE_NONE &&
                view_shows_device(view, owner, (uint16_t)ordinal) &&
                !add_space(findings, view, p, ordinal))
                return false;
        }
    return true;
}

const struct space *findings_space(const struct findings *findings, size_t process,
                                   unsigned ordinal) {
    for (size_t i = 0; i < findings->space_count; i++)
        if (findings->spaces[i].process == process && findings->spaces[i].ordinal == ordinal)
            return &findings->spaces[i];
    return NULL;
}

const char *findings_pretended(const struct trace *trace, size_t index) {
    static const char mark[] = "pretended:";
    const struct trace_note *note = trace_record(trace, TRACE_SECTION_NOTES, index);
    const char *text = note ? trace_string(trace, note->text) : NULL;
    return text && strncmp(text, mark, sizeof mark - 1) == 0 ? text : NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int compare(const void *left, const void *right) {
    const struct finding *a = left, *b = right;
    if (a->severity != b->severity)
        return a->severity > b->severity ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return strcmp(a->text, b->text);
}

bool findings_build(const struct view *view, struct backtraces *backtraces,
                    struct findings *findings) {
    struct inquiry inquiry = {.view = view, .findings = findings};
    *findings = (struct findings){0};
    inquiry.failed = !read_live_blocks(findings, view->job) || !measure_spaces(findings, view) ||
                     !failures_build(view, backtraces, &findings->failures);
    for (size_t i = 0; !inquiry.failed && i < sizeof rules / sizeof *rules; i++)
        rules[i](&inquiry);
    for (size_t i = 0; !inquiry.failed && i < findings->count; i++)
        advice_attach(&inquiry, &findings->list[i]);
    if (inquiry.failed)
        findings_free(findings);
    else if (findings->count)
        qsort(findings->list, findings->count, sizeof *findings->list, compare);
    return !inquiry.failed;
}

void findings_free(struct findings *findings) {
    for (size_t i = 0; i < findings->space_count; i++)
        fragmentation_free(&findings->spaces[i].moments);
    for (size_t p = 0; p < findings->process_count; p++)
        blocks_free(&findings->live[p]);
    free(findings->live);
    free(findings->spaces);
    free(findings->list);
    failures_free(&findings->failures);
    *findings = (struct findings){0};
}
