// LINK: @O@/simgpu/libcuda.so.1
/*
 * Calls that are interrupted. `inside`: a signal handler allocates inside the driver's call.
 * `leave`: the handler leaves the call by siglongjmp. `step`: on x86-64 a trap after each
 * instruction; at every one that lies in libcuheap.so the handler takes a block and gives it back.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "simgpu.h"

#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

static unsigned made; /* allocations that returned success */

PLACE CUdeviceptr take(size_t bytes) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, bytes));
    made++;
    return block;
}

PLACE CUdeviceptr take_deeper(int depth, size_t bytes) {
    volatile char room[500];
    room[0] = (char)depth;
    return depth > 0 ? take_deeper(depth - 1, bytes) + (CUdeviceptr)(room[0] * 0) : take(bytes);
}

static void give(CUdeviceptr block) {
    MUST(cuMemFree_v2(block));
}

/* ---- inside ---- */

static void raise_once(const char *name, void *unused) {
    (void)name;
    (void)unused;
    simgpu_hook("cuMemAlloc_v2", SIMGPU_BEFORE, NULL, NULL);
    raise(SIGUSR1);
}

static void allocate(int signal) {
    (void)signal;
    give(take(3000));
}

static void inside(void) {
    for (int i = 0; i < 10; i++) {
        simgpu_hook("cuMemAlloc_v2", SIMGPU_BEFORE, raise_once, NULL);
        take(1000);
    }
    printf("live %d blocks %d\n", 10 * 1000, 10);
}

/* ---- leave ---- */

static sigjmp_buf back;

static void leave(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void left(void) {
    static const int first_depth[] = {5, 0, 6, 25};
    take(1000);
    for (int i = 0; i < 4; i++) {
        simgpu_hook("cuMemAlloc_v2", SIMGPU_BEFORE, raise_once, NULL);
        if (sigsetjmp(back, 1) == 0)
            take_deeper(5, 77);
        /* First from the same depth as the call that was left, from further out, or from deeper:
           only then is what it left behind still there. */
        take_deeper(first_depth[i], 1000);
        take_deeper(5, 1000);
        give(take(500));
    }
    printf("live %d blocks %d\n", 9 * 1000, 9);
}

/* ---- step ---- */

#ifdef __x86_64__
static uintptr_t ours_from, ours_to;
static unsigned points;

static int find_ours(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    if (!strstr(info->dlpi_name, "libcuheap.so"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type != PT_LOAD || !(ph->p_flags & PF_X))
            continue;
        ours_from = info->dlpi_addr + ph->p_vaddr;
        ours_to = ours_from + ph->p_memsz;
    }
    return 1;
}

static void at_each_instruction(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    uintptr_t pc = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pc < ours_from || pc >= ours_to)
        return;
    points++;
    give(take(3000));
}

#define TRAP_FLAG 0x100ul

static void stepping(int on) {
    if (on)
        __asm__ volatile("pushfq\n orq %0, (%%rsp)\n popfq" ::"i"(TRAP_FLAG) : "memory", "cc");
    else
        __asm__ volatile("pushfq\n andq %0, (%%rsp)\n popfq" ::"i"(~TRAP_FLAG) : "memory", "cc");
}

static void step(void) {
    struct sigaction action = {.sa_sigaction = at_each_instruction, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    dl_iterate_phdr(find_ours, NULL);
    give(take(1000));
    allocate(0); /* both paths are warm */
    stepping(1);
    CUdeviceptr first = take(1000);
    CUdeviceptr second = take(1000);
    give(first);
    stepping(0);
    (void)second;
    fprintf(stderr, "%u points\n", points);
    printf("live %d blocks %d\n", 1000, 1);
}
#else
static void step(void) {
    printf("not on this machine\n");
    exit(0);
}
#endif

int main(int argc, char **argv) {
    CUcontext context;
    const char *mode = argc > 1 ? argv[1] : "";
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    signal(SIGUSR1, !strcmp(mode, "leave") ? leave : allocate);
    if (!strcmp(mode, "inside"))
        inside();
    else if (!strcmp(mode, "leave"))
        left();
    else if (!strcmp(mode, "step"))
        step();
    fprintf(stderr, "made %u\n", made);
    return 0;
}
