/*
 * Options, commands, their errors and exit codes; the program that run starts; the man pages.
 */
#include "child.h"
#include "command.h"
#include "findings.h"
#include "program.h"
#include "trace_reader.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void redirect(void) {
    cr_redirect_stdout();
    cr_redirect_stderr();
}

TestSuite(command, .init = redirect);

/* An argument vector of words, as the commands may reorder it. */
struct words {
    char text[512];
    char *argv[16];
    int argc;
};

static struct words *split(const char *text) {
    static struct words storage[32];
    static unsigned used;
    struct words *words = &storage[used++];
    cr_assert_lt(used, sizeof storage / sizeof *storage);
    snprintf(words->text, sizeof words->text, "%s", text);
    char *rest = words->text;
    while ((words->argv[words->argc] = strtok_r(NULL, " ", &rest)))
        words->argc++;
    return words;
}

static int dispatch(const char *arguments) {
    struct words *words = split(arguments);
    return command_dispatch(words->argc, words->argv);
}

/* ---- options --------------------------------------------------------------------------------- */

struct settings {
    bool flag;
    unsigned number;
    const char *text;
    int choice;
};
static const char *const colours[] = {"red", "green", NULL};
static const struct option_row rows[] = {
    {"flag", 'f', OPTION_FLAG, offsetof(struct settings, flag), NULL, NULL, "a flag"},
    {"number", 'n', OPTION_NUMBER, offsetof(struct settings, number), "N", NULL, "a number"},
    {"text", 0, OPTION_TEXT, offsetof(struct settings, text), "TEXT", NULL, "a text"},
    {"colour", 0, OPTION_CHOICE, offsetof(struct settings, choice), "COLOUR", colours, "a choice"},
};
static struct option_table table = {
    .command = "try", .arguments = "FILE", .summary = "Try.", .rows = rows, .row_count = 4};

static enum options_result parse(struct settings *settings, struct words *words, int *first) {
    return options_parse(&table, settings, words->argc, words->argv, first);
}

Test(command, options_follow_gnu_habits) {
    struct settings settings = {0};
    int first;
    struct words *words = split("try one -fn12 --text=a=b two --col green -- -f");
    cr_assert_eq(parse(&settings, words, &first), OPTIONS_OK);
    cr_expect(settings.flag);
    cr_expect_eq(settings.number, 12u);
    cr_expect_str_eq(settings.text, "a=b");
    cr_expect_eq(settings.choice, 1);
    cr_assert_eq(first, words->argc - 3);
    cr_expect_str_eq(words->argv[first], "one");
    cr_expect_str_eq(words->argv[first + 2], "-f");
}

Test(command, the_first_argument_may_end_the_options) {
    struct settings settings = {0};
    int first;
    table.first_ends = true;
    cr_assert_eq(parse(&settings, split("try -f program -n x"), &first), OPTIONS_OK);
    cr_expect_eq(first, 2);
    cr_expect_eq(settings.number, 0u);
}

Test(command, wrong_options_are_told_in_one_line) {
    static const struct {
        const char *option;
        const char *expected;
    } wrong[] = {
        {"--nonsense", "no option --nonsense"},
        {"--fl=1", "option --fl=1 takes no value"},
        {"-x", "no option -x"},
        {"--number", "option --number needs a value"},
        {"-n", "option -n needs a value"},
        {"--flag=1", "option --flag=1 takes no value"},
        {"--number=3x", "--number takes a number, not \"3x\""},
        {"--number=-1", "--number takes a number"},
        {"--number=99999999999", "--number takes a number"},
        {"--colour=blue", "--colour takes one of red, green, not \"blue\""},
        {"--colour=\033[1m", "not \"\\x1b[1m\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct settings settings = {0};
        int first;
        char line[64];
        snprintf(line, sizeof line, "try %s", wrong[i].option);
        cr_expect_eq(parse(&settings, split(line), &first), OPTIONS_ERROR, "%s", line);
    }
    fflush(stderr);
    char text[8192] = "";
    FILE *err = cr_get_redirected_stderr();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_not_null(fgets(text, sizeof text, err));
        cr_expect_eq(strncmp(text, "cuheap try: ", 12), 0, "%s", text);
        cr_expect(strstr(text, wrong[i].expected), "%s: %s", wrong[i].option, text);
    }
}

