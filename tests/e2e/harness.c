/*
 * The harness of tests/e2e and tests/stress: see harness.h. A program runs in a process group of
 * its own, so that a hang ends with everything it started; its output goes to files, so that no
 * pipe can fill up or be kept open by a grandchild.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_LIMIT_S 60

static char *text_of_file(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        return strdup("");
    size_t used = 0, room = 4096;
    char *text = malloc(room + 1);
    for (size_t got; (got = fread(text + used, 1, room - used, file)) > 0;) {
        used += got;
        if (used == room) {
            char *grown = realloc(text, (room *= 2) + 1);
            cr_assert(grown);
            text = grown;
        }
    }
    text[used] = 0;
    fclose(file);
    return text;
}

/* ---- starting ---- */

static void set_preload(const struct launch *launch) {
    char list[2048];
    snprintf(list, sizeof list, "%s%s%s%s%s", launch->preload_front ? launch->preload_front : "",
             launch->preload_front ? ":" : "", launch->plain ? "" : BUILD_LIBRARY,
             launch->preload_behind ? ":" : "",
             launch->preload_behind ? launch->preload_behind : "");
    if (list[0])
        setenv("LD_PRELOAD", list, 1);
}

static void set_environment(const struct launch *launch, const char *dir) {
    char pattern[128];
    snprintf(pattern, sizeof pattern, "%s/cuheap.%%e.%%h.%%p.trace", dir);
    setenv("CUHEAP_OUT", pattern, 1);
    if (launch->no_driver)
        unsetenv("LD_LIBRARY_PATH");
    else
        setenv("LD_LIBRARY_PATH", BUILD_SIMGPU, 1);
    for (unsigned i = 0; launch->env[i]; i++) {
        if (strchr(launch->env[i], '='))
            putenv((char *)launch->env[i]);
        else
            unsetenv(launch->env[i]);
    }
    set_preload(launch);
}

static void become(const struct launch *launch, const struct run *run) {
    char path[128];
    setpgid(0, 0);
    const char *names[2] = {"out", "err"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", run->dir, names[i]);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, i + 1);
        close(fd);
    }
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    close(null);
    if (chdir(launch->work_dir ? launch->work_dir : run->dir))
        _exit(126);
    const char *argv[18] = {launch->program};
    for (unsigned i = 0; launch->args[i]; i++)
        argv[i + 1] = launch->args[i];
    set_environment(launch, run->dir);
    if (launch->traced) {
        personality(ADDR_NO_RANDOMIZE);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(RUN_UNTRACEABLE);
    }
    execv(launch->program, (char **)argv);
    dprintf(2, "cannot run %s: %s\n", launch->program, strerror(errno));
    _exit(127);
}

struct run *run_start(const struct launch *launch) {
    struct run *run = calloc(1, sizeof *run);
    snprintf(run->dir, sizeof run->dir, "/tmp/cuheap-test-XXXXXX");
    cr_assert(mkdtemp(run->dir), "no temporary folder: %s", strerror(errno));
    fflush(NULL);
    run->pid = fork();
    cr_assert(run->pid >= 0, "fork: %s", strerror(errno));
    if (run->pid == 0)
        become(launch, run);
    setpgid(run->pid, run->pid);
    return run;
}

/* ---- waiting ---- */

static volatile pid_t limited_group;
static volatile sig_atomic_t limit_reached;

static void end_group(int signal) {
    (void)signal;
    limit_reached = 1;
    kill(-limited_group, SIGKILL);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct run *collecting;

static int collect_trace(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)ftw;
    const char *dot = strstr(path, ".trace");
    if (type != FTW_D && type != FTW_DP && dot && collecting->trace_count < RUN_TRACES)
        collecting->traces[collecting->trace_count++] = strdup(path);
    return 0;
}

static void run_collect(struct run *run) {
    char path[128];
    snprintf(path, sizeof path, "%s/out", run->dir);
    run->out = text_of_file(path);
    snprintf(path, sizeof path, "%s/err", run->dir);
    run->err = text_of_file(path);
    collecting = run;
    nftw(run->dir, collect_trace, 16, FTW_PHYS);
    qsort(run->traces, run->trace_count, sizeof run->traces[0], compare_names);
}

void run_wait(struct run *run, int limit_s) {
    limited_group = run->pid;
    limit_reached = 0;
    struct sigaction action = {.sa_handler = end_group};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL,
              &(struct itimerval){.it_value.tv_sec = limit_s ? limit_s : DEFAULT_LIMIT_S}, NULL);
    int status;
    while (waitpid(run->pid, &status, 0) < 0 && errno == EINTR)
        ;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    kill(-run->pid, SIGKILL); /* what it left running */
    run->timed_out = limit_reached;
    run->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    run->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    run_collect(run);
}

