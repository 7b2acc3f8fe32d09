/*
 * The report for people: head lines, totals, tables of sites with their stacks, losses, notes.
 * Called by cmd_report.c; one thread.
 */
#include "columns.h"
#include "reconcile.h"
#include "render.h"
#include "text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define STACK_FRAMES 8 /* shown under a row, the blame's own among them */
#define STACK_INDENT 14
#define WHERE_MIN    24

struct painter {
    const struct report *report;
    FILE *out;
};

/* One table of sites: which figure it sorts by and how it presents itself. */
struct table {
    const char *title;       /* "PEAK BY SITE" */
    const char *what;        /* "device 0, driver" */
    enum measure measure;    /* bytes */
    const char *const *keys; /* columns before WHERE; the first is `measure` */
    uint64_t bytes;          /* what the rows add up to */
    const char *tail;        /* after the bytes in the title */
    int64_t residue;         /* of it in no row */
};

/* ---- print ----------------------------------------------------------------------------------- */

static void paint(const struct painter *painter, const char *code) {
    if (painter->report->colour)
        fprintf(painter->out, "\033[%sm", code);
}

static void __attribute__((format(printf, 2, 3)))
title(const struct painter *painter, const char *format, ...) {
    va_list arguments;
    fputc('\n', painter->out);
    paint(painter, "1");
    va_start(arguments, format);
    vfprintf(painter->out, format, arguments);
    va_end(arguments);
    paint(painter, "0");
    fputc('\n', painter->out);
}

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

