/*
 * Keeps thread cancellation away from work that must be finished: open, close, fallocate and their
 * like are points at which a cancelled thread ends, and what it was doing for others would stay
 * half done. Cold paths only.
 */
#ifndef CUHEAP_CANCEL_H
#define CUHEAP_CANCEL_H

#include <pthread.h>

/* Returns what release_cancel takes. */
static inline int hold_cancel(void) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void release_cancel(int before) {
    int ignored;
    pthread_setcancelstate(before, &ignored);
}

#endif
