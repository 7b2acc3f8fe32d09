/*
 * Who is to blame. See blame.h; no state.
 */
#include "blame.h"

#include "code_owner.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

/* ---- CUDA ------------------------------------------------------------------------------------ */

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* cuMemAlloc_v2, cudaMalloc; not cudnnCreate, cublasCreate or custom(). */
static bool is_cuda_call(const struct frame *frame) {
    const char *name = frame->function;
    if (!name || frame->python || name[0] != 'c' || name[1] != 'u')
        return false;
    name += starts_with(name, "cuda") ? 4 : 2;
    return *name >= 'A' && *name <= 'Z';
}

static bool is_cuheap(const struct frame *frame) {
    return (frame->module_flags & TRACE_MODULE_CUHEAP) ||
           (frame->module && strcmp(text_basename(frame->module), "libcuheap.so") == 0);
}

/* Code of the driver or the runtime; a runtime linked in statically shows by its inner names. */
static bool is_cuda_code(const struct frame *frame) {
    static const char *const inner[] = {"libcudart_static_", "cudart::", "__cuda"};
    if (frame->module_flags & TRACE_MODULE_DRIVER)
        return true;
    const char *module = frame->module ? text_basename(frame->module) : "";
    if (starts_with(module, "libcuda.so") || starts_with(module, "libcudart.so") ||
        starts_with(module, "libcudart-"))
        return true;
    for (size_t i = 0; frame->function && i < sizeof inner / sizeof *inner; i++)
        if (starts_with(frame->function, inner[i]))
            return true;
    return is_cuda_call(frame);
}

/* A static runtime is mostly stripped of names: frames without a line that lead, within their own
   module, up to a call cuda...() belong to it. */
#define RUNTIME_DEPTH 8
static bool leads_to_runtime_call(const struct backtrace *backtrace, unsigned index) {
    const struct frame *first = backtrace->frames[index];
    for (unsigned i = index; i < backtrace->count && i < index + RUNTIME_DEPTH; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (frame->module != first->module || frame->python)
            return false;
        if (is_cuda_call(frame))
            return true;
        if (frame->file)
            return false;
    }
    return false;
}

static bool is_cuda(const struct backtrace *backtrace, unsigned index) {
    const struct frame *frame = backtrace->frames[index];
    return is_cuheap(frame) || is_cuda_code(frame) || leads_to_runtime_call(backtrace, index);
}

/* The name of the call is a label, not the blame: the first cu...() outside libcuheap, which for a
   program that calls the driver directly is known by our wrapper alone. */
const char *blame_cuda_call(const struct backtrace *backtrace, unsigned blame) {
    const char *wrapper = NULL;
    for (unsigned i = 0; i < backtrace->count; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (is_cuheap(frame)) {
            if (!wrapper && is_cuda_call(frame))
                wrapper = frame->function;
        } else if (is_cuda_call(frame))
            return frame->function;
        else if (i >= blame)
            break;
    }
    return wrapper;
}

/* ---- Python ---------------------------------------------------------------------------------- */

static enum code_owner owner_of_python(const struct frame *frame) {
    return frame->file ? code_owner_of_python(frame->file) : OWNER_GENERATED;
}

/* The file of the script that was run, be it a framework's own or a text after "python -c". */
static const char *script_of(const struct backtrace *backtrace) {
    for (unsigned i = backtrace->count; i-- > 0;) {
        const struct frame *frame = backtrace->frames[i];
        if (frame->python && frame->function && strcmp(frame->function, "<module>") == 0)
            return frame->file;
    }
    return NULL;
}

/* False: the stack has no Python frames. */
static bool find_python(const struct backtrace *backtrace, struct blame *blame) {
    const char *script = script_of(backtrace);
    unsigned none = backtrace->count, innermost = none, in_script = none;
    for (unsigned i = 0; i < backtrace->count; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (!frame->python)
            continue;
        if (owner_of_python(frame) == OWNER_PROGRAM) {
            *blame = (struct blame){.index = i, .own = true};
            return true;
        }
        if (innermost == none)
            innermost = i;
        if (in_script == none && script && frame->file && strcmp(frame->file, script) == 0)
            in_script = i;
    }
    bool own = in_script < none;
    *blame = (struct blame){.index = own ? in_script : innermost, .own = own};
    return innermost < none;
}

