/*
 * NVIDIA's own CUDA runtime on its way into a driver. It is started here and may well refuse to go
 * on: what counts is the look-ups that it makes first. This program stands between it and whoever
 * answers: it defines dlsym, which the runtime therefore calls, and wraps the cuGetProcAddress that
 * the runtime is handed. Printed is every question, its answer's object and exported name, and the
 * code.
 *
 *     runtime_lookups         one thread; built and run by test_runtime.c
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

typedef void *dlsym_like(void *handle, const char *name);
typedef int proc_v1(const char *, void **, int, uint64_t);
typedef int proc_v2(const char *, void **, int, uint64_t, int *);

int cudaGetDeviceCount(int *count);

static proc_v1 *answer_v1, log_v1;
static proc_v2 *answer_v2, log_v2;

static const char *object_of(const void *pointer) {
    static char text[300];
    Dl_info info;
    if (!pointer)
        return "NULL";
    if (!dladdr(pointer, &info) || info.dli_saddr != pointer)
        return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(text, sizeof text, "%s:%s", slash ? slash + 1 : info.dli_fname, info.dli_sname);
    return text;
}

/* What the runtime is handed in place of a door, so that it asks here. */
static void *stand_between(const char *name, int version, void *found) {
    if (found && !strcmp(name, "cuGetProcAddress") && version < 12000) {
        answer_v1 = (proc_v1 *)found;
        return (void *)log_v1;
    }
    if (found && !strncmp(name, "cuGetProcAddress", strlen("cuGetProcAddress"))) {
        answer_v2 = (proc_v2 *)found;
        return (void *)log_v2;
    }
    return found;
}

static int log_v1(const char *symbol, void **pfn, int version, uint64_t flags) {
    int rc = answer_v1(symbol, pfn, version, flags);
    printf("proc1 \"%s\" %d %ju: code %d, %s\n", symbol, version, (uintmax_t)flags, rc,
           rc ? "-" : object_of(*pfn));
    if (!rc)
        *pfn = stand_between(symbol, version, *pfn);
    return rc;
}

static int log_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    int rc = answer_v2(symbol, pfn, version, flags, status);
    printf("proc2 \"%s\" %d %ju: code %d, status %s, %s\n", symbol, version, (uintmax_t)flags, rc,
           status ? "wanted" : "not wanted", rc ? "-" : object_of(*pfn));
    if (!rc)
        *pfn = stand_between(symbol, version, *pfn);
    return rc;
}

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    static dlsym_like *next;
    if (!next)
        next = (dlsym_like *)dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
    void *found = next(handle, name);
    if (strncmp(name, "cu", 2))
        return found;
    printf("dlsym \"%s\": %s\n", name, object_of(found));
    return stand_between(name, !strcmp(name, "cuGetProcAddress") ? 11030 : 12000, found);
}

int main(void) {
    int count = -1, rc = cudaGetDeviceCount(&count);
    printf("cudaGetDeviceCount: %s\n", rc ? "refused" : "done");
    return 0;
}
