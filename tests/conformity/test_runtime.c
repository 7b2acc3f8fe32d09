/*
 * NVIDIA's own runtime, static and shared, asks for its driver functions: for each that is hooked
 * it gets ours, for all others exactly what the driver answers. Skipped where there is no toolkit.
 */
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "toolkit.h"

struct runtime {
    char file[32];   /* in the toolkit's lib64 */
    char link[96];   /* for the linker */
    char driver[64]; /* folder of the driver */
    char door[16];   /* what the runtime uses of it */
};

static struct runtime runtimes[] = {
    {"libcudart_static.a", "-lcudart_static -lpthread -ldl -lrt", BUILD_SIMGPU, "proc2"},
    {"libcudart_static.a", "-lcudart_static -lpthread -ldl -lrt", BUILD_SIMGPU "/v1", "dlsym"},
    {"libcudart_static.a", "-lcudart_static -lpthread -ldl -lrt", BUILD_SIMGPU "/v0", "dlsym"},
    {"libcudart.so", "-lcudart -Wl,-rpath,'%s/lib64'", BUILD_SIMGPU, "proc2"},
    {"libcudart.so", "-lcudart -Wl,-rpath,'%s/lib64'", BUILD_SIMGPU "/v1", "dlsym"},
    {"libcudart.so", "-lcudart -Wl,-rpath,'%s/lib64'", BUILD_SIMGPU "/v0", "dlsym"},
};

static struct run *build(const struct runtime *runtime) {
    char top[512], source[640], options[256];
    cr_assert(getcwd(top, sizeof top));
    snprintf(source, sizeof source, "#include \"%s/tests/conformity/programs/runtime_lookups.c\"\n",
             top);
    snprintf(options, sizeof options, "-D_GNU_SOURCE -rdynamic -L'%%s/lib64' %s", runtime->link);
    struct run *run = compile(source, options);
    run_must_succeed(run);
    return run;
}

static struct run *look_up(const struct run *built, const struct runtime *runtime, bool plain) {
    char program[96], path[128];
    snprintf(program, sizeof program, "%s/object", built->dir);
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", runtime->driver);
    struct run *run = run_program(&(struct launch){
        .program = program, .env = {path, "CUDA_VISIBLE_DEVICES"}, .plain = plain});
    run_must_succeed(run);
    return run;
}

/* A line of the plain run as it must be when traced. True: it was a hooked function's. */
static bool expected_line(char *to, size_t size, const char *plain) {
    const char *object = strstr(plain, "libcuda.so.1:");
    snprintf(to, size, "%s", plain);
    if (!object || !hooked_row(object + strlen("libcuda.so.1:")))
        return false;
    snprintf(to, size, "%.*slibcuheap.so:%s", (int)(object - plain), plain,
             object + strlen("libcuda.so.1:"));
    return true;
}

static size_t compare_answers(char *plain, char *traced, size_t *questions) {
    size_t ours = 0;
    char expected[512], *save_plain, *save_traced;
    char *p = strtok_r(plain, "\n", &save_plain), *t = strtok_r(traced, "\n", &save_traced);
    for (; p && t; (*questions)++) {
        ours += expected_line(expected, sizeof expected, p);
        cr_assert_str_eq(t, expected, "\nfound    %s\nexpected %s", t, expected);
        p = strtok_r(NULL, "\n", &save_plain);
        t = strtok_r(NULL, "\n", &save_traced);
    }
    cr_assert(!p && !t, "more questions than without us: %s%s", p ? p : "", t ? t : "");
    return ours;
}

/* That the comparison has met what it is for; the runtimes of CUDA 12 and 13 ask alike here. */
static void must_have_asked(const char *traced, const char *door) {
    static const char *const by_version[] = {
        "proc2 \"cuMemAlloc\" 3020 0: code 0, status not wanted, libcuheap.so:cuMemAlloc_v2\n",
        "proc2 \"cuMemAllocAsync\" 11020 0: code 0, status not wanted, "
        "libcuheap.so:cuMemAllocAsync\n",
        "proc2 \"cuMemAllocAsync\" 11020 2: code 0, status not wanted, "
        "libcuheap.so:cuMemAllocAsync_ptsz\n",
        "proc2 \"cuGetProcAddress\" 12000 0: code 0, status not wanted, "
        "libcuheap.so:cuGetProcAddress_v2\n",
    };
    static const char *const by_name[] = {
        "dlsym \"cuMemAlloc_v2\": libcuheap.so:cuMemAlloc_v2\n",
        "dlsym \"cuMemAllocAsync\": libcuheap.so:cuMemAllocAsync\n",
        "dlsym \"cuMemAllocAsync_ptsz\": libcuheap.so:cuMemAllocAsync_ptsz\n",
        "dlsym \"cuGetProcAddress_v2\": NULL\n",
    };
    const char *const *lines = strcmp(door, "proc2") ? by_name : by_version;
    for (size_t i = 0; i < 4; i++)
        cr_assert(strstr(traced, lines[i]), "not asked: %s\n%s", lines[i], traced);
}

ParameterizedTestParameters(conformity, real_runtime_gets_ours) {
    return cr_make_param_array(struct runtime, runtimes, sizeof runtimes / sizeof *runtimes);
}

ParameterizedTest(struct runtime *runtime, conformity, real_runtime_gets_ours) {
    char path[640];
    NEEDS_TOOLKIT();
    snprintf(path, sizeof path, "%s/lib64/%s", toolkit_root(), runtime->file);
    if (access(path, R_OK))
        cr_skip_test("the CUDA toolkit has no %s", runtime->file);
    struct run *built = build(runtime);
    struct run *plain = look_up(built, runtime, true), *traced = look_up(built, runtime, false);
    must_have_asked(traced->out, runtime->door);
    size_t questions = 0, ours = compare_answers(plain->out, traced->out, &questions);
    cr_assert_gt(questions, 400);
    cr_assert_gt(ours, 10);
    run_free(traced);
    run_free(plain);
    run_free(built);
}
