/*
 * Code, pools and settings of frameworks. See frameworks.h; no state.
 *
 * The variables are those of the frameworks' own documentation; CuPy and RMM have none.
 */
#include "frameworks.h"

#include "text.h"

#include <stdlib.h>
#include <string.h>

/* Native libraries: how a file's name begins, or folders of its path. */
static const char *const torch[] = {"libtorch",  "libc10",      "/torch/lib/",
                                    "/torch/_C", "/functorch/", NULL};
static const char *const tensorflow[] = {"libtensorflow", "_pywrap_tensorflow", "/tensorflow/",
                                         NULL};
static const char *const xla[] = {"xla_cuda", "/jaxlib/", "pjrt_c_api_gpu", NULL};
static const char *const rmm[] = {"librmm", "/pylibrmm/", NULL};
static const char *const cupy[] = {"/cupy/", "/cupy_backends/", NULL};
static const char *const numba[] = {"/numba/", "/numba_cuda/", "/llvmlite/", NULL};
static const char *const triton[] = {"/triton/", NULL};

/* Models and training loops that are installed as packages are not among them: their lines tell
   more than the one that called them. */
static const struct framework {
    const char *const *libraries;
    const char *packages[8]; /* of Python, below site-packages or dist-packages */
} frameworks[] = {
    {torch, {"torch", "functorch"}},
    {xla, {"jax", "jaxlib", "jax_plugins", "flax", "optax"}},
    {tensorflow, {"tensorflow", "keras", "tf_keras"}},
    {cupy, {"cupy", "cupy_backends", "cupyx"}},
    {rmm, {"rmm"}},
    {numba, {"numba", "numba_cuda", "llvmlite"}},
    {triton, {"triton"}},
};

static const char *const tensorflow_values[] = {"cuda_malloc_async", "cuda_malloc", NULL};
static const char *const xla_values[] = {"platform", "cuda_async", NULL};

const struct framework_pool framework_pools[] = {
    {"TensorFlow", tensorflow, "TF_GPU_ALLOCATOR", tensorflow_values,
     "TF_GPU_ALLOCATOR=cuda_malloc_async"},
    {"JAX", xla, "XLA_PYTHON_CLIENT_ALLOCATOR", xla_values, "XLA_PYTHON_CLIENT_ALLOCATOR=platform"},
    {"RMM", rmm, NULL, NULL, "rmm.reinitialize(pool_allocator=False) in the program"},
    {"CuPy", cupy, NULL, NULL, "cupy.cuda.set_allocator(None) in the program"},
};
const size_t framework_pool_count = sizeof framework_pools / sizeof *framework_pools;

const struct framework_setting framework_see_through[] = {
    {"TF_GPU_ALLOCATOR", "cuda_malloc_async"},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true"},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "platform"},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false"},
    {NULL, NULL},
};

void framework_set_see_through(FILE *messages) {
    const char *separator = "cuheap: set for --see-through: ";
    for (const struct framework_setting *s = framework_see_through; s->name; s++) {
        const char *value = getenv(s->name);
        char clean[128];
        if (value)
            fprintf(messages, "%s%s left at %s", separator, s->name,
                    text_clean(clean, sizeof clean, value));
        else
            fprintf(messages, "%s%s=%s", separator, s->name, s->value);
        setenv(s->name, s->value, 0);
        separator = ", ";
    }
    separator = "; no variable shows the inside of the pools of ";
    for (size_t i = 0; i < framework_pool_count; i++) {
        if (framework_pools[i].variable)
            continue;
        fprintf(messages, "%s%s", separator, framework_pools[i].name);
        separator = ", ";
    }
    fputc('\n', messages);
}

/* ---- the environment of the traced process --------------------------------------------------- */

const char *framework_variable(const struct trace *trace, const char *name) {
    const struct trace_header *header = trace_get_header(trace);
    const char *at = header->environment, *end = at + sizeof header->environment;
    size_t length = strlen(name);
    while (at < end && *at) {
        size_t bytes = strnlen(at, (size_t)(end - at));
        if (bytes > length && memcmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
        at += bytes + 1;
    }
    return NULL;
}

/* Whether "key:value" stands in PyTorch's comma-separated settings; blanks do not matter there. */
static bool has_allocator_setting(const struct trace *trace, const char *setting) {
    static const char *const variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = framework_variable(trace, variables[i]);
        char plain[2048];
        size_t used = 0;
        for (; value && *value && used + 1 < sizeof plain; value++)
            if (*value != ' ')
                plain[used++] = *value;
        plain[used] = '\0';
        for (const char *word = plain; *word; word += *word == ',') {
            size_t length = strcspn(word, ",");
            if (length == strlen(setting) && strncmp(word, setting, length) == 0)
                return true;
            word += length;
        }
    }
    return false;
}

const char *framework_silent_tensors(const struct trace *trace) {
    if (trace_get_header(trace)->features & TRACE_FEATURE_TENSORS)
        return NULL;
    if (has_allocator_setting(trace, "backend:cudaMallocAsync"))
        return "PyTorch's backend:cudaMallocAsync takes each from the driver's pool (kind pool)";
    if (framework_variable(trace, "PYTORCH_NO_CUDA_MEMORY_CACHING"))
        return "with PYTORCH_NO_CUDA_MEMORY_CACHING each is a block of its own (kind device)";
    return NULL;
}

bool framework_expandable_segments(const struct trace *trace) {
    return has_allocator_setting(trace, "expandable_segments:True");
}

/* ---- whose code it is ------------------------------------------------------------------------ */

static bool is_one_of(const char *path, const char *const *libraries) {
    const char *name = text_basename(path);
    for (; *libraries; libraries++)
        if (**libraries == '/' ? strstr(path, *libraries) != NULL
                               : strncmp(name, *libraries, strlen(*libraries)) == 0)
            return true;
    return false;
}

bool framework_has_library(const char *path) {
    for (size_t i = 0; i < sizeof frameworks / sizeof *frameworks; i++)
        if (is_one_of(path, frameworks[i].libraries))
            return true;
    return false;
}

bool framework_has_package(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof frameworks / sizeof *frameworks; i++)
        for (const char *const *package = frameworks[i].packages; *package; package++)
            if (strlen(*package) == bytes && memcmp(*package, name, bytes) == 0)
                return true;
    return false;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* The library whose call it was: what stands between it and the driver is passed over. What a
   framework's other libraries (cuBLAS, NCCL) take is theirs, not its pool. A program is none: its
   folder can have any name. */
static const char *calling_library(const struct backtrace *backtrace) {
    static const char *const passed_over[] = {"libcuda.so", "libcudart.so", "libcuheap.so", NULL};
    for (unsigned i = 0; i < backtrace->count; i++) {
        const char *module = backtrace->frames[i]->module;
        if (module && !is_one_of(module, passed_over))
            return strstr(text_basename(module), ".so") ? module : NULL;
    }
    return NULL;
}

static bool shows_inside(const struct framework_pool *pool, const struct trace *trace) {
    const char *set = pool->variable ? framework_variable(trace, pool->variable) : NULL;
    for (const char *const *value = pool->values; set && *value; value++)
        if (strcmp(set, *value) == 0)
            return true;
    return false;
}

const struct framework_pool *framework_pool_of(const struct trace *trace,
                                               const struct backtrace *backtrace) {
    const char *module = calling_library(backtrace);
    for (size_t p = 0; module && p < framework_pool_count; p++)
        if (is_one_of(module, framework_pools[p].modules))
            return shows_inside(&framework_pools[p], trace) ? NULL : &framework_pools[p];
    return NULL;
}
