/*
 * Measures what preloading a library adds to the start and end of a program that uses no GPU.
 *
 *     bench_load LIBRARY RUNS PROGRAM
 *
 * Starts the program with and without the library in turns; prints the median of each, in
 * microseconds.
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define RUNS_MAX 10000

static double us[2][RUNS_MAX];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double run_once(char *program, char **environment) {
    char *argv[] = {program, NULL};
    pid_t pid;
    int status;
    double began = now_us();
    if (posix_spawn(&pid, program, NULL, NULL, argv, environment) ||
        waitpid(pid, &status, 0) != pid || status != 0)
        exit(1);
    return now_us() - began;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    char preload[4096];
    if (argc != 4)
        return 2;
    int runs = atoi(argv[2]);
    if (runs < 1 || runs > RUNS_MAX)
        return 2;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[1]);
    char *with[] = {preload, NULL}, *without[] = {NULL};
    for (int i = 0; i < runs; i++) {
        us[0][i] = run_once(argv[3], without);
        us[1][i] = run_once(argv[3], with);
    }
    for (int i = 0; i < 2; i++)
        qsort(us[i], (size_t)runs, sizeof us[i][0], compare);
    printf("%.0f %.0f\n", us[0][runs / 2], us[1][runs / 2]);
    return 0;
}
