/*
 * Runs the tests of a program built with the plain stand-in for Criterion.
 */
#include <criterion/criterion.h>
#include <sys/wait.h>

static struct plain_test *tests;
static struct plain_fixture *fixtures;

void plain_add_test(struct plain_test *test) {
    test->next = tests;
    tests = test;
}

void plain_add_fixture(struct plain_fixture *fixture) {
    fixture->next = fixtures;
    fixtures = fixture;
}

static void run(const struct plain_test *test) {
    const struct plain_fixture *fixture = fixtures;
    while (fixture && strcmp(fixture->suite, test->suite) != 0)
        fixture = fixture->next;
    if (fixture && fixture->init)
        fixture->init();
    test->body();
    if (fixture && fixture->fini)
        fixture->fini();
    fflush(stdout);
}

int main(void) {
    int tested = 0, passing = 0, failing = 0, crashing = 0;
    for (const struct plain_test *test = tests; test; test = test->next) {
        int status;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            run(test);
            return 0; /* by return, so that the sanitizer has its last word */
        }
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == PLAIN_SKIPPED)
            continue;
        tested++;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            passing++;
            continue;
        }
        *(WIFEXITED(status) ? &failing : &crashing) += 1;
        printf("[FAIL] %s::%s\n", test->suite, test->name);
    }
    printf("[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: %d \n", tested,
           passing, failing, crashing);
    return failing || crashing;
}
