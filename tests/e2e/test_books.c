/*
 * Books: programs that say what they did, against the report, to the byte. And: a traced program's
 * exit code and output are what they are without the library.
 */
#include "books.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

struct books_case {
    char program[64]; /* its name and that of its source; here, since other processes read it */
    char env[128];
    int code;
};

static struct books_case books_cases[] = {
    {"books_driver", "", 0},
    {"books_runtime", "", 0},
    {"books_devices", "SIMGPU_DEVICES=3", 0},
    {"books_threads", "", 0},
    {"books_reuse", "", 0},
    {"books_handover", "", 0},
    {"books_failures",
     "SIMGPU_FAIL=cuMemAlloc_v2:3=2,cuMemHostAlloc:1=2,cuMemFree_v2:1=1,cuMemFreeHost:1=700,"
     "cuMemFreeAsync:1=700,!cuMemFree_v2:3=700",
     7},
    {"books_frames", "", 0},
};
#define BOOKS_CASES (sizeof books_cases / sizeof *books_cases)

static struct run *run_case(const struct books_case *c, bool plain, const char *more) {
    char program[160];
    snprintf(program, sizeof program, PROGRAM("%s"), c->program);
    struct launch launch = {.program = program, .plain = plain};
    unsigned n = 0;
    if (c->env[0])
        launch.env[n++] = c->env;
    if (more)
        launch.env[n++] = more;
    struct run *run = run_program(&launch);
    cr_assert(!run->timed_out && run->code == c->code && !run->err[0],
              "exit code %d, signal %d%s\n---- stdout\n%s\n---- stderr\n%s", run->code, run->signal,
              run->timed_out ? ", ran into the time limit" : "", run->out, run->err);
    return run;
}

ParameterizedTestParameters(books, report_equals_what_the_program_did) {
    return cr_make_param_array(struct books_case, books_cases, BOOKS_CASES);
}

ParameterizedTest(struct books_case *c, books, report_equals_what_the_program_did) {
    char source[80];
    snprintf(source, sizeof source, "programs/%s.c", c->program);
    struct run *run = run_case(c, false, NULL);
    json_t *report = cuheap_json("report", run_trace(run));
    cr_expect_str_eq(json_text(report, "schema"), "cuheap-report/1");
    cr_expect_str_eq(json_text(report, "processes.0.state"), "exited");
    cr_expect_eq(json_number(report, "processes.0.exit_code"), (uint64_t)c->code);
    books_must_match(run, report, source);
    json_decref(report);
    run_free(run);
}

/* The same bytes out, the same code, with each way of taking stacks. */
ParameterizedTestParameters(books, output_and_exit_code_are_unchanged) {
    return cr_make_param_array(struct books_case, books_cases, BOOKS_CASES);
}

ParameterizedTest(struct books_case *c, books, output_and_exit_code_are_unchanged) {
    static const char *const stacks[] = {"CUHEAP_STACKS=native,python", "CUHEAP_STACKS=none",
                                         "CUHEAP_STACKS=full"};
    struct run *plain = run_case(c, true, NULL);
    cr_assert(plain->trace_count == 0);
    for (unsigned i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        struct run *traced = run_case(c, false, stacks[i]);
        cr_assert(traced->trace_count == 1);
        cr_assert_str_eq(traced->out, plain->out, "with %s", stacks[i]);
        run_free(traced);
    }
    run_free(plain);
}

/* ---- stacks ---- */

static json_t *frames_report(struct run **run) {
    *run = run_program(&(struct launch){.program = PROGRAM("books_frames")});
    run_must_succeed(*run);
    return cuheap_json("report", run_trace(*run));
}

static void stack_must_be(json_t *report, json_t *site, const char *const *expected) {
    const char *names[128];
    unsigned count = site_frames(report, site, names, 128), at = 0;
    /* Inward of the blamed frame stand the driver's entry and our own, if the report shows them. */
    while (at < count && strcmp(names[at], expected[0]))
        at++;
    for (unsigned i = 0; expected[i]; i++, at++)
        cr_assert(at < count && !strcmp(names[at], expected[i]), "frame %u is %s, not %s", i,
                  at < count ? names[at] : "missing", expected[i]);
}

Test(stacks, inlined_functions_are_frames) {
    struct run *run;
    json_t *report = frames_report(&run);
    stack_must_be(
        report, site_of(report, "innermost"),
        (const char *const[]){"innermost (inlined)", "middle (inlined)", "outer", "main", NULL});
    json_decref(report);
    run_free(run);
}

Test(stacks, every_frame_of_a_recursion_is_there) {
    struct run *run;
    json_t *report = frames_report(&run);
    const char *expected[14];
    for (unsigned i = 0; i < 11; i++)
        expected[i] = "at_depth";
    expected[11] = "main";
    expected[12] = NULL;
    stack_must_be(report, site_of(report, "at_depth"), expected);
    json_decref(report);
    run_free(run);
}

Test(stacks, deeper_ones_keep_the_innermost_frames) {
    struct run *run;
    json_t *report = frames_report(&run);
    const char *names[128];
    unsigned count = site_frames(report, site_of(report, "beyond_limit"), names, 128), inside = 0;
    for (unsigned i = 0; i < count; i++)
        inside += !strcmp(names[i], "beyond_limit");
    cr_assert(count <= 64 && inside >= 60, "%u frames, %u of the recursion", count, inside);
    cr_assert_str_eq(names[count - 1], "beyond_limit");
    cr_assert_eq(report_loss(report, "stack_truncated"), 1);
    json_decref(report);
    run_free(run);
}

Test(stacks, names_are_demangled_and_calls_by_pointer_followed) {
    struct run *run;
    json_t *report = frames_report(&run);
    json_t *found = NULL, *site;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        if (json_number(site, "live_bytes") == 400000)
            found = site;
    }
    cr_assert(found);
    const char *name = json_text(found, "blame.function");
    stack_must_be(report, found, (const char *const[]){name, "by_pointer", "main", NULL});
    json_decref(report);
    run_free(run);
}
