/*
 * Reads a line below the current directory. See source.h; no state.
 */
#include "source.h"

#include "text.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MAX  (16u << 20) /* a line further into its file is not looked for */
#define READ_STEP 4096u

/* The path below `directory`, by its text alone; NULL: it names something else. */
static const char *below(const char *directory, const char *path) {
    size_t bytes = strlen(directory);
    if (path[0] == '/') {
        if (strncmp(path, directory, bytes) != 0)
            return NULL;
        path += bytes;
        if (bytes > 1 && *path++ != '/')
            return NULL;
        path += strspn(path, "/");
    }
    for (const char *part = path; *part; part += strcspn(part, "/"), part += strspn(part, "/"))
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || !part[2]))
            return NULL;
    return *path ? path : NULL;
}

/* Whether an open file lies below `directory`: links may have led anywhere. */
static bool lies_below(const char *proc, const char *directory) {
    char real[PATH_MAX];
    size_t prefix = strlen(directory);
    ssize_t bytes = readlink(proc, real, sizeof real - 1);
    if (bytes <= 0)
        return false;
    real[bytes] = '\0';
    return strncmp(real, directory, prefix) == 0 && (prefix == 1 || real[prefix] == '/');
}

/* Links are followed by an O_PATH descriptor, which opens nothing: a FIFO or a device that they
   lead to is not touched, and what was looked at is what is read. */
static int open_below(const char *path) {
    char directory[PATH_MAX], proc[64];
    struct stat status;
    if (!getcwd(directory, sizeof directory) || !(path = below(directory, path)))
        return -1;
    int found = open(path, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", found);
    int file = -1;
    if (fstat(found, &status) == 0 && S_ISREG(status.st_mode) && lies_below(proc, directory))
        file = open(proc, O_RDONLY | O_CLOEXEC);
    close(found);
    return file;
}

/* Takes the bytes of the line that a step of the file holds; false: it is complete. */
static bool take(const char *step, size_t bytes, unsigned *left, char raw[SOURCE_BYTES],
                 size_t *used) {
    for (size_t i = 0; i < bytes; i++) {
        if (*left > 1) {
            *left -= step[i] == '\n';
            continue;
        }
        if (step[i] == '\n' || *used == SOURCE_BYTES - 1)
            return false;
        bool indents = *used == 0 && (step[i] == ' ' || step[i] == '\t');
        if (!indents)
            raw[(*used)++] = step[i];
    }
    return true;
}

bool source_line(const char *file, unsigned line, char text[SOURCE_BYTES]) {
    int fd = file && line ? open_below(file) : -1;
    if (fd < 0)
        return false;
    char step[READ_STEP], raw[SOURCE_BYTES] = "";
    size_t used = 0;
    ssize_t bytes;
    unsigned left = line;
    for (size_t all = 0; all < READ_MAX && (bytes = read(fd, step, sizeof step)) > 0;
         all += (size_t)bytes)
        if (!take(step, (size_t)bytes, &left, raw, &used))
            break;
    close(fd);
    raw[used - (used && raw[used - 1] == '\r')] = '\0';
    text_clean(text, SOURCE_BYTES, raw);
    return text[0] != '\0';
}