/* ---- native ---------------------------------------------------------------------------------- */

static enum code_owner owner_of_native(const struct frame *frame) {
    if (frame->module_flags & TRACE_MODULE_PYTHON)
        return OWNER_INTERPRETER;
    return frame->module ? code_owner_of_library(frame->module) : OWNER_PROGRAM;
}

static bool begins_with_one(const char *text, const char *const *prefixes) {
    for (; text && *prefixes; prefixes++)
        if (starts_with(text, *prefixes))
            return true;
    return false;
}

/* PyTorch's code in a library of the program: its headers have much of it. */
static bool is_torch_function(const struct frame *frame) {
    static const char *const names[] = {"at::", "c10::", "torch::", NULL};
    return begins_with_one(frame->function, names);
}

/* Who hands out memory for others. */
static bool is_allocator(const struct frame *frame) {
    static const char *const names[] = {
        "c10::",           "std::",           "at::detail::empty", "at::empty",
        "at::_ops::empty", "tsl::BFC",        "at::native::empty", "at::TensorIteratorBase::",
        "rmm::",           "tensorflow::BFC", "stream_executor::", NULL};
    const char *library = frame->module ? text_basename(frame->module) : "";
    return starts_with(library, "libc10") || begins_with_one(frame->function, names);
}

/* A node is an object whose apply() Node::operator() calls. */
static bool is_node(const struct backtrace *backtrace, unsigned index) {
    const char *name = backtrace->frames[index]->function;
    if (!name || !strstr(name, "::apply("))
        return false;
    const char *caller =
        index + 1 < backtrace->count ? backtrace->frames[index + 1]->function : NULL;
    return starts_with(name, "torch::autograd::generated::") ||
           (caller && starts_with(caller, "torch::autograd::Node::operator()("));
}

/* An operator's entry, through which each call of it passes. */
static const char *operator_end(const char *function) {
    const char *end = NULL;
    if (function && starts_with(function, "at::_ops::")) {
        end = strstr(function, "::call(");
        end = end ? end : strstr(function, "::redispatch(");
    }
    return end;
}

char *blame_short_name(const struct frame *frame, char *out, size_t size) {
    static const char adapter[] = "CppNode<"; /* around the class that the program has written */
    const char *end = operator_end(frame->function), *begin = frame->function;
    end = end ? end : strstr(frame->function, "::apply(");
    int depth = 0;
    for (const char *at = begin; at < end; at++) {
        depth += (*at == '<') - (*at == '>');
        if (depth == 0 && at[0] == ':' && at[1] == ':' && at + 2 < end)
            begin = at + 2;
    }
    if (starts_with(begin, adapter) && end[-1] == '>') {
        begin += sizeof adapter - 1;
        end--;
    }
    snprintf(out, size, "%.*s", (int)(end - begin), begin);
    return out;
}

static struct blame find_native(const struct backtrace *backtrace) {
    unsigned none = backtrace->count, node = none, operation = none, in_framework = none;
    unsigned other = none;
    bool framework = false;
    for (unsigned i = 0; i < backtrace->count; i++)
        framework |= owner_of_native(backtrace->frames[i]) == OWNER_FRAMEWORK;
    for (unsigned i = 0; i < backtrace->count; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (is_cuda(backtrace, i))
            continue;
        enum code_owner owner = owner_of_native(frame);
        if (owner == OWNER_PROGRAM && framework && is_torch_function(frame))
            owner = OWNER_FRAMEWORK;
        if (owner == OWNER_PROGRAM)
            return (struct blame){.index = i, .own = true};
        if (node == none && is_node(backtrace, i))
            node = i;
        if (operator_end(frame->function))
            operation = i; /* the outermost: what was asked for, not how it is done */
        if (in_framework == none && owner == OWNER_FRAMEWORK && !is_allocator(frame))
            in_framework = i;
        if (other == none)
            other = i;
    }
    bool named = node < none || operation < none;
    return (struct blame){.index = node < none           ? node
                                   : operation < none    ? operation
                                   : in_framework < none ? in_framework
                                                         : other,
                          .short_name = named};
}

struct blame blame_find(const struct backtrace *backtrace) {
    struct blame blame;
    return find_python(backtrace, &blame) ? blame : find_native(backtrace);
}
