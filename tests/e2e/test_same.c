/*
 * Nothing changes for the traced program: what each driver call returns and writes, errno, the
 * calls that reach the driver, and what dlerror() says after a failed look-up are the same with the
 * library and without, byte for byte, but for the OWN rows of the table of entry points.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"

/* What the library may call on its own. */
static const char *const own_rows[] = {
#define OWN(symbol, params, when) #symbol,
#include "../../lib/cuda_api.def"
};
#define OWN_ROWS (sizeof own_rows / sizeof *own_rows)

static bool is_own_row(const char *name) {
    for (size_t i = 0; i < OWN_ROWS; i++)
        if (!strcmp(own_rows[i], name))
            return true;
    return false;
}

/* Takes the lines "own NAME" away; their number. */
static size_t remove_own_calls(char *out) {
    size_t count = 0;
    char *to = out;
    for (char *line = out; *line;) {
        char *end = strchrnul(line, '\n'), *next = end + (*end == '\n');
        if (!strncmp(line, "own ", 4)) {
            *end = 0;
            cr_assert(is_own_row(line + 4), "the library calls %s, which is no OWN row", line + 4);
            count++;
        } else {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
        line = next;
    }
    *to = 0;
    return count;
}

static void must_be_equal(const char *traced, const char *plain) {
    for (unsigned line = 1; *traced || *plain; line++) {
        int a = (int)strcspn(traced, "\n"), b = (int)strcspn(plain, "\n");
        cr_assert(a == b && !memcmp(traced, plain, (size_t)a),
                  "line %u\ntraced   %.*s\nuntraced %.*s", line, a, traced, b, plain);
        traced += a + (traced[a] == '\n');
        plain += b + (plain[b] == '\n');
    }
}

static char seeds[][4] = {"1", "2", "3"};

ParameterizedTestParameters(same, calls_and_results) {
    return cr_make_param_array(char[4], seeds, sizeof seeds / sizeof *seeds);
}

ParameterizedTest(char *seed, same, calls_and_results) {
    struct launch launch = {
        .program = PROGRAM("same_calls"),
        .args = {seed, "4000"},
        .env = {"SIMGPU_DEVICES=2", "SIMGPU_MEMORY=1G", "SIMGPU_CAPTURE=invalidate"}};
    struct run *traced = run_program(&launch);
    launch.plain = true;
    struct run *plain = run_program(&launch);
    run_must_succeed(plain);
    run_must_succeed(traced);
    run_trace(traced);
    cr_assert_eq(remove_own_calls(plain->out), 0);
    cr_assert_gt(remove_own_calls(traced->out), 0, "the library has not looked at the context");
    must_be_equal(traced->out, plain->out);
    run_free(plain);
    run_free(traced);
}