struct run *run_program(const struct launch *launch) {
    struct run *run = run_start(launch);
    run_wait(run, launch->limit_s);
    return run;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void run_free(struct run *run) {
    nftw(run->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    for (unsigned i = 0; i < run->trace_count; i++)
        free(run->traces[i]);
    free(run->out);
    free(run->err);
    free(run);
}

void run_must_succeed(const struct run *run) {
    cr_assert(!run->timed_out && run->code == 0 && !run->err[0],
              "exit code %d, signal %d%s\n---- stdout\n%s\n---- stderr\n%s", run->code, run->signal,
              run->timed_out ? ", ran into the time limit" : "", run->out, run->err);
}

const char *run_trace(const struct run *run) {
    cr_assert(run->trace_count == 1, "%u traces in %s, first %s\n---- stderr\n%s", run->trace_count,
              run->dir, run->trace_count ? run->traces[0] : "-", run->err);
    return run->traces[0];
}

struct run *run_same_output(struct launch launch) {
    struct run *traced = run_program(&launch);
    launch.plain = true;
    struct run *plain = run_program(&launch);
    run_must_succeed(plain);
    run_must_succeed(traced);
    cr_assert_str_eq(traced->out, plain->out);
    run_free(plain);
    return traced;
}

/* ---- the tool ---- */

struct run *cuheap_run(const char *const args[]) {
    struct launch launch = {.program = BUILD_TOOL, .plain = true, .no_driver = true};
    for (unsigned i = 0; args[i]; i++)
        launch.args[i] = args[i];
    return run_program(&launch);
}

json_t *cuheap_json(const char *command, const char *path) {
    struct run *run = cuheap_run((const char *const[]){command, "--json", path, NULL});
    run_must_succeed(run);
    json_error_t error;
    json_t *root = json_loads(run->out, 0, &error);
    cr_assert(root, "cuheap %s --json: line %d: %s", command, error.line, error.text);
    run_free(run);
    return root;
}

/* ---- look-ups ---- */

json_t *json_at(json_t *root, const char *path) {
    char step[64];
    json_t *at = root;
    for (const char *from = path; *from && at;) {
        size_t length = strcspn(from, ".");
        snprintf(step, sizeof step, "%.*s", (int)length, from);
        at = json_is_array(at) ? json_array_get(at, strtoul(step, NULL, 10))
                               : json_object_get(at, step);
        from += length + (from[length] == '.');
    }
    cr_assert(at, "the report has no %s", path);
    return at;
}

uint64_t json_number(json_t *root, const char *path) {
    json_t *value = json_at(root, path);
    cr_assert(json_is_integer(value), "%s is no whole number", path);
    return (uint64_t)json_integer_value(value);
}

const char *json_text(json_t *root, const char *path) {
    json_t *value = json_at(root, path);
    cr_assert(json_is_string(value), "%s is no text", path);
    return json_string_value(value);
}

unsigned site_frames(json_t *report, json_t *site, const char **names, unsigned limit) {
    static char texts[128][192];
    json_t *stack = json_array_get(json_at(report, "stacks"), json_number(site, "stack"));
    unsigned count = (unsigned)json_array_size(stack);
    for (unsigned i = 0; i < count && i < limit && i < 128; i++) {
        size_t index = (size_t)json_integer_value(json_array_get(stack, i));
        json_t *frame = json_array_get(json_at(report, "frames"), index);
        const char *function = json_string_value(json_object_get(frame, "function"));
        snprintf(texts[i], sizeof texts[i], "%s%s", function ? function : "?",
                 json_is_true(json_object_get(frame, "inlined")) ? " (inlined)" : "");
        names[i] = texts[i];
    }
    return count < limit ? count : limit;
}

json_t *site_of(json_t *report, const char *function) {
    json_t *sites = json_at(report, "sites"), *site, *found = NULL;
    size_t i;
    json_array_foreach(sites, i, site) {
        json_t *blame = json_object_get(site, "blame");
        const char *name = json_string_value(json_object_get(blame, "function"));
        if (!name || strcmp(name, function))
            continue;
        cr_assert(!found, "two sites blame %s", function);
        found = site;
    }
    cr_assert(found, "no site blames %s", function);
    return found;
}

uint64_t report_loss(json_t *report, const char *name) {
    json_t *value = json_object_get(json_at(report, "processes.0.losses"), name);
    return value ? (uint64_t)json_integer_value(value) : 0;
}
