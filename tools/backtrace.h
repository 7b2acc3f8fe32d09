/*
 * A site's stack as people read it, and the frame in it that is to blame.
 *
 * Innermost frame first: native frames up to the Python interpreter, then Python frames; in traces
 * with full stacks the Python frames stand where the interpreter evaluated them. Called by view.c
 * and the renderers; one thread at a time.
 */
#ifndef TOOLS_BACKTRACE_H
#define TOOLS_BACKTRACE_H

#include "symbols.h"

struct backtrace {
    const struct frame **frames;
    unsigned count;
    unsigned blame;             /* index; count where nobody can be named */
    bool own;                   /* the blame is the program's own code */
    const struct frame *blamed; /* the blame as it is shown: frames[blame], or with the name of the
                                   node of autograd; NULL: nobody */
    const char *label;          /* the CUDA function that was called; NULL: not known */
    uint32_t flags;             /* enum trace_stack_flag */
    uint64_t hash;              /* of all frames: the same in every run of the same build */
};

struct backtraces;

/* `symbols` stays the caller's and must outlive the store. NULL when memory is exhausted. */
struct backtraces *backtraces_open(struct symbols *symbols);
void backtraces_close(struct backtraces *backtraces);

/* Never NULL: a site without a stack has one of no frames. */
const struct backtrace *backtraces_find(struct backtraces *backtraces, const struct trace *trace,
                                        uint32_t native_stack, uint32_t python_stack);

/* The frame to blame; NULL: nobody. */
const struct frame *backtrace_blame(const struct backtrace *backtrace);

/*
 * Names a site across runs and rebuilt or moved programs: 16 hex digits of a hash over the blame's
 * function, file and module (without directories), the ledger and the kind. `other` marks the
 * site that takes events which found no room for one of their own.
 */
#define SITE_ID_BYTES 17
void backtrace_site_id(const struct backtrace *backtrace, unsigned ledger, unsigned kind,
                       bool other, char id[SITE_ID_BYTES]);

#endif
