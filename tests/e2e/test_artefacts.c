/*
 * What is built: the library's dependencies and exports, and that the commands of the README work.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lines of a shell command's output, sorted; the test fails if the command does. */
static char *lines_of(const char *command) {
    struct launch launch = {.program = "/bin/sh", .args = {"-c", command}, .plain = true};
    launch.no_driver = true;
    struct run *run = run_program(&launch);
    cr_assert_eq(run->code, 0, "%s\n%s%s", command, run->out, run->err);
    char *out = strdup(run->out);
    run_free(run);
    return out;
}

/* The folder of the sources: `make check` runs from there. */
static const char *source_dir(void) {
    static char path[PATH_MAX];
    if (!path[0])
        cr_assert(getcwd(path, sizeof path) && access("lib/exports.map", R_OK) == 0,
                  "%s is not the folder of the sources", path);
    return path;
}

Test(artefacts, the_library_needs_glibc_alone) {
    char *needed =
        lines_of("readelf -d " BUILD_LIBRARY " | sed -n 's/.*(NEEDED).*\\[\\(.*\\)\\]/\\1/p'");
    for (char *line = strtok(needed, "\n"); line; line = strtok(NULL, "\n"))
        cr_assert(!strncmp(line, "libc.so.", 8) || !strncmp(line, "libdl.so.", 9) ||
                      !strncmp(line, "ld-linux", 8),
                  "libcuheap.so needs %s", line);
    free(needed);
}

/* Wrappers under the hidden version that exports.map tells of, one for each row of the table;
   beside them only names that must have none. */
Test(artefacts, the_library_exports_wrappers_and_little_else) {
    char *exported = lines_of(
        "nm -D --defined-only " BUILD_LIBRARY
        " | awk '{ print $3 }' | grep -vE '^cu[A-Z][A-Za-z0-9_]*@CUHEAP$' | LC_ALL=C sort");
    cr_assert_str_eq(exported, "CUHEAP\n"
                               "_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE\n"
                               "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE\n"
                               "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE\n"
                               "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE\n"
                               "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE\n"
                               "_ZN3c1027reportOutOfMemoryToProfilerEmmmNS_6DeviceE\n"
                               "cuheap_mark\ndlclose\ndlsym\ndlvsym\n");
    free(exported);
}

/* dlsym and dlvsym are exported: a reference of our own to them would lead back to us. */
Test(artefacts, the_library_refers_to_nothing_that_leads_back) {
    char *undefined = lines_of(
        "nm -D --undefined-only " BUILD_LIBRARY " | awk '{ print $2 }' | sed 's/@.*//' | grep -xE "
        "'dlsym|dlvsym|malloc|calloc|realloc|free|printf|abort|exit' || true");
    cr_assert_str_eq(undefined, "");
    free(undefined);
}

/* Memory of each thread in the loader's static block: little, or small stacks cannot start. */
Test(artefacts, thread_local_storage_is_small) {
    char *size = lines_of("readelf -lW " BUILD_LIBRARY
                          " | awk '$1 == \"TLS\" { print $6 } END { print \"0x0\" }' | head -n 1");
    cr_assert_lt(strtoul(size, NULL, 16), 1024, "%s", size);
    free(size);
}

Test(artefacts, the_library_uses_no_private_name_of_glibc) {
    char *names = lines_of("objdump -T " BUILD_LIBRARY " | grep GLIBC_PRIVATE || true");
    cr_assert_str_eq(names, "");
    free(names);
}

/* ---- README ---- */

/* Runs a block of shell in a fresh folder, with the build's cuheap in PATH. */
static void run_block(const char *block) {
    char *script = NULL;
    cr_assert(asprintf(&script,
                       "set -e\nexport PATH=%s:$PATH LD_LIBRARY_PATH=%s\nln -s %s build\n"
                       "ln -s %s/examples examples\n%s",
                       CUHEAP_BUILD, BUILD_SIMGPU, CUHEAP_BUILD, source_dir(), block) > 0);
    struct launch launch = {.program = "/bin/bash", .args = {"-c", script}, .plain = true};
    launch.env[0] = "CUHEAP_OUT";
    struct run *run = run_program(&launch);
    cr_assert_eq(run->code, 0, "README block failed with %d:\n%s---- stdout\n%s---- stderr\n%s",
                 run->code, block, run->out, run->err);
    run_free(run);
    free(script);
}

/* What installs, builds or runs the tests is not run inside a test: its targets must exist. */
static bool is_about_building(const char *block) {
    return strstr(block, "apt-get") || strstr(block, "make ") || strstr(block, "git clone");
}

static void check_targets(const char *block) {
    char text[8192], command[PATH_MAX + 1024];
    snprintf(text, sizeof text, "%s", block);
    for (char *make = strstr(text, "make "); make; make = strstr(make + 1, "make ")) {
        if (make != text && make[-1] != '\n' && make[-1] != ' ' && make[-1] != ';')
            continue;
        snprintf(command, sizeof command, "cd %s && make -n %.*s >/dev/null", source_dir(),
                 (int)strcspn(make + 5, "\n#&|;") % 512, make + 5);
        if (!strstr(command, "apt-get") && !strstr(command, "make -n g++"))
            free(lines_of(command));
    }
}

Test(artefacts, the_commands_of_the_readme_work) {
    char command[PATH_MAX + 64];
    snprintf(command, sizeof command, "cat %s/README.md 2>/dev/null || true", source_dir());
    char *readme = lines_of(command);
    if (!readme[0])
        cr_skip_test("no README.md");
    unsigned blocks = 0;
    for (char *from = readme; (from = strstr(from, "\n```sh\n"));) {
        from += 7;
        char *end = strstr(from, "\n```");
        cr_assert(end, "a block of shell without an end");
        char block[8192];
        snprintf(block, sizeof block, "%.*s\n", (int)(end - from), from);
        if (is_about_building(block))
            check_targets(block);
        else
            run_block(block);
        blocks++;
        from = end;
    }
    cr_assert_gt(blocks, 0, "the README has no block of shell");
    free(readme);
}
