/*
 * Reads the trace of the running program itself, by the format alone, and compares what it says is
 * live with the simulated driver's own books, by kind and device, to the byte. Included by test
 * programs, one source file each; one thread calls it while no other one makes calls.
 *
 * Without the library there is no trace, and nothing is compared: a program prints the same.
 */
#ifndef PROGRAMS_TRACE_BOOKS_H
#define PROGRAMS_TRACE_BOOKS_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuheap/trace_format.h"
#include "simgpu.h"

#define BOOKS_DEVICES 4
#define BOOKS_HOST    BOOKS_DEVICES /* the place of host memory */

struct books_sum {
    uint64_t bytes[TRACE_KIND_LIMIT][BOOKS_DEVICES + 1];
    uint64_t count[TRACE_KIND_LIMIT][BOOKS_DEVICES + 1];
};

static struct {
    char path[600];
    const uint8_t *base;
    size_t bytes;
} books_trace;

static bool books_find(void) {
    char folder[512], tail[40];
    const char *pattern = getenv("CUHEAP_OUT"), *preload = getenv("LD_PRELOAD");
    if (!preload || !strstr(preload, "libcuheap") || !pattern)
        return false;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(pattern, '/') - pattern), pattern);
    snprintf(tail, sizeof tail, ".%d.trace", (int)getpid());
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strstr(entry->d_name, tail))
            snprintf(books_trace.path, sizeof books_trace.path, "%s/%.80s", folder, entry->d_name);
    if (dir)
        closedir(dir);
    return books_trace.path[0];
}

