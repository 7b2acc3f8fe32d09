#include "diag.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

void diag_say(const char *part, ...) {
    char line[1024] = "cuheap: ";
    size_t used = strlen(line);
    int saved = errno;
    va_list parts;
    va_start(parts, part);
    for (; part; part = va_arg(parts, const char *))
        for (; *part && used < sizeof line - 1; part++)
            line[used++] = *part;
    va_end(parts);
    line[used++] = '\n';
    /* Nobody can be told that telling failed. */
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
    errno = saved;
}

char *diag_decimal(uint64_t number, char buffer[24]) {
    char *at = buffer + 23;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}
