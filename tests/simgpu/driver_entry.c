/*
 * The exported functions of the simulated driver, made from driver_api.def: each counts its call,
 * asks the script (SIMGPU_FAIL) and the hooks of simgpu.h, and runs its body under the one lock.
 * Called from any thread of the program.
 *
 * A call after the driver's exit handler ran gives CUDA_ERROR_DEINITIALIZED, as the CUDA driver API
 * reference (Data types, CUresult) says of a driver that is shutting down.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

const char *const entry_names[ENTRY_COUNT] = {
#define ENTRY(symbol, base, version, stream, capture, body, params, args) #symbol,
#include "driver_api.def"
#undef ENTRY
};
uint64_t entry_calls[ENTRY_COUNT];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool forked_child;

struct hook {
    simgpu_function *function;
    void *argument;
};
static struct hook hooks[ENTRY_COUNT][2];

void driver_lock(void) {
    pthread_mutex_lock(&lock);
}

void driver_unlock(void) {
    pthread_mutex_unlock(&lock);
}

void driver_abort(const char *format, ...) {
    char text[300] = "simulated GPU: ";
    size_t start = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + start, sizeof text - start - 1, format, arguments);
    va_end(arguments);
    strcat(text, "\n");
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(126);
    abort();
}

static void after_fork_in_child(void) {
    forked_child = driver_initialized;
    driver_unlock();
}

/* The books stay usable in a forked child, so that tests can allocate there. */
__attribute__((constructor)) static void watch_forks(void) {
    if (pthread_atfork(driver_lock, driver_unlock, after_fork_in_child))
        driver_abort("no memory to watch for fork");
}

/*
 * CUDA C programming guide, "Initialization": a process forked after cuInit cannot use CUDA; the
 * calls give CUDA_ERROR_NOT_INITIALIZED. Only under SIMGPU_FORK=refuse.
 */
static bool refused_after_fork(void) {
    return settings.refuse_fork && forked_child;
}

static bool driver_unloaded;

void driver_unload(void) {
    __atomic_store_n(&driver_unloaded, true, __ATOMIC_RELEASE);
}

static void run_hook(enum entry entry, enum simgpu_moment moment) {
    if (!__atomic_load_n(&hooks[entry][moment].function, __ATOMIC_RELAXED))
        return;
    driver_lock();
    struct hook hook = hooks[entry][moment];
    driver_unlock();
    if (hook.function)
        hook.function(entry_names[entry], hook.argument);
}

/* What comes before the body. True: the call ends here with verdict->code. */
static bool enter(enum entry entry, bool unsafe, struct verdict *verdict) {
    uint64_t call = __atomic_add_fetch(&entry_calls[entry], 1, __ATOMIC_RELAXED);

    run_hook(entry, SIMGPU_BEFORE);
    driver_lock();
    *verdict = script_verdict(entry, call);
    if (__atomic_load_n(&driver_unloaded, __ATOMIC_ACQUIRE))
        *verdict = (struct verdict){true, true, CUDA_ERROR_DEINITIALIZED};
    else if (refused_after_fork())
        *verdict = (struct verdict){true, true, CUDA_ERROR_NOT_INITIALIZED};
    else if (unsafe && capture_forbids(entry_names[entry]))
        *verdict = (struct verdict){true, true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
    return verdict->skip;
}

static CUresult leave(enum entry entry, const struct verdict *verdict, CUresult code) {
    driver_unlock();
    run_hook(entry, SIMGPU_AFTER);
    return verdict->scripted ? verdict->code : code;
}

#define SAFE   false
#define UNSAFE true
#define ENTRY(symbol, base, version, stream, capture, body, params, args)                          \
    CUresult symbol params {                                                                       \
        struct verdict verdict;                                                                    \
        CUresult code = CUDA_SUCCESS;                                                              \
                                                                                                   \
        if (!enter(ENTRY_##symbol, capture, &verdict))                                             \
            code = body args;                                                                      \
        return leave(ENTRY_##symbol, &verdict, code);                                              \
    }
#include "driver_api.def"
#undef ENTRY

int entry_find(const char *name) {
    for (int i = 0; i < ENTRY_COUNT; i++)
        if (!strcmp(entry_names[i], name))
            return i;
    return -1;
}

static int entry_named(const char *name) {
    int entry = entry_find(name);

    if (entry < 0)
        driver_abort("%s is not an entry point", name);
    return entry;
}

uint64_t simgpu_calls(const char *name) {
    return __atomic_load_n(&entry_calls[entry_named(name)], __ATOMIC_RELAXED);
}

void simgpu_hook(const char *name, enum simgpu_moment moment, simgpu_function *function,
                 void *argument) {
    int entry = entry_named(name);

    driver_lock();
    hooks[entry][moment].argument = argument;
    __atomic_store_n(&hooks[entry][moment].function, function, __ATOMIC_RELAXED);
    driver_unlock();
}
