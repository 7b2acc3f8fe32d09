/*
 * Emphasis in the text report. See painter.h; no state.
 */
#include "painter.h"

#include <stdarg.h>

void painter_style(const struct painter *painter, const char *code) {
    if (painter->report->colour)
        fprintf(painter->out, "\033[%sm", code);
}

void painter_title(const struct painter *painter, const char *format, ...) {
    va_list arguments;
    fputc('\n', painter->out);
    painter_style(painter, "1");
    va_start(arguments, format);
    vfprintf(painter->out, format, arguments);
    va_end(arguments);
    painter_style(painter, "0");
    fputc('\n', painter->out);
}
