/*
 * Lines of Python in reports: where autograd's threads are booked, what is taken together, how
 * files are named, and which source text is shown.
 */
#include "backtrace.h"
#include "code_owner.h"
#include "render.h"
#include "source.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRAIN "/home/u/train.py"
#define TORCH "/v/lib/python3.12/site-packages/torch/"

/* Nodes of autograd, in a program that is taken for PyTorch's library. */
#define NODE(name)                                                                                 \
    ".globl " name "\n.type " name ", @function\n" name ": nop\n nop\n nop\n nop\n"                \
    ".size " name ", . - " name "\n"
__asm__(".text\n" NODE("_ZN5torch8autograd9generated14AddmmBackward05applyEv")
            NODE("_ZN5torch8autograd9generated13ReluBackward05applyEv"));
extern char addmm[] __asm__("_ZN5torch8autograd9generated14AddmmBackward05applyEv");
extern char relu[] __asm__("_ZN5torch8autograd9generated13ReluBackward05applyEv");

static struct trace_builder *builder;
static struct trace_total *total;
static struct job job;
static struct symbols *symbols;
static struct backtraces *backtraces;
static struct view view;
static struct findings findings;
static struct report report;
static char *text;
static char folder[PATH_MAX];

static void set_up(void) {
    char here[] = "/tmp/cuheap-lines-XXXXXX";
    cr_assert_not_null(mkdtemp(here));
    cr_assert_eq(chdir(here), 0);
    cr_assert_not_null(getcwd(folder, sizeof folder));
    builder = builder_new();
    total = builder_total(builder, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    builder_device(builder, 0, 0xaa, "GPU A", 1ull << 34);
    symbols = symbols_open(false);
    backtraces = backtraces_open(symbols);
    report = (struct report){.top = 20, .width = 100};
}

static void tear_down(void) {
    char command[PATH_MAX + 16];
    free(text);
    findings_free(&findings);
    view_free(&view);
    backtraces_close(backtraces);
    symbols_close(symbols);
    job_close(&job);
    builder_free(builder);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(system(command), 0);
}

TestSuite(lines, .init = set_up, .fini = tear_down);

static uint32_t stack_of(const char *function, const char *file, uint32_t line) {
    uint32_t places[] = {builder_python_place(builder, function, file, line),
                         builder_python_place(builder, "<module>", TRAIN, 99)};
    return builder_python_stack(builder, places, 2);
}

static struct trace_site *python_site(uint32_t stack, uint64_t bytes) {
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, 0, 0);
    site->python_stack = stack;
    builder_alloc(builder, site, total, bytes);
    return site;
}

/* Inside autograd: this program is PyTorch then, by the name it has in the trace. */
static struct trace_site *node_site(const char *node, uint32_t called_from, uint64_t bytes) {
    uint64_t pc = (uint64_t)(uintptr_t)node + 2;
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, 0,
                                           builder_native_stack(builder, &pc, 1));
    site->called_from = called_from;
    builder_alloc(builder, site, total, bytes);
    return site;
}

static void add_library(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.200s/libtorch_cpu.so", folder);
    struct trace_module *module = builder_this_program(builder);
    cr_assert_eq(symlink("/proc/self/exe", path), 0);
    module->path = builder_string(builder, path);
}

static void load(const struct view_filter *filter) {
    char path[] = "lines.trace", *paths[] = {path};
    struct trace_error error = {0};
    builder_write(builder, path);
    cr_assert(job_load(&job, "report", paths, 1, NULL, &error), "%s", error.text);
    unlink(path);
    cr_assert(view_build(&view, &job, backtraces, filter ? filter : &(struct view_filter){0}));
    cr_assert(findings_build(&view, backtraces, &findings));
    report.job = &job;
    report.view = &view;
    report.findings = &findings;
}

static const char *render(bool (*renderer)(const struct report *report, FILE *out),
                          unsigned parts) {
    size_t size;
    free(text);
    FILE *out = open_memstream(&text, &size);
    report.parts = parts;
    cr_assert(renderer(&report, out));
    fclose(out);
    return text;
}

static bool shows(const char *what) {
    return strstr(text, what) != NULL;
}

static size_t rows_by(enum view_by by) {
    struct view_rows rows;
    struct view_grouping grouping = {.by = by, .sort = MEASURE_LIVE_BYTES};
    cr_assert(view_group(&view, &grouping, &rows));
    size_t count = rows.count;
    view_rows_free(&rows);
    return count;
}

/* ---- the thread that waits ------------------------------------------------------------------- */

/* Two nodes for the backward() in line 57, one for that in line 80, and what line 57 makes itself.
 */
