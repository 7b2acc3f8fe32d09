/*
 * Look-up in the symbol tables of loaded objects, without dlsym and without waiting for the loader:
 * a constructor running in another thread's dlopen is no hindrance.
 *
 * resolve finds the real dlsym and the driver's functions with it, modules walks the objects. Cold;
 * any thread. dl_iterate_phdr holds only the short lock of the list of objects; in a forked child
 * that lock may have been taken for ever by a thread that is gone, so there the debugger's list is
 * walked, every step checked.
 */
#ifndef CUHEAP_ELF_SYMBOLS_H
#define CUHEAP_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct object {
    uintptr_t bias;
    uintptr_t start, end; /* of the load segments in memory */
    const char *path;     /* as the loader has it: "" for the program */
    const ElfW(Phdr) * phdr;
    unsigned phdr_count;
};

/* Visits loaded objects in the loader's order until `visit` returns true; returns that. */
bool objects_each(bool (*visit)(const struct object *object, void *argument), void *argument);

/* Changes whenever an object is loaded or unloaded; 0: cannot tell without the lock. */
uint64_t objects_changes(void);

/* From now on (in a forked child) walk without the loader's lock. */
void objects_avoid_lock(void);

/* The object whose segments hold `address`. */
bool objects_find(uintptr_t address, struct object *found);

/* The address of an exported function or variable in its default version; NULL: it has none. */
void *object_symbol(const struct object *object, const char *name);

/* Does the object call itself, by file name or soname, `prefix`...? */
bool object_named(const struct object *object, const char *prefix);

/* Was `object` linked against `other`, by its soname? */
bool object_needs(const struct object *object, const struct object *other);

/* Can the 8 bytes at this address be read? Asks the kernel; errno may change. */
bool memory_readable(uintptr_t address);

#endif
