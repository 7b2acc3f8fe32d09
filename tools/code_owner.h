/*
 * Whose a piece of code is, by the path of its file: the program's own, or somebody's who is not to
 * blame for what the program asks of him. Called by blame.c, backtrace.c, view.c and columns.c; no
 * state.
 */
#ifndef TOOLS_CODE_OWNER_H
#define TOOLS_CODE_OWNER_H

#include "symbols.h"

enum code_owner {
    OWNER_PROGRAM,     /* and the packages it uses, but for frameworks */
    OWNER_FRAMEWORK,   /* PyTorch, JAX...: see frameworks.h */
    OWNER_GENERATED,   /* made by a framework or the interpreter while the program ran */
    OWNER_INTERPRETER, /* Python's own library */
    OWNER_SYSTEM,      /* the C and C++ libraries */
};

enum code_owner code_owner_of_python(const char *file);
enum code_owner code_owner_of_library(const char *path);

/* Whether a file has another name in the next run. */
bool code_is_unnamed(const char *file);

#define CODE_LIBRARY_BYTES 4096
/* The file name of a frame's library, its Python package, or the name of its Python file. */
char *code_library(const struct frame *frame, char *out, size_t size);

#endif
