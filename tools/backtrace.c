/*
 * Resolved stacks, their blame and their identity. See backtrace.h; one thread at a time.
 */
#include "backtrace.h"

#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

struct stack_key {
    const struct trace *trace;
    uint32_t native_stack;
    uint32_t python_stack;
};

struct entry {
    UT_hash_handle hh;
    struct stack_key key;
    struct backtrace backtrace;
    struct frame *python_frames; /* what the tail of backtrace.frames points to */
};

struct backtraces {
    struct symbols *symbols;
    struct entry *entries;
    struct backtrace nothing;
};

struct backtraces *backtraces_open(struct symbols *symbols) {
    struct backtraces *backtraces = calloc(1, sizeof *backtraces);
    if (backtraces)
        backtraces->symbols = symbols;
    return backtraces;
}

static void free_entry(struct entry *entry) {
    free(entry->backtrace.frames);
    free(entry->python_frames);
    free(entry);
}

void backtraces_close(struct backtraces *backtraces) {
    if (!backtraces)
        return;
    struct entry *entry, *next;
    HASH_ITER(hh, backtraces->entries, entry, next) {
        HASH_DEL(backtraces->entries, entry);
        free_entry(entry);
    }
    free(backtraces);
}

/* ---- blame ----------------------------------------------------------------------------------- */

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

/* Python code that came with the interpreter or was installed. */
static bool is_installed_python(const struct frame *frame) {
    const char *file = frame->file;
    return !file || file[0] == '<' || strstr(file, "/site-packages/") ||
           strstr(file, "/dist-packages/") || strstr(file, "/lib/python");
}

static unsigned find_native_blame(const struct backtrace *backtrace) {
    for (unsigned i = 0; i < backtrace->count && !backtrace->frames[i]->python; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (!is_cuheap(frame) && !is_cuda_code(frame) && !leads_to_runtime_call(backtrace, i))
            return i;
    }
    return backtrace->count;
}

static unsigned find_blame(const struct backtrace *backtrace) {
    unsigned python = backtrace->count;
    for (unsigned i = 0; i < backtrace->count; i++) {
        if (!backtrace->frames[i]->python)
            continue;
        if (!is_installed_python(backtrace->frames[i]))
            return i;
        if (python == backtrace->count)
            python = i;
    }
    return python < backtrace->count ? python : find_native_blame(backtrace);
}

/* The name of the call is a label, not the blame: the first cu...() outside libcuheap, which for a
   program that calls the driver directly is known by our wrapper alone. */
static const char *find_label(const struct backtrace *backtrace) {
    const char *wrapper = NULL;
    for (unsigned i = 0; i < backtrace->count; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (is_cuheap(frame)) {
            if (!wrapper && is_cuda_call(frame))
                wrapper = frame->function;
        } else if (is_cuda_call(frame))
            return frame->function;
        else if (i >= backtrace->blame)
            break;
    }
    return wrapper;
}

const struct frame *backtrace_blame(const struct backtrace *backtrace) {
    return backtrace->blame < backtrace->count ? backtrace->frames[backtrace->blame] : NULL;
}

/* ---- resolving ------------------------------------------------------------------------------- */

static uint64_t hash_frame(uint64_t hash, const struct frame *frame) {
    char number[32];
    hash = text_hash(hash, frame->function);
    hash = text_hash(hash, text_basename(frame->file));
    hash = text_hash(hash, text_basename(frame->module));
    snprintf(number, sizeof number, "%u:%" PRIx64, frame->line,
             frame->function ? 0 : frame->offset);
    return text_hash(hash, number);
}

static bool append(struct backtrace *backtrace, const struct frame *frame) {
    unsigned count = backtrace->count;
    if ((count & (count - 1)) == 0) {
        size_t room = count ? 2u * count : 1u;
        const struct frame **grown = realloc(backtrace->frames, room * sizeof *backtrace->frames);
        if (!grown)
            return false;
        backtrace->frames = grown;
    }
    backtrace->frames[count] = frame;
    backtrace->count = count + 1;
    backtrace->hash = hash_frame(backtrace->hash, frame);
    return true;
}

