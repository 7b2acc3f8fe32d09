/*
 * The Python frames of the calling thread, read out of the interpreter's own structures: no GIL, no
 * reference counts, no allocation, no lock, no call into Python but those that only
 * look.
 *
 * record calls this for every event, any thread; a framework's allocator lock may be held. The
 * frames are the thread's own: nobody else moves or frees them while it is in native code, GIL or
 * not, and they keep their code objects, names and line tables alive. The first captures copy with
 * process_vm_readv, so that a wrong idea of the interpreter cannot fault; if anything in them, or
 * ever later, is not what it should be, Python stacks are off for the process, with a note in the
 * trace that says why.
 *
 * A frame is taken as (code, offset); its text is made once. Code objects die and their addresses
 * come back: the cache's key also holds the code's version, or where there is none what is in its
 * names and line table.
 */
#ifndef CUHEAP_PYTHON_H
#define CUHEAP_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

#include "index.h"
#include "python_layout.h"
#include "trace_writer.h"
#include "unwind.h"

#define PYTHON_DEPTH_MAX 128

struct python_place; /* of the cache */

enum python_state {
    PYTHON_ABSENT = 0, /* no interpreter found so far */
    PYTHON_ON,
    PYTHON_OFF, /* not wanted, refused, or a check has failed */
};

struct python {
    struct trace_writer *trace;
    uint32_t state;   /* enum python_state */
    uint32_t looking; /* one thread at a time looks for the interpreter */
    uint32_t events;  /* while there was none */
    uint32_t trial;   /* captures still to be copied rather than read */
    struct python_layout layout;
    struct python_names names;
    struct code_range module; /* of the interpreter */
    struct python_place *cache;
    struct index strings, places, stacks;
};

/* `wanted`: false leaves it off. False: no memory. */
bool python_init(struct python *python, struct trace_writer *trace, bool wanted);

/* The ref of the calling thread's Python stack; 0: none. ns: now. */
uint32_t python_capture(struct python *python, uint64_t ns);

/*
 * The ref of the Python stack of the one thread that waits in PyTorch's backward(), for whom this
 * thread, which has no Python frames, may be working; 0: none, or more than one, or not sure. Reads
 * by process_vm_readv alone, since those frames are another thread's. Costs some 100 us.
 */
uint32_t python_waiting(struct python *python);

#endif
