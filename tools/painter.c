/*
 * Emphasis in the text report. See painter.h; no state.
 */
#include "painter.h"

#include <stdarg.h>
#include <string.h>

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

const char *painter_file(const struct painter *painter, const char *path) {
    const char *directory = painter->report->directory;
    size_t bytes = directory ? strlen(directory) : 0;
    bool within = bytes > 1 && strncmp(path, directory, bytes) == 0 && path[bytes] == '/';
    return within && path[bytes + 1] ? path + bytes + 1 : path;
}
