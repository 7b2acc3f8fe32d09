/*
 * A monotonic clock that goes as the program wants: a microsecond a look, and what clock_pass()
 * adds. So growth, which is judged over time, is the same on a busy machine. Preloaded.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void clock_pass(uint64_t ns);

static _Atomic uint64_t now = 1000ull * 1000000000;

void clock_pass(uint64_t ns) {
    atomic_fetch_add(&now, ns);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, time);
    uint64_t ns = atomic_fetch_add(&now, 1000) + 1000;
    time->tv_sec = (time_t)(ns / 1000000000);
    time->tv_nsec = (long)(ns % 1000000000);
    return 0;
}
