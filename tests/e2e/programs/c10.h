/*
 * The stand-in for libc10_cuda.so as programs use it: loaded in a local scope, as Python loads
 * PyTorch, and told what to report. For programs of one thread.
 */
#ifndef TESTS_C10_H
#define TESTS_C10_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1u << 20)

/* Devices as a register holds them: type, index, and junk that compiled code leaves above them. */
#define JUNK         0xdeadbeef0000ull
#define CUDA(index)  (JUNK | (uint64_t)(index) << 8 | 1)
#define CPU          JUNK
#define XPU          (JUNK | 12)
#define OTHER_DEVICE (JUNK | 20)

struct c10 {
    void *handle;
    void (*report)(int form, void *address, int64_t bytes, uint64_t device);
    void (*report_oom)(int form, int64_t bytes, uint64_t device);
    void *(*segment)(size_t bytes);
    void (*release)(void *segment);
    int *memory_reports, *oom_reports; /* that have reached its libc10 */
};

static inline void *c10_find(void *handle, const char *name) {
    void *symbol = handle ? dlsym(handle, name) : NULL;
    if (!symbol) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(3);
    }
    return symbol;
}

static inline struct c10 c10_load(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return (struct c10){
        handle,
        (void (*)(int, void *, int64_t, uint64_t))c10_find(handle, "c10_report"),
        (void (*)(int, int64_t, uint64_t))c10_find(handle, "c10_report_oom"),
        (void *(*)(size_t))c10_find(handle, "c10_segment"),
        (void (*)(void *))c10_find(handle, "c10_release"),
        c10_find(handle, "c10_memory_reports"),
        c10_find(handle, "c10_oom_reports"),
    };
}

#endif
