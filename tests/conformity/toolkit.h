/*
 * The CUDA toolkit of this machine, and what stands in the three texts that are compared with its
 * headers: the table of entry points, the list of functions that are not hooked, the ABI types.
 *
 * Used by the tests of this folder, run from the top of the source tree, one thread. What cannot be
 * read fails the test.
 */
#ifndef TESTS_CONFORMITY_TOOLKIT_H
#define TESTS_CONFORMITY_TOOLKIT_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stddef.h>

#include "harness.h"

/* The folder that holds include/cuda.h: CUDA_HOME, else that of nvcc, else /usr/local/cuda; NULL:
   there is none. */
const char *toolkit_root(void);

#define NEEDS_TOOLKIT()                                                                            \
    do {                                                                                           \
        if (!toolkit_root())                                                                       \
            cr_skip_test("no CUDA toolkit");                                                       \
    } while (0)

/* Runs the C compiler on a text, with the toolkit's headers and every variant declared under its
   own name; %s in options stands for the toolkit's folder. The run's dir keeps source.c and what
   the options say to write there. */
struct run *compile(const char *source, const char *options);

/* ---- names ---- */

struct name_list {
    char (*names)[80];
    size_t count;
};

bool name_in(const struct name_list *list, const char *name);
/* All functions of <cuda.h>, and the types PFN_... of <cudaTypedefs.h>. */
struct name_list header_functions(void);
struct name_list header_typedefs(void);
/* CUDA_VERSION of <cuda.h>. */
int header_version(void);

/* "cuMemAllocAsync" of "cuMemAllocAsync_v2_ptsz": its length. */
size_t base_length(const char *symbol);
/* The last part, "_ptsz" or "_ptds"; "" without. */
const char *stream_suffix(const char *symbol);

/* ---- the table, read as text: a row is known by its first two fields, whatever its kind ---- */

struct row {
    char type[24];
    char symbol[80];
    char params[640]; /* with parentheses; "" where the row has none */
};

struct table {
    struct row rows[256];
    size_t count;
};

const struct table *all_rows(void);
/* Those for which the library exports a wrapper: all but OWN. */
const struct table *hooked_rows(void);
const struct row *hooked_row(const char *symbol);

/* ---- not_hooked.txt ---- */

struct not_hooked {
    struct {
        char name[80];
        char class[24];
    } functions[1024];
    size_t count;
    int header_version; /* that it was made for */
};

const struct not_hooked *not_hooked_list(void);
/* NULL: not in the list. */
const char *not_hooked_class(const char *name);

/* Text that grows; the program is short-lived, and nothing is given back. */
struct text {
    char *bytes;
    size_t length;
};
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
