// LINK: @O@/simgpu/libcuda.so.1
/*
 * Takes 1000 bytes, starts a child that takes 20000, and then 300 more. Argument: how the child is
 * started, fork, exec or spawn. The child says what it would preload into its own children.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

PLACE void take(size_t bytes) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, bytes));
}

static void start(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
}

static int be_child(void) {
    const char *preload = getenv("LD_PRELOAD");
    start();
    take(20000);
    printf("child preloads %s\n", preload ? preload : "nothing");
    return 5;
}

static pid_t start_child(const char *how, char **argv) {
    char *arguments[] = {argv[0], (char *)"child", NULL};
    pid_t pid = -1;
    if (!strcmp(how, "spawn")) {
        MUST(posix_spawn(&pid, argv[0], NULL, NULL, arguments, environ));
        return pid;
    }
    pid = fork();
    if (pid != 0)
        return pid;
    if (!strcmp(how, "fork"))
        exit(be_child());
    execv(argv[0], arguments);
    _exit(126);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int status = 0;
    if (!strcmp(how, "child"))
        return be_child();
    start();
    take(1000);
    pid_t pid = start_child(how, argv);
    MUST(pid < 0 || waitpid(pid, &status, 0) != pid);
    take(300);
    printf("child ended with %d\n", WEXITSTATUS(status));
    return 0;
}
