/*
 * Opens the driver, asks it and closes it again, as often as the argument says; then opens it once
 * more and works with it. Each time it lies at another address.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>
#include <sys/mman.h>

typedef CUresult proc_v2(const char *, void **, int, uint64_t, void *);

#define FIND(name) __typeof__(&name) name##_found = (__typeof__(&name))dlsym(driver, #name)

PLACE void work(void *driver) {
    CUcontext context;
    CUdeviceptr block, kept;
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    __typeof__(&cuMemAlloc_v2) by_name = NULL;
    proc_v2 *proc = (proc_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    MUST(cuInit_found(0));
    MUST(cuDevicePrimaryCtxRetain_found(&context, 0));
    MUST(cuCtxSetCurrent_found(context));
    MUST(TAKE("device", 0, block, 1 << 20, cuMemAlloc_v2_found(&block, 1 << 20)));
    MUST(proc("cuMemAlloc", (void **)&by_name, 13000, 0, NULL));
    MUST(TAKE("device", 0, kept, 3000, by_name(&kept, 3000)));
    MUST(GIVE(block, cuMemFree_v2_found(block)));
}

/* True if the driver was unloaded. Something else is then where it was. */
static bool open_and_close(void) {
    Dl_info info;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    MUST(!driver || !dlsym(driver, "cuMemAlloc_v2"));
    MUST(!dladdr(dlsym(driver, "cuInit"), &info));
    MUST(dlclose(driver));
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD))
        return false;
    return mmap(info.dli_fbase, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                -1, 0) == info.dli_fbase;
}

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 0, gone = 0;
    for (int i = 0; i < times; i++)
        gone += open_and_close();
    printf("unloaded %d times\n", gone);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    MUST(!driver);
    work(driver);
    ledger_print();
    return 0;
}
