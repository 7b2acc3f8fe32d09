/*
 * Frameworks that hand out memory themselves: whose pool a block is, which settings show its
 * inside, what a report says of it and what it never says.
 */
#include "frameworks.h"
#include "render.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XLA "/v/jax_plugins/xla_cuda13/xla_cuda_plugin.so"

static struct trace_builder *builder;

static void set_up(void) {
    builder = builder_new();
}

static void tear_down(void) {
    builder_free(builder);
}

TestSuite(frameworks, .init = set_up, .fini = tear_down);

static void set_environment(const char *variable) {
    strcpy(builder->header->environment, "RANK=0");
    strcpy(builder->header->environment + 7, variable);
}

Test(frameworks, says_where_silent_tensors_are) {
    static const struct {
        const char *variable;
        const char *expected;
    } cases[] = {
        {"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "backend:cudaMallocAsync"},
        {"PYTORCH_ALLOC_CONF=a:1, backend: cudaMallocAsync,b:2", "backend:cudaMallocAsync"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING=0", "PYTORCH_NO_CUDA_MEMORY_CACHING"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING=", "PYTORCH_NO_CUDA_MEMORY_CACHING"},
        {"PYTORCH_CUDA_ALLOC_CONF=backend:native", NULL},
        {"PYTORCH_CUDA_ALLOC_CONF=xbackend:cudaMallocAsync", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        builder->header->features = 0;
        set_environment(cases[i].variable);
        struct trace *one = builder_open(builder);
        const char *said = framework_silent_tensors(one);
        cr_expect((said != NULL) == (cases[i].expected != NULL), "%s", cases[i].variable);
        cr_expect(!said || strstr(said, cases[i].expected), "%s", said);
        trace_close(one);
        builder->header->features = TRACE_FEATURE_TENSORS;
        one = builder_open(builder);
        cr_expect_null(framework_silent_tensors(one), "a tensor was reported");
        trace_close(one);
    }
}

/* The owner of a block taken through these modules, innermost first. */
static const char *owner_of(const char *const modules[3], const char *variable) {
    struct frame frames[3] = {0};
    const struct frame *list[] = {&frames[0], &frames[1], &frames[2]};
    struct backtrace backtrace = {.frames = list, .count = 3};
    for (int i = 0; i < 3; i++)
        frames[i].module = modules[i];
    set_environment(variable);
    struct trace *one = builder_open(builder);
    const struct framework_pool *pool = framework_pool_of(one, &backtrace);
    trace_close(one);
    return pool ? pool->name : NULL;
}

Test(frameworks, knows_pools_by_the_library_that_called) {
    static const struct {
        const char *modules[3];
        const char *variable;
        const char *owner;
    } cases[] = {
        {{NULL, XLA, "/usr/bin/python3"}, "A=b", "JAX"},
        {{XLA}, "XLA_PYTHON_CLIENT_ALLOCATOR=default", "JAX"},
        {{XLA}, "XLA_PYTHON_CLIENT_ALLOCATOR=platform", NULL},
        {{XLA}, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", NULL},
        {{XLA}, "XLA_PYTHON_CLIENT_PREALLOCATE=false", "JAX"},
        {{"/v/tensorflow/libtensorflow_framework.so.2"}, "A=b", "TensorFlow"},
        {{"/v/tensorflow/libtensorflow_framework.so.2"}, "TF_GPU_ALLOCATOR=cuda_malloc", NULL},
        {{"/v/tensorflow/libtensorflow_cc.so.2"}, "TF_GPU_ALLOCATOR=cuda_malloc_async", NULL},
        {{"/v/lib/libcudart.so.13", "/v/lib/librmm.so"}, "A=b", "RMM"},
        {{"/v/rmm/pylibrmm/memory_resource.cpython-312-x86_64-linux-gnu.so"}, "A=b", "RMM"},
        {{"/v/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so",
          "/v/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so"},
         "A=b",
         "CuPy"},
        /* What another library takes for itself is not the pool of the framework that calls it. */
        {{"/v/nvidia/cublas/lib/libcublas.so.13", XLA}, "A=b", NULL},
        {{"/v/torch/lib/libc10_cuda.so", XLA}, "A=b", NULL},
        {{"/home/u/tensorflow/benchmarks/run"}, "A=b", NULL},
        {{"/v/lib/libcudart.so.13", "/usr/lib/libcuda.so.1", NULL}, "A=b", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *owner = owner_of(cases[i].modules, cases[i].variable);
        cr_expect((owner != NULL) == (cases[i].owner != NULL), "case %zu: %s", i, owner);
        cr_expect(!owner || !cases[i].owner || !strcmp(owner, cases[i].owner), "case %zu: %s", i,
                  owner);
    }
}

Test(frameworks, what_makes_a_pool_visible_is_what_see_through_sets) {
    for (size_t i = 0; i < framework_pool_count; i++) {
        const struct framework_pool *pool = &framework_pools[i];
        const struct framework_setting *s = framework_see_through;
        while (pool->variable && s->name && strcmp(s->name, pool->variable) != 0)
            s++;
        cr_expect(!pool->variable || (s->name && !strcmp(s->value, pool->values[0])), "%s",
                  pool->name);
    }
}

Test(frameworks, see_through_leaves_what_the_user_has_set) {
    char *said = NULL;
    size_t size;
    FILE *out = open_memstream(&said, &size);
    unsetenv("XLA_PYTHON_CLIENT_ALLOCATOR");
    setenv("TF_GPU_ALLOCATOR", "mine\033[1m", 1);
    framework_set_see_through(out);
    fclose(out);
    cr_expect_str_eq(getenv("XLA_PYTHON_CLIENT_ALLOCATOR"), "platform");
    cr_expect_str_eq(getenv("TF_GPU_ALLOCATOR"), "mine\033[1m");
    cr_expect(strstr(said, "XLA_PYTHON_CLIENT_ALLOCATOR=platform"), "%s", said);
    cr_expect(strstr(said, "TF_GPU_ALLOCATOR left at mine\\x1b[1m"), "%s", said);
    cr_expect(strstr(said, "; no variable shows the inside of the pools of RMM, CuPy\n"), "%s",
              said);
    cr_expect_eq(strchr(said, '\n'), said + size - 1, "one line");
    free(said);
}

/* ---- in a report ------------------------------------------------------------------------------
 */

#define WINDOW_NS (1ull << TRACE_WINDOW_SHIFT_MIN)

/* A site in the library that grows in each of 20 windows, 100 bytes in 2 blocks at a time. */
static void grow(const char *library) {
    struct trace_total *total = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    builder_device(builder, 0, 0xaa, "GPU A", 1ull << 34);
    builder_module(builder, library, 0x1000, 0x2000, 0x1000);
    site->native_stack = builder_native_stack(builder, (uint64_t[]){0x1500}, 1);
    site->window_shift = total->window_shift = TRACE_WINDOW_SHIFT_MIN;
    site->window_current = total->window_current = 22;
    for (unsigned i = 3; i <= 22; i++) {
        site->windows[i] =
            (struct trace_window){100ull * (i - 3), 100ull * (i - 2), 100ull * (i - 2), 2, 0};
        total->windows[i] = site->windows[i];
    }
    site->first_ns = total->first_ns = 3 * WINDOW_NS + 1;
    site->last_ns = total->last_ns = 22 * WINDOW_NS + 9;
    total->last_alloc_ns = 22 * WINDOW_NS + 5;
    site->alloc_bytes = total->peak_bytes = 2000;
    builder_book_slot(builder, site, 2000);
    site->allocs = total->allocs = 1;
    builder->header->sealed_ns = 23 * WINDOW_NS;
}

/* What the report prints of the built trace. The caller frees. */
static char *report(bool (*render)(const struct report *report, FILE *out)) {
    struct trace_error error = {0};
    struct job job;
    struct view view;
    struct findings findings;
    char path[64], *paths[] = {path}, *text = NULL;
    size_t size;
    snprintf(path, sizeof path, "/tmp/cuheap-frameworks-%d.trace", (int)getpid());
    builder_write(builder, path);
    bool loaded = job_load(&job, "report", paths, 1, NULL, &error);
    unlink(path);
    cr_assert(loaded, "%s", error.text);
    struct symbols *symbols = symbols_open(false);
    struct backtraces *backtraces = backtraces_open(symbols);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){0}));
    cr_assert(findings_build(&view, backtraces, &findings));
    struct report all = {.job = &job,
                         .view = &view,
                         .findings = &findings,
                         .parts = PART_PEAK | PART_LEAKS | PART_REST,
                         .by = BY_LINE,
                         .top = 10,
                         .width = 1000};
    FILE *out = open_memstream(&text, &size);
    cr_assert(render(&all, out));
    fclose(out);
    findings_free(&findings);
    view_free(&view);
    backtraces_close(backtraces);
    symbols_close(symbols);
    job_close(&job);
    return text;
}

static void must_be_opaque(const char *owner, const char *end) {
    char expected[512];
    char *table = report(render_table), *json = report(render_json);
    snprintf(expected, sizeof expected, "%s held 2.0 KiB at end of work%s", owner, end);
    cr_expect(strstr(table, expected), "%s\n%s", expected, table);
    cr_expect_not(strstr(table, "GROWING"), "%s", table);
    snprintf(expected, sizeof expected, "pool of %s\n", owner);
    cr_expect(strstr(table, expected), "%s", table);
    json_t *root = json_loads(json, 0, NULL);
    json_t *site = json_array_get(json_object_get(root, "sites"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(site, "cache_of")), owner);
    cr_expect_str_eq(json_string_value(json_object_get(site, "class")), "cannot_tell");
    json_decref(root);
    free(table);
    free(json);
}

#define VARIABLE(setting)                                                                          \
    " as its pool: what lies inside is not seen, and whether it leaks is not known; " setting      \
    " shows it (cuheap run --see-through sets it)\n"
#define NO_VARIABLE(remedy)                                                                        \
    ", as its pool unless the program has turned that off: what lies inside is not seen, and "     \
    "whether it leaks is not known; it is turned off by " remedy " in the program\n"

Test(frameworks, of_jax_no_verdict) {
    grow(XLA);
    must_be_opaque("JAX", VARIABLE("XLA_PYTHON_CLIENT_ALLOCATOR=platform"));
}

Test(frameworks, of_tensorflow_no_verdict) {
    grow("/v/tensorflow/libtensorflow_framework.so.2");
    must_be_opaque("TensorFlow", VARIABLE("TF_GPU_ALLOCATOR=cuda_malloc_async"));
}

Test(frameworks, of_cupy_no_verdict) {
    grow("/v/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so");
    must_be_opaque("CuPy", NO_VARIABLE("cupy.cuda.set_allocator(None)"));
}

Test(frameworks, of_rmm_no_verdict) {
    grow("/v/lib/librmm.so");
    must_be_opaque("RMM", NO_VARIABLE("rmm.reinitialize(pool_allocator=False)"));
}

/* With the setting, what grows in JAX is its buffers, and a leak is called one. */
Test(frameworks, made_visible_are_judged) {
    grow(XLA);
    set_environment("XLA_PYTHON_CLIENT_ALLOCATOR=platform");
    char *table = report(render_table);
    cr_expect(strstr(table, "GROWING"), "%s", table);
    cr_expect_not(strstr(table, "pool"), "%s", table);
    free(table);
}
