/*
 * A process with tensors, as PyTorch's allocator reports them. Arguments: the stand-in for
 * libc10_cuda.so, the form of its names (2, 1, 0). Prints what it did as JSON.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)

static void (*report)(int form, void *address, int64_t bytes, int cpu);
static void (*report_oom)(int form, int64_t bytes);
static void *(*segment)(size_t bytes);
static int form;

__attribute__((noipa)) static void make_weights(char *at) {
    for (int i = 0; i < 3; i++)
        report(form, at + i * 4096, 4096, 0);
    __asm__ volatile("");
}

__attribute__((noipa)) static void step(char *at) {
    report(form, at, 8 * MIB, 0);
    report(form, at, -(int64_t)(8 * MIB), 0);
    __asm__ volatile("");
}

static void *find(void *handle, const char *name) {
    void *symbol = dlsym(handle, name);
    if (!symbol)
        exit(3);
    return symbol;
}

int main(int argc, char **argv) {
    void *handle = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!handle)
        return 2;
    form = atoi(argv[2]);
    report = (void (*)(int, void *, int64_t, int))find(handle, "c10_report");
    report_oom = (void (*)(int, int64_t))find(handle, "c10_report_oom");
    segment = (void *(*)(size_t))find(handle, "c10_segment");
    /* A segment is known by the first tensor that lands in what its thread has just taken. */
    char *cpu = malloc(1), *small = segment(2 * MIB);
    make_weights(small);
    char *large = segment(20 * MIB), *other;
    for (int i = 0; i < 10; i++)
        step(large);
    other = segment(3 * MIB);  /* somebody else's: no tensor */
    report(form, cpu, 100, 1); /* the shared memory of DataLoader workers is reported too */
    report(form, cpu, -100, 1);
    report(form, large + 16 * MIB, -512, 0); /* a tensor from before tracing */
    report_oom(form, 1ll << 42);
    int *memory = find(handle, "c10_memory_reports"), *oom = find(handle, "c10_oom_reports");
    printf("originals: %d %d\n", *memory, *oom);
    return other ? 0 : 4;
}
