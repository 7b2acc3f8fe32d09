/*
 * cuheap run: runs a program with libcuheap.so preloaded, and says at the end what it took.
 */
#include "child.h"
#include "command.h"
#include "frameworks.h"
#include "job.h"
#include "library.h"
#include "program.h"
#include "run_traces.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_OWN_ERROR 125 /* as env(1) and timeout(1) */
#define OUT_MAX        512 /* what the library keeps of CUHEAP_OUT, with its NUL */
#define RUN_MAX        128
#define PATHS_SHOWN    3

/* ---- settings: option, letter, variable, value, check, help ---------------------------------- */

static bool is_any(const char *text) {
    return *text != '\0';
}

static bool is_flag(const char *text) {
    return (*text == '0' || *text == '1') && !text[1];
}

static bool is_depth(const char *text) {
    uint64_t depth;
    return text_parse_bytes(text, &depth) && depth >= 1 && depth <= 64;
}

static bool is_size(const char *text) {
    uint64_t bytes;
    return text_parse_bytes(text, &bytes);
}

static bool is_max_size(const char *text) {
    uint64_t bytes;
    return text_parse_bytes(text, &bytes) && bytes >= 1u << 20 && bytes <= 1ull << 34;
}

static bool is_mode(const char *text) {
    char *end;
    unsigned long mode = strtoul(text, &end, 8);
    return end != text && !*end && mode <= 0777 && (mode & 0600) == 0600;
}

static bool is_stacks(const char *text) {
    static const char *const words[] = {"none", "native", "python", "full"};
    while (*text) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < 4 && (strlen(words[i]) != length || memcmp(words[i], text, length) != 0))
            i++;
        if (i == 4)
            return false;
        text += length + (text[length] == ',');
    }
    return true;
}

static bool matches(const char *pattern, const char *text) {
    regex_t compiled;
    if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool found = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return found;
}

static bool is_limit(const char *text) {
#define SIZE_OF_ONE "([0-9]{1,2}:)?[1-9][0-9]*([kmgtKMGT]i?)?[bB]?"
    return matches("^" SIZE_OF_ONE "(," SIZE_OF_ONE ")*$", text);
#undef SIZE_OF_ONE
}

static bool is_fail(const char *text) {
    return matches("^([1-9][0-9]*(,[1-9][0-9]*)*|every:[1-9][0-9]*|"
                   "p:[01](\\.[0-9]+)?(,(seed=)?[0-9]+)?)$",
                   text);
}

#define SETTINGS(X)                                                                                \
    X("out", 'o', OUT, "PLACE", is_any,                                                            \
      "folder or name of the traces; %e program, %h host, %p pid, %r rank, %t start time, %% "     \
      "(default: the current directory)")                                                          \
    X("run-id", 0, RUN, "TEXT", is_any, "names the job that the processes of this run make up")    \
    X("stacks", 0, STACKS, "KINDS", is_stacks, "native,python (default), none or full")            \
    X("depth", 0, DEPTH, "N", is_depth, "native frames kept of a stack, 1 to 64")                  \
    X("history", 0, HISTORY, "N", is_size, "keep the latest N events one by one (default 0)")      \
    X("max-size", 0, MAX_SIZE, "SIZE", is_max_size,                                                \
      "largest trace, 1M to 16G (default 256M); it takes up what it needs")                        \
    X("children", 0, CHILDREN, "0|1", is_flag, "0: trace the program but not what it starts")      \
    X("ranks", 0, RANKS, "LIST", is_any, "only these ranks of a distributed job, as 0,8-15")       \
    X("exe", 0, EXE, "GLOB", is_any, "only processes whose executable's name matches")             \
    X("mode", 0, MODE, "OCTAL", is_mode, "permissions of the traces (default 600)")                \
    X("cmdline", 0, CMDLINE, "0|1", is_flag,                                                       \
      "1: record the whole command line, which may hold secrets")                                  \
    X("limit", 0, LIMIT, "SIZE", is_limit,                                                         \
      "pretend that each device has so much memory, as 8GiB, or 0:8GiB,1:16GiB")                   \
    X("fail", 0, FAIL, "WHICH", is_fail,                                                           \
      "make allocations fail: 3 or 3,7, every:100, p:0.01,seed=42")

enum setting {
#define X(option, letter, variable, argument, check, help) SETTING_##variable,
    SETTINGS(X)
#undef X
        SETTING_COUNT
};

struct settings {
    const char *values[SETTING_COUNT]; /* NULL: as the environment says */
    bool see_through;
    bool quiet;
};

static const struct {
    const char *option;
    const char *variable;
    bool (*check)(const char *text);
} setting_table[] = {
#define X(option, letter, variable, argument, check, help) {option, "CUHEAP_" #variable, check},
    SETTINGS(X)
#undef X
};

