/*
 * cuheap report: loads the traces of a job, analyses them, prints the report.
 */
#include "command.h"
#include "render.h"
#include "text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct settings {
    bool leaks;
    bool peak;
    bool fragmentation;
    bool oom;
    bool json;
    bool csv;
    unsigned top;
    int by;
    const char *device;
    int ledger;
    const char *focus;
    const char *ignore;
    bool full_stacks;
    bool source;
    bool debuginfod;
};

static const char *const ledgers[] = {"all", "driver", "tensor", NULL};

#define AT(field) offsetof(struct settings, field)
static const struct option_row rows[] = {
    {"leaks", 0, OPTION_FLAG, AT(leaks), NULL, NULL, "only what was still live, by site"},
    {"peak", 0, OPTION_FLAG, AT(peak), NULL, NULL, "only what made the peak, by site"},
    {"fragmentation", 0, OPTION_FLAG, AT(fragmentation), NULL, NULL,
     "only what memory is taken and not used, with a map of the segments"},
    {"oom", 0, OPTION_FLAG, AT(oom), NULL, NULL,
     "only the calls that failed: why, who asked, who held the memory"},
    {"json", 0, OPTION_FLAG, AT(json), NULL, NULL,
     "print JSON, schema cuheap-report/1: all sites, exact figures"},
    {"csv", 0, OPTION_FLAG, AT(csv), NULL, NULL, "print CSV: a row a site, exact figures"},
    {"top", 'n', OPTION_NUMBER, AT(top), "N", NULL,
     "rows of a table; the others are one more row (default 10)"},
    {"by", 0, OPTION_CHOICE, AT(by), "WHAT", view_by_names,
     "take sites together by line (default), function, library or stack"},
    {"device", 0, OPTION_TEXT, AT(device), "DEVICE", NULL,
     "only this device: its number, or the beginning of its UUID"},
    {"ledger", 0, OPTION_CHOICE, AT(ledger), "LEDGER", ledgers,
     "only driver (taken from the CUDA driver) or tensor (handed out by the framework)"},
    {"focus", 0, OPTION_TEXT, AT(focus), "REGEX", NULL,
     "only sites with a function, file or library in their stack that matches"},
    {"ignore", 0, OPTION_TEXT, AT(ignore), "REGEX", NULL, "no site with such a frame"},
    {"full-stacks", 0, OPTION_FLAG, AT(full_stacks), NULL, NULL,
     "print stacks whole, the frames of CUDA included"},
    {"source", 0, OPTION_FLAG, AT(source), NULL, NULL,
     "print the source line of each place, from files under the current directory"},
    {"debuginfod", 0, OPTION_FLAG, AT(debuginfod), NULL, NULL,
     "fetch missing debug information from the servers in DEBUGINFOD_URLS"},
};

const struct option_table report_options = {
    .command = "report",
    .arguments = "[TRACE|DIR...]",
    .summary = "Report what leaked and what made the peak, with the stacks of each site.",
    .closing = "Without an argument it takes the newest job of the current directory; of a DIR its "
               "newest job. Exit code 2: an error, told in one line.",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static size_t terminal_width(void) {
    const char *text = getenv("COLUMNS");
    long columns = text ? strtol(text, NULL, 10) : 0;
    struct winsize size;
    if (columns <= 0 && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    if (columns <= 0)
        columns = 100;
    return columns < 40 ? 40 : columns > 1000 ? 1000 : (size_t)columns;
}

static bool wants_colour(void) {
    const char *none = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return !(none && *none) && isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

/* Compiles a pattern that was given; false after its error has been told. */
static bool compile(const char *option, const char *text, regex_t *pattern) {
    if (!text)
        return true;
    int rc = regcomp(pattern, text, REG_EXTENDED | REG_NOSUB);
    if (rc == 0)
        return true;
    char reason[128];
    regerror(rc, pattern, reason, sizeof reason);
    command_error("report", "--%s=%s is no regular expression: %s", option, text, reason);
    return false;
}

static int render(const struct settings *settings, const struct job *job, const struct view *view,
                  const struct findings *findings) {
    unsigned parts = (settings->leaks ? PART_LEAKS : 0u) | (settings->peak ? PART_PEAK : 0u) |
                     (settings->oom ? PART_FAILURES : 0u) |
                     (settings->fragmentation ? PART_FRAGMENTATION : 0u);
    char directory[PATH_MAX], clean[PATH_MAX];
    const char *here = getcwd(directory, sizeof directory);
    struct report report = {
        .job = job,
        .view = view,
        .findings = findings,
        .parts = parts ? parts : PART_LEAKS | PART_PEAK | PART_REST,
        .by = (enum view_by)settings->by,
        .top = settings->top,
        .full_stacks = settings->full_stacks,
        .source = settings->source,
        .directory = here ? text_clean(clean, sizeof clean, here) : NULL,
        .colour = wants_colour(),
        .width = terminal_width(),
    };
    bool ok = settings->json  ? render_json(&report, stdout)
              : settings->csv ? render_csv(&report, stdout)
                              : render_table(&report, stdout);
    return ok ? 0 : command_error("report", "out of memory, or the output cannot be written");
}

static int analyse(const struct settings *settings, const struct job *job,
                   const struct view_filter *filter) {
    struct symbols *symbols = symbols_open(settings->debuginfod);
    struct backtraces *backtraces = symbols ? backtraces_open(symbols) : NULL;
    struct view view = {0};
    struct findings findings = {0};
    int code = EXIT_ERROR;
    if (!backtraces || !view_build(&view, job, backtraces, filter) ||
        !findings_build(&view, backtraces, &findings))
        command_error("report", "out of memory");
    else
        code = render(settings, job, &view, &findings);
    findings_free(&findings);
    view_free(&view);
    backtraces_close(backtraces);
    symbols_close(symbols);
    return code;
}

static int load(const struct settings *settings, char **paths, size_t path_count,
                const struct view_filter *filter) {
    struct job job;
    struct trace_error error = {0};
    if (!job_load(&job, "report", paths, path_count, stderr, &error))
        return command_error("report", "%s", error.text);
    int code = analyse(settings, &job, filter);
    job_close(&job);
    return code;
}

int cmd_report(int argc, char **argv) {
    struct settings settings = {.top = 10};
    regex_t focus, ignore;
    int first;
    switch (options_parse(&report_options, &settings, argc, argv, &first)) {
    case OPTIONS_ERROR:
        return EXIT_ERROR;
    case OPTIONS_HELP:
        return 0;
    case OPTIONS_OK:
        break;
    }
    if (settings.json && settings.csv)
        return command_error("report", "--json and --csv exclude each other");
    if (!compile("focus", settings.focus, &focus))
        return EXIT_ERROR;
    int code = EXIT_ERROR;
    if (compile("ignore", settings.ignore, &ignore)) {
        struct view_filter filter = {.ledger = settings.ledger,
                                     .device = settings.device,
                                     .focus = settings.focus ? &focus : NULL,
                                     .ignore = settings.ignore ? &ignore : NULL};
        code = load(&settings, argv + first, (size_t)(argc - first), &filter);
        if (settings.ignore)
            regfree(&ignore);
    }
    if (settings.focus)
        regfree(&focus);
    return code;
}
