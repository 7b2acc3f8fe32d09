/*
 * Addresses to names: module, function, file and line, inlined frames, through elfutils.
 *
 * One store serves all processes of a job: an object file that several of them loaded is opened
 * once. Nothing is asked of the network unless the caller wants debuginfod. Called by backtrace.c
 * and cmd_info.c; one thread at a time.
 */
#ifndef TOOLS_SYMBOLS_H
#define TOOLS_SYMBOLS_H

#include "trace_reader.h"

/* One frame as people read it. All texts are cleaned (text.h), live as long as the store, and are
   the same pointer where they are the same text. */
struct frame {
    const char *function;  /* NULL: not known */
    const char *file;      /* NULL: not known */
    unsigned line;         /* 0: not known */
    const char *module;    /* path; NULL: in no known module, or a Python frame */
    uint64_t offset;       /* of the code in its module's file; the address where there is none */
    uint32_t module_flags; /* enum trace_module_flag */
    bool inlined;
    bool python;
    bool entry; /* of Python: native code entered the interpreter for it */
};

struct symbols;

/* NULL only when memory is exhausted. */
struct symbols *symbols_open(bool ask_debuginfod);
void symbols_close(struct symbols *symbols);

/* A cleaned, lasting copy of a name; NULL for NULL. */
const char *symbols_intern(struct symbols *symbols, const char *name);

/* The frames at a return address, innermost first: at least one, more where code was inlined. */
const struct frame *symbols_find(struct symbols *symbols, const struct trace *trace,
                                 uint64_t return_address, uint32_t generation, unsigned *count);

enum symbols_level {
    SYMBOLS_NONE,
    SYMBOLS_NAMES, /* functions, but no lines */
    SYMBOLS_LINES,
};

struct symbols_state {
    enum symbols_level level;
    const char *reason; /* why not all of it; NULL where it is */
};
struct symbols_state symbols_of_module(struct symbols *symbols, const struct trace *trace,
                                       const struct trace_module *module);

#endif
