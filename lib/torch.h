/*
 * The functions of libc10.so by which PyTorch's caching allocators report each tensor to its
 * profiler. Exported by us under every name that PyTorch has had for them, they stand before the
 * originals, book the tensor and call on.
 *
 * Called by PyTorch with its allocator's lock held, from any thread: nothing here blocks, calls
 * CUDA, takes Python's lock or asks the loader. Only lifecycle's and record's functions are used.
 *
 *     since   arguments                                (int64 and size_t are alike in the ABI)
 *
 *     1.6     Device, int64                            not exported: it has no address
 *
 *     1.8     void *block, int64, Device               the allocator's block, not the memory
 *
 *     1.9     void *, int64, int64, int64, Device      bytes, allocated, reserved
 *
 *     2.0     void *, int64, size_t, size_t, Device
 *
 * Out of memory: bytes, allocated, reserved, Device.
 *
 * Read off libc10.so of 1.13.1, 2.6.0, 2.11.0 and 2.14.1; the others from PyTorch's sources. Device
 * is two int8 (type, index) in one register, with junk above them.
 */
#ifndef CUHEAP_TORCH_H
#define CUHEAP_TORCH_H

#include <stdint.h>

/* name, what it reports: see torch.c. The address of the 1.8 form pairs frees with allocations but
   lies in no block of the driver's. */
#define TORCH_MEMORY_NAMES(X)                                                                      \
    X(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE)                                       \
    X(_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE)
#define TORCH_BLOCK_NAMES(X) X(_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE)
#define TORCH_OOM_NAMES(X)                                                                         \
    X(_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE)                                         \
    X(_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE)                                         \
    X(_ZN3c1027reportOutOfMemoryToProfilerEmmmNS_6DeviceE)

#endif
