/*
 * Whose code a path is. See code_owner.h; no state.
 */
#include "code_owner.h"

#include "frameworks.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* ---- Python ---------------------------------------------------------------------------------- */

enum match {
    BEGINS,
    HOLDS,
    TEMPORARY, /* begins so, then the eight characters of a temporary name */
};

/* Python files by name, the first that matches; what none does is the program's own. */
static const struct pattern {
    enum match match;
    const char *text;
    enum code_owner owner;
    bool unnamed; /* another name in the next run */
} patterns[] = {
    {BEGINS, "<stdin>", OWNER_PROGRAM, true},
    {BEGINS, "<console>", OWNER_PROGRAM, true},
    {BEGINS, "<ipython-input-", OWNER_PROGRAM, true},
    {BEGINS, "<python-input-", OWNER_PROGRAM, true},
    {BEGINS, "<doctest ", OWNER_PROGRAM, true},
    {BEGINS, "<", OWNER_GENERATED, true}, /* <string>, <frozen runpy>, <eval_with_key>.3 */
    {HOLDS, "/torchinductor_", OWNER_GENERATED, true},
    {TEMPORARY, "/tmp/tmp", OWNER_GENERATED, true},
    {HOLDS, "/ipykernel_", OWNER_PROGRAM, true}, /* cells of a notebook */
};

static bool is_temporary(const char *file, const char *prefix) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t start = strlen(prefix);
    return starts_with(file, prefix) && strspn(file + start, letters) == 8 &&
           (file[start + 8] == '/' || strcmp(file + start + 8, ".py") == 0);
}

static const struct pattern *pattern_of(const char *file) {
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        const struct pattern *pattern = &patterns[i];
        if (pattern->match == BEGINS      ? starts_with(file, pattern->text)
            : pattern->match == TEMPORARY ? is_temporary(file, pattern->text)
                                          : strstr(file, pattern->text) != NULL)
            return pattern;
    }
    return NULL;
}

/* What follows the last folder of installed packages in a path; NULL: none is in it. */
static const char *after_packages(const char *file) {
    static const char *const folders[] = {"/site-packages/", "/dist-packages/"};
    const char *after = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (const char *at = file; (at = strstr(at, folders[i])); at++)
            if (at + strlen(folders[i]) > (after ? after : file))
                after = at + strlen(folders[i]);
    return after;
}

/* ".../lib/python3.12/", and lib64, and the letter of a free-threaded build. */
static bool is_standard_library(const char *file) {
    static const char *const folders[] = {"/lib/python3.", "/lib64/python3."};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *at = strstr(file, folders[i]);
        size_t digits = at ? strspn(at += strlen(folders[i]), "0123456789") : 0;
        if (digits && at[digits + (at[digits] == 't')] == '/')
            return true;
    }
    return false;
}

enum code_owner code_owner_of_python(const char *file) {
    const struct pattern *pattern = pattern_of(file);
    if (pattern)
        return pattern->owner;
    const char *package = after_packages(file);
    if (!package)
        return is_standard_library(file) ? OWNER_INTERPRETER : OWNER_PROGRAM;
    size_t bytes = strcspn(package, "/");
    return package[bytes] && framework_has_package(package, bytes) ? OWNER_FRAMEWORK
                                                                   : OWNER_PROGRAM;
}

bool code_is_unnamed(const char *file) {
    const struct pattern *pattern = file ? pattern_of(file) : NULL;
    return pattern && pattern->unnamed;
}

/* ---- native ---------------------------------------------------------------------------------- */

enum code_owner code_owner_of_library(const char *path) {
    static const char *const system[] = {"libc.so",  "libc-2.",   "libstdc++.so", "libpthread",
                                         "ld-linux", "libm.so",   "libm-2.",      "libdl",
                                         "libgcc_s", "libc++.so", "libc++abi.so"};
    const char *name = text_basename(path);
    for (size_t i = 0; i < sizeof system / sizeof *system; i++)
        if (starts_with(name, system[i]))
            return OWNER_SYSTEM;
    if (starts_with(name, "libpython"))
        return OWNER_INTERPRETER;
    if (strstr(path, "/torchinductor_"))
        return OWNER_GENERATED;
    return framework_has_library(path) ? OWNER_FRAMEWORK : OWNER_PROGRAM;
}

/* ---- names ----------------------------------------------------------------------------------- */

char *code_library(const struct frame *frame, char *out, size_t size) {
    const char *file = frame->python ? frame->file : frame->module;
    const char *package = frame->python && file ? after_packages(file) : NULL;
    if (package)
        snprintf(out, size, "%.*s", (int)strcspn(package, "/"), package);
    else if (frame->python && file && is_standard_library(file) && !pattern_of(file))
        snprintf(out, size, "Python's own library");
    else
        snprintf(out, size, "%s", !file ? "" : file[0] == '<' ? file : text_basename(file));
    return out;
}