static void fill_backward(void) {
    add_library();
    uint32_t first = stack_of("step", TRAIN, 57), second = stack_of("probe", TRAIN, 80);
    node_site(addmm, first, 3000);
    node_site(relu, first, 2000)->flags |= TRACE_SITE_VARIES;
    node_site(addmm, second, 700);
    python_site(first, 500);
}

Test(lines, autograds_threads_are_booked_under_the_line_that_waits) {
    fill_backward();
    load(NULL);
    cr_expect_eq(rows_by(BY_LINE), 3u, "line 57 waiting, line 57 itself, line 80 waiting");
    cr_expect_eq(rows_by(BY_FUNCTION), 3u, "two nodes and step");
    render(render_table, PART_LEAKS);
    cr_expect(shows("    4.9 KiB  80.6%       2 tensor     0     AddmmBackward0 and others  "
                    "libtorch_cpu.so\n"
                    "              through 2 stacks; the largest:\n"
                    "              called from step  /home/u/train.py:57 (waits), and other lines\n"
                    "              <module>  /home/u/train.py:99\n"),
              "%s", text);
    cr_expect(shows("tensor     0     AddmmBackward0  libtorch_cpu.so\n"
                    "              called from probe  /home/u/train.py:80 (waits)\n"),
              "%s", text);
    cr_expect(shows("500 B   8.1%       1 tensor     0     step  /home/u/train.py:57\n"), "%s",
              text);
}

Test(lines, by_function_a_node_has_its_row_and_tells_who_waits) {
    fill_backward();
    load(NULL);
    report.by = BY_FUNCTION;
    render(render_table, PART_LEAKS);
    cr_expect(shows("AddmmBackward0  libtorch_cpu.so\n"), "%s", text);
    cr_expect(shows("called from step  /home/u/train.py:57 (waits), and other lines\n"), "%s",
              text);
    cr_expect(shows("ReluBackward0  libtorch_cpu.so\n"), "%s", text);
}

Test(lines, whole_stacks_have_both_threads) {
    fill_backward();
    load(NULL);
    report.full_stacks = true;
    render(render_table, PART_LEAKS);
    char *at = strstr(text, "torch::autograd::generated::AddmmBackward0::apply()");
    cr_assert_not_null(at, "%s", text);
    at = strstr(at, "while this thread waited:\n");
    cr_assert_not_null(at, "%s", text);
    cr_expect(strstr(at, "step  /home/u/train.py:57\n"), "%s", text);
}

Test(lines, json_and_csv_tell_the_line_that_waits) {
    fill_backward();
    load(NULL);
    json_t *root = json_loads(render(render_json, PART_REST), 0, NULL);
    json_t *sites = json_object_get(root, "sites"), *node = json_array_get(sites, 0);
    json_t *blame = json_object_get(node, "blame");
    cr_expect_str_eq(json_string_value(json_object_get(blame, "function")), "AddmmBackward0");
    cr_expect(strstr(json_string_value(json_object_get(blame, "module")), "/libtorch_cpu.so"));
    cr_expect_str_eq(json_string_value(json_object_get(node, "via")), "waiting_thread");
    cr_expect(json_is_false(json_object_get(node, "called_from_varies")));
    cr_expect(json_is_true(json_object_get(json_array_get(sites, 1), "called_from_varies")));
    json_t *stack =
        json_array_get(json_object_get(root, "stacks"),
                       (size_t)json_integer_value(json_object_get(node, "called_from")));
    json_t *frame = json_array_get(json_object_get(root, "frames"),
                                   (size_t)json_integer_value(json_array_get(stack, 0)));
    cr_expect_str_eq(json_string_value(json_object_get(frame, "function")), "step");
    cr_expect_str_eq(json_string_value(json_object_get(frame, "kind")), "python");
    cr_expect_eq(json_integer_value(json_object_get(frame, "line")), 57);
    cr_expect(json_is_null(json_object_get(frame, "module")));
    json_t *own = json_array_get(sites, 3);
    cr_expect(json_is_null(json_object_get(own, "via")));
    cr_expect(json_is_null(json_object_get(own, "called_from")));
    json_decref(root);
    render(render_csv, PART_REST);
    cr_expect(shows(",AddmmBackward0,/home/u/train.py,57,"), "%s", text);
    cr_expect(shows(",waiting_thread,libtorch_cpu.so\r\n"), "%s", text);
    cr_expect(shows(",step,/home/u/train.py,57,,,step;<module>,,train.py\r\n"), "%s", text);
}

