/*
 * Doors: which address a look-up is answered with, and where a wrapper goes on to.
 *
 * dlsym and dlvsym (stubs in doors_*.S) ask resolve_dlsym for names that begin as the driver's do;
 * everything else jumps straight to the real one. cuGetProcAddress, v1 and v2, are wrapped here.
 * The rule: the real look-up is asked first, and its answer is replaced only if it is the address
 * of a hooked function. Cold; any thread; also before the library's constructor has run.
 */
#ifndef CUHEAP_RESOLVE_H
#define CUHEAP_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include "atomic.h"
#include "cuda_abi.h"
#include "cuheap/trace_format.h"

/* One number for each hooked entry point, in the order of the table. */
enum row {
#define HOOK(symbol, params) ROW_##symbol,
#define DOOR(symbol, params) ROW_##symbol,
#include "cuda_api.def"
    ROW_COUNT
};

extern const char *const resolve_names[ROW_COUNT];

/* Where the wrapper of a row goes on to; NULL: not looked for yet, or there is none. */
extern void *resolve_known[ROW_COUNT];

/* Looks for it: the next definition after ours, else the one in any libcuda. NULL: none. */
void *resolve_search(enum row row);

static inline void *resolve_real(enum row row) {
    void *known = load_acquire(&resolve_known[row]); /* pairs with the swap in resolve.c */
    return __builtin_expect(known != NULL, 1) ? known : resolve_search(row);
}

/* The driver calls of our own; each NULL until a driver has been seen, or if it has none. */
struct driver_calls {
#define OWN(symbol, params, when) CUresult(*symbol) params;
#include "cuda_api.def"
};
extern struct driver_calls driver;

/* The dlsym that stands behind ours. */
void *resolve_real_dlsym(void *handle, const char *name);

/* The function of that name that a library's own call would reach if we did not stand before it, in
   a global scope or a local one; NULL: none. A library whose name begins with `family` can be there
   twice: each copy's callers have it among what they were linked against. */
struct object;
void *resolve_behind_us(const char *name, const struct object *caller, const char *family);

/* Finds what stands behind us. Called by the constructor, and by the doors if one comes earlier. */
void resolve_init(void);

/* In a forked child: forget that a thread which is gone was learning. */
void resolve_forked(void);

/* Is a libcuda mapped? Learns its addresses if it is new. */
bool resolve_find_driver(void);

/* Called before anything is looked for. */
enum resolve_reason {
    RESOLVE_OTHER,     /* nothing of CUDA's */
    RESOLVE_CALL,      /* a hooked function was called that is not known yet */
    RESOLVE_IN_LOADER, /* a hooked name is looked up by the program, which has the loader to itself
                        */
};
extern void (*resolve_before)(enum resolve_reason reason);

/* Answers that could not be replaced, since the process began: they become losses of the trace. */
extern uint64_t resolve_unhooked, resolve_second_driver;

#endif