static bool add_native(struct backtraces *backtraces, struct entry *entry) {
    struct trace_native_frames stack =
        trace_native_stack(entry->key.trace, entry->key.native_stack);
    entry->backtrace.flags |= stack.flags;
    for (unsigned i = 0; i < stack.depth; i++) {
        unsigned count;
        const struct frame *frames = symbols_find(backtraces->symbols, entry->key.trace,
                                                  stack.pcs[i], stack.generation, &count);
        for (unsigned f = 0; f < count; f++)
            if (!append(&entry->backtrace, &frames[f]))
                return false;
    }
    return true;
}

static bool add_python(struct backtraces *backtraces, struct entry *entry) {
    const struct trace *trace = entry->key.trace;
    struct trace_python_frames stack = trace_python_stack(trace, entry->key.python_stack);
    entry->backtrace.flags |= stack.flags;
    entry->python_frames = calloc(stack.depth + 1u, sizeof *entry->python_frames);
    if (!entry->python_frames)
        return false;
    for (unsigned i = 0; i < stack.depth; i++) {
        const struct trace_python_place *place = trace_python_place(trace, stack.places[i]);
        struct frame *frame = &entry->python_frames[i];
        frame->python = true;
        if (place) {
            const char *name = trace_string(trace, place->qualified);
            frame->function = symbols_intern(backtraces->symbols,
                                             name ? name : trace_string(trace, place->function));
            frame->file = symbols_intern(backtraces->symbols, trace_string(trace, place->file));
            frame->line = place->line;
        }
        if (!append(&entry->backtrace, frame))
            return false;
    }
    return true;
}

const struct backtrace *backtraces_find(struct backtraces *backtraces, const struct trace *trace,
                                        uint32_t native_stack, uint32_t python_stack) {
    struct stack_key key = {trace, native_stack, python_stack};
    struct entry *entry;
    HASH_FIND(hh, backtraces->entries, &key, sizeof key, entry);
    if (entry)
        return &entry->backtrace;
    entry = calloc(1, sizeof *entry);
    if (!entry)
        return &backtraces->nothing;
    entry->key = key;
    entry->backtrace.hash = TEXT_HASH_START;
    if (!add_native(backtraces, entry) || !add_python(backtraces, entry)) {
        free_entry(entry);
        return &backtraces->nothing;
    }
    entry->backtrace.blame = find_blame(&entry->backtrace);
    entry->backtrace.label = find_label(&entry->backtrace);
    HASH_ADD(hh, backtraces->entries, key, sizeof entry->key, entry);
    return &entry->backtrace;
}

/* ---- identity -------------------------------------------------------------------------------- */

/* Files that a compiler made for this run have another name in the next. */
static bool is_generated(const char *file) {
    return file && (file[0] == '<' || strstr(file, "torchinductor"));
}

void backtrace_site_id(const struct backtrace *backtrace, unsigned ledger, unsigned kind,
                       bool other, char id[SITE_ID_BYTES]) {
    const struct frame *blame = backtrace_blame(backtrace);
    uint64_t hash = TEXT_HASH_START;
    if (blame) {
        char unnamed[32];
        snprintf(unnamed, sizeof unnamed, "+0x%" PRIx64, blame->offset);
        hash = text_hash(hash, blame->function ? blame->function : unnamed);
        hash = text_hash(hash, is_generated(blame->file) ? "" : text_basename(blame->file));
        hash = text_hash(hash, text_basename(blame->module));
    } else {
        hash = text_hash(hash, other ? "(other)" : "(no stack)");
    }
    hash = text_hash(hash, trace_ledger_name(ledger));
    hash = text_hash(hash, trace_kind_name(kind));
    snprintf(id, SITE_ID_BYTES, "%016" PRIx64, hash);
}