/* ---- commands -------------------------------------------------------------------------------- */

Test(command, exit_codes_are_those_of_the_man_pages) {
    cr_expect_eq(dispatch("cuheap --version"), 0);
    cr_expect_eq(dispatch("cuheap --help"), 0);
    cr_expect_eq(dispatch("cuheap help report"), 0);
    cr_expect_eq(dispatch("cuheap report --help"), 0);
    cr_expect_eq(dispatch("cuheap"), 2);
    cr_expect_eq(dispatch("cuheap nonsense"), 2);
    cr_expect_eq(dispatch("cuheap help nonsense"), 2);
    cr_expect_eq(dispatch("cuheap report --top"), 2);
    cr_expect_eq(dispatch("cuheap report --json --csv"), 2);
    cr_expect_eq(dispatch("cuheap report --focus=("), 2);
    cr_expect_eq(dispatch("cuheap report /nonexistent.trace"), 2);
    cr_expect_eq(dispatch("cuheap info"), 2);
    cr_expect_eq(dispatch("cuheap info /dev/null"), 2);
    cr_expect_eq(dispatch("cuheap lib extra"), 2);
    cr_expect_eq(dispatch("cuheap run"), 125);
    cr_expect_eq(dispatch("cuheap run --nonsense"), 125);
    cr_expect_eq(dispatch("cuheap record"), 125);
}

Test(command, output_that_does_not_arrive_is_an_error) {
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0)
        cr_skip_test("no /dev/full");
    dup2(full, STDOUT_FILENO);
    cr_expect_eq(dispatch("cuheap help"), 2);
}

static void expect_in_page(const char *page, const struct option_table *options) {
    char path[128], text[65536];
    snprintf(path, sizeof path, "tools/man/%s", page);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "no page %s", path);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    for (size_t i = 0; i < options->row_count; i++) {
        char name[64], *out = name;
        for (const char *c = options->rows[i].name; *c; c++) {
            if (*c == '-')
                *out++ = '\\';
            *out++ = *c;
        }
        *out = '\0';
        char wanted[80];
        snprintf(wanted, sizeof wanted, ".It Fl Fl %s", options->rows[i].name);
        char with_letter[80];
        snprintf(with_letter, sizeof with_letter, ".It Fl %c , Fl Fl %s",
                 options->rows[i].letter ? options->rows[i].letter : '?', options->rows[i].name);
        cr_expect(strstr(text, wanted) || strstr(text, with_letter), "%s has no --%s", page,
                  options->rows[i].name);
    }
}

Test(command, the_report_page_explains_every_finding) {
    if (access("tools/man", R_OK) != 0)
        cr_skip_test("not run from the top of the source tree");
    static char text[65536];
    FILE *file = fopen("tools/man/cuheap-report.1", "re");
    cr_assert_not_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    char *section = strstr(text, ".Sh FINDINGS");
    cr_assert_not_null(section);
    for (unsigned i = 0; i < FINDING_LIMIT; i++)
        cr_expect(strstr(section, finding_ids[i]), "no %s", finding_ids[i]);
}

Test(command, man_pages_explain_every_option) {
    if (access("tools/man", R_OK) != 0)
        cr_skip_test("not run from the top of the source tree");
    for (size_t i = 0; i < command_count; i++) {
        char page[64];
        snprintf(page, sizeof page, "cuheap-%s.1", commands[i].name);
        if (commands[i].options->row_count)
            expect_in_page(page, commands[i].options);
    }
}

