/*
 * Stands for PyTorch's libc10.so: the functions that its allocators report tensors to, under the
 * names of all versions. They count, so that a test sees that they are still called.
 */
#include <stdint.h>

int c10_memory_reports, c10_oom_reports;

#define MEMORY(symbol)                                                                             \
    void symbol(void *address, int64_t bytes, uint64_t allocated, uint64_t reserved,               \
                uint64_t device);                                                                  \
    void symbol(void *address, int64_t bytes, uint64_t allocated, uint64_t reserved,               \
                uint64_t device) {                                                                 \
        /* what comes in must be what was said: 7 and 9 stand for the aggregates */                \
        c10_memory_reports += address && bytes && allocated == 7 && reserved == 9 && device;       \
    }
MEMORY(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE)
MEMORY(_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE)

void _ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE(void *block, int64_t bytes,
                                                         uint64_t device);
void _ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE(void *block, int64_t bytes,
                                                         uint64_t device) {
    c10_memory_reports += block && bytes && device;
}

#define OUT_OF_MEMORY(symbol)                                                                      \
    void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device);            \
    void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device) {           \
        c10_oom_reports += bytes && allocated == 7 && reserved == 9 && device;                     \
    }
OUT_OF_MEMORY(_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE)
OUT_OF_MEMORY(_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE)
OUT_OF_MEMORY(_ZN3c1027reportOutOfMemoryToProfilerEmmmNS_6DeviceE)
