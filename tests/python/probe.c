/*
 * The library through which the Python programs of tests/python allocate on the simulated driver:
 * they load it with ctypes, by CDLL (the interpreter's lock is released during a call) and by PyDLL
 * (it is held). What is taken by take() is kept, so that each is a live block of the trace. Any
 * thread; a driver call that fails ends the program.
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef long note_function(void);
typedef void plain_function(void);

void probe_start(note_function *note);
void probe_take(long bytes);
void probe_take_outside(long bytes);
void probe_call(plain_function *function);
void probe_pairs(long count);
void probe_pairs_outside(long count);
void probe_wait_for_pairs(void);
long probe_background_threads(void);
void probe_pairs_for_ever(void);
long probe_inside(const char *code);

static note_function *note_taken;
static CUcontext context;

static void must(int failed, const char *what) {
    if (!failed)
        return;
    fprintf(stderr, "probe: %s: %d\n", what, failed);
    _exit(70);
}

static CUdeviceptr allocate(size_t bytes) {
    CUcontext current = NULL;
    CUdeviceptr block = 0;
    must(cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (!current)
        must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuMemAlloc_v2(&block, bytes), "cuMemAlloc_v2");
    return block;
}

/* `note` writes down the Python stack of the thread and returns the bytes to take. */
void probe_start(note_function *note) {
    note_taken = note;
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
}

/* With 0 the note is taken from inside this very call: then its line is that of the allocation,
   however the call is written. */
void probe_take(long bytes) {
    allocate((size_t)(bytes ? bytes : note_taken()));
}

/* On a thread that Python knows nothing of. */
static void run_in_thread(void *(*function)(void *), long number) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, function, (void *)(uintptr_t)number), "pthread_create");
    must(pthread_join(thread, NULL), "pthread_join");
}

static void *take_in_thread(void *bytes) {
    allocate((size_t)(uintptr_t)bytes);
    return NULL;
}

void probe_take_outside(long bytes) {
    run_in_thread(take_in_thread, bytes);
}

void probe_call(plain_function *function) {
    function();
}

void probe_pairs(long count) {
    for (long i = 0; i < count; i++)
        must(cuMemFree_v2(allocate(4096)), "cuMemFree_v2");
}

static void *pairs_in_thread(void *count) {
    probe_pairs((long)(uintptr_t)count);
    return NULL;
}

void probe_pairs_outside(long count) {
    run_in_thread(pairs_in_thread, count);
}

/* ---- allocations while the interpreter goes ----------------------------------------------------
 */

#define BACKGROUND_MAX   16
#define PAIRS_AFTERWARDS 2000

static struct background { _Alignas(64) atomic_long pairs; } background[BACKGROUND_MAX];
static atomic_long background_threads;

/* For Py_AtExit: called when nothing is left of the interpreter. Each thread goes through that, and
   far beyond. */
void probe_wait_for_pairs(void) {
    long before[BACKGROUND_MAX], threads = atomic_load(&background_threads);
    for (long i = 0; i < threads; i++)
        before[i] = atomic_load(&background[i].pairs);
    for (long i = 0; i < threads; i++)
        while (atomic_load(&background[i].pairs) < before[i] + PAIRS_AFTERWARDS)
            usleep(100);
}

long probe_background_threads(void) {
    return atomic_load(&background_threads);
}

/* Allocates and frees until the process is gone; called by daemon threads of Python's. */
void probe_pairs_for_ever(void) {
    long self = atomic_load(&background_threads);
    do
        must(self >= BACKGROUND_MAX, "too many threads");
    while (!atomic_compare_exchange_weak(&background_threads, &self, self + 1));
    for (;;) {
        probe_pairs(1);
        atomic_fetch_add(&background[self].pairs, 1);
    }
}

/* ---- a second interpreter ----------------------------------------------------------------------
 */

/* Runs `code` in an interpreter of its own, on this thread; called with the lock held. Which of the
   two PyGILState_GetThisThreadState knew meanwhile: 1 the new one, 0 the caller's; -1: it failed.
 */
long probe_inside(const char *code) {
    void *(*begin)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "Py_NewInterpreter");
    void (*end)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "Py_EndInterpreter");
    void *(*swap)(void *) = (void *(*)(void *))dlsym(RTLD_DEFAULT, "PyThreadState_Swap");
    void *(*known)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    int (*run)(const char *, void *) =
        (int (*)(const char *, void *))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
    if (!begin || !end || !swap || !known || !run)
        return -1;
    void *outer = swap(NULL);
    swap(outer);
    void *inner = begin();
    if (!inner) {
        swap(outer);
        return -1;
    }
    long result = run(code, NULL) ? -1 : known() == inner;
    end(inner);
    swap(outer);
    return result;
}