Test(lines, a_line_of_ones_own_needs_no_waiting_thread) {
    uint32_t stack = stack_of("backward", "/home/u/function.py", 5);
    python_site(stack, 1000)->called_from = stack_of("step", TRAIN, 57);
    load(NULL);
    render(render_table, PART_LEAKS);
    cr_expect(shows("backward  /home/u/function.py:5\n"), "%s", text);
    cr_expect(shows("called from step  /home/u/train.py:57 (waits)\n"), "%s", text);
    cr_expect_not(view_is_via_caller(&view.sites[0]));
}

Test(lines, native_code_of_the_programs_own_keeps_its_line) {
    builder_this_program(builder);
    node_site(addmm, stack_of("step", TRAIN, 57), 1000);
    load(NULL);
    cr_expect_not(view_is_via_caller(&view.sites[0]));
    render(render_table, PART_LEAKS);
    cr_expect(shows("torch::autograd::generated::AddmmBack...  unit-tools\n"), "%s", text);
    cr_expect(shows("called from step  /home/u/train.py:57 (waits)\n"), "%s", text);
}

Test(lines, a_waiting_stack_that_is_none_changes_nothing) {
    python_site(stack_of("step", TRAIN, 57), 1000)->called_from = 0xfffffff0;
    add_library();
    node_site(addmm, 12345678, 500);
    load(NULL);
    cr_expect_eq(rows_by(BY_LINE), 2u);
    render(render_table, PART_LEAKS);
    cr_expect(shows("AddmmBackward0  libtorch_cpu.so\n"), "%s", text);
    cr_expect_not(shows("waits"), "%s", text);
    json_t *root = json_loads(render(render_json, PART_REST), 0, NULL);
    json_t *node = json_array_get(json_object_get(root, "sites"), 1);
    cr_expect(json_is_null(json_object_get(node, "called_from")));
    cr_expect(json_is_null(json_object_get(node, "via")));
    json_decref(root);
}

Test(lines, a_filter_looks_at_the_waiting_stack_too) {
    regex_t pattern;
    fill_backward();
    cr_assert_eq(regcomp(&pattern, "^probe$", REG_EXTENDED | REG_NOSUB), 0);
    load(&(struct view_filter){.focus = &pattern});
    cr_expect_eq(view.site_count, 1u);
    view_free(&view);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){.ignore = &pattern}));
    cr_expect_eq(view.site_count, 3u);
    regfree(&pattern);
}

/* ---- what is taken together ------------------------------------------------------------------ */

Test(lines, python_is_taken_together_as_was_asked) {
    python_site(stack_of("step", TRAIN, 7), 100);
    python_site(stack_of("step.<locals>.<lambda>", TRAIN, 7), 100);
    python_site(stack_of("step", TRAIN, 8), 100);
    python_site(stack_of("step", "/home/u/other.py", 7), 100);
    python_site(stack_of("f", "/v/site-packages/timm/models/vit.py", 1), 100);
    python_site(stack_of("f", "/v/site-packages/timm/layers/mlp.py", 2), 100);
    load(NULL);
    cr_expect_eq(rows_by(BY_LINE), 5u, "one line, whatever parts of it are functions");
    cr_expect_eq(rows_by(BY_FUNCTION), 5u, "step of two files, its lambda, f of two files");
    cr_expect_eq(rows_by(BY_LIBRARY), 3u, "train.py, other.py, timm");
    cr_expect_eq(rows_by(BY_STACK), 6u);
    report.by = BY_LIBRARY;
    render(render_table, PART_LEAKS);
    cr_expect(shows("tensor     0     train.py  /home/u/train.py\n"), "%s", text);
    cr_expect(shows("tensor     0     timm\n"), "%s", text);
}

