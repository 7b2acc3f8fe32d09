/*
 * The trace file as the reader sees it: opened, validated, walked.
 *
 * Everything in tools/ that looks into a trace goes through here. This is the only place that turns
 * an offset, a ref or a count of the file into a pointer, and it checks each one first: nothing in
 * a trace is trusted. Records themselves are handed out as the structures of trace_format.h; their
 * plain numbers may be nonsense, but reading them is safe.
 *
 * A trace may be read while its process is running. Functions that return a pointer return NULL for
 * what is not (or not yet) published. One thread at a time uses a trace.
 */
#ifndef TOOLS_TRACE_READER_H
#define TOOLS_TRACE_READER_H

#include <cuheap/trace_format.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum trace_error_code {
    TRACE_ERROR_NONE = 0,
    TRACE_ERROR_SYSTEM,  /* the file cannot be opened or mapped */
    TRACE_ERROR_EMPTY,   /* created, and nothing written yet */
    TRACE_ERROR_FOREIGN, /* not a trace, or of another byte order or machine */
    TRACE_ERROR_NEWER,   /* of a later major version */
    TRACE_ERROR_CUT,     /* ends before what it says it holds */
    TRACE_ERROR_DAMAGED, /* contradicts itself */
};

/* One line, without a newline and without control characters: file, offset, reason, remedy. */
struct trace_error {
    enum trace_error_code code;
    char text[640];
};

struct trace;

/* Both return NULL and fill *error on failure; error may be NULL. `bytes` stays the caller's and
   must outlive the trace; `name` is used in messages. */
struct trace *trace_open(const char *path, struct trace_error *error);
struct trace *trace_open_bytes(const void *bytes, size_t size, const char *name,
                               struct trace_error *error);
void trace_close(struct trace *trace);

/* From now on, a file that another process cuts off while it is mapped ends this process with one
   line and exit code 2 instead of SIGBUS. For the tool itself, once, at its start. */
void trace_exit_on_truncation(void);

const char *trace_path(const struct trace *trace);
uint64_t trace_bytes(const struct trace *trace);

/* A copy taken when the trace was opened; every text in it is NUL-terminated. */
const struct trace_header *trace_get_header(const struct trace *trace);

/* ---- sections ---- */

struct trace_section_size {
    unsigned regions;
    uint64_t bytes;   /* set aside */
    uint64_t claimed; /* handed out to records; HISTORY: events ever written */
    uint64_t records; /* that fit into what was handed out; 0 where their length varies */
};

const char *trace_section_name(unsigned section); /* NULL: not known to this version */
struct trace_section_size trace_section_size(const struct trace *trace, unsigned section);
unsigned trace_unknown_regions(const struct trace *trace); /* of sections not known to us */
unsigned trace_pending_regions(const struct trace *trace); /* claimed in the directory only */

/* ---- records of fixed length, by their index in the section ---- */

/* Records that fit into the section: the bound of every index. */
size_t trace_record_room(const struct trace *trace, enum trace_section section);
/* Records handed out so far; in a running trace this grows. */
size_t trace_record_count(const struct trace *trace, enum trace_section section);
/* NULL: past the end, or its first word is still 0. Not for the live table. */
const void *trace_record(const struct trace *trace, enum trace_section section, size_t index);
/* The index of the record that a ref names; -1 where it names none. */
ptrdiff_t trace_record_index(const struct trace *trace, enum trace_section section, uint32_t ref);

/* ---- the live table: its slots, one region after another ---- */

struct trace_slots {
    const uint8_t *base;
    size_t count;
    size_t stride; /* a later minor version may have longer slots */
};
/* The index'th table; count 0 past the last. */
struct trace_slots trace_live_table(const struct trace *trace, unsigned index);

static inline const struct trace_slot *trace_slot_at(const struct trace_slots *table,
                                                     size_t index) {
    return (const struct trace_slot *)(const void *)(table->base + index * table->stride);
}

/* Copies a slot that its process may be changing. The state of the copy: EMPTY; LIVE or FREEING,
   which count; BUSY, also where another block took the slot meanwhile. */
static inline unsigned trace_slot_read(const struct trace_slot *slot, struct trace_slot *copy) {
    uint64_t word = __atomic_load_n(&slot->word, __ATOMIC_ACQUIRE);
    if (TRACE_SLOT_STATE(word) == TRACE_SLOT_EMPTY)
        return TRACE_SLOT_EMPTY;
    *copy = *slot;
    copy->word = word;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t again = __atomic_load_n(&slot->word, __ATOMIC_RELAXED);
    if (TRACE_SLOT_GENERATION(again) != TRACE_SLOT_GENERATION(word))
        return TRACE_SLOT_BUSY;
    return TRACE_SLOT_STATE(word);
}

/* ---- the live table as it was at a failure ---- */

/* The slots of a copy; count 0 where the ref names none. They stood so at *ns. */
struct trace_slots trace_failure_copy(const struct trace *trace, uint32_t ref, uint64_t *ns);

/* ---- what refs name ---- */

/* NUL-terminated; NULL where the ref names no string. Not neutralised: see
   text.h. */
const char *trace_string(const struct trace *trace, uint32_t ref);

struct trace_native_frames {
    const uint64_t *pcs; /* return addresses, innermost first */
    unsigned depth;
    uint32_t flags;
    uint32_t generation;
};
struct trace_python_frames {
    const uint32_t *places; /* refs, innermost first */
    unsigned depth;
    uint32_t flags;
};
/* depth 0 where the ref names no stack. */
struct trace_native_frames trace_native_stack(const struct trace *trace, uint32_t ref);
struct trace_python_frames trace_python_stack(const struct trace *trace, uint32_t ref);
const struct trace_python_place *trace_python_place(const struct trace *trace, uint32_t ref);

/* The loaded object that held this address at this module generation; NULL: none. */
const struct trace_module *trace_module_at(const struct trace *trace, uint64_t address,
                                           uint32_t generation);

/* ---- what kinds are ---- */

const char *trace_kind_name(unsigned kind);       /* "device"; NULL: not known */
enum trace_group trace_kind_group(unsigned kind); /* TRACE_GROUP_LIMIT: not known */
const char *trace_ledger_name(unsigned ledger);   /* "driver", "tensor"; NULL: not known */

#endif
