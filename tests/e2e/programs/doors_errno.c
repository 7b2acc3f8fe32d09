/*
 * What errno is after a door has opened: as it was before. Argument: the door. Nothing was asked
 * before, so that all of the library's own first work falls into that call.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>
#include <errno.h>

typedef CUresult proc_v1(const char *, void **, int, uint64_t);
typedef CUresult proc_v2(const char *, void **, int, uint64_t, void *);

int main(int argc, char **argv) {
    const char *door = argc > 1 ? argv[1] : "";
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
    MUST(!driver);
    void *proc1 = !strcmp(door, "proc1") ? dlsym(driver, "cuGetProcAddress") : NULL;
    void *proc2 = !strcmp(door, "proc2") ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
    errno = 77;
    if (proc1)
        ((proc_v1 *)proc1)("cuMemAlloc", &found, 12000, 0);
    else if (proc2)
        ((proc_v2 *)proc2)("cuMemAlloc", &found, 12000, 0, NULL);
    else if (!strcmp(door, "dlsym"))
        found = dlsym(driver, "cuMemAlloc_v2");
    else if (!strcmp(door, "dlvsym"))
        found = dlvsym(RTLD_DEFAULT, "dladdr", "GLIBC_2.34");
    else if (!strcmp(door, "dlclose"))
        found = dlclose(driver) == 0 ? driver : NULL;
    int after = errno;
    printf("%s: %s, errno %d\n", door, found ? "done" : "not done", after);
    return 0;
}