/* Maps the file, again if it has grown. */
static bool books_map(void) {
    struct stat st;
    if (!books_trace.path[0] && !books_find())
        return false;
    int fd = open(books_trace.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        abort();
    if ((size_t)st.st_size != books_trace.bytes) {
        if (books_trace.base)
            munmap((void *)books_trace.base, books_trace.bytes);
        books_trace.bytes = (size_t)st.st_size;
        books_trace.base = mmap(NULL, books_trace.bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (books_trace.base == MAP_FAILED)
            abort();
    }
    close(fd);
    return true;
}

static const struct trace_region *books_region(unsigned i) {
    return (const struct trace_region *)(books_trace.base + TRACE_DIRECTORY_OFFSET) + i;
}

static const struct trace_site *books_site(uint32_t ref) {
    return (const struct trace_site *)(books_trace.base + ((uint64_t)ref << TRACE_REF_SHIFT));
}

static void books_add(struct books_sum *sum, const struct trace_slot *slot) {
    unsigned state = TRACE_SLOT_STATE(slot->word);
    if (state == TRACE_SLOT_EMPTY)
        return;
    if (state != TRACE_SLOT_LIVE) {
        fprintf(stderr, "a slot is left in state %u\n", state);
        exit(98);
    }
    const struct trace_site *site = books_site(slot->site);
    unsigned place = site->device < BOOKS_DEVICES ? site->device : BOOKS_HOST;
    sum->bytes[site->kind][place] += slot->bytes;
    sum->count[site->kind][place]++;
}

static struct books_sum books_live(void) {
    struct books_sum sum;
    memset(&sum, 0, sizeof sum);
    for (unsigned i = 0; i < TRACE_DIRECTORY_CAPACITY && books_region(i)->section; i++) {
        const struct trace_region *region = books_region(i);
        const struct trace_slot *slot = (const void *)(books_trace.base + region->offset);
        if (region->section != TRACE_SECTION_LIVE_TABLE)
            continue;
        for (uint64_t n = region->bytes / sizeof *slot; n--; slot++)
            books_add(&sum, slot);
    }
    return sum;
}

/* By what the counters of sites and totals say: the same must come out of them. */
static struct books_sum books_counted(void) {
    struct books_sum sum;
    memset(&sum, 0, sizeof sum);
    for (unsigned i = 0; i < TRACE_DIRECTORY_CAPACITY && books_region(i)->section; i++) {
        const struct trace_region *region = books_region(i);
        const struct trace_site *site = (const void *)(books_trace.base + region->offset);
        if (region->section != TRACE_SECTION_SITES)
            continue;
        uint64_t used = region->claimed < region->bytes ? region->claimed : region->bytes;
        for (uint64_t n = used / sizeof *site; n--; site++) {
            if (site->state != TRACE_SITE_USED)
                continue;
            unsigned place = site->device < BOOKS_DEVICES ? site->device : BOOKS_HOST;
            sum.bytes[site->kind][place] += site->alloc_bytes + site->late_alloc_bytes -
                                            site->free_bytes - site->late_free_bytes;
            sum.count[site->kind][place] +=
                site->allocs + site->late_allocs - site->frees - site->late_frees;
        }
    }
    return sum;
}

static const struct {
    enum simgpu_kind sim;
    enum trace_kind kind;
    const char *name;
} books_kinds[] = {
    {SIMGPU_DEVICE, TRACE_KIND_DEVICE, "device"},
    {SIMGPU_POOL, TRACE_KIND_POOL, "pool"},
    {SIMGPU_MANAGED, TRACE_KIND_MANAGED, "managed"},
    {SIMGPU_GRAPH, TRACE_KIND_GRAPH, "graph"},
    {SIMGPU_VMM, TRACE_KIND_VMM, "vmm"},
    {SIMGPU_ARRAY, TRACE_KIND_ARRAY, "array"},
    {SIMGPU_PINNED, TRACE_KIND_HOST, "host"},
    {SIMGPU_REGISTERED, TRACE_KIND_REGISTERED, "registered"},
    {SIMGPU_IMPORTED, TRACE_KIND_IMPORTED, "imported"},
};

static void books_compare(const struct books_sum *sum, const char *what, const char *where) {
    bool differs = false;
    for (unsigned k = 0; k < sizeof books_kinds / sizeof *books_kinds; k++)
        for (int place = 0; place <= BOOKS_DEVICES; place++) {
            struct simgpu_books books;
            if (simgpu_books(place == BOOKS_HOST ? SIMGPU_HOST : place, &books))
                continue;
            const struct simgpu_count *truth = &books.kinds[books_kinds[k].sim];
            uint64_t bytes = sum->bytes[books_kinds[k].kind][place];
            uint64_t count = sum->count[books_kinds[k].kind][place];
            if (bytes == truth->live_bytes && count == truth->live_count)
                continue;
            fprintf(stderr,
                    "%s: %s of device %d: the driver has %lu bytes in %lu blocks, the %s say %lu "
                    "in %lu\n",
                    where, books_kinds[k].name, place, truth->live_bytes, truth->live_count, what,
                    bytes, count);
            differs = true;
        }
    if (differs)
        exit(97);
}

/* Ends the program with a line if the trace and the driver do not agree. */
static inline void books_check(const char *where) {
    if (!books_map())
        return;
    struct books_sum live = books_live(), counted = books_counted();
    books_compare(&live, "slots", where);
    books_compare(&counted, "counters", where);
}

#define BOOKS_TEXT_(line) #line
#define BOOKS_TEXT(line)  BOOKS_TEXT_(line)
#define BOOKS()           books_check(__FILE__ ":" BOOKS_TEXT(__LINE__))

/* One call that must succeed, and the books after it. */
#define STEP(call)                                                                                 \
    do {                                                                                           \
        MUST(call);                                                                                \
        BOOKS();                                                                                   \
    } while (0)

/* One call that must give this code, and the books after it. */
#define REFUSED(code, call)                                                                        \
    do {                                                                                           \
        int rc_ = (int)(call);                                                                     \
        if (rc_ != (code)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, rc_);                    \
            exit(99);                                                                              \
        }                                                                                          \
        BOOKS();                                                                                   \
    } while (0)

static inline uint64_t books_counter(enum trace_counter counter) {
    return books_map() ? ((const struct trace_header *)books_trace.base)->counters[counter] : 0;
}

static inline uint64_t books_loss(enum trace_loss loss) {
    return books_map() ? ((const struct trace_header *)books_trace.base)->losses[loss] : 0;
}

/* The i-th published record of a section, by the size that the directory says; NULL: no more. */
static inline const void *books_record(enum trace_section section, unsigned i) {
    if (!books_map())
        return NULL;
    for (unsigned r = 0; r < TRACE_DIRECTORY_CAPACITY && books_region(r)->section; r++) {
        const struct trace_region *region = books_region(r);
        if (region->section != section || !region->record_bytes)
            continue;
        uint64_t used = region->claimed < region->bytes ? region->claimed : region->bytes;
        for (uint64_t at = 0; at + region->record_bytes <= used; at += region->record_bytes) {
            const uint32_t *record = (const void *)(books_trace.base + region->offset + at);
            if (*record == 1 && i-- == 0)
                return record;
        }
    }
    return NULL;
}

/* In a traced run a figure of the trace must be this. */
#define TRACED(figure, expected)                                                                   \
    do {                                                                                           \
        if (books_map() && (uint64_t)(figure) != (uint64_t)(expected)) {                           \
            fprintf(stderr, "%s:%d: %s is %lu, not %lu\n", __FILE__, __LINE__, #figure,            \
                    (unsigned long)(figure), (unsigned long)(expected));                           \
            exit(96);                                                                              \
        }                                                                                          \
    } while (0)

#endif
