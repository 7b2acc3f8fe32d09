/*
 * The progress line. See progress.h.
 */
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS   1000000000u
#define INTERVAL_NS 200000000u

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

struct progress progress_begin(const char *what, size_t all) {
    struct progress progress = {.what = what, .all = all, .terminal = isatty(STDERR_FILENO)};
    if (progress.terminal)
        progress.next_ns = now_ns() + SECOND_NS;
    return progress;
}

void progress_step(struct progress *progress) {
    progress->done++;
    if (!progress->terminal)
        return;
    uint64_t now = now_ns();
    if (now < progress->next_ns)
        return;
    fprintf(stderr, "\rcuheap: %s, %zu of %zu", progress->what, progress->done, progress->all);
    fflush(stderr);
    progress->shown = true;
    progress->next_ns = now + INTERVAL_NS;
}

void progress_end(struct progress *progress) {
    if (progress->shown)
        fprintf(stderr, "\r\033[K");
}
