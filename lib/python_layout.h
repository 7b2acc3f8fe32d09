/*
 * Where CPython keeps what python.c reads: one row a version, and the choice of it.
 *
 * The offsets were computed by compiling against each version's own headers, on x86-64; on aarch64
 * they are the same, since only pointers and integers precede the fields. They hold for all
 * releases of a minor version, not for its pre-releases.
 */
#ifndef CUHEAP_PYTHON_LAYOUT_H
#define CUHEAP_PYTHON_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "unwind.h"

#define PYTHON_NO_FIELD UINT16_MAX

enum python_lines {
    PYTHON_LINES_LNOTAB,    /* to 3.9: pairs of address and line increment */
    PYTHON_LINES_RANGES,    /* 3.10: pairs of length and line increment, PEP 626 */
    PYTHON_LINES_LOCATIONS, /* from 3.11: locationtable, see CPython's Objects/locations.md */
};

/* Bytes from the beginning of the structure named; PYTHON_NO_FIELD: this version has none. */
struct python_layout {
    uint16_t version; /* 0x030c: 3.12 */
    bool free_threaded;
    /* PyThreadState */
    uint16_t thread_frame; /* of the frame, or of the _PyCFrame that names it */
    uint16_t cframe_frame; /* _PyCFrame */
    uint16_t thread_id;
    /* PyFrameObject, _PyInterpreterFrame */
    uint16_t code;
    uint16_t previous;
    uint16_t instruction; /* an index, or a pointer into the code */
    uint16_t line;        /* f_lineno */
    uint16_t trace;       /* f_trace: if set, f_lineno holds */
    uint16_t is_entry;
    uint16_t owner;
    uint16_t bytecode_index; /* tlbc_index */
    /* PyCodeObject */
    uint16_t first_line;
    uint16_t file;
    uint16_t name;
    uint16_t qualified;
    uint16_t
        code_version; /* co_version: each code object has its own, until they run out; then 0 */
    uint16_t line_table;
    uint16_t bytecode;
    uint16_t bytecodes; /* co_tlbc: each thread's own copy */
    /* PyObject, PyVarObject, PyBytesObject, PyASCIIObject, PyCompactUnicodeObject */
    uint16_t type;
    uint16_t size;
    uint16_t bytes_data;
    uint16_t text_length;
    uint16_t text_hash; /* cached; -1 while nobody has asked */
    uint16_t text_state;
    uint16_t ascii_data;
    uint16_t other_data;
    uint8_t kind_bit, compact_bit, ascii_bit; /* in the text's state */
    uint8_t lines;                            /* enum python_lines */
};

/* What the interpreter exports. */
struct python_names {
    void *(*this_thread)(void);
    int (*is_finalizing)(void);
    void *(*main_interpreter)(void);
    void *(*first_thread)(void *interpreter);
    const char *(*get_version)(void);
    const unsigned long *version; /* Py_Version, from 3.11 */
    const void *code_type, *text_type, *bytes_type, *type_type;
    const void *runtime;
};

/* Looks for an interpreter among the loaded objects. False: none. */
bool python_find_names(struct python_names *names, struct code_range *module);

/* Chooses the layout. NULL, or why this interpreter is refused. */
const char *python_choose_layout(const struct python_names *names, struct python_layout *layout);

#endif
