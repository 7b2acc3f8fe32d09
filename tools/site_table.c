/*
 * Prints a table of sites. See site_table.h; no state.
 */
#include "site_table.h"

#include "code_owner.h"
#include "columns.h"
#include "source.h"
#include "text.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define STACK_FRAMES  8 /* shown under a row, the blame's own among them */
#define STACK_INDENT  14
#define WHERE_MIN     24
#define SHARE_COLUMNS 7

/* ---- frames ---------------------------------------------------------------------------------- */

/* "function  file:line", fitted: a file loses its beginning first, then a function its end. */
static void describe_place(const struct painter *painter, const struct frame *frame, char *place,
                           size_t size) {
    const char *file = frame->file ? painter_file(painter, frame->file) : NULL;
    if (file && frame->line)
        snprintf(place, size, "%s:%u", file, frame->line);
    else if (file)
        snprintf(place, size, "%s", file);
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
    describe_place(painter, frame, place, sizeof place);
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

static size_t line_columns(const struct painter *painter) {
    size_t width = painter->report->width;
    return width > STACK_INDENT + WHERE_MIN ? width - STACK_INDENT : WHERE_MIN;
}

/* What of a stack stands under a row. */
struct excerpt {
    const struct backtrace *backtrace;
    unsigned first;
    unsigned frames; /* at most */
    bool python;     /* only Python frames */
};

static bool is_left_out(const struct excerpt *excerpt, const struct frame *frame) {
    return excerpt->python && !frame->python;
}

static void print_excerpt(const struct painter *painter, const struct excerpt *excerpt) {
    const struct backtrace *backtrace = excerpt->backtrace;
    bool full = painter->report->full_stacks, at_main = false;
    unsigned shown = 0, more = 0;
    for (unsigned i = excerpt->first; i < backtrace->count && !at_main; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (is_left_out(excerpt, frame))
            continue;
        if (shown == excerpt->frames) {
            more++;
            continue;
        }
        begin_line(painter);
        print_frame(painter, frame, line_columns(painter));
        fputc('\n', painter->out);
        shown++;
        at_main = !full && is_main(frame);
    }
    if (more) {
        begin_line(painter);
        fprintf(painter->out, "... %u more, see --full-stacks\n", more);
    } else if (!at_main && (backtrace->flags & (TRACE_STACK_TRUNCATED | TRACE_STACK_INCOMPLETE))) {
        begin_line(painter);
        fprintf(painter->out, "... %s\n",
                backtrace->flags & TRACE_STACK_TRUNCATED ? "outer frames are past the depth limit"
                                                         : "unwinding went no further");
    }
}

/* The callers of the line that the row names; below a stack of CUDA, PyTorch and the threads that
   run its nodes, those of the thread that waited are what tells. */
static void print_callers(const struct painter *painter, const struct view_row *row) {
    bool via = view_is_via_caller(row), by_library = painter->report->by == BY_LIBRARY;
    const struct backtrace *backtrace = via ? row->caller : row->backtrace;
    const struct frame *blame = backtrace_blame(backtrace);
    if (blame && is_main(blame) && !by_library)
        return;
    struct excerpt excerpt = {.backtrace = backtrace,
                              .first = backtrace->blame + (via || !by_library),
                              .frames = STACK_FRAMES - 1,
                              .python = blame && blame->python};
    print_excerpt(painter, &excerpt);
}

static void print_stack(const struct painter *painter, const struct view_row *row) {
    if (!painter->report->full_stacks) {
        print_callers(painter, row);
        return;
    }
    print_excerpt(painter, &(struct excerpt){.backtrace = row->backtrace, .frames = UINT_MAX});
    if (!row->caller)
        return;
    begin_line(painter);
    fputs("while this thread waited:\n", painter->out);
    print_excerpt(painter, &(struct excerpt){.backtrace = row->caller, .frames = UINT_MAX});
}

/* ---- what a row is about --------------------------------------------------------------------- */

/* "AddmmBackward0 and others  libtorch_cpu.so" */
static void print_blames(const struct painter *painter, const struct frame *blame, size_t columns) {
    char name[CELL_BYTES], place[CELL_BYTES];
    column_frame_name(blame, name, sizeof name - 16);
    strcat(name, " and others");
    describe_place(painter, blame, place, sizeof place);
    print_fitted(painter, name, place, columns);
}

static void print_library(const struct painter *painter, const struct frame *blame,
                          size_t columns) {
    char name[CODE_LIBRARY_BYTES], place[CELL_BYTES];
    code_library(blame, name, sizeof name);
    const char *path = blame->python ? blame->file : blame->module;
    bool is_file = path && strcmp(name, text_basename(path)) == 0;
    snprintf(place, sizeof place, "%s", is_file ? painter_file(painter, path) : "");
    print_fitted(painter, name[0] ? name : "(unknown)", place, columns);
}

static void print_subject(const struct painter *painter, const struct view_row *row,
                          size_t columns) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    if (!blame)
        fputs(row->other ? "(other): sites that found no room" : "(no stack)", painter->out);
    else if (painter->report->by == BY_LINE && view_is_via_caller(row) && row->blames_vary)
        print_blames(painter, blame, columns);
    else if (painter->report->by == BY_LIBRARY)
        print_library(painter, blame, columns);
    else
        print_frame(painter, blame, columns);
    fputc('\n', painter->out);
}

