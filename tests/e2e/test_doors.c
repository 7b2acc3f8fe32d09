/*
 * Doors: each way by which a program gets at a driver function. What it is handed, what dlerror()
 * says then, who else may interpose, and that the driver is called as it would be without us.
 */
#include "books.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is handed out ---- */

static const char *const watched[] = {
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuCtxCreate",
    "cuCtxCreate_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuDevicePrimaryCtxRetain",
    "cuMemGetInfo_v2",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
};

/* The line as it must be when traced: the driver's watched functions are ours, all else equal. */
static void traced_line(char *to, size_t size, const char *plain) {
    snprintf(to, size, "%s", plain);
    char *object = strstr(to, "libcuda.so.1:");
    if (!object)
        return;
    size_t length = strcspn(object + 13, " +\n");
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        if (strlen(watched[i]) != length || strncmp(watched[i], object + 13, length))
            continue;
        char rest[512];
        snprintf(rest, sizeof rest, "%s", object + 12);
        snprintf(object, size - (size_t)(object - to), "libcuheap.so%s", rest);
        return;
    }
}

static void compare_answers(const char *plain, const char *traced) {
    char expected[1024], found[1024];
    while (*plain || *traced) {
        size_t a = strcspn(plain, "\n"), b = strcspn(traced, "\n");
        char line[512];
        snprintf(line, sizeof line, "%.*s", (int)a, plain);
        traced_line(expected, sizeof expected, line);
        snprintf(found, sizeof found, "%.*s", (int)b, traced);
        cr_assert_str_eq(found, expected, "\nfound    %s\nexpected %s", found, expected);
        plain += a + (plain[a] == '\n');
        traced += b + (traced[b] == '\n');
    }
}

static struct run *look_up(const char *door, bool plain) {
    struct run *run = run_program(
        &(struct launch){.program = PROGRAM("doors_lookup"), .args = {door}, .plain = plain});
    run_must_succeed(run);
    cr_assert_eq(run->trace_count, 0, "a look-up is no event, and yet there is a trace");
    return run;
}

static void answers_must_be_ours(const char *door) {
    struct run *plain = look_up(door, true), *traced = look_up(door, false);
    cr_assert(strstr(traced->out, "libcuheap.so:cuMemAlloc_v2"), "%s", traced->out);
    compare_answers(plain->out, traced->out);
    run_free(plain);
    run_free(traced);
}

Test(doors, dlsym_on_a_handle) {
    answers_must_be_ours("handle");
}

Test(doors, default_scope_with_a_global_driver) {
    answers_must_be_ours("global");
}

Test(doors, proc_address_v1_by_name_version_and_flags) {
    answers_must_be_ours("proc1");
}

Test(doors, proc_address_v2_by_name_version_and_flags) {
    answers_must_be_ours("proc2");
}

Test(doors, proc_address_asked_for_itself) {
    answers_must_be_ours("itself");
}

/* What is not found without us is not found with us, and dlerror says the same, to the byte: no
   driver at all, or one that is in no scope that the program searches. */
static char empty_scopes[][2][8] = {
    {"none"}, {"local"}, {"version"}, {"scopes", "none"}, {"scopes", "local"}};

ParameterizedTestParameters(doors, a_scope_without_the_driver_stays_empty) {
    return cr_make_param_array(char[2][8], empty_scopes,
                               sizeof empty_scopes / sizeof *empty_scopes);
}

ParameterizedTest(char (*scope)[8], doors, a_scope_without_the_driver_stays_empty) {
    struct launch launch = {.program = PROGRAM("doors_lookup"), .args = {scope[0]}};
    if (scope[1][0])
        launch.args[1] = scope[1];
    struct run *traced = run_program(&launch);
    launch.plain = true;
    struct run *plain = run_program(&launch);
    run_must_succeed(plain);
    run_must_succeed(traced);
    cr_assert(strstr(plain->out, "\"cuMemAlloc_v2\": NULL | "), "%s", plain->out);
    cr_assert_str_eq(traced->out, plain->out);
    run_free(plain);
    run_free(traced);
}

