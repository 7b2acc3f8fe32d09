/*
 * How a process lives and ends, and what that leaves: its trace, its state, its children; names,
 * places and modes of the file.
 */
#include "harness.h"
#include "profile.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIVE "processes.0.devices.0.driver.total.live_bytes"

static struct run *live(const char *mode, const char *env) {
    struct launch launch = {.program = PROGRAM("lifecycle"), .args = {mode}, .env = {env}};
    return run_program(&launch);
}

/* ---- ends ---- */

struct ending {
    char mode[16];
    int code;
    int signal;
    char state[16];
    uint64_t live_bytes;
    char out[32];
};

static struct ending endings[] = {
    {"exit", 3, 0, "exited", 1000, ""},
    {"_exit", 4, 0, "killed", 1000, ""},
    {"kill", -1, SIGKILL, "killed", 1000, ""},
    {"abort", -1, SIGABRT, "killed", 1000, ""},
    {"atexit", 0, 0, "exited", 1000, ""},
    {"late", 0, 0, "exited", 1000, "late free 0\n"},
    {"vfork", 0, 0, "exited", 21300, "status 5\n"},
};

ParameterizedTestParameters(lifecycle, ending) {
    return cr_make_param_array(struct ending, endings, sizeof endings / sizeof *endings);
}

ParameterizedTest(struct ending *e, lifecycle, ending) {
    struct run *run = live(e->mode, NULL);
    cr_assert(run->code == e->code && run->signal == e->signal, "%s: code %d, signal %d\n%s",
              e->mode, run->code, run->signal, run->err);
    cr_assert_str_eq(run->out, e->out);
    cr_assert_str_eq(run->err, "");
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_str_eq(json_text(report, "processes.0.state"), e->state);
    if (!strcmp(e->state, "exited"))
        cr_assert_eq(json_number(report, "processes.0.exit_code"), (uint64_t)e->code);
    else
        cr_assert(json_is_null(json_at(report, "processes.0.exit_code")));
    cr_assert_eq(json_number(report, LIVE), e->live_bytes);
    json_decref(report);
    run_free(run);
}

/* The driver has gone by then: it refuses the free, and what was not freed stays in the books. */
Test(lifecycle, a_free_after_the_drivers_own_end) {
    struct launch launch = {
        .program = PROGRAM("lifecycle"), .args = {"late"}, .env = {"SIMGPU_UNLOAD_AT_EXIT=1"}};
    struct run *run = run_same_output(launch);
    cr_assert_str_eq(run->out, "late free 4\n");
    json_t *report = cuheap_json("report", run_trace(run));
    cr_assert_str_eq(json_text(report, "processes.0.state"), "exited");
    cr_assert_eq(json_number(report, LIVE), 21000);
    cr_assert_eq(report_loss(report, "failed_frees"), 1);
    cr_assert_eq(report_loss(report, "unknown_frees"), 0);
    json_decref(report);
    run_free(run);
}

/* ---- children ---- */

static json_t *report_of(const struct run *run, unsigned trace) {
    return cuheap_json("report", run->traces[trace]);
}

Test(lifecycle, a_forked_child_has_a_trace_of_its_own) {
    struct run *run = live("fork", NULL);
    run_must_succeed(run);
    cr_assert_eq(run->trace_count, 2);
    unsigned long parent, child, status;
    cr_assert_eq(sscanf(run->out, "parent %lu child %lu status %lu", &parent, &child, &status), 3);
    cr_assert_eq(status, 5);
    for (unsigned i = 0; i < 2; i++) {
        json_t *report = report_of(run, i);
        bool is_child = json_number(report, "processes.0.pid") == child;
        cr_assert(is_child || json_number(report, "processes.0.pid") == parent);
        if (is_child)
            cr_assert_eq(json_number(report, "processes.0.ppid"), parent);
        cr_assert_eq(json_number(report, LIVE), is_child ? 20000 : 1300);
        cr_assert_eq(json_number(report, "processes.0.exit_code"), is_child ? 5 : 0);
        json_decref(report);
    }
    run_free(run);
}

struct parent {
    char how[8]; /* the child is started */
    char setting[24];
    bool traced; /* the child is */
};

static struct parent parents[] = {
    {"fork", "CUHEAP_CHILDREN=0", false},  {"exec", "CUHEAP_CHILDREN=0", false},
    {"spawn", "CUHEAP_CHILDREN=0", false}, {"fork", "CUHEAP_CHILDREN=1", true},
    {"exec", "CUHEAP_CHILDREN=1", true},   {"spawn", "CUHEAP_CHILDREN=1", true},
};

