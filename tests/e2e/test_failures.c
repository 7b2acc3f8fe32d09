/*
 * What was refused, really and for the sake of a trial: programs that compare the trace they leave
 * with what they did, and what a trace says of a pretended capacity.
 */
#include "harness.h"
#include "profile.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

Test(failures, each_step_is_in_the_trace) {
    struct launch launch = {.program = PROGRAM("failures_steps"),
                            .env = {"SIMGPU_MEMORY=1G", "SIMGPU_CONTEXT_MEMORY=0"}};
    struct run *run = run_same_output(launch);
    cr_assert_str_eq(run->out, "fits: 600 MiB\nasked while capturing: 0\nfree: 624 of 1024 MiB\n");
    json_t *report = cuheap_json("report", run_trace(run)), *list;
    list = json_at(report, "processes.0.failures");
    cr_assert_eq(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(json_is_true(json_at(json_array_get(list, i), "handled")), i < 2,
                     "failure %zu", i);
    json_decref(report);
    run_free(run);
}

/* ---- pretended ------------------------------------------------------------------------------- */

static void note_must_be(const struct run *run, const char *expected) {
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    const struct trace_note *note = trace_record(trace, TRACE_SECTION_NOTES, 0);
    cr_assert(note && note->level == TRACE_NOTE_WARNING && note->ns == 0);
    cr_assert_str_eq(trace_string(trace, note->text), expected);
    trace_close(trace);
}

Test(failures, a_pretended_capacity_holds_for_every_kind) {
    struct run *run = run_program(&(struct launch){
        .program = PROGRAM("failures_limit"), .env = {"CUHEAP_LIMIT=0:100M", "SIMGPU_DEVICES=2"}});
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "done\n");
    note_must_be(run, "pretended: CUHEAP_LIMIT=0:100M; allocations were refused that the GPU might "
                      "have had room for");
    run_free(run);
}

struct choice {
    char setting[40];
    char out[64];
};

/* By the number of the allocation; a forked child counts its own. */
static struct choice choices[] = {
    {"", " 0 0 0 0 0 0 0 0 0 0 0 0\n 0 0 0\n"},
    {"1", " 2 0 0 0 0 0 0 0 0 0 0 0\n 2 0 0\n"},
    {"2,3,12", " 0 2 2 0 0 0 0 0 0 0 0 2\n 0 2 2\n"},
    {"every:4", " 0 0 0 2 0 0 0 2 0 0 0 2\n 0 0 0\n"},
    {"p:1", " 2 2 2 2 2 2 2 2 2 2 2 2\n 2 2 2\n"},
    {"p:0.25,seed=7", " 0 0 0 0 0 2 0 0 0 2 0 0\n 0 0 0\n"},
    {"nonsense", " 0 0 0 0 0 0 0 0 0 0 0 0\n 0 0 0\n"},
};

ParameterizedTestParameters(failures, chosen_ones_fail_in_every_run) {
    return cr_make_param_array(struct choice, choices, sizeof choices / sizeof *choices);
}

ParameterizedTest(struct choice *c, failures, chosen_ones_fail_in_every_run) {
    char setting[64];
    snprintf(setting, sizeof setting, *c->setting ? "CUHEAP_FAIL=%s" : "CUHEAP_FAIL", c->setting);
    for (int i = 0; i < 2; i++) {
        struct run *run =
            run_program(&(struct launch){.program = PROGRAM("failures_chosen"), .env = {setting}});
        run_must_succeed(run);
        cr_assert_str_eq(run->out, c->out, "%s", setting);
        run_free(run);
    }
}

/* Each is marked; and the report need not be asked to know it. */
Test(failures, chosen_ones_are_marked) {
    struct run *run = run_program(&(struct launch){.program = PROGRAM("books_driver"),
                                                   .env = {"CUHEAP_FAIL=1", "CUHEAP_OUTT=x"}});
    cr_assert_eq(run->code, 99, "the program ends at its first allocation");
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    const struct trace_failure *failure = trace_record(trace, TRACE_SECTION_FAILURES, 0);
    cr_assert(failure && !trace_record(trace, TRACE_SECTION_FAILURES, 1));
    cr_assert_eq(failure->flags, TRACE_FAILURE_PRETENDED | TRACE_FAILURE_FREE_KNOWN);
    cr_assert_eq(failure->code, 2);
    cr_assert_gt(failure->free_bytes, failure->request_bytes, "the driver would have had it");
    trace_close(trace);
    run_free(run);
}

/* The tool's options are the library's settings. */
Test(failures, options_of_run) {
    static const struct {
        const char *option;
        int code;
    } cases[] = {
        {"--limit=1M", 99},   {"--limit=0:1MiB", 99}, {"--limit=1G,1:2G", 0},    {"--fail=1", 99},
        {"--fail=999,1", 99}, {"--fail=every:1", 99}, {"--fail=p:1.0,4", 99},    {"--limit=", 125},
        {"--limit=0", 125},   {"--limit=1G,", 125},   {"--limit=x:1G", 125},     {"--fail=0", 125},
        {"--fail=3,", 125},   {"--fail=p:2", 125},    {"--fail=sometimes", 125},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run *run = run_program(&(struct launch){
            .program = BUILD_TOOL,
            .args = {"run", "--quiet", cases[i].option, "--", PROGRAM("books_driver")},
            .plain = true});
        cr_assert_eq(run->code, cases[i].code, "%s: code %d\n%s", cases[i].option, run->code,
                     run->err);
        run_free(run);
    }
}
