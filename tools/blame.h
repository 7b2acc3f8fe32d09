/*
 * The frame of a stack that is to blame for an allocation.
 *
 * The innermost Python frame outside frameworks and the interpreter's own library; without Python
 * frames the innermost native one outside libcuheap, CUDA, frameworks and the C libraries. Where
 * all are inside those, the best that is left: a frame of the script, a node of PyTorch's autograd,
 * an operator of the framework. Called by backtrace.c; no state.
 */
#ifndef TOOLS_BLAME_H
#define TOOLS_BLAME_H

#include "backtrace.h"

struct blame {
    unsigned index;  /* of the frame; the stack's count: nobody can be named */
    bool own;        /* it is the program's own code, not somebody's for want of such */
    bool short_name; /* a node of autograd or an operator of PyTorch: see blame_short_name */
};

struct blame blame_find(const struct backtrace *backtrace);

/* The class of the node of autograd whose apply() a frame is: "AddmmBackward0"; the name of the
   operator whose entry it is: "sum_dim_IntList". */
char *blame_short_name(const struct frame *frame, char *out, size_t size);

/* The name of the CUDA function that was called; NULL: not known. */
const char *blame_cuda_call(const struct backtrace *backtrace, unsigned blame);

#endif