ParameterizedTestParameters(lifecycle, children_are_traced_as_asked) {
    return cr_make_param_array(struct parent, parents, sizeof parents / sizeof *parents);
}

#define OTHER_FRONT  PROGRAM("reload_first.so")
#define OTHER_BEHIND PROGRAM("reload_second.so")

/* Whatever else is preloaded stays so. */
ParameterizedTest(struct parent *p, lifecycle, children_are_traced_as_asked) {
    struct run *run = run_program(&(struct launch){.program = PROGRAM("lifecycle_children"),
                                                   .args = {p->how},
                                                   .env = {p->setting},
                                                   .preload_front = OTHER_FRONT,
                                                   .preload_behind = OTHER_BEHIND});
    run_must_succeed(run);
    cr_assert_str_eq(run->out, p->traced ? "child preloads " OTHER_FRONT ":" BUILD_LIBRARY
                                           ":" OTHER_BEHIND "\nchild ended with 5\n"
                                         : "child preloads " OTHER_FRONT ":" OTHER_BEHIND
                                           "\nchild ended with 5\n");
    cr_assert_eq(run->trace_count, p->traced ? 2 : 1, "%u traces", run->trace_count);
    for (unsigned i = 0; i < run->trace_count; i++) {
        json_t *report = report_of(run, i);
        bool is_parent = json_number(report, "processes.0.pid") == (uint64_t)run->pid;
        cr_assert(is_parent || p->traced);
        cr_assert_eq(json_number(report, LIVE), is_parent ? 1300 : 20000);
        json_decref(report);
    }
    run_free(run);
}

/* Alone in the list, the library leaves no empty one behind. */
Test(lifecycle, children_without_the_library_preload_nothing) {
    struct launch launch = {
        .program = PROGRAM("lifecycle_children"), .args = {"exec"}, .env = {"CUHEAP_CHILDREN=0"}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "child preloads nothing\nchild ended with 5\n");
    cr_assert_eq(run->trace_count, 1);
    run_free(run);
}

Test(lifecycle, an_exec_leaves_two_traces) {
    struct run *run = live("exec", NULL);
    cr_assert_eq(run->code, 3);
    cr_assert_str_eq(run->err, "");
    cr_assert_eq(run->trace_count, 2);
    unsigned exited = 0, killed = 0;
    for (unsigned i = 0; i < 2; i++) {
        json_t *report = report_of(run, i);
        exited += !strcmp(json_text(report, "processes.0.state"), "exited");
        killed += !strcmp(json_text(report, "processes.0.state"), "killed");
        cr_assert_eq(json_number(report, LIVE), 1000);
        json_decref(report);
    }
    cr_assert(exited == 1 && killed == 1, "%u exited, %u killed", exited, killed);
    run_free(run);
}

Test(lifecycle, a_running_process_can_be_read) {
    struct launch launch = {.program = PROGRAM("lifecycle"), .args = {"stay"}};
    struct run *run = run_start(&launch);
    char path[128], trace[256], host[128], line[16] = "";
    snprintf(path, sizeof path, "%s/out", run->dir);
    gethostname(host, sizeof host);
    snprintf(trace, sizeof trace, "%s/cuheap.lifecycle.%s.%d.trace", run->dir, host, run->pid);
    while (strncmp(line, "staying", 7)) { /* the test's own time limit ends this */
        FILE *out = fopen(path, "r");
        if (out && !fgets(line, sizeof line, out))
            line[0] = 0;
        if (out)
            fclose(out);
    }
    json_t *report = cuheap_json("report", trace);
    cr_expect_str_eq(json_text(report, "processes.0.state"), "running");
    cr_expect_eq(json_number(report, LIVE), 1000);
    json_decref(report);
    kill(run->pid, SIGKILL);
    run_wait(run, 10);
    cr_assert_eq(run->signal, SIGKILL);
    report = cuheap_json("report", trace);
    cr_assert_str_eq(json_text(report, "processes.0.state"), "killed");
    json_decref(report);
    run_free(run);
}

/* ---- marks ---- */

