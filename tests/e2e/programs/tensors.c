/*
 * A process with tensors, as PyTorch's allocator reports them. Arguments: the stand-in for
 * libc10_cuda.so, the form of its names (2, 1, 0). Prints how many reports reached the originals.
 */
#include "c10.h"

static struct c10 c10;
static int form;

__attribute__((noipa)) static void make_weights(char *at) {
    for (int i = 0; i < 3; i++)
        c10.report(form, at + i * 4096, 4096, CUDA(0));
    __asm__ volatile("");
}

__attribute__((noipa)) static void step(char *at) {
    c10.report(form, at, 8 * MIB, CUDA(0));
    c10.report(form, at, -(int64_t)(8 * MIB), CUDA(0));
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    c10 = c10_load(argv[1]);
    form = atoi(argv[2]);
    /* A segment is known by the first tensor that lands in what its thread has just taken. */
    char *cpu = malloc(1), *small = c10.segment(2 * MIB);
    make_weights(small);
    char *large = c10.segment(20 * MIB), *other;
    for (int i = 0; i < 10; i++)
        step(large);
    other = c10.segment(3 * MIB);    /* somebody else's: no tensor */
    c10.report(form, cpu, 100, CPU); /* the shared memory of DataLoader workers is reported too */
    c10.report(form, cpu, -100, CPU);
    c10.report(form, large + 16 * MIB, -512, CUDA(0)); /* a tensor from before tracing */
    c10.report_oom(form, 1ll << 42, CUDA(0));
    printf("originals: %d %d\n", *c10.memory_reports, *c10.oom_reports);
    return other ? 0 : 4;
}