Test(doors, any_scope_with_a_global_driver) {
    struct launch launch = {.program = PROGRAM("doors_lookup"), .args = {"scopes", "global"}};
    struct run *traced = run_program(&launch);
    launch.plain = true;
    struct run *plain = run_program(&launch);
    run_must_succeed(plain);
    run_must_succeed(traced);
    cr_assert(strstr(traced->out, "program \"cuMemAlloc_v2\": libcuheap.so:cuMemAlloc_v2 | "));
    compare_answers(plain->out, traced->out);
    run_free(plain);
    run_free(traced);
}

/* ---- a driver that lacks a watched function ---- */

struct older_driver {
    char path[96];
    char lacks[24];
};

static struct older_driver older_drivers[] = {
    {BUILD_SIMGPU "/v1", "cuGetProcAddress_v2"},
    {BUILD_SIMGPU "/v0", "cuGetProcAddress_v2"},
    {BUILD_SIMGPU "/v0", "cuGetProcAddress"},
};

ParameterizedTestParameters(doors, what_the_driver_lacks_is_not_there) {
    return cr_make_param_array(struct older_driver, older_drivers,
                               sizeof older_drivers / sizeof *older_drivers);
}

ParameterizedTest(struct older_driver *d, doors, what_the_driver_lacks_is_not_there) {
    static const char *const scopes[] = {"global", "handle"};
    for (int i = 0; i < 2; i++) {
        char path[128], absent[64], present[96];
        snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", d->path);
        snprintf(absent, sizeof absent, "%s \"%s\": NULL | ", scopes[i], d->lacks);
        snprintf(present, sizeof present, "%s \"cuMemAlloc_v2\": libcuheap.so:cuMemAlloc_v2 | ",
                 scopes[i]);
        struct launch launch = {
            .program = PROGRAM("doors_lookup"), .args = {scopes[i]}, .env = {path}};
        struct run *run = run_program(&launch);
        run_must_succeed(run);
        cr_assert(strstr(run->out, present), "%s", run->out);
        cr_assert(strstr(run->out, absent), "no line %s\n%s", absent, run->out);
        run_free(run);
    }
}

/* ---- errno, and a driver that comes again ---- */

static char quiet_doors[][16] = {"dlsym", "dlvsym", "dlclose", "proc1", "proc2"};

ParameterizedTestParameters(doors, errno_is_kept) {
    return cr_make_param_array(char[16], quiet_doors, sizeof quiet_doors / sizeof *quiet_doors);
}

ParameterizedTest(char *door, doors, errno_is_kept) {
    struct launch launch = {.program = PROGRAM("doors_errno"), .args = {door}};
    struct run *run = run_same_output(launch);
    cr_assert(strstr(run->out, ", errno 77\n"), "%s", run->out);
    run_free(run);
}

Test(doors, a_driver_that_was_closed_and_opened_again) {
    static const char *const times[] = {"0", "1", "6"};
    for (int i = 0; i < 3; i++) {
        struct launch launch = {.program = PROGRAM("doors_reopened"), .args = {times[i]}};
        struct run *run = run_same_output(launch);
        char unloaded[32];
        snprintf(unloaded, sizeof unloaded, "unloaded %s times\n", times[i]);
        cr_assert(strstr(run->out, unloaded), "%s", run->out);
        json_t *report = cuheap_json("report", run_trace(run));
        books_must_match(run, report, "programs/doors_reopened.c");
        cr_assert(json_is_string(json_at(report, "processes.0.devices.0.uuid")));
        json_decref(report);
        run_free(run);
    }
}

/* ---- the answers themselves, not only their likeness to the plain ones ---- */

struct answer {
    char door[16];
    char line[96];
};

