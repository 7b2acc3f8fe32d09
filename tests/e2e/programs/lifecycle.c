// LINK: @O@/simgpu/libcuda.so.1
/*
 * Ways to live and to end, one a mode: see the table at the end. What is taken has sizes that tell
 * who took it.
 */
#include "cuda_sim.h"
#include "cuheap/cuheap.h"
#include "ledger.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdeviceptr last;

PLACE CUdeviceptr take(size_t bytes) {
    MUST(cuMemAlloc_v2(&last, bytes));
    return last;
}

static void start(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
}

static void nothing(char **argv) {
    (void)argv;
    exit(3);
}

static void end_by_exit(char **argv) {
    (void)argv;
    start();
    take(1000);
    exit(3);
}

static void end_by_underscore_exit(char **argv) {
    (void)argv;
    start();
    take(1000);
    _exit(4);
}

static void end_by_kill(char **argv) {
    (void)argv;
    start();
    take(1000);
    raise(SIGKILL);
}

static void end_by_abort(char **argv) {
    (void)argv;
    start();
    take(1000);
    abort();
}

static void fork_child(char **argv) {
    (void)argv;
    start();
    take(1000);
    pid_t pid = fork();
    if (pid == 0) {
        start();
        take(20000);
        exit(5);
    }
    int status;
    waitpid(pid, &status, 0);
    take(300);
    printf("parent %d child %d status %d\n", getpid(), pid, WEXITSTATUS(status));
}

/* The child leaves what it was given to the parent, whose trace it shares. */
static void vfork_child(char **argv) {
    (void)argv;
    start();
    take(1000);
    pid_t pid = vfork();
    if (pid == 0) {
        take(20000);
        _exit(5);
    }
    int status;
    waitpid(pid, &status, 0);
    take(300);
    printf("status %d\n", WEXITSTATUS(status));
}

static void exec_self(char **argv) {
    start();
    take(1000);
    execl("/proc/self/exe", argv[0], "exit", NULL);
    _exit(126);
}

static void free_last(void) {
    MUST(cuMemFree_v2(last));
}

static void free_at_exit(char **argv) {
    (void)argv;
    atexit(free_last);
    start();
    take(1000);
    take(20000);
}

static int free_in_destructor;

__attribute__((destructor)) static void late(void) {
    if (free_in_destructor)
        printf("late free %d\n", cuMemFree_v2(last));
}

static void free_late(char **argv) {
    (void)argv;
    free_in_destructor = 1;
    start();
    take(1000);
    take(20000);
}

static void mark(char **argv) {
    (void)argv;
    cuheap_mark("before the first event");
    start();
    take(1000);
    cuheap_mark("epoch 1");
    take(20000);
    cuheap_mark("epoch 2");
}

/* Stays until it is killed; the byte on stdout says that it is there. */
static void stay(char **argv) {
    (void)argv;
    start();
    take(1000);
    printf("staying\n");
    fflush(stdout);
    for (;;)
        pause();
}

static const struct {
    const char *name;
    void (*run)(char **argv);
} modes[] = {
    {"nothing", nothing},   {"exit", end_by_exit},   {"_exit", end_by_underscore_exit},
    {"kill", end_by_kill},  {"abort", end_by_abort}, {"fork", fork_child},
    {"vfork", vfork_child}, {"exec", exec_self},     {"atexit", free_at_exit},
    {"late", free_late},    {"mark", mark},          {"stay", stay},
};

int main(int argc, char **argv) {
    for (unsigned i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, argv[1]))
            continue;
        modes[i].run(argv);
        return 0;
    }
    return 2;
}
