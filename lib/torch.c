#include "torch.h"

#include <errno.h>

#include "atomic.h"
#include "elf_symbols.h"
#include "modules.h"
#include "record.h"
#include "resolve.h"

#define EXPORT      __attribute__((visibility("default")))
#define DEVICE_CUDA 1 /* ROCm builds of PyTorch say 1 too */

#define CALLERS 4 /* libraries that report: c10, c10_cuda, c10_xpu, torch_cpu */

/*
 * Where the call of one library goes on to. Two PyTorchs in one process have each its own. A
 * dlclose makes it void. The version is odd while the rest is written.
 */
struct original {
    uint32_t version;
    uint32_t unloads;
    uintptr_t start, end; /* the calling library; end 0: not used */
    void *next;
};

/* Loads in the order of the stores of remember(): a value of a later writing shows its version. */
static bool recall(const struct original *original, uintptr_t caller, uint32_t unloads,
                   void **next) {
    uint32_t version = load_acquire(&original->version);
    uintptr_t start = load_acquire(&original->start), end = load_acquire(&original->end);
    bool valid = load_acquire(&original->unloads) == unloads;
    *next = load_acquire(&original->next);
    return valid && caller >= start && caller < end && !(version & 1) &&
           load_relaxed(&original->version) == version;
}

/* Of two threads at once one does it; the other's answer is the same. */
static void remember(struct original *original, const struct object *caller, uint32_t unloads,
                     void *next) {
    uint32_t version = load_relaxed(&original->version);
    if (version & 1 || !cas_acq_rel(&original->version, &version, version + 1))
        return;
    /* Release: who sees one of these sees the odd version; pairs with recall(). */
    store_release(&original->start, caller->start);
    store_release(&original->end, caller->end);
    store_release(&original->unloads, unloads);
    store_release(&original->next, next);
    store_release(&original->version, version + 2);
}

static void *look_up(struct original *known, const char *name, uintptr_t caller, uint32_t unloads) {
    struct object calling = {0};
    int saved = errno, i = 0;
    objects_find(caller, &calling);
    void *next = resolve_behind_us(name, &calling, "libc10");
    while (i + 1 < CALLERS && load_relaxed(&known[i].end) &&
           load_relaxed(&known[i].start) != calling.start)
        i++;
    if (calling.end)
        remember(&known[i], &calling, unloads, next);
    errno = saved;
    return next;
}

/* NULL: there is none. */
static void *find(struct original *known, const char *name, const void *caller) {
    uint32_t unloads = load_acquire(&modules_unloads); /* pairs with dlclose */
    void *next;
    for (int i = 0; i < CALLERS; i++)
        if (recall(&known[i], (uintptr_t)caller, unloads, &next))
            return next;
    return look_up(known, name, (uintptr_t)caller, unloads);
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
        static struct original known[CALLERS];                                                     \
        void (*next)(void *, int64_t, uint64_t, uint64_t, uint64_t) =                              \
            find(known, #symbol, __builtin_return_address(0));                                     \
        report(CALLER_REGISTERS(), address, bytes, device);                                        \
        if (next)                                                                                  \
            next(address, bytes, allocated, reserved, device);                                     \
    }
TORCH_MEMORY_NAMES(MEMORY)

#define BLOCK(symbol)                                                                              \
    EXPORT void symbol(void *block, int64_t bytes, uint64_t device);                               \
    EXPORT void symbol(void *block, int64_t bytes, uint64_t device) {                              \
        static struct original known[CALLERS];                                                     \
        void (*next)(void *, int64_t, uint64_t) =                                                  \
            find(known, #symbol, __builtin_return_address(0));                                     \
        report(CALLER_REGISTERS(), block, bytes, device);                                          \
        if (next)                                                                                  \
            next(block, bytes, device);                                                            \
    }
TORCH_BLOCK_NAMES(BLOCK)

#define OUT_OF_MEMORY(symbol)                                                                      \
    EXPORT void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device);     \
    EXPORT void symbol(int64_t bytes, uint64_t allocated, uint64_t reserved, uint64_t device) {    \
        static struct original known[CALLERS];                                                     \
        void (*next)(int64_t, uint64_t, uint64_t, uint64_t) =                                      \
            find(known, #symbol, __builtin_return_address(0));                                     \
        struct record_call call;                                                                   \
        if (device_of(device) >= 0 && record_enter(&call, CALLER_REGISTERS())) {                   \
            failures_tensor(&call, "c10::reportOutOfMemoryToProfiler", (uint64_t)bytes,            \
                            record_tensor_device(device_of(device)));                              \
            record_leave();                                                                        \
        }                                                                                          \
        if (next)                                                                                  \
            next(bytes, allocated, reserved, device);                                              \
    }
TORCH_OOM_NAMES(OUT_OF_MEMORY)
