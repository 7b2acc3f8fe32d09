/*
 * Asks for names at one door after the other and prints which object's function came back and what
 * dlerror() said: once traced and once not, the two outputs are compared.
 *
 *     doors_lookup handle|version|local|global|none|proc1|proc2|itself
 *     doors_lookup scopes none|local|global
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuCtxCreate",
    "cuCtxCreate_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuDevicePrimaryCtxRetain",
    "cuMemGetInfo_v2",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    /* not watched */
    "cuInit",
    "cuMemAlloc",
    "cuMemFree",
    "cuCtxGetCurrent",
    /* in no libcuda */
    "cuFutureThing",
    "cuMemAlloc_v2x",
    "cuMemAlloc_v",
    "cu",
    "cuda",
    "cudaMalloc",
    "cudnnCreate",
    "cublasCreate_v2",
    "",
};
#define NAMES (sizeof names / sizeof *names)

static const char *object_of(const void *pointer) {
    static char text[256];
    Dl_info info;
    if (!pointer)
        return "NULL";
    if (!dladdr(pointer, &info))
        return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(text, sizeof text, "%s:%s%s", slash ? slash + 1 : info.dli_fname,
             info.dli_sname ? info.dli_sname : "?", info.dli_saddr == pointer ? "" : "+");
    return text;
}

static void tell(const char *door, const char *name, const void *pointer) {
    char text[256];
    const char *error = dlerror(); /* first: what follows may set it again */
    snprintf(text, sizeof text, "%s", error ? error : "no error");
    printf("%s \"%s\": %s", door, name, object_of(pointer));
    printf(" | %s | %s\n", text, dlerror() ? "said twice" : "said once");
}

static void *open_driver(int flags) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | flags);
    if (!handle)
        fprintf(stderr, "%s\n", dlerror());
    return handle;
}

static void ask_handle(void) {
    void *handle = open_driver(RTLD_LOCAL);
    for (size_t i = 0; i < NAMES; i++)
        tell("handle", names[i], dlsym(handle, names[i]));
}

static void ask_version(void) {
    void *handle = open_driver(RTLD_LOCAL);
    for (size_t i = 0; i < NAMES; i++)
        tell("version", names[i], dlvsym(handle, names[i], "LIBCUDA_1"));
    tell("version", "printf", dlvsym(RTLD_DEFAULT, "printf", "NO_SUCH_VERSION"));
}

static void ask_default(const char *door) {
    for (size_t i = 0; i < NAMES; i++)
        tell(door, names[i], dlsym(RTLD_DEFAULT, names[i]));
}

/* Whatever scope there is beside the default one, with the driver in it or not. */
static void ask_scopes(void) {
    void *program = dlopen(NULL, RTLD_NOW);
    for (size_t i = 0; i < NAMES; i++) {
        tell("next", names[i], dlsym(RTLD_NEXT, names[i]));
        tell("program", names[i], dlsym(program, names[i]));
        tell("default version", names[i], dlvsym(RTLD_DEFAULT, names[i], "LIBCUDA_1"));
        tell("next version", names[i], dlvsym(RTLD_NEXT, names[i], "LIBCUDA_1"));
        tell("program version", names[i], dlvsym(program, names[i], "LIBCUDA_1"));
    }
}

static const struct {
    const char *name;
    int version;
    unsigned flags;
} queries[] = {
    {"cuMemAlloc", 2000, 0},
    {"cuMemAlloc", 3010, 0},
    {"cuMemAlloc", 3020, 0},
    {"cuMemAlloc", 13000, 0},
    {"cuMemAlloc_v2", 3020, 0},
    {"cuMemFree", 3020, 0},
    {"cuMemAllocPitch", 3020, 0},
    {"cuMemAllocManaged", 6000, 0},
    {"cuMemAllocManaged", 5000, 0},
    {"cuMemHostAlloc", 2020, 0},
    {"cuMemAllocHost", 3020, 0},
    {"cuMemFreeHost", 2000, 0},
    {"cuMemAllocAsync", 11020, 0},
    {"cuMemAllocAsync", 11020, 1},
    {"cuMemAllocAsync", 11020, 2},
    {"cuMemAllocAsync", 11010, 0},
    {"cuMemFreeAsync", 12000, 0},
    {"cuMemFreeAsync", 12000, 2},
    {"cuMemAllocFromPoolAsync", 11020, 0},
    {"cuMemAllocFromPoolAsync", 11020, 2},
    {"cuMemAlloc", 3020, 2},
    {"cuMemAlloc", 3020, 64},
    {"cuCtxCreate", 2000, 0},
    {"cuCtxCreate", 3020, 0},
    {"cuCtxCreate", 11040, 0},
    {"cuCtxCreate", 12050, 0},
    {"cuDevicePrimaryCtxRetain", 7000, 0},
    {"cuGetProcAddress", 11030, 0},
    {"cuGetProcAddress", 12000, 0},
    {"cuCtxGetDevice", 2000, 0},
    {"cuCtxGetDevice", 13000, 0},
    {"cuInit", 2000, 0},
    {"cuFutureThing", 13000, 0},
    {"cuMemAlloc", 0, 0},
    {"", 0, 0},
};
#define QUERIES (sizeof queries / sizeof *queries)

