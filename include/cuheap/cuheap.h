/*
 * What a program may tell cuheap. Header only: no library to link, and nothing happens when
 * libcuheap.so is not preloaded.
 *
 *     #include <cuheap/cuheap.h>
 *     cuheap_mark("epoch 3");
 *
 * From Python:
 *
 *     mark = getattr(ctypes.CDLL(None), "cuheap_mark", lambda name: None)
 *     mark(b"epoch 3")
 */
#ifndef CUHEAP_CUHEAP_H
#define CUHEAP_CUHEAP_H

#include <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Puts a named moment into the trace: reports can be cut at it. `name` is copied (at most 255
 * bytes, UTF-8). Any thread; cheap, but not meant for inner loops.
 */
static inline void cuheap_mark(const char *name) {
    static void (*volatile record)(const char *);
    static volatile int asked;
    if (!asked) {
        void *symbol = dlsym(RTLD_DEFAULT, "cuheap_mark");
        __builtin_memcpy((void *)&record, &symbol, sizeof symbol);
        asked = 1;
    }
    if (record)
        record(name);
}

#ifdef __cplusplus
}
#endif

#endif
