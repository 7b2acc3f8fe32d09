/*
 * The columns and their values. See columns.h; no state.
 */
#include "columns.h"

#include "code_owner.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void write_text(char *out, size_t size, const char *text) {
    snprintf(out, size, "%s", text ? text : "");
}

static void write_process(const struct view *view, const struct view_row *row, char *out,
                          size_t size) {
    (void)view;
    snprintf(out, size, "%zu", row->process);
}

static void write_pid(const struct view *view, const struct view_row *row, char *out, size_t size) {
    snprintf(out, size, "%" PRIu32, view->job->processes[row->process].header->pid);
}

static void write_ledger(const struct view *view, const struct view_row *row, char *out,
                         size_t size) {
    (void)view;
    write_text(out, size, trace_ledger_name(row->ledger));
}

static void write_kind(const struct view *view, const struct view_row *row, char *out,
                       size_t size) {
    (void)view;
    write_text(out, size, trace_kind_name(row->kind));
}

static void write_device(const struct view *view, const struct view_row *row, char *out,
                         size_t size) {
    bool host = row->device == DEVICE_NONE;
    write_text(out, size, host ? "host" : view->job->devices[row->device].label);
}

static void write_id(const struct view *view, const struct view_row *row, char *out, size_t size) {
    (void)view;
    write_text(out, size, row->id);
}

static void write_function(const struct view *view, const struct view_row *row, char *out,
                           size_t size) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    (void)view;
    if (blame)
        column_frame_name(blame, out, size);
    else
        write_text(out, size, row->other ? "(other)" : "(no stack)");
}

static void write_file(const struct view *view, const struct view_row *row, char *out,
                       size_t size) {
    const struct frame *line = view_line(row);
    (void)view;
    write_text(out, size, line ? line->file : NULL);
}

static void write_line(const struct view *view, const struct view_row *row, char *out,
                       size_t size) {
    const struct frame *line = view_line(row);
    (void)view;
    write_text(out, size, "");
    if (line && line->line)
        snprintf(out, size, "%u", line->line);
}

static void write_module(const struct view *view, const struct view_row *row, char *out,
                         size_t size) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    (void)view;
    write_text(out, size, blame ? blame->module : NULL);
}

static void write_call(const struct view *view, const struct view_row *row, char *out,
                       size_t size) {
    (void)view;
    write_text(out, size, row->backtrace->label);
}

static void write_via(const struct view *view, const struct view_row *row, char *out, size_t size) {
    (void)view;
    write_text(out, size, view_is_via_caller(row) ? COLUMN_VIA_CALLER : NULL);
}

static void write_library(const struct view *view, const struct view_row *row, char *out,
                          size_t size) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    (void)view;
    write_text(out, size, "");
    if (blame)
        code_library(blame, out, size);
}

/* Innermost first, separated by ";" as in folded stacks. */
static void write_stack(const struct view *view, const struct view_row *row, char *out,
                        size_t size) {
    (void)view;
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < row->backtrace->count && used + 2 < size; i++) {
        if (i)
            out[used++] = ';';
        column_frame_name(row->backtrace->frames[i], out + used, size - used);
        used += strlen(out + used);
    }
}

const struct column column_table[] = {
    {"process", "PROCESS", UNIT_TEXT, 0, write_process, 7, IN_CSV},
    {"pid", "PID", UNIT_TEXT, 0, write_pid, 8, IN_CSV},
    {"ledger", "LEDGER", UNIT_TEXT, 0, write_ledger, -6, IN_CSV},
    {"kind", "KIND", UNIT_TEXT, 0, write_kind, -10, IN_CSV},
    {"device", "DEV", UNIT_TEXT, 0, write_device, -4, IN_CSV},
    {"id", "ID", UNIT_TEXT, 0, write_id, -16, IN_CSV},
    {"at_peak_bytes", "BYTES", UNIT_BYTES, MEASURE_AT_PEAK_BYTES, NULL, 11, IN_CSV | IN_JSON},
    {"end_of_work_bytes", "BYTES", UNIT_BYTES, MEASURE_END_OF_WORK_BYTES, NULL, 11,
     IN_CSV | IN_JSON},
    {"end_of_work_count", "BLOCKS", UNIT_COUNT, MEASURE_END_OF_WORK_COUNT, NULL, 7, IN_CSV},
    {"live_bytes", "BYTES", UNIT_BYTES, MEASURE_LIVE_BYTES, NULL, 11, IN_CSV | IN_JSON},
    {"live_count", "BLOCKS", UNIT_COUNT, MEASURE_LIVE_COUNT, NULL, 7, IN_CSV | IN_JSON},
    {"own_peak_bytes", "OWN PEAK", UNIT_BYTES, MEASURE_OWN_PEAK_BYTES, NULL, 11, IN_CSV | IN_JSON},
    {"allocs", "ALLOCS", UNIT_COUNT, MEASURE_ALLOCS, NULL, 7, IN_CSV | IN_JSON},
    {"frees", "FREES", UNIT_COUNT, MEASURE_FREES, NULL, 7, IN_CSV | IN_JSON},
    {"growing_bytes", "BYTES", UNIT_BYTES, MEASURE_GROWING_BYTES, NULL, 11, 0},
    {"growing_a_minute", "A MINUTE", UNIT_BYTES, MEASURE_GROWING_A_MINUTE, NULL, 11, 0},
    {"growing_a_step", "A STEP", UNIT_BYTES, MEASURE_GROWING_A_STEP, NULL, 11, 0},
    {"growing_count", "BLOCKS", UNIT_COUNT, MEASURE_GROWING_COUNT, NULL, 7, 0},
    {"function", "FUNCTION", UNIT_TEXT, 0, write_function, -30, IN_CSV},
    {"file", "FILE", UNIT_TEXT, 0, write_file, -30, IN_CSV},
    {"line", "LINE", UNIT_TEXT, 0, write_line, 5, IN_CSV},
    {"module", "MODULE", UNIT_TEXT, 0, write_module, -20, IN_CSV},
    {"call", "CALL", UNIT_TEXT, 0, write_call, -16, IN_CSV},
    {"stack", "STACK", UNIT_TEXT, 0, write_stack, -40, IN_CSV},
    {"via", "VIA", UNIT_TEXT, 0, write_via, -14, IN_CSV},
    {"library", "LIBRARY", UNIT_TEXT, 0, write_library, -20, IN_CSV},
};
const size_t column_count = sizeof column_table / sizeof *column_table;

const struct column *column_by_key(const char *key) {
    for (size_t i = 0; i < column_count; i++)
        if (strcmp(column_table[i].key, key) == 0)
            return &column_table[i];
    return NULL;
}

char *column_cell(const struct column *column, const struct view *view, const struct view_row *row,
                  bool readable, char out[CELL_BYTES]) {
    if (column->unit == UNIT_TEXT)
        column->write(view, row, out, CELL_BYTES);
    else if (column->unit == UNIT_BYTES && readable)
        text_bytes(out, row->values[column->measure]);
    else
        snprintf(out, CELL_BYTES, "%" PRIu64, row->values[column->measure]);
    return out;
}

char *column_frame_name(const struct frame *frame, char *out, size_t size) {
    if (frame->function)
        write_text(out, size, frame->function);
    else if (frame->python)
        write_text(out, size, "(unknown Python function)");
    else if (frame->module)
        snprintf(out, size, "%s+0x%" PRIx64, text_basename(frame->module), frame->offset);
    else
        snprintf(out, size, "0x%" PRIx64, frame->offset);
    return out;
}
