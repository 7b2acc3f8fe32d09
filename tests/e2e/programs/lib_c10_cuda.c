// LINK: @O@/e2e/libc10.so @O@/simgpu/libcudart.a
/*
 * Stands for PyTorch's libc10_cuda.so: takes segments from the runtime, hands out pieces of them
 * and reports each to libc10. The names are bound by the loader, as the real library's are. `form`
 * is the version whose names are used: 2, 1 (1.9 to 1.13) or 0 (1.8).
 */
#include "cuda_runtime_sim.h"

#include <stddef.h>
#include <stdint.h>

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, uint64_t, uint64_t,
                                                           uint64_t);
void _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE(void *, int64_t, uint64_t, uint64_t,
                                                           uint64_t);
void _ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE(void *, int64_t, uint64_t);
void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(int64_t, uint64_t, uint64_t, uint64_t);
void _ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE(int64_t, uint64_t, uint64_t, uint64_t);
void _ZN3c1027reportOutOfMemoryToProfilerEmmmNS_6DeviceE(int64_t, uint64_t, uint64_t, uint64_t);

/* `device` as the register held it. */
void c10_report(int form, void *address, int64_t bytes, uint64_t device);
void c10_report(int form, void *address, int64_t bytes, uint64_t device) {
    if (form == 2)
        _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(address, bytes, 7, 9, device);
    else if (form == 1)
        _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE(address, bytes, 7, 9, device);
    else
        _ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE(address, bytes, device);
    __asm__ volatile("");
}

/* 1.8 had none: 0 stands for the form of which no release is known. */
void c10_report_oom(int form, int64_t bytes, uint64_t device);
void c10_report_oom(int form, int64_t bytes, uint64_t device) {
    if (form == 2)
        _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(bytes, 7, 9, device);
    else if (form == 1)
        _ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE(bytes, 7, 9, device);
    else
        _ZN3c1027reportOutOfMemoryToProfilerEmmmNS_6DeviceE(bytes, 7, 9, device);
    __asm__ volatile("");
}

void *c10_segment(size_t bytes);
void *c10_segment(size_t bytes) {
    void *segment = NULL;
    return cudaMalloc(&segment, bytes) ? NULL : segment;
}

void c10_release(void *segment);
void c10_release(void *segment) {
    cudaFree(segment);
    __asm__ volatile("");
}