static struct answer answers[] = {
    {"handle", "\"cuMemAlloc_v2\": libcuheap.so:cuMemAlloc_v2 | no error | said once"},
    {"handle", "\"cuGetProcAddress\": libcuheap.so:cuGetProcAddress | no error | said once"},
    {"handle", "\"cuInit\": libcuda.so.1:cuInit | no error | said once"},
    {"handle", "\"cuMemAlloc\": libcuda.so.1:cuMemAlloc | no error | said once"},
    {"handle", "\"cudnnCreate\": NULL | "},
    {"handle", "\"cuFutureThing\": NULL | "},
    {"proc1", "\"cuMemAlloc\" 2000 0: code 0, status -1, libcuda.so.1:cuMemAlloc\n"},
    {"proc1", "\"cuMemAlloc\" 3020 0: code 0, status -1, libcuheap.so:cuMemAlloc_v2\n"},
    {"proc1", "\"cuGetProcAddress\" 12000 0: code 0, status -1, libcuheap.so:cuGetProcAddress_v2"},
    {"proc2", "\"cuMemAlloc\" 13000 0: code 0, status 0, libcuheap.so:cuMemAlloc_v2\n"},
    {"proc2", "\"cuMemAllocAsync\" 11020 0: code 0, status 0, libcuheap.so:cuMemAllocAsync\n"},
    {"proc2", "\"cuMemAllocAsync\" 11020 1: code 0, status 0, libcuheap.so:cuMemAllocAsync\n"},
    {"proc2", "\"cuMemAllocAsync\" 11020 2: code 0, status 0, libcuheap.so:cuMemAllocAsync_ptsz\n"},
    {"proc2", "\"cuMemFreeAsync\" 12000 2: code 0, status 0, libcuheap.so:cuMemFreeAsync_ptsz\n"},
    {"proc2", "\"cuCtxCreate\" 2000 0: code 0, status 0, libcuheap.so:cuCtxCreate\n"},
    {"proc2", "\"cuCtxCreate\" 3020 0: code 0, status 0, libcuheap.so:cuCtxCreate_v2\n"},
    {"proc2", "\"cuCtxCreate\" 11040 0: code 0, status 0, libcuheap.so:cuCtxCreate_v3\n"},
    {"proc2", "\"cuCtxCreate\" 12050 0: code 0, status 0, libcuheap.so:cuCtxCreate_v4\n"},
    {"proc2", "\"cuGetProcAddress\" 11030 0: code 0, status 0, libcuheap.so:cuGetProcAddress\n"},
    {"proc2", "\"cuGetProcAddress\" 12000 0: code 0, status 0, libcuheap.so:cuGetProcAddress_v2\n"},
    {"proc2", "\"cuFutureThing\" 13000 0: code 0, status 1, NULL\n"},
    {"itself", "v1 libcuheap.so:cuGetProcAddress\n"},
    {"itself", "v2 libcuheap.so:cuGetProcAddress_v2\n"},
};

ParameterizedTestParameters(doors, answer) {
    return cr_make_param_array(struct answer, answers, sizeof answers / sizeof *answers);
}

ParameterizedTest(struct answer *a, doors, answer) {
    struct run *run = look_up(a->door, false);
    cr_assert(strstr(run->out, a->line), "%s: not found: %s\n%s", a->door, a->line, run->out);
    run_free(run);
}

/* ---- whichever door, the same books ---- */

static char doors[][16] = {"handle", "global", "default", "proc1", "proc2"};

ParameterizedTestParameters(doors, same_books) {
    return cr_make_param_array(char[16], doors, sizeof doors / sizeof *doors);
}

ParameterizedTest(char *door, doors, same_books) {
    struct run *run =
        run_program(&(struct launch){.program = PROGRAM("doors_books"), .args = {door}});
    run_must_succeed(run);
    json_t *report = cuheap_json("report", run_trace(run));
    books_must_match(run, report, "programs/doors_books.c");
    json_decref(report);
    run_free(run);
}

/* A driver that looks itself up and calls through its own exports gets its own, as on WSL. */
Test(doors, the_driver_finds_itself) {
    static const char *const list[] = {"handle", "global", "proc2"};
    for (int i = 0; i < 3; i++) {
        struct run *run = run_program(&(struct launch){
            .program = PROGRAM("doors_books"), .args = {list[i]}, .env = {"SIMGPU_SELF_LOOKUP=1"}});
        run_must_succeed(run);
        cr_assert(strstr(run->out, "the driver found itself: 1\n"), "%s", run->out);
        json_t *report = cuheap_json("report", run_trace(run));
        books_must_match(run, report, "programs/doors_books.c");
        json_decref(report);
        run_free(run);
    }
}

