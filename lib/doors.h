/*
 * What the stubs in doors_x86_64.S and doors_aarch64.S pass to resolve, and get back.
 */
#ifndef CUHEAP_DOORS_H
#define CUHEAP_DOORS_H

typedef void *dlsym_like(void *handle, const char *name);
typedef void *dlvsym_like(void *handle, const char *name, const char *version);

/* Returned in two registers: jump_to, if any, is jumped to with the caller's own arguments and
   return address, since the real look-up tells the caller by that; else value is the answer. */
struct answer {
    void *value;
    void *jump_to;
};

struct question {
    void *handle;
    const char *name;
    const char *version; /* NULL: dlsym */
    const void *caller;  /* return address */
    void *real;          /* what to jump to */
    dlsym_like *real_dlsym;
    dlvsym_like *real_dlvsym;
};

struct answer resolve_dlsym(void *handle, const char *name, const void *caller);
struct answer resolve_dlvsym(void *handle, const char *name, const char *version,
                             const void *caller);

#endif
