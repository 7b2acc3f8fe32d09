/*
 * The report as CSV (RFC 4180): a row for each group of sites of each process, exact figures.
 * Called by cmd_report.c.
 */
#include "columns.h"
#include "render.h"

#include <string.h>

/* A spreadsheet takes a cell that begins so for a formula. */
static bool looks_like_formula(const char *text) {
    return *text && strchr("=+-@", *text);
}

static void print_cell(FILE *out, const char *text) {
    bool formula = looks_like_formula(text);
    if (!formula && !strpbrk(text, ",\"\n\r")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    if (formula)
        fputc('\'', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void print_row(const struct report *report, const struct view_row *row, FILE *out) {
    char cell[CELL_BYTES];
    const char *separator = "";
    for (size_t i = 0; i < column_count; i++) {
        if (!(column_table[i].use & IN_CSV))
            continue;
        fputs(separator, out);
        print_cell(out, row ? column_cell(&column_table[i], report->view, row, false, cell)
                            : column_table[i].key);
        separator = ",";
    }
    fputs("\r\n", out);
}

bool render_csv(const struct report *report, FILE *out) {
    struct view_rows rows;
    struct view_grouping grouping = {.by = report->by,
                                     .sort = report->parts == PART_LEAKS ? MEASURE_END_OF_WORK_BYTES
                                                                         : MEASURE_AT_PEAK_BYTES,
                                     .per_process = true,
                                     .all = true};
    if (!view_group(report->view, &grouping, &rows))
        return false;
    print_row(report, NULL, out);
    for (size_t i = 0; i < rows.count; i++)
        print_row(report, &rows.rows[i], out);
    view_rows_free(&rows);
    return true;
}
