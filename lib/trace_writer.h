/*
 * Creates, lays out, grows and seals the trace file, and gives the other modules their memory in
 * it.
 *
 * lifecycle creates and seals it; table, stacks, sites, modules and record take memory from it, any
 * thread, without locks. The whole of the largest file is mapped from the start, so that nothing
 * ever moves; space is allocated before it is touched. No descriptor is kept: a program may close
 * all of them and open its own, and none of those may ever get a byte of ours.
 */
#ifndef CUHEAP_TRACE_WRITER_H
#define CUHEAP_TRACE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "atomic.h"
#include "cuheap/trace_format.h"

struct trace_writer {
    uint8_t *base; /* NULL: no trace */
    struct trace_header *header;
    uint64_t max_bytes;
    uint64_t next;      /* end of what regions have claimed */
    uint64_t allocated; /* end of what the file system has promised */
    uint32_t growing;   /* one thread at a time asks it for more */
    uint32_t patience;  /* requests to let pass since it refused one */
    uint32_t exhausted; /* the file's limit has been met, and counted once */
    uint32_t device_major, device_minor;
    uint64_t inode;
    uint64_t start_ns;
    uint32_t ordinals[TRACE_SECTION_LIMIT];
    struct trace_region *current[TRACE_SECTION_LIMIT]; /* where append takes from */
    char path[4096];
};

/*
 * Creates `path` (absolute) and maps it. 0; or the errno of what failed, with nothing left behind
 * (EEXIST: the name is taken). `header` begins a zeroed block of TRACE_HEADER_BYTES and says who
 * the process is; the fields of the layout are filled in.
 */
int trace_create(struct trace_writer *t, const char *path, uint32_t mode, uint64_t max_bytes,
                 struct trace_header *header);

/* Marks the end; the trace stays usable for late frees. Idempotent. exit_code -1: not known. */
void trace_seal(struct trace_writer *t, uint64_t ns, int exit_code);

/* A zeroed region of at least `bytes`; NULL (and counted) if there is no room. */
struct trace_region *trace_add_region(struct trace_writer *t, enum trace_section section,
                                      uint64_t bytes, uint32_t record_bytes);

/* `bytes` of zeroed memory at the end of a section, 8-byte aligned; NULL (and counted) if full. */
void *trace_append(struct trace_writer *t, enum trace_section section, uint32_t bytes,
                   uint32_t record_bytes);

/* Zeroed memory beside the file, for what a reader does not need; a forked child has none of it.
   Never given back. NULL: none to be had. */
void *trace_private(size_t bytes);

/* The text's ref; 0 if empty or there was no room. At most 65535 bytes of it are kept. */
uint32_t trace_add_string(struct trace_writer *t, const char *text);

void trace_note(struct trace_writer *t, enum trace_note_level level, uint64_t ns, const char *text);

/* ns since the trace began. */
static inline uint64_t trace_now(const struct trace_writer *t) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - t->start_ns;
}

static inline uint32_t trace_ref(const struct trace_writer *t, const void *record) {
    return (uint32_t)((uint64_t)((const uint8_t *)record - t->base) >> TRACE_REF_SHIFT);
}

static inline void *trace_at(const struct trace_writer *t, uint32_t ref) {
    return t->base + ((uint64_t)ref << TRACE_REF_SHIFT);
}

static inline void trace_lose(struct trace_writer *t, enum trace_loss loss, uint64_t n) {
    add_relaxed(&t->header->losses[loss], n);
}

static inline void trace_count(struct trace_writer *t, enum trace_counter counter, uint64_t n) {
    add_relaxed(&t->header->counters[counter], n);
}

#endif