Test(command, the_page_of_the_format_has_all_of_it) {
    static const char *const names[] = {
#define X(name, key, meaning) key,
        TRACE_LOSSES(X) TRACE_COUNTERS(X)
#undef X
#define X(number, name, text) text,
            TRACE_SECTIONS(X)
#undef X
#define X(number, name, text, group) text,
                TRACE_KINDS(X)
#undef X
    };
    static const size_t sizes[] = {
        sizeof(struct trace_header),       sizeof(struct trace_device),
        sizeof(struct trace_region),       sizeof(struct trace_module),
        sizeof(struct trace_string),       sizeof(struct trace_native_stack),
        sizeof(struct trace_python_stack), sizeof(struct trace_python_place),
        sizeof(struct trace_site),         sizeof(struct trace_total),
        sizeof(struct trace_window),       sizeof(struct trace_slot),
        sizeof(struct trace_context),      sizeof(struct trace_pool),
        sizeof(struct trace_range),        sizeof(struct trace_mark),
        sizeof(struct trace_failure),      sizeof(struct trace_copy),
        sizeof(struct trace_event),        sizeof(struct trace_note),
        sizeof(struct trace_gpu_module),
    };
    static char text[131072];
    FILE *file = fopen("tools/man/cuheap-trace.5", "re");
    if (!file)
        cr_skip_test("not run from the top of the source tree");
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char word[80];
        snprintf(word, sizeof word, " %s ", names[i]);
        cr_expect(strstr(text, word), "%s", names[i]);
    }
    /* A structure's table ends with its size. */
    size_t ends = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        ends += strncmp(line + strspn(line, " 0123456789"), "end\n", 4) == 0;
    cr_expect_eq(ends, sizeof sizes / sizeof *sizes);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char end[32];
        snprintf(end, sizeof end, "\n%6zu  end\n", sizes[i]);
        cr_expect(strstr(text, end), "a structure of %zu bytes", sizes[i]);
    }
}

/* ---- what run starts
 * ----------------------------------------------------------------------------- */

static char folder[64];

static char *make_file(const char *name, const void *bytes, size_t size, mode_t mode) {
    static char paths[16][128];
    static unsigned used;
    char *path = paths[used++];
    cr_assert_lt(used, sizeof paths / sizeof *paths);
    if (!folder[0]) {
        strcpy(folder, "/tmp/cuheap-command-XXXXXX");
        cr_assert_not_null(mkdtemp(folder));
    }
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    fwrite(bytes, 1, size, file);
    fclose(file);
    cr_assert_eq(chmod(path, mode), 0);
    return path;
}

static void remove_files(void) {
    char command[128];
    snprintf(command, sizeof command, "/bin/rm -rf %s", folder);
    cr_expect_eq(system(command), 0);
}

struct tiny_elf {
    Elf64_Ehdr head;
    Elf64_Phdr segment;
    char interpreter[64];
};

static struct tiny_elf make_elf(uint16_t machine, const char *interpreter) {
    struct tiny_elf elf = {0};
    memcpy(elf.head.e_ident, ELFMAG, SELFMAG);
    elf.head.e_ident[EI_CLASS] = ELFCLASS64;
    elf.head.e_machine = machine;
    elf.head.e_phoff = offsetof(struct tiny_elf, segment);
    elf.head.e_phentsize = sizeof(Elf64_Phdr);
    elf.head.e_phnum = 1;
    elf.segment.p_type = interpreter ? PT_INTERP : PT_LOAD;
    elf.segment.p_offset = offsetof(struct tiny_elf, interpreter);
    elf.segment.p_filesz = sizeof elf.interpreter;
    snprintf(elf.interpreter, sizeof elf.interpreter, "%s", interpreter ? interpreter : "");
    return elf;
}

static void expect_traceable(const char *path, const char *library, const char *reason) {
    char found[512] = "";
    bool ok = program_can_be_traced(path, library, found, sizeof found);
    if (reason)
        cr_expect(!ok && strstr(found, reason), "%s: %s", path, found);
    else
        cr_expect(ok, "%s: %s", path, found);
}

