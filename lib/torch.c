#include "torch.h"

#include "atomic.h"
#include "record.h"
#include "resolve.h"

#define EXPORT      __attribute__((visibility("default")))
#define DEVICE_CUDA 1 /* ROCm builds of PyTorch say 1 too */

struct original {
    void *next;
    uint32_t asked;
};

/* Finds the original once, in a library that was loaded in a local scope. NULL: there is none. */
static void *find(struct original *original, const char *name) {
    /* Pairs with the release below; whoever finds it finds the same. */
    if (!load_acquire(&original->asked)) {
        store_relaxed(&original->next, resolve_next_definition(name));
        store_release(&original->asked, 1u);
    }
    return load_relaxed(&original->next);
}

static int device_of(uint64_t device) {
    return (device & 0xff) == DEVICE_CUDA ? (int)(device >> 8 & 0xff) : -1;
}

static void report(struct registers from, void *address, int64_t bytes, uint64_t device) {
    struct record_call call;
    if (device_of(device) < 0 || !bytes || !record_enter(&call, from))
        return;
    if (bytes > 0)
        record_tensor(&call, (uintptr_t)address, (uint64_t)bytes, device_of(device));
    else
        record_tensor_free(&call, (uintptr_t)address);
    record_leave();
}

#define MEMORY(symbol)                                                                             \
    EXPORT void symbol(void *address, int64_t bytes, uint64_t allocated, uint64_t reserved,        \
                       uint64_t device);                                                           \
    EXPORT void symbol(void *address, int64_t bytes, uint64_t allocated, uint64_t reserved,        \
                       uint64_t device) {                                                          \
        static struct original known;                                                              \
        void (*next)(void *, int64_t, uint64_t, uint64_t, uint64_t) = find(&known, #symbol);       \
        report(CALLER_REGISTERS(), address, bytes, device);                                        \
        if (next)                                                                                  \
            next(address, bytes, allocated, reserved, device);                                     \
    }
TORCH_MEMORY_NAMES(MEMORY)

#define BLOCK(symbol)                                                                              \
    EXPORT void symbol(void *block, int64_t bytes, uint64_t device);                               \
    EXPORT void symbol(void *block, int64_t bytes, uint64_t device) {                              \
        static struct original known;                                                              \
        void (*next)(void *, int64_t, uint64_t) = find(&known, #symbol);                           \
        report(CALLER_REGISTERS(), block, bytes, device);                                          \
        if (next)                                                                                  \
            next(block, bytes, device);                                                            \
    }
TORCH_BLOCK_NAMES(BLOCK)

#define OUT_OF_MEMORY(symbol)                                                                      \
    EXPORT void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device);     \
    EXPORT void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device) {    \
        static struct original known;                                                              \
        void (*next)(int64_t, uint64_t, uint64_t, uint64_t) = find(&known, #symbol);               \
        struct record_call call;                                                                   \
        if (device_of(device) >= 0 && record_enter(&call, CALLER_REGISTERS())) {                   \
            record_failed_tensor(&call, #symbol, (uint64_t)bytes, device_of(device));              \
            record_leave();                                                                        \
        }                                                                                          \
        if (next)                                                                                  \
            next(bytes, allocated, reserved, device);                                              \
    }
TORCH_OOM_NAMES(OUT_OF_MEMORY)