Test(doors, an_extension_loaded_locally_with_plain_linkage) {
    struct launch launch = {.program = PROGRAM("doors_extension"),
                            .args = {PROGRAM("extension.so")}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert(strstr(run->out, "found in the default scope: yes, dlerror none\n"));
    json_t *report = cuheap_json("report", run_trace(run));
    books_must_match(run, report, "programs/lib_extension.c");
    json_decref(report);
    run_free(run);
}

/* The static runtime is in books_runtime. */
Test(doors, the_shared_runtime) {
    struct launch launch = {.program = PROGRAM("doors_extension"),
                            .args = {PROGRAM("shared_runtime.so")}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    json_t *report = cuheap_json("report", run_trace(run));
    books_must_match(run, report, "programs/lib_shared_runtime.c");
    json_decref(report);
    run_free(run);
}

Test(doors, without_any_driver_a_call_says_stub) {
    struct launch launch = {.program = PROGRAM("doors_weak"), .no_driver = true};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "cuInit absent\n"
                               "cuMemAlloc_v2 34\n"
                               "cuMemFree_v2 34\n"
                               "cuMemHostAlloc 34\n"
                               "cuCtxCreate_v4 34\n"
                               "cuGetProcAddress_v2 34\n"
                               "outputs untouched\n"
                               "dlerror none\n");
    cr_assert_eq(run->trace_count, 0);
    run_free(run);
}

Test(doors, names_that_only_begin_like_the_drivers) {
    struct launch launch = {.program = PROGRAM("doors_cudnn"), .args = {PROGRAM("cudnn.so")}};
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "cudnnCreate 1 no error\n"
                               "cublasCreate_v2 2 no error\n"
                               "curl_easy_init 3 no error\n"
                               "cudaMalloc 4 no error\n");
    run_free(run);
}

/* ---- others who interpose ---- */

#define CHAIN PROGRAM("next_a.so") ":" PROGRAM("next_b.so")

Test(doors, rtld_next_of_others_is_theirs) {
    struct launch launches[] = {
        {.program = PROGRAM("doors_next"), .preload_front = CHAIN},
        {.program = PROGRAM("doors_next"), .preload_behind = CHAIN},
        {.program = PROGRAM("doors_next"),
         .preload_front = PROGRAM("next_a.so"),
         .preload_behind = PROGRAM("next_b.so")},
    };
    for (int i = 0; i < 3; i++) {
        struct run *run = run_program(&launches[i]);
        run_must_succeed(run);
        /* The third question finds the function's own count used up. */
        cr_assert_str_eq(run->out, "answered by the second library\n"
                                   "answered by the second library\n"
                                   "answered by itself\n"
                                   "open: the same twice\n");
        run_free(run);
    }
}

struct interposer {
    char library[96];
    bool front;
    char program[32];
    char door[16];
    char says[96];
};

static struct interposer interposers[] = {
    {PROGRAM("behind.so"), true, "books_driver", "",
     "the other interposer saw 5 allocations, 5 frees\n"},
    {PROGRAM("behind.so"), false, "books_driver", "",
     "the other interposer saw 5 allocations, 5 frees\n"},
    {PROGRAM("limiter.so"), true, "books_driver", "", "the limiter saw 5 allocations, 5 frees\n"},
    {PROGRAM("limiter.so"), false, "books_driver", "", "the limiter saw 5 allocations, 5 frees\n"},
    {PROGRAM("limiter.so"), true, "doors_books", "handle",
     "the limiter saw 3 allocations, 1 frees\n"},
    {PROGRAM("limiter.so"), false, "doors_books", "handle",
     "the limiter saw 3 allocations, 1 frees\n"},
    {PROGRAM("limiter.so"), true, "doors_books", "default",
     "the limiter saw 3 allocations, 1 frees\n"},
    {PROGRAM("limiter.so"), false, "doors_books", "default",
     "the limiter saw 3 allocations, 1 frees\n"},
};

