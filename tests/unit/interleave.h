/*
 * Coroutines whose order of steps is chosen by a seed: forced interleavings, repeatable.
 *
 * A test includes this, redefines the atomic operations that are to be stops, includes the source
 * under test a second time, and runs several bodies on one thread: at each stop a seeded generator
 * may switch to another body. ThreadSanitizer and AddressSanitizer know little of such switches, so
 * fewer operations are done there.
 */
#ifndef CUHEAP_INTERLEAVE_H
#define CUHEAP_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define OPERATIONS 300000ull
#else
#define OPERATIONS 10000000ull
#endif

#define FIBERS     6
#define STACK      65536
#define SWITCH_ONE 16 /* one stop in so many switches */

static ucontext_t fibers[FIBERS], scheduler;
static char stacks[FIBERS][STACK];
static bool finished[FIBERS];
static int running = -1;
static uint64_t seed;

static uint64_t next_random(void) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return seed >> 33;
}

static void stop(void) {
    if (running >= 0 && next_random() % SWITCH_ONE == 0)
        swapcontext(&fibers[running], &scheduler);
}

static void make_fiber(int i, void (*body)(void)) {
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks[i];
    fibers[i].uc_stack.ss_size = STACK;
    fibers[i].uc_link = &scheduler;
    finished[i] = false;
    makecontext(&fibers[i], body, 0);
}

static void run_all(void (*body)(void)) {
    for (int i = 0; i < FIBERS; i++)
        make_fiber(i, body);
    for (int left = FIBERS; left;) {
        running = (int)(next_random() % FIBERS);
        if (finished[running])
            continue;
        swapcontext(&scheduler, &fibers[running]);
        left -= finished[running];
    }
    running = -1;
}

#endif
