/*
 * Lists files that may be traces of a run. See run_traces.h; no state.
 */
#include "run_traces.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Everything that the library might have put in place of %e, %h, %p, %r and %t. */
static bool as_glob(const char *pattern, char *out, size_t size) {
    size_t used = 0;
    for (; *pattern && used + 3 < size; pattern++) {
        if (pattern[0] == '%' && pattern[1]) {
            pattern++;
            if (*pattern == '%')
                out[used++] = '%';
            else if (strchr("ehprt", *pattern))
                out[used++] = '*';
            else {
                out[used++] = '%';
                out[used++] = *pattern;
            }
            continue;
        }
        if (strchr("*?[\\", *pattern))
            out[used++] = '\\';
        out[used++] = *pattern;
    }
    out[used] = '\0';
    return *pattern == '\0';
}

static bool add_match(struct run_traces *traces, const char *path) {
    char **grown = realloc(traces->paths, (traces->count + 1) * sizeof *grown);
    if (!grown)
        return false;
    traces->paths = grown;
    traces->paths[traces->count] = strdup(path);
    return traces->paths[traces->count++] != NULL;
}

static bool add_matches(struct run_traces *traces, const char *pattern) {
    glob_t found;
    bool ok = true;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
        return true;
    for (size_t i = 0; ok && i < found.gl_pathc; i++)
        ok = add_match(traces, found.gl_pathv[i]);
    globfree(&found);
    return ok;
}

/* A taken name has a number appended. */
static bool add_numbered(struct run_traces *traces, const char *pattern) {
    char numbered[2 * PATH_MAX + 16];
    snprintf(numbered, sizeof numbered, "%s.[1-9]*", pattern);
    return add_matches(traces, pattern) && add_matches(traces, numbered);
}

static void note_place(struct run_traces *traces, const char *place) {
    size_t used = strlen(traces->looked);
    snprintf(traces->looked + used, sizeof traces->looked - used, "%s%s", used ? " and " : "",
             place);
}

static bool add_folder(struct run_traces *traces, const char *folder_pattern) {
    char pattern[2 * PATH_MAX];
    snprintf(pattern, sizeof pattern, "%s%s*.trace", folder_pattern, *folder_pattern ? "/" : "");
    return add_numbered(traces, pattern);
}

static bool add_default_places(struct run_traces *traces) {
    char folder[PATH_MAX], pattern[2 * PATH_MAX];
    const char *parent = getenv("SLURM_TMPDIR");
    if (!parent || !*parent)
        parent = getenv("TMPDIR");
    note_place(traces, "the current directory");
    if (!add_folder(traces, ""))
        return false;
    if (!parent || *parent != '/')
        return true;
    snprintf(folder, sizeof folder, "%s/cuheap-%u", parent, (unsigned)geteuid());
    note_place(traces, folder);
    return !as_glob(folder, pattern, sizeof pattern) || add_folder(traces, pattern);
}

bool run_traces_find(struct run_traces *traces, const char *out) {
    *traces = (struct run_traces){0};
    char pattern[PATH_MAX];
    if (!out || !*out)
        return add_default_places(traces);
    note_place(traces, out);
    if (!as_glob(out, pattern, sizeof pattern))
        return true;
    size_t length = strlen(pattern);
    while (length > 1 && pattern[length - 1] == '/')
        pattern[--length] = '\0';
    return add_numbered(traces, pattern) && add_folder(traces, pattern);
}

void run_traces_free(struct run_traces *traces) {
    for (size_t i = 0; i < traces->count; i++)
        free(traces->paths[i]);
    free(traces->paths);
    *traces = (struct run_traces){0};
}
