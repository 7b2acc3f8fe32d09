/*
 * Findings, failures and fragmentation for people. See finding_text.h; one thread.
 */
#include "finding_text.h"

#include "finding_rules.h"
#include "segment_map.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INDENT       10
#define MAP_SEGMENTS 500 /* lines of the map */

/* Prints words, broken at the width of the terminal; the first line is indented already. */
static void print_wrapped(const struct painter *painter, const char *text) {
    size_t column = INDENT;
    while (*text) {
        size_t word = strcspn(text, " "), gap = column > INDENT;
        if (gap && column + gap + word > painter->report->width) {
            fprintf(painter->out, "\n%*s", INDENT, "");
            column = INDENT;
            gap = 0;
        }
        fprintf(painter->out, "%s%.*s", gap ? " " : "", (int)word, text);
        column += gap + word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', painter->out);
}

void finding_text_pretended(const struct painter *painter) {
    const struct job *job = painter->report->job;
    char clean[1024];
    for (size_t p = 0; p < job->process_count; p++) {
        size_t count = trace_record_count(job->processes[p].trace, TRACE_SECTION_NOTES);
        for (size_t i = 0; i < count; i++) {
            const char *text = findings_pretended(job->processes[p].trace, i);
            if (!text)
                continue;
            painter_style(painter, "1;31");
            fprintf(painter->out, "  PRETENDED, not the device's own%s",
                    text_clean(clean, sizeof clean, text + strlen("pretended")));
            painter_style(painter, "0");
            fputc('\n', painter->out);
        }
    }
}

/* ---- findings -------------------------------------------------------------------------------- */

static void print_finding(const struct painter *painter, const struct finding *finding) {
    static const char *const colours[] = {"0", "1;33", "1;31"};
    char size[TEXT_BYTES], advice[512];
    fputs("  ", painter->out);
    painter_style(painter, colours[finding->severity]);
    fprintf(painter->out, "%-7s", severity_names[finding->severity]);
    painter_style(painter, "0");
    fprintf(painter->out, " %s", finding_ids[finding->id]);
    if (finding->bytes)
        fprintf(painter->out, "  %s", text_bytes(size, finding->bytes));
    if (finding->certainty < 1)
        fprintf(painter->out, "  certainty %.1f %%",
                finding->certainty > 0.999 ? 99.9 : 100 * finding->certainty);
    fprintf(painter->out, "\n%*s", INDENT, "");
    print_wrapped(painter, finding->text);
    for (size_t i = 0; i < finding->advice_count; i++) {
        fprintf(painter->out, "%*s", INDENT, "");
        snprintf(advice, sizeof advice, "-> %s [%s]", finding->advice[i]->text,
                 finding->advice[i]->source);
        print_wrapped(painter, advice);
    }
}

void finding_text_findings(const struct painter *painter) {
    const struct findings *findings = painter->report->findings;
    unsigned counts[3] = {0};
    for (size_t i = 0; i < findings->count; i++)
        counts[findings->list[i].severity]++;
    if (!findings->count) {
        painter_title(painter, "FINDINGS  none");
        return;
    }
    painter_title(painter, "FINDINGS  %u error%s, %u warning%s, %u note%s", counts[SEVERITY_ERROR],
                  counts[SEVERITY_ERROR] == 1 ? "" : "s", counts[SEVERITY_WARNING],
                  counts[SEVERITY_WARNING] == 1 ? "" : "s", counts[SEVERITY_NOTE],
                  counts[SEVERITY_NOTE] == 1 ? "" : "s");
    for (size_t i = 0; i < findings->count; i++)
        print_finding(painter, &findings->list[i]);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void print_failure(const struct painter *painter, const struct failure *failure) {
    const struct job_process *owner = &painter->report->job->processes[failure->process];
    char at[TEXT_BYTES], size[TEXT_BYTES], call[256], place[PLACE_BYTES];
    const char *code = failure_code_name(failure->record->code);
    fprintf(painter->out, "  %s  pid %" PRIu32 "  %s = %s (%" PRId32 "), %s%s%s",
            text_duration(at, failure->ns), owner->header->pid,
            failure_call(owner->trace, failure->record, call, sizeof call), code ? code : "error",
            failure->record->code, verdict_names[failure->verdict],
            failure->handled ? ", handled" : "", failure->pretended ? ", pretended" : "");
    if (failure->count > 1)
        fprintf(painter->out, ", %" PRIu64 " times", failure->count);
    fprintf(painter->out, "\n%*sasked for %s", INDENT, "",
            text_exact_bytes(size, failure->request_bytes));
    if (failure->free_known)
        fprintf(painter->out, "; free %s", text_exact_bytes(size, failure->free_bytes));
    if (failure->slack_known)
        fprintf(painter->out, "; own slack %s", text_exact_bytes(size, failure->slack_bytes));
    fprintf(painter->out, "\n%*sby %s\n", INDENT, "", finding_place_of(failure->backtrace, place));
    for (size_t i = 0; i < failure->holder_count; i++)
        fprintf(painter->out, "%*s%11s  held %s by %s\n", INDENT, "",
                text_bytes(size, failure->holders[i].bytes), failure->held_at,
                finding_place(failure->holders[i].row, place));
}

void finding_text_failures(const struct painter *painter) {
    const struct failures *failures = &painter->report->findings->failures;
    size_t told = 0;
    for (size_t i = 0; i < failures->count; i++) {
        if (failures->list[i].superseded)
            continue;
        if (!told++)
            painter_title(painter, "FAILED CALLS");
        print_failure(painter, &failures->list[i]);
    }
    if (!told)
        painter_title(painter, "FAILED CALLS  none");
}

/* ---- fragmentation --------------------------------------------------------------------------- */

static const char *bytes_if(bool known, uint64_t bytes, char out[TEXT_BYTES]) {
    return known ? text_bytes(out, bytes) : "unknown";
}

static void print_moment(const struct painter *painter, const struct fragmentation *moment) {
    static const char *const names[] = {"end of work", "failure", "exit"};
    char at[TEXT_BYTES], waste[TEXT_BYTES], cached[TEXT_BYTES], sum[TEXT_BYTES];
    char largest[TEXT_BYTES], held[TEXT_BYTES], external[16] = "unknown";
    uint64_t cache =
        moment->cached_bytes < 0 ? (uint64_t)-moment->cached_bytes : (uint64_t)moment->cached_bytes;
    if (moment->holes_known)
        snprintf(external, sizeof external, "%.1f %%", 100 * moment->external_ratio);
    fprintf(painter->out, "  %-12s %10s %11s %s%10s %7" PRIu64 " %11s %11s %9s %11s\n",
            names[moment->at], text_duration(at, moment->ns),
            bytes_if(moment->rounding_known, moment->rounding_waste_bytes, waste),
            moment->cached_known && moment->cached_bytes < 0 ? "-" : " ",
            bytes_if(moment->cached_known, cache, cached), moment->holes,
            bytes_if(moment->holes_known, moment->holes_bytes, sum),
            bytes_if(moment->holes_known, moment->largest_hole_bytes, largest), external,
            bytes_if(moment->virtual_known, moment->held_unmapped_bytes, held));
    if (moment->request_bytes && moment->holes_known)
        fprintf(painter->out, "%*s%.1f %% of the holes' bytes are in holes smaller than %s\n",
                INDENT, "", 100 * moment->unusable_ratio,
                text_exact_bytes(sum, moment->request_bytes));
}

static void print_pools(const struct painter *painter, const struct trace *trace, unsigned device) {
    size_t count = trace_record_count(trace, TRACE_SECTION_POOLS);
    for (size_t i = 0; i < count; i++) {
        const struct trace_pool *pool = trace_record(trace, TRACE_SECTION_POOLS, i);
        char size[TEXT_BYTES], reserved[TEXT_BYTES], used[TEXT_BYTES], at[TEXT_BYTES];
        if (!pool || pool->device != device || pool->destroyed_ns)
            continue;
        struct pool_slack slack = fragmentation_pool(pool);
        const char *name = pool->flags & TRACE_POOL_DEFAULT ? "default pool" : "pool";
        if (slack.known)
            fprintf(painter->out, "  %s: %s reserved, %s used, slack %s (%.1f %%), as of %s\n",
                    name, text_bytes(reserved, pool->reserved_bytes),
                    text_bytes(used, pool->used_bytes), text_bytes(size, slack.slack_bytes),
                    100 * slack.slack_ratio, text_duration(at, pool->sampled_ns));
        else
            fprintf(painter->out, "  %s: %s used; what it reserved was never asked\n", name,
                    text_bytes(used, pool->used_bytes));
    }
}

static bool print_map(const struct painter *painter, const struct space *space) {
    const struct job_process *owner = &painter->report->job->processes[space->process];
    struct segment_map map;
    size_t cells = painter->report->width > 70 ? painter->report->width - 40 : 30;
    char *bar = malloc(cells + 1), size[TEXT_BYTES];
    bool ok = bar && segment_map_build(owner->profile, space->ordinal, owner->duration_ns, &map);
    if (!ok) {
        free(bar);
        return false;
    }
    if (map.count)
        fprintf(painter->out, "  SEGMENTS, %s: # used, + in part, . free\n",
                map.at == FRAGMENTATION_FAILURE ? "at the last failure" : "in the end");
    for (size_t i = 0; i < map.count && i < MAP_SEGMENTS; i++) {
        segment_map_draw(&map.segments[i], bar, cells);
        fprintf(painter->out, "  0x%012" PRIx64 " %11s %4.0f %% %s\n", map.segments[i].address,
                text_bytes(size, map.segments[i].bytes),
                100 * (double)map.segments[i].used_bytes / (double)map.segments[i].bytes, bar);
    }
    if (map.count > MAP_SEGMENTS)
        fprintf(painter->out, "  and %zu more\n", map.count - MAP_SEGMENTS);
    segment_map_free(&map);
    free(bar);
    return true;
}

bool finding_text_fragmentation(const struct painter *painter) {
    const struct findings *findings = painter->report->findings;
    const struct job *job = painter->report->job;
    for (size_t i = 0; i < findings->space_count; i++) {
        const struct space *space = &findings->spaces[i];
        const struct job_process *owner = &job->processes[space->process];
        const struct fragmentation *last = fragmentation_at(&space->moments, FRAGMENTATION_EXIT);
        char reserved[TEXT_BYTES], mapped[TEXT_BYTES];
        painter_title(painter, "FRAGMENTATION  device %s, pid %" PRIu32,
                      job->devices[space->device].label, owner->header->pid);
        fprintf(painter->out, "  %-12s %10s %11s %11s %7s %11s %11s %9s %11s\n", "MOMENT", "TIME",
                "ROUNDING", "CACHED", "HOLES", "THEIR SUM", "LARGEST", "EXTERNAL", "UNMAPPED");
        for (size_t m = 0; m < space->moments.count; m++)
            print_moment(painter, &space->moments.list[m]);
        print_pools(painter, owner->trace, space->ordinal);
        if (last && (last->reserved_bytes || last->mapped_bytes))
            fprintf(painter->out, "  addresses reserved %s, mapped %s\n",
                    text_bytes(reserved, last->reserved_bytes),
                    text_bytes(mapped, last->mapped_bytes));
        if (!print_map(painter, space))
            return false;
    }
    return true;
}
