// LINK: @O@/simgpu/libcuda.so.1
/*
 * Forks again and again while two threads load and unload a library; each child makes its first
 * allocation, and so its first stack, in a process where any lock of the loader may be held for
 * ever. Arguments: the library, the number of children. A hang is ended from outside.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bound before the first fork: a child may not bind anything. */
static __typeof__(&cuInit) volatile init = cuInit;
static __typeof__(&cuCtxCreate_v2) volatile create = cuCtxCreate_v2;
static __typeof__(&cuMemAlloc_v2) volatile alloc = cuMemAlloc_v2;
static __typeof__(&cuMemFree_v2) volatile release = cuMemFree_v2;

static volatile int stop;

static void *reload(void *library) {
    while (!stop) {
        void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            _exit(90);
        dlclose(handle);
    }
    return NULL;
}

PLACE int take(int depth) {
    CUdeviceptr kept, gone;
    if (depth > 0)
        return take(depth - 1) + 1;
    if (alloc(&kept, 1000) || alloc(&gone, 20000) || release(gone) || alloc(&gone, 300000))
        _exit(91);
    return 0;
}

static void child(void) {
    CUcontext context;
    if (init(0) || create(&context, 0, 0))
        _exit(92);
    _exit(take(10) == 10 ? 0 : 93);
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    MUST(argc != 3);
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, reload, argv[1]));
    for (int i = atoi(argv[2]); i > 0; i--) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child();
        MUST(waitpid(pid, &status, 0) != pid);
        if (status != 0) {
            fprintf(stderr, "a child ended with status %#x\n", status);
            return 1;
        }
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("all children came back\n");
    return 0;
}
