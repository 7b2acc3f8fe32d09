/*
 * Atomic operations, named by their memory order.
 *
 * Plain fields are used through these (the trace's structures are shared with a reader written in
 * another process, so they carry no _Atomic). Each use says which operation it pairs with.
 */
#ifndef CUHEAP_ATOMIC_H
#define CUHEAP_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

#define load_relaxed(p)        __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p)        __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define store_relaxed(p, v)    __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v)    __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define add_relaxed(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define add_acq_rel(p, v)      __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define or_relaxed(p, v)       __atomic_fetch_or((p), (v), __ATOMIC_RELAXED)
#define and_relaxed(p, v)      __atomic_fetch_and((p), (v), __ATOMIC_RELAXED)
#define exchange_relaxed(p, v) __atomic_exchange_n((p), (v), __ATOMIC_RELAXED)

/* On failure *expected holds what was found, read with acquire order. */
#define cas_acq_rel(p, expected, desired)                                                          \
    __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_ACQ_REL,               \
                                __ATOMIC_ACQUIRE)

/* In one order that all threads agree on: for two who each write first and then look. */
#define load_seq_cst(p)        __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define exchange_seq_cst(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
#define cas_seq_cst(p, expected, desired)                                                          \
    __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_SEQ_CST,               \
                                __ATOMIC_ACQUIRE)

/*
 * Adds without a locked instruction: only for fields that one writer at a time changes (under a
 * version word) and that a reader may look at meanwhile.
 */
#define add_owned(p, v) store_relaxed((p), load_relaxed(p) + (v))

/* Raises *p to v; true if it was lower. Relaxed: maxima order nothing else. */
static inline bool raise_relaxed(uint64_t *p, uint64_t v) {
    uint64_t seen = load_relaxed(p);
    while (seen < v)
        if (__atomic_compare_exchange_n(p, &seen, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return true;
    return false;
}

static inline void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