Test(command, run_refuses_what_cannot_be_traced) {
    struct tiny_elf own = make_elf(EM_X86_64, NULL);
    struct tiny_elf dynamic = make_elf(EM_X86_64, "/lib64/ld-linux-x86-64.so.2");
    struct tiny_elf statically = make_elf(EM_X86_64, NULL);
    struct tiny_elf musl = make_elf(EM_X86_64, "/lib/ld-musl-x86_64.so.1");
    struct tiny_elf arm = make_elf(EM_AARCH64, "/lib/ld-linux-aarch64.so.1");
    char *library = make_file("libcuheap.so", &own, sizeof own, 0644);
    expect_traceable(make_file("dynamic", &dynamic, sizeof dynamic, 0755), library, NULL);
    char *static_path = make_file("static", &statically, sizeof statically, 0755);
    expect_traceable(static_path, library, "statically linked");
    expect_traceable(make_file("musl", &musl, sizeof musl, 0755), library, "linked against musl");
    expect_traceable(make_file("arm", &arm, sizeof arm, 0755), library, "for another machine");
    expect_traceable(make_file("text", "echo hello\n", 11, 0755), library, NULL);
    char script[128];
    int length = snprintf(script, sizeof script, "#! %s -u\nrest\n", static_path);
    expect_traceable(make_file("script", script, (size_t)length, 0755), library,
                     "statically linked");
    remove_files();
}

Test(command, run_refuses_programs_that_gain_rights) {
    struct tiny_elf own = make_elf(EM_X86_64, "/lib64/ld-linux-x86-64.so.2");
    char *path = make_file("program", &own, sizeof own, 0755);
    if (chown(path, getuid() + 1, getgid() + 1) != 0)
        cr_skip_test("only root can make a file somebody else's");
    cr_assert_eq(chmod(path, 04755), 0);
    expect_traceable(path, path, "is setuid");
    cr_assert_eq(chmod(path, 02755), 0);
    expect_traceable(path, path, "is setgid");
    cr_assert_eq(chmod(path, 0755), 0);
    expect_traceable(path, path, NULL);
    remove_files();
}

Test(command, run_finds_programs_as_a_shell_does) {
    char path[PATH_MAX];
    char *plain = make_file("plain", "x", 1, 0644);
    make_file("tool", "x", 1, 0755);
    setenv("PATH", folder, 1);
    cr_expect_eq(program_find("tool", path), 0);
    cr_expect_eq(strncmp(path, folder, strlen(folder)), 0);
    cr_expect_eq(program_find("plain", path), 126);
    cr_expect_eq(program_find(plain, path), 126);
    cr_expect_eq(program_find("missing", path), 127);
    cr_expect_eq(program_find("/no/such/program", path), 127);
    cr_expect_eq(program_find(folder, path), 126);
    cr_expect_eq(program_find("", path), 127);
    remove_files();
}

static struct child_end run_shell(const char *script) {
    char name[] = "sh", option[] = "-c", text[256];
    char *argv[] = {name, option, text, NULL};
    snprintf(text, sizeof text, "%s", script);
    return child_run("/bin/sh", argv);
}

Test(command, run_ends_as_its_program_did) {
    struct child_end end = run_shell("exit 7");
    cr_expect_gt(end.pid, 0);
    cr_expect_eq(end.code, 7);
    cr_expect_eq(end.signal, 0);
    end = run_shell("kill -KILL $$");
    cr_expect_eq(end.code, 128 + SIGKILL);
    cr_expect_eq(end.signal, SIGKILL);
    end = child_run("/no/such/program", split("missing")->argv);
    cr_expect_eq(end.pid, 0);
    cr_expect_eq(end.error, ENOENT);
}

Test(command, run_passes_signals_on) {
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    pid_t runner = fork();
    if (runner == 0) {
        dup2(ready[1], STDOUT_FILENO);
        close(ready[0]);
        /* The shell is interrupted in wait, at once; it takes its sleeper with it. */
        struct child_end end = run_shell("sleep 1000 & trap \"kill $!; exit 42\" TERM; "
                                         "echo ready; wait");
        _exit(end.code);
    }
    close(ready[1]);
    char line[16];
    cr_assert_eq(read(ready[0], line, sizeof line), 6);
    kill(runner, SIGTERM);
    int status;
    cr_assert_eq(waitpid(runner, &status, 0), runner);
    cr_expect(WIFEXITED(status));
    cr_expect_eq(WEXITSTATUS(status), 42);
}

Test(command, run_keeps_ignored_signals_ignored) {
    signal(SIGHUP, SIG_IGN);
    struct child_end end = run_shell("kill -HUP $$; exit 5");
    cr_expect_eq(end.code, 5);
}