/* Where the thread stood that waited for it: "called from step  train.py:57 (waits)" */
static void print_caller(const struct painter *painter, const struct view_row *row) {
    const struct frame *line = row->caller ? backtrace_blame(row->caller) : NULL;
    char name[CELL_BYTES] = "called from ", place[CELL_BYTES];
    if (!line)
        return;
    column_frame_name(line, name + strlen(name), sizeof name / 2);
    describe_place(painter, line, place, sizeof place - 32);
    strcat(place, row->caller_varies ? " (waits), and other lines" : " (waits)");
    begin_line(painter);
    print_fitted(painter, name, place, line_columns(painter));
    fputc('\n', painter->out);
}

static void print_source(const struct painter *painter, const struct view_row *row) {
    const struct frame *line = view_line(row);
    char text[SOURCE_BYTES], cut[SOURCE_BYTES];
    if (!painter->report->source || !line || !source_line(line->file, line->line, text))
        return;
    begin_line(painter);
    fprintf(painter->out, "| %s\n",
            text_keep_start(cut, sizeof cut, text, line_columns(painter) - 2));
}

/* ---- the table ------------------------------------------------------------------------------- */

static size_t print_header(const struct painter *painter, const struct site_table *table) {
    size_t used = 0;
    painter_style(painter, "2");
    for (size_t i = 0; table->keys[i]; i++) {
        const struct column *column = column_by_key(table->keys[i]);
        used += (size_t)fprintf(painter->out, " %*s", column->width, column->title);
        if (i == 0)
            used += (size_t)fprintf(painter->out, "%*s", SHARE_COLUMNS, "SHARE");
    }
    fprintf(painter->out, "  WHERE");
    painter_style(painter, "0");
    fputc('\n', painter->out);
    return used + 2;
}

static void print_share(const struct painter *painter, const struct site_table *table,
                        double bytes) {
    if (table->bytes)
        fprintf(painter->out, "%*.1f%%", SHARE_COLUMNS - 1, 100 * bytes / (double)table->bytes);
    else
        fprintf(painter->out, "%*s", SHARE_COLUMNS, "");
}

static void print_figures(const struct painter *painter, const struct site_table *table,
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

/* Whose memory it is that others hand out again. */
static void print_owner(const struct painter *painter, const struct view_row *row) {
    char size[TEXT_BYTES];
    uint64_t blocks = row->values[MEASURE_LIVE_COUNT], segments = row->cache[MEASURE_LIVE_COUNT];
    if (view_is_cache(row)) {
        begin_line(painter);
        fputs("cache of PyTorch", painter->out);
        if (segments < blocks)
            fprintf(painter->out, ": %s of it, in %" PRIu64 " of %" PRIu64 " blocks",
                    text_bytes(size, row->cache[MEASURE_LIVE_BYTES]), segments, blocks);
        fputc('\n', painter->out);
    } else if (row->pool) {
        begin_line(painter);
        fprintf(painter->out, "pool of %s\n", row->pool->name);
    }
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

static void print_row(const struct painter *painter, const struct site_table *table,
                      const struct view_row *row, size_t used) {
    size_t width = painter->report->width;
    size_t columns = width > used + WHERE_MIN ? width - used : WHERE_MIN;
    print_figures(painter, table, row);
    bool via = view_is_via_caller(row);
    print_subject(painter, row, columns);
    painter_style(painter, "2");
    if (!via)
        print_source(painter, row);
    print_owner(painter, row);
    print_origin(painter, row);
    print_caller(painter, row);
    if (via)
        print_source(painter, row);
    print_stack(painter, row);
    painter_style(painter, "0");
}

/* What the table does not list one by one, so that its first column adds up to the title. */
static void print_rest(const struct painter *painter, const struct site_table *table,
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
    if (table->cache_count) {
        fprintf(painter->out, " %*s", width, text_bytes(size, table->cache_bytes));
        print_share(painter, table, (double)table->cache_bytes);
        fprintf(painter->out, "  (cache of PyTorch: %" PRIu64 " segment%s, see --ledger=driver)\n",
                table->cache_count, table->cache_count == 1 ? "" : "s");
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

void site_table_print(const struct painter *painter, const struct site_table *table,
                      const struct view_rows *rows) {
    char exact[TEXT_BYTES];
    size_t top = painter->report->top, shown = rows->count < top ? rows->count : top;
    painter_title(painter, "%s  %s: %s%s", table->title, table->what,
                  text_exact_bytes(exact, table->bytes), table->tail);
    if (rows->count == 0 && !table->residue && !table->cache_count)
        return;
    size_t used = print_header(painter, table);
    for (size_t i = 0; i < shown; i++)
        print_row(painter, table, &rows->rows[i], used);
    print_rest(painter, table, rows, shown);
}
