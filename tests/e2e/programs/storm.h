/*
 * The log of programs/storm.c, in a file that the program and tests/stress/test_killed.c both map:
 * what SIGKILL leaves of it is the truth at death, within one call a thread. Each number is changed
 * by its own thread alone, with a single store.
 */
#ifndef PROGRAMS_STORM_H
#define PROGRAMS_STORM_H

#include <stdatomic.h>
#include <stdint.h>

#define STORM_THREADS 4

struct storm_log {
    struct {
        /* Bounds of what is live: a call raises the upper one before it may take, and the lower
           one after it has taken; the other way round when it gives back. */
        _Alignas(64) _Atomic uint64_t lower_bytes;
        _Atomic uint64_t upper_bytes;
        _Atomic uint64_t lower_blocks;
        _Atomic uint64_t upper_blocks;
        _Atomic uint64_t largest_call; /* bytes of the largest call so far */
        _Atomic uint64_t calls;
    } threads[STORM_THREADS];
};

#endif