static const struct option_row rows[] = {
#define X(option, letter, variable, argument, check, help)                                         \
    {option,   letter, OPTION_TEXT, offsetof(struct settings, values[SETTING_##variable]),         \
     argument, NULL,   help},
    SETTINGS(X)
#undef X
        {"see-through", 0, OPTION_FLAG, offsetof(struct settings, see_through), NULL, NULL,
         "make JAX and TensorFlow take each buffer from the driver, so that it is seen; slower"},
    {"quiet", 'q', OPTION_FLAG, offsetof(struct settings, quiet), NULL, NULL,
     "print no summary at the end"},
};

const struct option_table run_options = {
    .command = "run",
    .arguments = "-- PROGRAM [ARGUMENT...]",
    .summary = "Run a program with its GPU allocations recorded; also called record.",
    .closing = "Exit code: the program's own; 128+N if signal N ended it; 125 an error of cuheap, "
               "126 the program cannot be executed, 127 it is not found.",
    .first_ends = true,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* ---- environment ----------------------------------------------------------------------------- */

static int refuse(const char *text, const char *detail) {
    command_error("run", "%s%s", text, detail);
    return EXIT_OWN_ERROR;
}

/* Processes of the program may have other working directories: a relative place is made absolute.
   A folder whose name ends in "/" is made. */
static bool resolve_out(const char *out, char place[OUT_MAX]) {
    char folder[PATH_MAX] = "";
    size_t used = 0;
    if (*out != '/' && !getcwd(folder, sizeof folder))
        return false;
    for (const char *c = folder; *c && used + 2 < OUT_MAX; c++) {
        if (*c == '%')
            place[used++] = '%';
        place[used++] = *c;
    }
    int more = snprintf(place + used, OUT_MAX - used, "%s%s", *out == '/' ? "" : "/", out);
    if (used + (size_t)more >= OUT_MAX)
        return false;
    if (out[strlen(out) - 1] == '/' && !strchr(place, '%'))
        mkdir(place, 0777);
    return true;
}

static void make_run_id(char id[RUN_MAX]) {
    uint64_t random = 0;
    char host[64] = "";
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)getpid();
    gethostname(host, sizeof host - 1);
    snprintf(id, RUN_MAX, "run-%s-%d-%012" PRIx64, host, (int)getpid(), random >> 16);
}

static int set_variables(const struct settings *settings) {
    char place[OUT_MAX], id[RUN_MAX];
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        const char *value = settings->values[i];
        if (!value)
            continue;
        if (!setting_table[i].check(value)) {
            command_error("run", "--%s cannot be \"%s\"; see \"cuheap help run\"",
                          setting_table[i].option, value);
            return EXIT_OWN_ERROR;
        }
        if (i == SETTING_OUT) {
            if (!resolve_out(value, place))
                return refuse("the place given by --out is too long: ", value);
            value = place;
        }
        if (i == SETTING_RUN && strlen(value) >= RUN_MAX)
            return refuse("the text given by --run-id is too long: ", value);
        setenv(setting_table[i].variable, value, 1);
    }
    const char *run = getenv("CUHEAP_RUN");
    if (!run || !*run || strlen(run) >= RUN_MAX) {
        make_run_id(id);
        setenv("CUHEAP_RUN", id, 1);
    }
    return 0;
}

static int set_preload(const char *library) {
    const char *before = getenv("LD_PRELOAD");
    char *joined = NULL;
    if (strpbrk(library, " :\t\n"))
        return refuse("LD_PRELOAD cannot carry a path with a blank or a colon: ", library);
    if (before && strstr(before, library))
        return 0;
    if (asprintf(&joined, "%s%s%s", library, before && *before ? ":" : "", before ? before : "") <
        0)
        return refuse("out of memory", "");
    setenv("LD_PRELOAD", joined, 1);
    free(joined);
    return 0;
}

/* ---- summary --------------------------------------------------------------------------------- */

struct sums {
    uint64_t peak_bytes, work_bytes, work_count, live_bytes, live_count;
};

static struct sums device_sums(const struct job *job) {
    struct sums sums = {0};
    for (size_t p = 0; p < job->process_count; p++) {
        const struct profile *profile = job->processes[p].profile;
        for (size_t i = 0; i < profile->total_count; i++) {
            const struct profile_total *total = &profile->totals[i];
            if (total->ledger != TRACE_LEDGER_DRIVER || total->group != TRACE_GROUP_DEVICE)
                continue;
            sums.peak_bytes += total->peak_bytes;
            sums.work_bytes += total->end_of_work_bytes;
            sums.work_count += total->end_of_work_count;
            sums.live_bytes += total->live_bytes;
            sums.live_count += total->live_count;
        }
    }
    return sums;
}

/* As a shell takes it: in quotes unless it is plain. */
static void print_word(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./@%+=:,-";
    char clean[PATH_MAX];
    text_clean(clean, sizeof clean, word);
    if (clean[strspn(clean, plain)] == '\0') {
        fprintf(stderr, " %s", clean);
        return;
    }
    fputs(" '", stderr);
    for (const char *c = clean; *c; c++)
        fputs(*c == '\'' ? "'\\''" : (char[]){*c, '\0'}, stderr);
    fputc('\'', stderr);
}

/* Many traces are named by their folder, where this is the newest job. */
static void print_paths(const struct job *job) {
    const char *first = trace_path(job->processes[0].trace);
    if (job->process_count > PATHS_SHOWN) {
        char folder[PATH_MAX];
        const char *name = text_basename(first);
        snprintf(folder, sizeof folder, "%.*s", (int)(name - first), first);
        print_word(name == first ? "." : folder);
        return;
    }
    for (size_t i = 0; i < job->process_count; i++)
        print_word(trace_path(job->processes[i].trace));
}

static void print_summary(const struct job *job, const char *program, const struct child_end *end) {
    char clean[256], bytes[TEXT_BYTES];
    struct sums sums = device_sums(job);
    text_clean(clean, sizeof clean, text_basename(program));
    fprintf(stderr, "cuheap: %s (pid %d) ", clean, (int)end->pid);
    if (end->signal)
        fprintf(stderr, "was ended by signal %d (%s)", end->signal, strsignal(end->signal));
    else
        fprintf(stderr, "exited with %d", end->code);
    fprintf(stderr, "; %zu process%s traced, device memory:\n", job->process_count,
            job->process_count == 1 ? "" : "es");
    fprintf(stderr, "cuheap:   peak         %10s%s\n", text_bytes(bytes, sums.peak_bytes),
            job->process_count > 1 ? " (the sum of each process's own)" : "");
    fprintf(stderr, "cuheap:   end of work  %10s in %" PRIu64 " blocks\n",
            text_bytes(bytes, sums.work_bytes), sums.work_count);
    fprintf(stderr, "cuheap:   at the end   %10s in %" PRIu64 " blocks\n",
            text_bytes(bytes, sums.live_bytes), sums.live_count);
    fputs("cuheap: what made them: cuheap report", stderr);
    print_paths(job);
    fputc('\n', stderr);
}

static void print_no_trace(const struct run_traces *traces) {
    const char *off = getenv("CUHEAP_OFF");
    char clean[sizeof traces->looked];
    const char *cause =
        off && *off == '1' ? "CUHEAP_OFF=1 turned recording off"
        : getenv("CUHEAP_EXE") || getenv("CUHEAP_RANKS")
            ? "CUHEAP_EXE or CUHEAP_RANKS chose no process, or none made a CUDA allocation"
            : "most likely the program made no CUDA allocation, or made it in a process that is "
              "statically linked, setuid, linked against musl or in a container";
    fprintf(stderr, "cuheap run: no trace of this run in %s: %s\n",
            text_clean(clean, sizeof clean, traces->looked), cause);
}

static void summarise(const char *program, const struct child_end *end) {
    struct run_traces traces;
    struct job job;
    struct trace_error error;
    if (run_traces_find(&traces, getenv("CUHEAP_OUT")) &&
        job_load_run(&job, traces.paths, traces.count, getenv("CUHEAP_RUN"), &error)) {
        if (job.process_count)
            print_summary(&job, program, end);
        else
            print_no_trace(&traces);
        job_close(&job);
    }
    run_traces_free(&traces);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int prepare(const struct settings *settings, const char *program, char path[PATH_MAX]) {
    char library[4 * PATH_MAX], reason[PATH_MAX + 256];
    if (!library_find(library, sizeof library))
        return refuse("libcuheap.so is not found; looked at ", library);
    int code = program_find(program, path);
    if (code) {
        command_error("run", "%s: %s", program,
                      code == 127 ? "not found" : "found, but it is not executable");
        return code;
    }
    if (!program_can_be_traced(path, library, reason, sizeof reason))
        return refuse(reason, "");
    code = set_variables(settings);
    if (code)
        return code;
    if (settings->see_through)
        framework_set_see_through(stderr);
    return set_preload(library);
}

int cmd_run(int argc, char **argv) {
    struct settings settings = {0};
    char path[PATH_MAX];
    int first;
    switch (options_parse(&run_options, &settings, argc, argv, &first)) {
    case OPTIONS_ERROR:
        return EXIT_OWN_ERROR;
    case OPTIONS_HELP:
        return 0;
    case OPTIONS_OK:
        break;
    }
    if (first == argc)
        return refuse("no program given; see \"cuheap help run\"", "");
    int code = prepare(&settings, argv[first], path);
    if (code)
        return code;
    struct child_end end = child_run(path, argv + first);
    if (!end.pid) {
        command_error("run", "%s: %s", argv[first], strerror(end.error));
        return end.error == ENOENT ? 127 : 126;
    }
    if (!settings.quiet)
        summarise(argv[first], &end);
    return end.code;
}
