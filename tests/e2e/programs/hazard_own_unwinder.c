// LINK: @O@/simgpu/libcuda.so.1
/*
 * A host that walks its own stack with libunwind's generic interface, which that library has once
 * for the whole process. What it opens afterwards stays its own: no byte may go into it.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libunwind.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__aarch64__)
#define UNWINDER "libunwind-aarch64.so.8"
#define PREFIX   "_Uaarch64_"
#else
#define UNWINDER "libunwind-x86_64.so.8"
#define PREFIX   "_Ux86_64_"
#endif

#define FILES 4

static int (*init_local)(unw_cursor_t *, unw_context_t *);
static int (*step)(unw_cursor_t *);

PLACE int count_steps(unw_context_t *context) {
    unw_cursor_t cursor;
    int steps = 0;
    MUST(init_local(&cursor, context));
    while (step(&cursor) > 0)
        steps++;
    return steps;
}

PLACE int walk(int depth) {
    unw_context_t context;
    if (depth > 0)
        return walk(depth - 1);
    getcontext((ucontext_t *)&context);
    return count_steps(&context);
}

static void tell(int fd) {
    char text[64] = "";
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    printf("descriptor %d, offset %ld, %zd bytes, \"%s\"\n", fd, (long)lseek(fd, 0, SEEK_CUR), got,
           text);
}

int main(void) {
    CUcontext context;
    CUdeviceptr block;
    char name[32];
    int files[FILES];
    for (int fd = 3; fd < 1024; fd++)
        close(fd); /* the numbers that follow are then known */
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemAlloc_v2(&block, 4096));
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "host-file-%d", i);
        files[i] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        MUST(write(files[i], "host data", 9) != 9);
        lseek(files[i], 0, SEEK_SET);
    }
    void *unwinder = dlopen(UNWINDER, RTLD_NOW | RTLD_LOCAL);
    if (!unwinder) {
        printf("no libunwind\n");
        return 0;
    }
    *(void **)&init_local = dlsym(unwinder, PREFIX "init_local");
    *(void **)&step = dlsym(unwinder, PREFIX "step");
    printf("%s\n", walk(10) > 10 ? "walked" : "the walk stopped early");
    MUST(cuMemAlloc_v2(&block, 4096));
    for (int i = 0; i < FILES; i++)
        tell(files[i]);
    return 0;
}