typedef CUresult proc_v1(const char *, void **, int, cuuint64_t);
typedef CUresult proc_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void tell_query(const char *door, size_t i, CUresult rc, int status, const void *pointer) {
    printf("%s \"%s\" %d %u: code %d, status %d, %s\n", door, queries[i].name, queries[i].version,
           queries[i].flags, rc, status, pointer == &queries ? "untouched" : object_of(pointer));
}

static void ask_proc1(const char *door, proc_v1 *proc) {
    for (size_t i = 0; i < QUERIES; i++) {
        void *pointer = (void *)&queries;
        CUresult rc = proc(queries[i].name, &pointer, queries[i].version, queries[i].flags);
        tell_query(door, i, rc, -1, pointer);
    }
}

static void ask_proc2(const char *door, proc_v2 *proc) {
    for (size_t i = 0; i < QUERIES; i++) {
        void *pointer = (void *)&queries, *again = (void *)&queries;
        CUdriverProcAddressQueryResult status = 77;
        CUresult rc =
            proc(queries[i].name, &pointer, queries[i].version, queries[i].flags, &status);
        tell_query(door, i, rc, (int)status, pointer);
        /* The runtime passes no status. */
        CUresult rc2 = proc(queries[i].name, &again, queries[i].version, queries[i].flags, NULL);
        if (rc2 != rc || again != pointer)
            printf("  without status: code %d, %s\n", rc2, object_of(again));
    }
}

/* cuGetProcAddress asked for by itself, and what it gives then used. */
static void ask_itself(void) {
    proc_v2 *first = (proc_v2 *)dlsym(open_driver(RTLD_LOCAL), "cuGetProcAddress_v2");
    void *v1 = NULL, *v2 = NULL;
    first("cuGetProcAddress", &v1, 11030, 0, NULL);
    first("cuGetProcAddress", &v2, 12000, 0, NULL);
    printf("v1 %s\n", object_of(v1));
    printf("v2 %s\n", object_of(v2));
    ask_proc1("v1 of itself", (proc_v1 *)v1);
    ask_proc2("v2 of itself", (proc_v2 *)v2);
}

int main(int argc, char **argv) {
    const char *door = argc > 1 ? argv[1] : "";
    if (!strcmp(door, "handle"))
        ask_handle();
    else if (!strcmp(door, "version"))
        ask_version();
    else if (!strcmp(door, "local") && open_driver(RTLD_LOCAL))
        ask_default(door);
    else if (!strcmp(door, "global") && open_driver(RTLD_GLOBAL))
        ask_default(door);
    else if (!strcmp(door, "none"))
        ask_default(door);
    else if (!strcmp(door, "scopes") && argc > 2) {
        if (strcmp(argv[2], "none"))
            open_driver(!strcmp(argv[2], "local") ? RTLD_LOCAL : RTLD_GLOBAL);
        ask_scopes();
    } else if (!strcmp(door, "proc1"))
        ask_proc1(door, (proc_v1 *)dlsym(open_driver(RTLD_LOCAL), "cuGetProcAddress"));
    else if (!strcmp(door, "proc2"))
        ask_proc2(door, (proc_v2 *)dlsym(open_driver(RTLD_LOCAL), "cuGetProcAddress_v2"));
    else if (!strcmp(door, "itself"))
        ask_itself();
    else
        return 2;
    return 0;
}