static void print_process(const struct painter *painter, const struct job_process *process) {
    char end[128], duration[TEXT_BYTES], rank[32] = "";
    const struct trace_header *header = process->header;
    describe_end(process, end, sizeof end);
    if (header->rank != UINT32_MAX)
        snprintf(rank, sizeof rank, ", rank %" PRIu32, header->rank);
    paint(painter, "1");
    fprintf(painter->out, "%s", process->name[0] ? process->name : "(unnamed)");
    paint(painter, "0");
    fprintf(painter->out, "  pid %" PRIu32 "%s on %s, %s, after %s", header->pid, rank,
            process->host[0] ? process->host : "an unknown host", end,
            text_duration(duration, process->duration_ns));
    if (process->profile->end_of_work_ns)
        fprintf(painter->out, ", last allocation at %s",
                text_duration(duration, process->profile->end_of_work_ns));
    fprintf(painter->out, "%s\n", stack_source(header));
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

static void print_part(const struct painter *painter, const char *sign, const char *name,
                       int64_t bytes, const char *what) {
    char exact[TEXT_BYTES], size[TEXT_BYTES + 1];
    uint64_t amount = bytes < 0 ? -(uint64_t)bytes : (uint64_t)bytes;
    snprintf(size, sizeof size, "%s%s", bytes < 0 ? "-" : "", text_exact_bytes(exact, amount));
    fprintf(painter->out, "  %s %-10s %-32s %s\n", sign, name, size, what);
}

/* The books of the framework and of the driver, side by side, where there is a framework. */
static void print_reconciliation(const struct painter *painter, uint32_t device) {
    const struct job *job = painter->report->job;
    struct reconciliation sum = {0};
    double rate;
    for (size_t p = 0; p < job->process_count; p++)
        for (unsigned ordinal = 0; ordinal < TRACE_DEVICES; ordinal++)
            if (job->processes[p].devices[ordinal] == device)
                reconcile(&sum, job->processes[p].profile, ordinal);
    if (!sum.tensors)
        return;
    title(painter, "AT END OF WORK  device %s", job->devices[device].label);
    print_part(painter, " ", "allocated", (int64_t)sum.allocated,
               "tensors, as torch.cuda.memory_allocated()");
    if (sum.segments) {
        print_part(painter, "+", "cached", sum.cached, "free in the framework's segments");
        print_part(painter, "=", "reserved", (int64_t)sum.reserved,
                   "segments, as torch.cuda.memory_reserved()");
        print_part(painter, "+", "other", (int64_t)sum.other, "taken by other libraries");
        print_part(painter, "+", "pools", (int64_t)sum.pools, "stream-ordered");
    } else {
        fprintf(painter->out, "  the framework's segments are not known: they were made by calls "
                              "that are not recorded\n");
    }
    print_part(painter, "=", "driver", (int64_t)sum.driver,
               "what the program took from the driver");
    fprintf(painter->out, "  + %-10s %-32s contexts, modules, other programs\n", "untracked",
            "unknown");
    if (reconcile_reuse_rate(&sum, &rate))
        fprintf(painter->out, "  the cache met %.1f %% of the tensors\n", 100 * rate);
}

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
        title(painter, "TOTAL  %s", name);
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

static void print_books(const struct painter *painter) {
    for (size_t i = 0; i < painter->report->job->device_count; i++)
        print_reconciliation(painter, (uint32_t)i);
    print_sums(painter);
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* "function  file:line", fitted: a file loses its beginning first, then a function its end. */
static void describe_place(const struct frame *frame, char *place, size_t size) {
    if (frame->file && frame->line)
        snprintf(place, size, "%s:%u", frame->file, frame->line);
    else if (frame->file)
        snprintf(place, size, "%s", frame->file);
    else
        snprintf(place, size, "%s",
                 frame->function && frame->module ? text_basename(frame->module) : "");
}

static void print_fitted(const struct painter *painter, const char *name, const char *place,
                         size_t columns) {
    char cut[CELL_BYTES];
    size_t name_columns = text_columns(name), place_columns = text_columns(place);
    size_t gap = place_columns ? 2 : 0;
    if (name_columns + gap + place_columns > columns) {
        size_t base = text_columns(text_basename(place)) + 3; /* and the "..." before it */
        size_t least = base < columns / 2 ? base : columns / 2;
        size_t for_name = columns - least - gap;
        name_columns = name_columns < for_name ? name_columns : for_name;
        place_columns = columns - name_columns - gap;
    }
    fputs(text_keep_start(cut, sizeof cut, name, name_columns), painter->out);
    if (gap)
        fprintf(painter->out, "  %s", text_keep_end(cut, sizeof cut, place, place_columns));
}

static void print_frame(const struct painter *painter, const struct frame *frame, size_t columns) {
    char name[CELL_BYTES], place[CELL_BYTES];
    column_frame_name(frame, name, sizeof name - 16);
    describe_place(frame, place, sizeof place);
    if (frame->inlined && columns > WHERE_MIN) {
        print_fitted(painter, name, place, columns - 10);
        fputs(" (inlined)", painter->out);
    } else
        print_fitted(painter, name, place, columns);
}

static bool is_main(const struct frame *frame) {
    return frame->function && !frame->python &&
           (strcmp(frame->function, "main") == 0 || strcmp(frame->function, "_start") == 0);
}

static void begin_line(const struct painter *painter) {
    fprintf(painter->out, "%*s", STACK_INDENT, "");
}

/* The frames around the blame, or with --full-stacks all of them. */
static void print_stack(const struct painter *painter, const struct view_row *row) {
    const struct backtrace *backtrace = row->backtrace;
    bool full = painter->report->full_stacks;
    unsigned first = full ? 0 : backtrace->blame + 1, shown = 1;
    size_t width = painter->report->width;
    size_t columns = width > STACK_INDENT + WHERE_MIN ? width - STACK_INDENT : WHERE_MIN;
    bool at_main = !full && backtrace->blame < backtrace->count &&
                   is_main(backtrace->frames[backtrace->blame]);
    unsigned i = first;
    for (; i < backtrace->count && !at_main && (full || shown < STACK_FRAMES); i++, shown++) {
        begin_line(painter);
        print_frame(painter, backtrace->frames[i], columns);
        fputc('\n', painter->out);
        at_main = !full && is_main(backtrace->frames[i]);
    }
    if (!at_main && i < backtrace->count) {
        begin_line(painter);
        fprintf(painter->out, "... %u more, see --full-stacks\n", backtrace->count - i);
    } else if (!at_main && (backtrace->flags & (TRACE_STACK_TRUNCATED | TRACE_STACK_INCOMPLETE))) {
        begin_line(painter);
        fprintf(painter->out, "... %s\n",
                backtrace->flags & TRACE_STACK_TRUNCATED ? "outer frames are past the depth limit"
                                                         : "unwinding went no further");
    }
}

/* ---- tables of sites ------------------------------------------------------------------------- */

static const char *const peak_keys[] = {"at_peak_bytes", "allocs", "kind", "device", NULL};
static const char *const work_keys[] = {"end_of_work_bytes", "end_of_work_count", "kind", "device",
                                        NULL};
static const char *const live_keys[] = {"live_bytes", "live_count", "kind", "device", NULL};

#define SHARE_COLUMNS 7

static size_t print_header(const struct painter *painter, const struct table *table) {
    size_t used = 0;
    paint(painter, "2");
    for (size_t i = 0; table->keys[i]; i++) {
        const struct column *column = column_by_key(table->keys[i]);
        used += (size_t)fprintf(painter->out, " %*s", column->width, column->title);
        if (i == 0)
            used += (size_t)fprintf(painter->out, "%*s", SHARE_COLUMNS, "SHARE");
    }
    fprintf(painter->out, "  WHERE");
    paint(painter, "0");
    fputc('\n', painter->out);
    return used + 2;
}

static void print_share(const struct painter *painter, const struct table *table, double bytes) {
    if (table->bytes)
        fprintf(painter->out, "%*.1f%%", SHARE_COLUMNS - 1, 100 * bytes / (double)table->bytes);
    else
        fprintf(painter->out, "%*s", SHARE_COLUMNS, "");
}

static void print_figures(const struct painter *painter, const struct table *table,
                          const struct view_row *row) {
    char cell[CELL_BYTES];
    for (size_t i = 0; table->keys[i]; i++) {
        const struct column *column = column_by_key(table->keys[i]);
        column_cell(column, painter->report->view, row, true, cell);
        fprintf(painter->out, " %*s", column->width, cell);
        if (i == 0)
            print_share(painter, table, (double)row->values[table->measure]);
    }
    fputs("  ", painter->out);
}

/* The CUDA call that was made, and how many ways led to the place. */
static void print_origin(const struct painter *painter, const struct view_row *row) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    const char *label = row->backtrace->label;
    bool call = label && blame && blame->function != label && !painter->report->full_stacks;
    if (!call && row->stacks == 1)
        return;
    begin_line(painter);
    fprintf(painter->out, "%s%s", call ? "by " : "", call ? label : "");
    if (row->stacks > 1) {
        fprintf(painter->out, "%sthrough %zu stacks", call ? ", " : "", row->stacks);
        if (row->processes > 1)
            fprintf(painter->out, " in %zu processes", row->processes);
        fputs("; the largest:", painter->out);
    }
    fputc('\n', painter->out);
}

static void print_row(const struct painter *painter, const struct table *table,
                      const struct view_row *row, size_t used) {
    size_t width = painter->report->width;
    size_t columns = width > used + WHERE_MIN ? width - used : WHERE_MIN;
    const struct frame *blame = backtrace_blame(row->backtrace);
    print_figures(painter, table, row);
    if (blame)
        print_frame(painter, blame, columns);
    else
        fputs(row->other ? "(other): sites that found no room" : "(no stack)", painter->out);
    fputc('\n', painter->out);
    paint(painter, "2");
    print_origin(painter, row);
    print_stack(painter, row);
    paint(painter, "0");
}

/* What the table does not list one by one, so that its first column adds up to the title. */
static void print_rest(const struct painter *painter, const struct table *table,
                       const struct view_rows *rows, size_t shown) {
    char size[TEXT_BYTES];
    int width = column_by_key(table->keys[0])->width;
    uint64_t rest = 0;
    for (size_t i = shown; i < rows->count; i++)
        rest += rows->rows[i].values[table->measure];
    if (shown < rows->count) {
        fprintf(painter->out, " %*s", width, text_bytes(size, rest));
        print_share(painter, table, (double)rest);
        fprintf(painter->out, "  (%zu other%s)\n", rows->count - shown,
                rows->count - shown == 1 ? "" : "s");
    }
    if (table->residue) {
        uint64_t amount = (uint64_t)(table->residue < 0 ? -table->residue : table->residue);
        char signed_size[TEXT_BYTES + 2];
        snprintf(signed_size, sizeof signed_size, "%s%s", table->residue < 0 ? "-" : "",
                 text_bytes(size, amount));
        fprintf(painter->out, " %*s", width, signed_size);
        print_share(painter, table, (double)table->residue);
        fprintf(painter->out, "  (in flight)\n");
    }
}

static void print_table(const struct painter *painter, const struct table *table,
                        const struct view_rows *rows) {
    char exact[TEXT_BYTES];
    size_t top = painter->report->top, shown = rows->count < top ? rows->count : top;
    title(painter, "%s  %s: %s%s", table->title, table->what, text_exact_bytes(exact, table->bytes),
          table->tail);
    if (rows->count == 0 && !table->residue)
        return;
    size_t used = print_header(painter, table);
    for (size_t i = 0; i < shown; i++)
        print_row(painter, table, &rows->rows[i], used);
    print_rest(painter, table, rows, shown);
}

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
        struct table table = {.title = "PEAK BY SITE",
                              .what = name,
                              .measure = MEASURE_AT_PEAK_BYTES,
                              .keys = peak_keys,
                              .bytes = view->sites_filtered ? rows.sums[MEASURE_AT_PEAK_BYTES]
                                                            : sum->peak_bytes,
                              .tail = view->sites_filtered ? " of the sites asked for" : tail,
                              .residue = view->sites_filtered ? 0 : sum->residue_bytes};
        print_table(painter, &table, &rows);
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

/* Sites whose floor keeps rising: what a leak looks like while the program still runs. */
static bool print_growing(const struct painter *painter, int ledger) {
    static const char *const keys[] = {"growing_bytes", "growing_count", "kind", "device", NULL};
    struct view_grouping grouping = {
        .by = painter->report->by, .sort = MEASURE_GROWING_BYTES, .ledger = ledger};
    struct view_rows rows;
    if (!view_group(painter->report->view, &grouping, &rows))
        return false;
    char tail[96];
    describe_blocks(tail, sizeof tail, rows.sums[MEASURE_GROWING_COUNT], false);
    struct table table = {.title = "GROWING",
                          .what = trace_ledger_name((unsigned)ledger),
                          .measure = MEASURE_GROWING_BYTES,
                          .keys = keys,
                          .bytes = rows.sums[MEASURE_GROWING_BYTES],
                          .tail = tail};
    if (rows.count)
        print_table(painter, &table, &rows);
    view_rows_free(&rows);
    return true;
}

static bool print_live_table(const struct painter *painter, int ledger, bool at_exit) {
    const struct view *view = painter->report->view;
    enum measure bytes = at_exit ? MEASURE_LIVE_BYTES : MEASURE_END_OF_WORK_BYTES;
    enum measure count = at_exit ? MEASURE_LIVE_COUNT : MEASURE_END_OF_WORK_COUNT;
    struct view_grouping grouping = {.by = painter->report->by, .sort = bytes, .ledger = ledger};
    struct view_rows rows;
    if (!view_group(view, &grouping, &rows))
        return false;
    char head[64], tail[96];
    snprintf(head, sizeof head, "LIVE %s",
             at_exit ? end_name(painter->report->job) : "AT END OF WORK");
    describe_blocks(tail, sizeof tail, rows.sums[count], view->sites_filtered);
    struct table table = {.title = head,
                          .what = trace_ledger_name((unsigned)ledger),
                          .measure = bytes,
                          .keys = at_exit ? live_keys : work_keys,
                          .bytes = rows.sums[bytes],
                          .tail = tail};
    char exact[TEXT_BYTES];
    if (at_exit && rows.count && same_at_exit(view, ledger))
        title(painter, "%s  %s: %s%s, the same as at end of work", head, table.what,
              text_exact_bytes(exact, table.bytes), tail);
    else
        print_table(painter, &table, &rows);
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
    for (int ledger = TRACE_LEDGER_DRIVER; ledger <= TRACE_LEDGER_TENSOR; ledger++)
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
            title(painter, "LOST OR NOT KNOWN  %s, pid %" PRIu32, process->name,
                  process->header->pid);
        any = true;
        fprintf(painter->out, "  %10" PRIu64 "  %s\n", process->header->losses[i], meanings[i]);
    }
}

static void print_note(const struct painter *painter, bool *any, const char *text) {
    if (!*any)
        title(painter, "NOTES");
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
            const struct trace_note *note = trace_record(process->trace, TRACE_SECTION_NOTES, n);
            const char *text = note ? trace_string(process->trace, note->text) : NULL;
            char clean[1024], line[1100];
            if (!text)
                continue;
            snprintf(line, sizeof line, "pid %" PRIu32 ": %s", process->header->pid,
                     text_clean(clean, sizeof clean, text));
            print_note(painter, &any, line);
        }
    }
}

bool render_table(const struct report *report, FILE *out) {
    struct painter painter = {report, out};
    print_processes(&painter);
    if (report->parts & PART_REST)
        print_books(&painter);
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