ParameterizedTestParameters(doors, another_interposer_keeps_its_place) {
    return cr_make_param_array(struct interposer, interposers,
                               sizeof interposers / sizeof *interposers);
}

ParameterizedTest(struct interposer *i, doors, another_interposer_keeps_its_place) {
    char program[160], source[80];
    snprintf(program, sizeof program, PROGRAM("%s"), i->program);
    snprintf(source, sizeof source, "programs/%s.c", i->program);
    struct launch launch = {.program = program};
    if (i->door[0])
        launch.args[0] = i->door;
    *(i->front ? &launch.preload_front : &launch.preload_behind) = i->library;
    struct run *run = run_program(&launch);
    run_must_succeed(run);
    cr_assert(strstr(run->out, i->says), "%s", run->out);
    json_t *report = cuheap_json("report", run_trace(run));
    books_must_match(run, report, source);
    json_decref(report);
    run_free(run);
}

/* ---- the driver's side ---- */

static const char *const own_calls[] = {
    "cuCtxGetCurrent", "cuCtxGetDevice",      "cuDriverGetVersion",    "cuDeviceGetName",
    "cuDeviceGetUuid", "cuDeviceTotalMem_v2", "cuMemPoolGetAttribute", "cuMemGetInfo_v2",
};
#define OWN_CALLS (sizeof own_calls / sizeof *own_calls)

static unsigned count_and_remove(char *lines, const char *name) {
    unsigned count = 0;
    size_t length = strlen(name);
    for (char *line = lines; *line;) {
        char *next = strchrnul(line, '\n');
        if ((size_t)(next - line) == length && !memcmp(line, name, length)) {
            memmove(line, next + 1, strlen(next + 1) + 1);
            count++;
        } else {
            line = next + 1;
        }
    }
    return count;
}

Test(doors, the_driver_is_called_as_it_would_be) {
    struct launch launch = {.program = PROGRAM("doors_calls"), .env = {"SIMGPU_DEVICES=2"}};
    struct run *traced = run_program(&launch);
    launch.plain = true;
    struct run *plain = run_program(&launch);
    run_must_succeed(traced);
    run_must_succeed(plain);
    unsigned counts[OWN_CALLS];
    for (unsigned i = 0; i < OWN_CALLS; i++)
        counts[i] = count_and_remove(traced->out, own_calls[i]);
    cr_assert_str_eq(traced->out, plain->out);
    /* 11 allocation calls a device, 10 of them successful; the rest once a device or a process. */
    cr_assert_leq(counts[0], 22);
    cr_assert_leq(counts[1], 22);
    cr_assert_leq(counts[2], 1);
    /* Out of memory twice: one pool is known the first time, two are the second. */
    cr_assert_leq(counts[6], 3);
    cr_assert_eq(counts[7], 2);
    for (unsigned i = 3; i < 6; i++)
        cr_assert_leq(counts[i], 2, "%s: %u calls on two devices", own_calls[i], counts[i]);
    run_free(plain);
    run_free(traced);
}

/* Line by line as a real driver answered, with the library as without. */
Test(doors, the_driver_answers_as_a_real_one) {
    FILE *file = fopen("tests/simgpu/conformance.txt", "re");
    cr_assert(file, "to be run from the folder of the sources");
    static char expected[1 << 17];
    size_t bytes = fread(expected, 1, sizeof expected - 1, file);
    fclose(file);
    cr_assert(bytes > 10000 && bytes < sizeof expected - 1, "%zu bytes", bytes);
    for (int plain = 1; plain >= 0; plain--) {
        struct launch launch = {.program = BUILD_SIMGPU "/conformance", .plain = plain};
        struct run *run = run_program(&launch);
        run_must_succeed(run);
        cr_assert_str_eq(run->out, expected, "%s", plain ? "without the library" : "with it");
        cr_assert(plain ? run->trace_count == 0 : run->trace_count > 1);
        run_free(run);
    }
}
