// LINK: @O@/simgpu/libcuda.so.1
/*
 * Allocations from a library's constructor, with the loader's locks held, while another thread
 * loads and unloads a library. Arguments: the library that allocates, and another.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>

#define LOADS 40

static volatile int stop;
static char *other;

static void *reload(void *unused) {
    (void)unused;
    while (!stop)
        dlclose(dlopen(other, RTLD_NOW | RTLD_LOCAL));
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    CUcontext context;
    MUST(argc != 3);
    other = argv[2];
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(pthread_create(&thread, NULL, reload, NULL));
    for (int i = 0; i < LOADS; i++)
        dlclose(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
    stop = 1;
    pthread_join(thread, NULL);
    printf("loads %d\n", LOADS);
    return 0;
}
