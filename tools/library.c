/*
 * Finds libcuheap.so. See library.h; no state.
 */
#include "library.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "libcuheap.so"

/* The folder of this very executable, however it was called. */
static bool own_folder(char folder[PATH_MAX]) {
    ssize_t bytes = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (bytes <= 0)
        return false;
    folder[bytes] = '\0';
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static bool is_file(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

bool library_find(char *path, size_t size) {
    char folder[PATH_MAX] = "", candidates[3][PATH_MAX + 64], real[PATH_MAX];
    size_t count = 0, used = 0;
    if (own_folder(folder)) {
        snprintf(candidates[count++], sizeof candidates[0], "%s/" LIBRARY, folder);
        snprintf(candidates[count++], sizeof candidates[0], "%s/../lib/cuheap/" LIBRARY, folder);
    }
    snprintf(candidates[count++], sizeof candidates[0], "%s/" LIBRARY, CUHEAP_LIBDIR);
    for (size_t i = 0; i < count; i++)
        if (is_file(candidates[i]) && realpath(candidates[i], real))
            return snprintf(path, size, "%s", real) < (int)size;
    for (size_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(path + used, size - used, "%s%s", i ? ", " : "", candidates[i]);
    return false;
}
