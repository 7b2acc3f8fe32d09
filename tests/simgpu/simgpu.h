/*
 * What the simulated GPU tells and takes beside the CUDA API: its own books, to compare a report
 * with, call counts, scripted failures and hooks inside a call. Exported by build/simgpu's
 * libcuda.so.1 only; a program that also runs on a real driver looks them up with SIMGPU_SYMBOL.
 * Every function may be called from any thread, from inside a hook too.
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <dlfcn.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMGPU_HOST (-1) /* the "device" of pinned host memory */

enum simgpu_kind {
    SIMGPU_DEVICE,     /* cuMemAlloc, cuMemAllocPitch */
    SIMGPU_POOL,       /* stream-ordered */
    SIMGPU_MANAGED,    /* cuMemAllocManaged */
    SIMGPU_PINNED,     /* cuMemHostAlloc, cuMemAllocHost; in the books of SIMGPU_HOST */
    SIMGPU_GRAPH,      /* allocation nodes of graphs, from their launch on */
    SIMGPU_VMM,        /* cuMemCreate on a device; elsewhere it is SIMGPU_PINNED */
    SIMGPU_ARRAY,      /* arrays and mipmapped arrays */
    SIMGPU_REGISTERED, /* cuMemHostRegister; in the books of SIMGPU_HOST */
    SIMGPU_IMPORTED,   /* of another process or interface: blocks of no bytes */
    SIMGPU_MULTICAST,  /* handles of no memory */
    SIMGPU_KINDS
};

/* Bytes are those asked for (pitched: pitch x height), not what they occupy. */
struct simgpu_count {
    uint64_t live_bytes;
    uint64_t live_count;
    uint64_t peak_bytes;
    uint64_t allocs;
    uint64_t frees;          /* by a free call */
    uint64_t implicit_frees; /* by destroying or resetting a context */
};

struct simgpu_books {
    struct simgpu_count kinds[SIMGPU_KINDS];
    struct simgpu_count
        total; /* of a device: DEVICE, POOL, GRAPH, VMM, ARRAY; of SIMGPU_HOST: PINNED */
};

/* Fills *books; 0, or -1 for no such device. */
int simgpu_books(int device, struct simgpu_books *books);

/* Calls of an exported name so far, failed ones too. A name that is not exported aborts. */
uint64_t simgpu_calls(const char *name);

/* Distinct 2 MiB pages that live cuMemAlloc and cuMemAllocPitch blocks of the device touch. */
uint64_t simgpu_pages_touched(int device);

/* 1 once cuInit, under SIMGPU_SELF_LOOKUP=1, was given its own functions by dlsym; 0 before; -1 if
 * it was given something else. */
int simgpu_self_lookup(void);

/* Replaces the rules of SIMGPU_FAIL; calls are counted from now. A rule with a fault aborts. */
void simgpu_script(const char *rules);

/*
 * Runs a function inside each call of an exported name, in the calling thread and without the
 * driver's lock: before the work, or after it but before the call returns. It may make calls, raise
 * signals, wait for another thread, or leave by longjmp. NULL takes it away again.
 */
enum simgpu_moment { SIMGPU_BEFORE, SIMGPU_AFTER };
typedef void simgpu_function(const char *name, void *argument);
void simgpu_hook(const char *name, enum simgpu_moment moment, simgpu_function *function,
                 void *argument);

/* The function of this name in a loaded libcuda.so.1, or NULL (a real driver, or none). */
#define SIMGPU_SYMBOL(name)                                                                        \
    ((__typeof__(&name))dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), #name))

#ifdef __cplusplus
}
#endif
#endif
