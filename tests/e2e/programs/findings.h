/*
 * What the programs of findings_*.c share: cases by name, and steps. A step takes STEP_NS of the
 * clock of lib_clock.c; without that, it sleeps.
 */
#ifndef PROGRAMS_FINDINGS_H
#define PROGRAMS_FINDINGS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A function that stays a frame of its own. */
#define PLACE static __attribute__((noipa))
#define KIB   ((size_t)1 << 10)
#define MIB   ((size_t)1 << 20)
#define GIB   ((size_t)1 << 30)

#define STEPS   64
#define STEP_NS 6000000

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int rc_ = (int)(call);                                                                     \
        if (rc_) {                                                                                 \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, rc_);                  \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

/* The end of a step. */
static inline void pace(void) {
    static void (*pass)(uint64_t);
    static bool asked;
    if (!asked) {
        void *symbol = dlsym(RTLD_DEFAULT, "clock_pass");
        memcpy(&pass, &symbol, sizeof symbol);
        asked = true;
    }
    if (pass)
        pass(STEP_NS);
    else
        nanosleep(&(struct timespec){0, STEP_NS}, NULL);
}

struct findings_case {
    const char *name;
    void (*run)(void);
};

static inline int run_case(const struct findings_case *cases, size_t count, int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < count; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}
#define MAIN(cases)                                                                                \
    int main(int argc, char **argv) {                                                              \
        return run_case(cases, sizeof cases / sizeof *cases, argc, argv);                          \
    }

#endif
