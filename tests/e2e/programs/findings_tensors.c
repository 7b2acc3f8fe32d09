/*
 * Tensors of a stand-in for PyTorch, in segments that it takes from the driver: leaks, caches that
 * grow, holes, limits, and healthy programs beside. Arguments: the case; see
 * tests/e2e/test_findings.c. The stand-in lies beside this program.
 */
#include "findings.h"
#undef MIB
#include "c10.h"

#include <signal.h>
#include <unistd.h>

static struct c10 c10;

static void start(void) {
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    path[length > 0 ? length : 0] = '\0';
    strcpy(strrchr(path, '/'), "/libc10_cuda_stub.so");
    c10 = c10_load(path);
}

static void give_back(char *at, int64_t bytes) {
    c10.report(2, at, -bytes, CUDA(0));
}

static inline __attribute__((always_inline)) char *segment(size_t bytes) {
    char *taken = c10.segment(bytes);
    if (!taken)
        exit(3);
    return taken;
}

PLACE char *step(char *at, int64_t bytes) {
    c10.report(2, at, bytes, CUDA(0));
    __asm__ volatile("");
    return at;
}

/* A loss that is added up with its graph. */
PLACE void accumulate_loss(char *at) {
    c10.report(2, at, 4096, CUDA(0));
    __asm__ volatile("");
}

PLACE char *reserve_for_loss(void) {
    return segment(2 * MIB);
}

static void tensors_growing(void) {
    char *work = segment(20 * MIB), *loss = NULL;
    for (int i = 0; i < STEPS; i++) {
        if (i % 7 == 0)
            loss = reserve_for_loss();
        accumulate_loss(loss + (i % 7) * 4096);
        give_back(step(work, 8 * MIB), 8 * MIB);
        pace();
    }
}

static void tensors_healthy(void) {
    char *work = segment(20 * MIB), *weights = segment(20 * MIB);
    for (int i = 0; i < 20; i++)
        step(weights + i * MIB, MIB);
    for (int i = 0; i < 2 * STEPS; i++) {
        for (int n = 0; n < 8; n++)
            give_back(step(work, (1 + (i * 7 + n) % 8) * MIB), (1 + (i * 7 + n) % 8) * MIB);
        pace();
    }
}

PLACE char *reserve(size_t bytes) {
    return segment(bytes);
}

/* Ever longer sequences: the cache holds a segment of each size, the tensors come and go. */
static void cache_growing(void) {
    char *work = segment(20 * MIB);
    step(work + 12 * MIB, 4 * MIB);
    for (int i = 0; i < STEPS; i++) {
        int64_t bytes = (10 + i) * (int64_t)MIB;
        char *longer = reserve((size_t)bytes);
        give_back(step(longer, bytes), bytes);
        for (int n = 0; n < 20; n++)
            give_back(step(work, MIB), MIB);
        pace();
    }
}

/* Variable lengths: the cache reaches a new height now and then. */
static void cache_high_water(void) {
    char *work = segment(20 * MIB);
    uint32_t seed = 99;
    int64_t highest = 0;
    for (int i = 0; i < 2 * STEPS; i++) {
        seed = seed * 1664525 + 1013904223;
        int64_t bytes = (10 + (seed >> 16) % 64) * (int64_t)MIB;
        if (bytes > highest) {
            highest = bytes;
            give_back(step(reserve((size_t)bytes), bytes), bytes);
        }
        for (int n = 0; n < 20; n++)
            give_back(step(work, MIB), MIB);
        pace();
    }
}

/* The cache is emptied in each step: every tensor costs a call of the driver. */
static void reuse_low(void) {
    for (int i = 0; i < 2 * STEPS; i++) {
        for (int n = 0; n < 10; n++) {
            char *fresh = segment(4 * MIB);
            give_back(step(fresh, 3 * MIB), 3 * MIB);
            c10.release(fresh);
        }
        pace();
    }
}

/* A tensor of 512 KiB in each of 40 segments of 20 MiB, when it is killed. */
PLACE void keep_small(char *at) {
    c10.report(2, at, 512 * 1024, CUDA(0));
    __asm__ volatile("");
}

static void holes(void) {
    for (int i = 0; i < 40; i++)
        keep_small(segment(20 * MIB) + 10 * MIB);
    raise(SIGKILL);
}

/* Refused without the driver being asked. */
PLACE void forward(void) {
    c10.report_oom(2, 3ll << 30, CUDA(0));
    __asm__ volatile("");
}

static void limit(void) {
    step(segment(20 * MIB), 8 * MIB);
    forward();
}

static const struct findings_case cases[] = {
    {"tensors_growing", tensors_growing},
    {"tensors_healthy", tensors_healthy},
    {"cache_growing", cache_growing},
    {"cache_high_water", cache_high_water},
    {"reuse_low", reuse_low},
    {"holes", holes},
    {"limit", limit},
};

int main(int argc, char **argv) {
    start();
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
