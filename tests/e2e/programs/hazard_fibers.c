// LINK: @O@/simgpu/libcuda.so.1
/*
 * Fibers, small ones above and below a large one, each stack with a guard page on either side. What
 * was found out about the room of one must not be taken for that of another. Argument: bytes that
 * a small fiber has used up before its call.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <sys/mman.h>
#include <ucontext.h>

#define PAGE  4096
#define LARGE 65536

static ucontext_t host, fiber;
static void (*body)(void);
static size_t used;

/* A function and so a cold frame of its own for each fiber. */
#define TAKER(number)                                                                              \
    PLACE void take_##number(void) {                                                               \
        CUdeviceptr block;                                                                         \
        MUST(TAKE("device", 0, block, 500 + number, cuMemAlloc_v2(&block, 500 + number)));         \
        __asm__ volatile("nop");                                                                   \
    }
TAKER(0)
TAKER(1)
TAKER(2)
TAKER(3)
TAKER(4)
TAKER(5)
TAKER(6)
TAKER(7)

static void enter(void) {
    char *room = __builtin_alloca(used + 16);
    __asm__ volatile("" ::"r"(room) : "memory");
    body();
    __asm__ volatile("" ::"r"(room) : "memory");
    swapcontext(&fiber, &host);
}

static void run_on(char *stack, size_t bytes, void (*function)(void)) {
    body = function;
    MUST(getcontext(&fiber));
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = bytes;
    makecontext(&fiber, enter, 0);
    MUST(swapcontext(&host, &fiber));
}

static char *guarded(char *at, size_t bytes) {
    MUST(mprotect(at, bytes, PROT_READ | PROT_WRITE));
    return at;
}

int main(int argc, char **argv) {
    CUcontext context;
    size_t sizes[] = {8192, 12288, 16384};
    size_t burn = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, span = 4 * LARGE;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    char *base = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(base == MAP_FAILED);
    char *below = base + PAGE, *large = base + LARGE, *above = large + LARGE + PAGE;
    void (*const takers[])(void) = {take_1, take_2, take_3, take_4, take_5, take_6};
    guarded(large, LARGE);
    for (int i = 0; i < 3; i++) {
        used = 0;
        run_on(large, LARGE, i ? take_7 : take_0);
        used = burn;
        guarded(above, sizes[i]);
        run_on(above, sizes[i], takers[2 * i]);
        MUST(mprotect(above, sizes[i], PROT_NONE));
        guarded(below, sizes[i]);
        run_on(below, sizes[i], takers[2 * i + 1]);
        MUST(mprotect(below, sizes[i], PROT_NONE));
    }
    ledger_print();
    return 0;
}