Test(lines, a_library_is_named_as_people_know_it) {
    static const struct {
        struct frame frame;
        const char *name;
    } cases[] = {
        {{.python = true, .file = TORCH "nn/a.py"}, "torch"},
        {{.python = true, .file = "/v/dist-packages/six.py"}, "six.py"},
        {{.python = true, .file = "/usr/lib/python3.11/threading.py"}, "Python's own library"},
        {{.python = true, .file = TRAIN}, "train.py"},
        {{.python = true, .file = "<stdin>"}, "<stdin>"},
        {{.python = true}, ""},
        {{.module = "/x/libmodel.so"}, "libmodel.so"},
        {{.function = "f"}, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[CODE_LIBRARY_BYTES];
        cr_expect_str_eq(code_library(&cases[i].frame, name, sizeof name), cases[i].name, "%s",
                         name);
    }
}

Test(lines, ids_leave_out_the_names_of_files_that_change) {
    static const char *const pairs[][2] = {
        {"/tmp/torchinductor_u/ab/cab.py", "/tmp/torchinductor_v/ff/cff.py"},
        {"<eval_with_key>.12", "<eval_with_key>.3"},
        {"/tmp/tmpab12_xyz.py", "/tmp/tmp00000000.py"},
        {"/tmp/ipykernel_7/12.py", "/tmp/ipykernel_99/34.py"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char ids[2][SITE_ID_BYTES];
        for (unsigned n = 0; n < 2; n++) {
            uint32_t place = builder_python_place(builder, "call", pairs[i][n], n + 1);
            struct trace *trace = builder_open(builder);
            backtrace_site_id(
                backtraces_find(backtraces, trace, 0, builder_python_stack(builder, &place, 1)),
                TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, false, ids[n]);
            trace_close(trace);
        }
        cr_expect_str_eq(ids[0], ids[1], "%s", pairs[i][0]);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

Test(lines, files_below_the_current_directory_are_named_from_there) {
    char below[PATH_MAX], beside[PATH_MAX];
    snprintf(below, sizeof below, "%.200s/pkg/model.py", folder);
    snprintf(beside, sizeof beside, "%.200s-more/model.py", folder);
    python_site(stack_of("inner", below, 5), 1000);
    python_site(stack_of("outer", beside, 6), 1000);
    load(NULL);
    report.directory = folder;
    render(render_table, PART_LEAKS);
    cr_expect(shows("inner  pkg/model.py:5\n"), "%s", text);
    cr_expect(shows("-more/model.py:6\n"), "%s", text);
    report.directory = "/";
    render(render_table, PART_LEAKS);
    cr_expect(shows("/pkg/model.py:5\n"), "%s", text);
    cr_expect(strstr(render(render_json, PART_REST), below), "as it was recorded: %s", text);
}

Test(lines, in_whole_stacks_natively_entered_python_stands_without_the_interpreter) {
    uint32_t places[2];
    struct trace_module *module = builder_this_program(builder);
    module->flags |= TRACE_MODULE_PYTHON;
    for (uint32_t i = 0; i < 2; i++) {
        places[i] = builder_python_place(builder, i ? "<module>" : "step", TRAIN, 7 + i);
        builder_place_entry(builder, places[i]);
    }
    uint64_t pcs[] = {(uint64_t)(uintptr_t)addmm + 2, (uint64_t)(uintptr_t)relu + 2};
    struct trace_site *site = python_site(builder_python_stack(builder, places, 2), 1000);
    site->native_stack = builder_native_stack(builder, pcs, 2);
    load(NULL);
    render(render_table, PART_LEAKS);
    cr_expect(shows("step  /home/u/train.py:7\n              <module>  /home/u/train.py:8\n"), "%s",
              text);
    cr_expect_not(shows("Backward0"), "%s", text);
}

Test(lines, the_head_tells_why_python_stacks_are_missing) {
    python_site(stack_of("step", TRAIN, 7), 1000);
    struct trace_note *note = builder_append(builder, TRACE_SECTION_NOTES, sizeof *note);
    note->text = builder_string(builder, "Python stacks are off: PyPy\033[1m");
    note->state = 1;
    builder->header->losses[TRACE_LOSS_PYTHON_REFUSED] = 3;
    load(NULL);
    render(render_table, PART_PEAK | PART_LEAKS | PART_REST);
    char *at = strstr(text, "\n  Python stacks are off: PyPy\\x1b[1m\n  device 0");
    cr_assert_not_null(at, "%s", text);
    cr_expect_null(strstr(at + 30, "PyPy"), "told once: %s", text);
}

Test(lines, the_head_tells_that_an_interpreter_was_refused) {
    builder->header->losses[TRACE_LOSS_PYTHON_REFUSED] = 3;
    load(NULL);
    render(render_table, PART_LEAKS);
    cr_expect(shows("\n  Python stacks were not read: the interpreter is not supported\n"), "%s",
              text);
}

/* ---- source text ----------------------------------------------------------------------------- */

static void write_file(const char *path, const char *content) {
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file, "%s", path);
    fputs(content, file);
    cr_assert_eq(fclose(file), 0);
}

Test(lines, source_is_shown_only_when_asked_for) {
    char below[PATH_MAX];
    snprintf(below, sizeof below, "%.200s/model.py", folder);
    write_file("model.py", "import torch\n\n\tx = torch.empty(3)\r\nlast");
    python_site(stack_of("f", below, 3), 1000);
    python_site(stack_of("g", "model.py", 4), 500);
    python_site(stack_of("h", "model.py", 5), 400);
    load(NULL);
    cr_expect_null(strstr(render(render_table, PART_LEAKS), "torch.empty"));
    report.source = true;
    render(render_table, PART_LEAKS);
    cr_expect(shows("              | x = torch.empty(3)\n"), "%s", text);
    cr_expect(shows("              | last\n"), "%s", text);
    cr_expect_null(strstr(strstr(text, "h  model.py:5\n"), "| "), "no such line: %s", text);
}

static const char *source_of(const char *file, unsigned line) {
    static char out[SOURCE_BYTES];
    return source_line(file, line, out) ? out : NULL;
}

/* A FIFO that is opened would wait for ever. */
Test(lines, source_comes_from_below_the_current_directory_alone, .timeout = 20) {
    char outside[PATH_MAX], inside[PATH_MAX], twisted[PATH_MAX], beside[PATH_MAX];
    snprintf(outside, sizeof outside, "%.200s/secret.py", folder);
    write_file("secret.py", "key = 1\n");
    cr_assert_eq(mkdir("work", 0700), 0);
    cr_assert_eq(mkdir("work-2", 0700), 0);
    write_file("work-2/a.py", "a = 1\n");
    cr_assert_eq(chdir("work"), 0);
    write_file("real.py", "r = 1\n");
    snprintf(inside, sizeof inside, "%.200s/work/real.py", folder);
    snprintf(twisted, sizeof twisted, "%.200s/work/../secret.py", folder);
    snprintf(beside, sizeof beside, "%.200s/work-2/a.py", folder);
    cr_assert_eq(mkdir("-2", 0700), 0);
    write_file("-2/a.py", "not what was named\n");
    cr_assert_eq(symlink("real.py", "link.py"), 0);
    cr_assert_eq(symlink(inside, "absolute.py"), 0);
    cr_assert_eq(symlink("../secret.py", "up.py"), 0);
    cr_assert_eq(symlink(outside, "out.py"), 0);
    cr_assert_eq(symlink("..", "dots"), 0);
    cr_assert_eq(symlink("loop.py", "loop.py"), 0);
    cr_assert_eq(mkfifo("pipe.py", 0600), 0);
    cr_assert_eq(mkdir("folder.py", 0700), 0);
    cr_assert_eq(symlink("/dev/zero", "zero.py"), 0);
    static const char *const good[] = {"real.py", "./real.py", "link.py", "absolute.py"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect_str_eq(source_of(good[i], 1), "r = 1", "%s", good[i]);
    cr_expect_str_eq(source_of(inside, 1), "r = 1");
    const char *bad[] = {outside,          twisted,   beside,    "../secret.py",   "up.py",
                         "out.py",         "loop.py", "pipe.py", "dots/secret.py", "folder.py",
                         "zero.py",        "",        "/",       "none.py",        "./../secret.py",
                         "../work/real.py"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_null(source_of(bad[i], 1), "%s", bad[i]);
    cr_expect_null(source_of(NULL, 1));
    cr_expect_null(source_of("real.py", 0), "a line that is not known");
}

Test(lines, source_text_can_do_no_harm) {
    write_file("evil.py", "\033[2J\a\xe2\x80\xae\xff end\n");
    cr_expect_str_eq(source_of("evil.py", 1), "\\x1b[2J\\x07\\u{202e}\\xff end");
    char name[] = "we\nird\033.py";
    write_file(name, "x = 1\n");
    python_site(stack_of("f", name, 1), 1000);
    load(NULL);
    report.source = true;
    render(render_table, PART_LEAKS);
    cr_expect(shows("f  we\\x0aird\\x1b.py:1\n"), "%s", text);
    cr_expect_null(strchr(text, '\033'));
}

Test(lines, source_of_long_lines_and_huge_files_is_bounded) {
    FILE *file = fopen("long.py", "we");
    for (unsigned i = 0; i < 100000; i++)
        fputc('a', file);
    fputs("\nb = 1\n", file);
    fclose(file);
    cr_expect_eq(strlen(source_of("long.py", 1)), (size_t)SOURCE_BYTES - 1);
    cr_expect_str_eq(source_of("long.py", 2), "b = 1", "across steps of reading");
    file = fopen("huge.py", "we");
    cr_assert_eq(ftruncate(fileno(file), (off_t)1 << 40), 0);
    cr_assert_eq(fseeko(file, (off_t)20 << 20, SEEK_SET), 0);
    fputs("\nc = 1\n", file);
    fclose(file);
    cr_expect_null(source_of("huge.py", 2), "past what is read of a file");
}
