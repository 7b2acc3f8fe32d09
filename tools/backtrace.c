/*
 * Resolved stacks, their blame and their identity. See backtrace.h; one thread at a time.
 */
#include "backtrace.h"

#include "blame.h"
#include "code_owner.h"
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
    struct frame *python_frames; /* what some of backtrace.frames point to */
    unsigned python_count;
    struct frame node; /* the blame, where only its name is another */
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

const struct frame *backtrace_blame(const struct backtrace *backtrace) {
    return backtrace->blamed;
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

struct frame_list {
    const struct frame **frames;
    unsigned count;
};

static bool append(struct frame_list *list, const struct frame *frame) {
    unsigned count = list->count;
    if ((count & (count - 1)) == 0) {
        size_t room = count ? 2u * count : 1u;
        const struct frame **grown = realloc(list->frames, room * sizeof *list->frames);
        if (!grown)
            return false;
        list->frames = grown;
    }
    list->frames[count] = frame;
    list->count = count + 1;
    return true;
}

static bool read_native(struct backtraces *backtraces, const struct stack_key *key,
                        struct trace_native_frames stack, struct frame_list *list) {
    for (unsigned i = 0; i < stack.depth; i++) {
        unsigned count;
        const struct frame *frames =
            symbols_find(backtraces->symbols, key->trace, stack.pcs[i], stack.generation, &count);
        for (unsigned f = 0; f < count; f++)
            if (!append(list, &frames[f]))
                return false;
    }
    return true;
}

static bool read_python(struct backtraces *backtraces, struct entry *entry,
                        struct trace_python_frames stack) {
    const struct trace *trace = entry->key.trace;
    entry->python_count = stack.depth;
    entry->python_frames = calloc(stack.depth + 1u, sizeof *entry->python_frames);
    if (!entry->python_frames)
        return false;
    for (unsigned i = 0; i < stack.depth; i++) {
        const struct trace_python_place *place = trace_python_place(trace, stack.places[i]);
        struct frame *frame = &entry->python_frames[i];
        frame->python = true;
        if (!place)
            continue;
        const char *name = trace_string(trace, place->qualified);
        frame->function =
            symbols_intern(backtraces->symbols, name ? name : trace_string(trace, place->function));
        frame->file = symbols_intern(backtraces->symbols, trace_string(trace, place->file));
        frame->line = place->line;
        frame->entry = place->flags & TRACE_PLACE_ENTRY;
    }
    return true;
}

/* ---- Python frames in the place of the interpreter's ----------------------------------------- */

static bool is_function(const struct frame *frame, const char *name) {
    size_t bytes = strlen(name);
    return frame->function && strncmp(frame->function, name, bytes) == 0 &&
           (!frame->function[bytes] || frame->function[bytes] == '.');
}

/* The interpreter's evaluation loop, or a piece that the compiler has split off (.cold, .part). */
static bool is_loop(const struct frame *frame) {
    return is_function(frame, "_PyEval_EvalFrameDefault") ||
           is_function(frame, "PyEval_EvalFrameEx");
}

/* Whether a frame of the loop belongs to the run of it that the one within has shown: the loop
   calls a part of itself, or is called by its older name. */
static bool continues_loop(const struct frame_list *native, unsigned index) {
    const struct frame *inner = index ? native->frames[index - 1] : NULL;
    return inner && is_loop(inner) &&
           (strstr(inner->function, ".part.") ||
            is_function(native->frames[index], "PyEval_EvalFrameEx"));
}

/* Whether each run of the loop has its Python frames, as far as neither stack was cut off. */
static bool loops_agree(const struct frame_list *native, const struct entry *entry,
                        uint32_t native_flags, uint32_t python_flags) {
    unsigned loops = 0, entries = 0;
    for (unsigned i = 0; i < native->count; i++)
        loops += is_loop(native->frames[i]) && !continues_loop(native, i);
    for (unsigned i = 0; i < entry->python_count; i++)
        entries += entry->python_frames[i].entry || i + 1 == entry->python_count;
    return loops == entries || (loops > entries && (python_flags & TRACE_STACK_TRUNCATED)) ||
           (loops < entries && (native_flags & (TRACE_STACK_TRUNCATED | TRACE_STACK_INCOMPLETE)));
}

/* Appends Python frames from *next on: all, or those that one run of the loop has evaluated. */
static bool append_python(struct frame_list *list, const struct entry *entry, unsigned *next,
                          bool all) {
    while (*next < entry->python_count) {
        const struct frame *frame = &entry->python_frames[(*next)++];
        if (!append(list, frame))
            return false;
        if (frame->entry && !all)
            break;
    }
    return true;
}

/*
 * A run of the loop gives way to the Python frames that it evaluated. Where that cannot be told
 * (interpreters without the loop, or stripped of its name) they stand together before the first
 * frame of the interpreter; a stack that ends there has them last.
 */
static bool merge(struct frame_list *list, const struct entry *entry,
                  const struct frame_list *native, bool agree) {
    unsigned next = 0;
    for (unsigned i = 0; i < native->count; i++) {
        const struct frame *frame = native->frames[i];
        if (agree && is_loop(frame)) {
            if (continues_loop(native, i))
                continue;
            if (next < entry->python_count) {
                if (!append_python(list, entry, &next, false))
                    return false;
                continue;
            }
        } else if (!agree && (frame->module_flags & TRACE_MODULE_PYTHON) &&
                   !append_python(list, entry, &next, true))
            return false;
        if (!append(list, frame))
            return false;
    }
    return append_python(list, entry, &next, true);
}

static bool resolve(struct backtraces *backtraces, struct entry *entry) {
    const struct stack_key *key = &entry->key;
    struct trace_native_frames native = trace_native_stack(key->trace, key->native_stack);
    struct trace_python_frames python = trace_python_stack(key->trace, key->python_stack);
    struct frame_list read = {0}, merged = {0};
    bool ok = read_native(backtraces, key, native, &read) &&
              read_python(backtraces, entry, python) &&
              merge(&merged, entry, &read, loops_agree(&read, entry, native.flags, python.flags));
    free(read.frames);
    entry->backtrace.frames = merged.frames;
    entry->backtrace.count = merged.count;
    entry->backtrace.flags = native.flags | python.flags;
    entry->backtrace.hash = TEXT_HASH_START;
    for (unsigned i = 0; i < merged.count; i++)
        entry->backtrace.hash = hash_frame(entry->backtrace.hash, merged.frames[i]);
    return ok;
}

static void judge(struct backtraces *backtraces, struct entry *entry) {
    struct backtrace *backtrace = &entry->backtrace;
    struct blame blame = blame_find(backtrace);
    backtrace->blame = blame.index;
    backtrace->own = blame.own;
    backtrace->label = blame_cuda_call(backtrace, blame.index);
    if (blame.index == backtrace->count)
        return;
    backtrace->blamed = backtrace->frames[blame.index];
    if (blame.short_name) {
        char name[512];
        entry->node = *backtrace->blamed;
        entry->node.function = symbols_intern(
            backtraces->symbols, blame_short_name(backtrace->blamed, name, sizeof name));
        backtrace->blamed = &entry->node;
    }
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
    if (!resolve(backtraces, entry)) {
        free_entry(entry);
        return &backtraces->nothing;
    }
    judge(backtraces, entry);
    HASH_ADD(hh, backtraces->entries, key, sizeof entry->key, entry);
    return &entry->backtrace;
}

/* ---- identity -------------------------------------------------------------------------------- */

void backtrace_site_id(const struct backtrace *backtrace, unsigned ledger, unsigned kind,
                       bool other, char id[SITE_ID_BYTES]) {
    const struct frame *blame = backtrace_blame(backtrace);
    uint64_t hash = TEXT_HASH_START;
    if (blame) {
        char unnamed[32];
        snprintf(unnamed, sizeof unnamed, "+0x%" PRIx64, blame->offset);
        hash = text_hash(hash, blame->function ? blame->function : unnamed);
        hash = text_hash(hash, code_is_unnamed(blame->file) ? "" : text_basename(blame->file));
        hash = text_hash(hash, text_basename(blame->module));
    } else {
        hash = text_hash(hash, other ? "(other)" : "(no stack)");
    }
    hash = text_hash(hash, trace_ledger_name(ledger));
    hash = text_hash(hash, trace_kind_name(kind));
    snprintf(id, SITE_ID_BYTES, "%016" PRIx64, hash);
}
