/*
 * A million random operations of all kinds of memory, on three devices, contexts that come and go,
 * four threads, with scripted failures: after each thousand the trace agrees with the simulated
 * driver's books to the byte, by kind and device (e2e/programs/kinds_random.c). CUHEAP_TEST_SEED
 * repeats a run; the seed is in what a failure shows.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OPERATIONS "1000000"
#define LIMIT_S    600

Test(random, a_million_operations_agree_with_the_driver) {
    char seed[32];
    const char *given = getenv("CUHEAP_TEST_SEED");
    snprintf(seed, sizeof seed, "%s", given ? given : "");
    if (!given)
        snprintf(seed, sizeof seed, "%d", (int)getpid());
    struct run *run = run_program(&(struct launch){.program = PROGRAM("kinds_random"),
                                                   .args = {seed, OPERATIONS},
                                                   .env = {"SIMGPU_DEVICES=3"},
                                                   .limit_s = LIMIT_S});
    fprintf(stderr, "%s", run->out);
    run_must_succeed(run);
    run_free(run);
}