Test(lifecycle, marks_are_kept_with_their_order) {
    struct run *run = live("mark", NULL);
    run_must_succeed(run);
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    const char *found[3] = {0};
    uint64_t last = 0;
    unsigned count = 0;
    for (size_t i = 0; i < trace_record_count(trace, TRACE_SECTION_MARKS); i++) {
        const struct trace_mark *mark = trace_record(trace, TRACE_SECTION_MARKS, i);
        if (!mark)
            continue;
        cr_assert(mark->ns >= last);
        last = mark->ns;
        cr_assert_lt(count, 3);
        found[count++] = trace_string(trace, mark->name);
    }
    cr_assert_geq(count, 2);
    cr_assert_str_eq(found[count - 2], "epoch 1");
    cr_assert_str_eq(found[count - 1], "epoch 2");
    trace_close(trace);
    run_free(run);
}

/* As cuheap.h and libcuheap(3) tell it for Python. */
#define MARK_FROM_PYTHON                                                                           \
    "import ctypes\n"                                                                              \
    "mark = getattr(ctypes.CDLL(None), 'cuheap_mark', lambda name: None)\n"                        \
    "for step in range(3):\n"                                                                      \
    "    mark(b'step')\n"                                                                          \
    "mark('caf\\u00e9 \\u4e2d'.encode())\n"                                                        \
    "mark(b'x' * 300)\n"                                                                           \
    "print('done')\n"

static void marks_must_be(const struct run *run, const char *const *names, unsigned count) {
    struct trace_error error = {0};
    struct trace *trace = trace_open(run_trace(run), &error);
    cr_assert(trace, "%s", error.text);
    cr_assert_eq(trace_record_count(trace, TRACE_SECTION_MARKS), count);
    for (unsigned i = 0; i < count; i++) {
        const struct trace_mark *mark = trace_record(trace, TRACE_SECTION_MARKS, i);
        cr_assert(mark && mark->thread == (uint32_t)run->pid);
        cr_assert_str_eq(trace_string(trace, mark->name), names[i]);
    }
    trace_close(trace);
}

Test(lifecycle, marks_from_python) {
    static const char python[] = "/usr/bin/python3";
    char longest[256] = "";
    if (access(python, X_OK) < 0)
        cr_skip_test("no %s", python);
    struct run *run = run_same_output(
        (struct launch){.program = python, .args = {"-c", MARK_FROM_PYTHON}, .no_driver = true});
    cr_assert_str_eq(run->out, "done\n");
    memset(longest, 'x', 255);
    marks_must_be(run, (const char *const[]){"step", "step", "step", "caf\u00e9 \u4e2d", longest},
                  5);
    run_free(run);
}

/* The header is all that a C program needs; without the library nothing happens. */
Test(lifecycle, marks_without_the_library) {
    struct run *run = run_program(
        &(struct launch){.program = PROGRAM("lifecycle"), .args = {"mark"}, .plain = true});
    run_must_succeed(run);
    cr_assert_eq(run->trace_count, 0);
    run_free(run);
}

/* ---- no event, no file ---- */

Test(lifecycle, programs_without_gpu_leave_nothing) {
    struct launch launches[] = {
        {.program = "/bin/true", .env = {"CUHEAP_OUT"}},
        {.program = "/bin/false", .env = {"CUHEAP_OUT"}},
        {.program = "/bin/sh", .args = {"-c", "echo one; exit 7"}, .env = {"CUHEAP_OUT"}},
        {.program = PROGRAM("lifecycle"), .args = {"nothing"}},
    };
    int codes[] = {0, 1, 7, 3};
    for (int i = 0; i < 4; i++) {
        struct run *run = run_program(&launches[i]);
        cr_assert_eq(run->code, codes[i], "%s", launches[i].program);
        cr_assert_str_eq(run->err, "");
        cr_assert_str_eq(run->out, i == 2 ? "one\n" : "");
        cr_assert_eq(run->trace_count, 0);
        run_free(run);
    }
}

Test(lifecycle, off_is_off) {
    struct run *run = live("exit", "CUHEAP_OFF=1");
    cr_assert_eq(run->code, 3);
    cr_assert_str_eq(run->err, "");
    cr_assert_eq(run->trace_count, 0);
    run_free(run);
}

/* ---- names, places, modes ---- */

static bool ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && !strcmp(text + a - b, end);
}

Test(lifecycle, the_name_follows_the_pattern) {
    struct launch launch = {.program = PROGRAM("lifecycle"),
                            .args = {"exit"},
                            .env = {"CUHEAP_OUT=%e_%h_%p_%r_%t_%%.trace", "RANK=3"}};
    struct run *run = run_program(&launch);
    char host[128], expected[256];
    gethostname(host, sizeof host);
    snprintf(expected, sizeof expected, "/lifecycle_%s_%d_3_", host, run->pid);
    const char *path = run_trace(run), *found = strstr(path, expected);
    cr_assert(found, "%s holds no %s", path, expected);
    unsigned long start;
    int end = 0;
    cr_assert_eq(sscanf(found + strlen(expected), "%lu_%%.trace%n", &start, &end), 1);
    cr_assert(end > 0 && !found[strlen(expected) + (size_t)end], "%s", path);
    run_free(run);
}

Test(lifecycle, the_default_name_is_in_the_working_folder) {
    struct run *run = live("exit", "CUHEAP_OUT");
    char host[128], expected[256];
    gethostname(host, sizeof host);
    snprintf(expected, sizeof expected, "%s/cuheap.lifecycle.%s.%d.trace", run->dir, host,
             run->pid);
    cr_assert_str_eq(run_trace(run), expected);
    run_free(run);
}

Test(lifecycle, a_rank_that_is_not_there_is_a_dash) {
    struct run *run = live("exit", "CUHEAP_OUT=x%r.trace");
    cr_assert(ends_with(run_trace(run), "/x-.trace"), "%s", run_trace(run));
    run_free(run);
}

/* One name for three processes: none may overwrite another's. */
Test(lifecycle, a_taken_name_gets_a_suffix) {
    struct launch launch = {
        .program = "/bin/sh",
        .args = {"-c", "for i in 1 2 3; do " PROGRAM("lifecycle") " exit; done; exit 0"},
        .env = {"CUHEAP_OUT=fixed.trace"}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert_eq(run->trace_count, 3);
    cr_assert(ends_with(run->traces[0], "/fixed.trace"));
    cr_assert(ends_with(run->traces[1], "/fixed.trace.1"));
    cr_assert(ends_with(run->traces[2], "/fixed.trace.2"));
    for (unsigned i = 0; i < 3; i++) {
        json_t *report = report_of(run, i);
        cr_assert_eq(json_number(report, LIVE), 1000);
        json_decref(report);
    }
    run_free(run);
}

static unsigned mode_of(const char *path) {
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    return st.st_mode & 07777;
}

Test(lifecycle, the_trace_is_private) {
    struct run *run = live("exit", NULL);
    cr_assert_eq(mode_of(run_trace(run)), 0600);
    run_free(run);
    run = live("exit", "CUHEAP_MODE=640");
    cr_assert_eq(mode_of(run_trace(run)), 0640);
    run_free(run);
}

/* A link under the trace's name leads to a file of the victim: it must not be followed. */
Test(lifecycle, a_planted_link_is_not_followed) {
    static const char plant[] =
        "echo precious >victim; ln -s victim fixed.trace; "
        "ln -s nowhere fixed.trace.1; " PROGRAM("lifecycle") " exit; "
                                                             "cat victim; test ! -e nowhere";
    struct launch launch = {
        .program = "/bin/sh", .args = {"-c", plant}, .env = {"CUHEAP_OUT=fixed.trace"}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "precious\n");
    char path[128];
    snprintf(path, sizeof path, "%s/fixed.trace.2", run->dir);
    json_t *report = cuheap_json("report", path);
    cr_assert_eq(json_number(report, LIVE), 1000);
    json_decref(report);
    run_free(run);
}

/* The program must not notice; the user is told in one line. */
Test(lifecycle, a_folder_that_is_not_there) {
    struct run *run = live("exit", "CUHEAP_OUT=/nowhere/at/all.trace");
    cr_assert_eq(run->code, 3);
    cr_assert_eq(run->trace_count, 0);
    cr_assert_str_eq(run->out, "");
    const char *newline = strchr(run->err, '\n');
    cr_assert(strstr(run->err, "cuheap") == run->err && strstr(run->err, "/nowhere/at/all.trace") &&
                  newline && !newline[1],
              "not one line that names the file: %s", run->err);
    run_free(run);
}

/* The limit is kept, and what it costs is said. */
Test(lifecycle, the_file_stays_below_its_limit) {
    struct launch launch = {.program = PROGRAM("books_threads"), .env = {"CUHEAP_MAX_SIZE=1M"}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    struct stat st;
    cr_assert_eq(stat(run_trace(run), &st), 0);
    cr_assert_leq(st.st_size, 1 << 20);
    json_t *report = cuheap_json("report", run_trace(run));
    json_decref(report);
    run_free(run);
}
