/*
 * Opens, validates and walks a trace. See trace_reader.h; one thread at a time uses a trace.
 *
 * Opening checks in this order: size, magic, byte order, major version, header, directory, regions.
 * After that every access is an index into a region known to lie within the file. What can change
 * under a running writer (claimed bytes, first words of records) is loaded once and then used.
 */
#include "trace_reader.h"

#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MACHINE_X86_64  62u
#define MACHINE_AARCH64 183u

struct region {
    uint32_t section;
    uint32_t ordinal;
    uint32_t record_bytes;
    uint64_t offset;
    uint64_t bytes;
    const uint64_t *claimed; /* in the file: it grows */
};

struct trace {
    const uint8_t *base;
    uint64_t size;
    bool mapped;
    char *path;
    struct trace_header header;
    unsigned first[TRACE_SECTION_LIMIT + 1]; /* regions of section s: first[s] to first[s + 1] */
    unsigned unknown_regions;
    unsigned pending_regions;
    unsigned region_count;
    struct region *regions; /* by section and ordinal */
};

/* ---- what is known of sections and kinds ----------------------------------------------------- */

/* The fixed record size of each section; 0: its records vary in length. */
static const uint32_t record_sizes[TRACE_SECTION_LIMIT] = {
    [TRACE_SECTION_MODULES] = sizeof(struct trace_module),
    [TRACE_SECTION_PYTHON_PLACES] = sizeof(struct trace_python_place),
    [TRACE_SECTION_SITES] = sizeof(struct trace_site),
    [TRACE_SECTION_LIVE_TABLE] = sizeof(struct trace_slot),
    [TRACE_SECTION_TOTALS] = sizeof(struct trace_total),
    [TRACE_SECTION_CONTEXTS] = sizeof(struct trace_context),
    [TRACE_SECTION_POOLS] = sizeof(struct trace_pool),
    [TRACE_SECTION_RANGES] = sizeof(struct trace_range),
    [TRACE_SECTION_MARKS] = sizeof(struct trace_mark),
    [TRACE_SECTION_FAILURES] = sizeof(struct trace_failure),
    [TRACE_SECTION_HISTORY] = sizeof(struct trace_event),
    [TRACE_SECTION_NOTES] = sizeof(struct trace_note),
    [TRACE_SECTION_GPU_MODULES] = sizeof(struct trace_gpu_module),
};

const char *trace_section_name(unsigned section) {
    static const char *const names[TRACE_SECTION_LIMIT] = {
#define X(number, name, text) [number] = text,
        TRACE_SECTIONS(X)
#undef X
    };
    return section < TRACE_SECTION_LIMIT ? names[section] : NULL;
}

const char *trace_kind_name(unsigned kind) {
    static const char *const names[TRACE_KIND_LIMIT] = {
#define X(number, name, text, group) [number] = text,
        TRACE_KINDS(X)
#undef X
    };
    return kind < TRACE_KIND_LIMIT ? names[kind] : NULL;
}

enum trace_group trace_kind_group(unsigned kind) {
    static const uint8_t groups[TRACE_KIND_LIMIT] = {TRACE_GROUP_LIMIT,
#define X(number, name, text, group) TRACE_GROUP_##group,
                                                     TRACE_KINDS(X)
#undef X
    };
    return kind < TRACE_KIND_LIMIT ? (enum trace_group)groups[kind] : TRACE_GROUP_LIMIT;
}

const char *trace_ledger_name(unsigned ledger) {
    switch (ledger) {
    case TRACE_LEDGER_DRIVER:
        return "driver";
    case TRACE_LEDGER_TENSOR:
        return "tensor";
    default:
        return NULL;
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static bool __attribute__((format(printf, 4, 5)))
fail(const struct trace *trace, struct trace_error *error, enum trace_error_code code,
     const char *format, ...) {
    if (!error)
        return false;
    char path[256];
    text_clean(path, sizeof path, trace->path);
    error->code = code;
    int used = snprintf(error->text, sizeof error->text, "%s: ", path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text + used, sizeof error->text - (size_t)used, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- validation ------------------------------------------------------------------------------ */

static bool check_start(const struct trace *trace, struct trace_error *error) {
    static const uint8_t nothing[sizeof TRACE_MAGIC - 1];
    if (trace->size == 0)
        return fail(trace, error, TRACE_ERROR_EMPTY,
                    "empty: the process ended while its trace was being created; "
                    "nothing was recorded");
    size_t compared = trace->size < sizeof nothing ? (size_t)trace->size : sizeof nothing;
    if (memcmp(trace->base, nothing, compared) == 0)
        return fail(trace, error, TRACE_ERROR_EMPTY,
                    "begins with zeros: the process ended while its trace was being created; "
                    "nothing was recorded");
    if (memcmp(trace->base, TRACE_MAGIC, compared) != 0)
        return fail(trace, error, TRACE_ERROR_FOREIGN,
                    "not a cuheap trace: no \"cuheap\" at offset 0; "
                    "name a file that libcuheap.so wrote");
    if (trace->size < TRACE_HEADER_BYTES)
        return fail(trace, error, TRACE_ERROR_CUT,
                    "cut off at offset %llu, within its header of %u bytes; "
                    "copy the whole file again",
                    (unsigned long long)trace->size, TRACE_HEADER_BYTES);
    return true;
}

static bool check_version(const struct trace *trace, struct trace_error *error) {
    const struct trace_header *header = &trace->header;
    if (header->byte_order == __builtin_bswap32(TRACE_BYTE_ORDER))
        return fail(trace, error, TRACE_ERROR_FOREIGN,
                    "byte order at offset %zu is big-endian; "
                    "only little-endian traces (x86-64, aarch64) can be read",
                    offsetof(struct trace_header, byte_order));
    if (header->byte_order != TRACE_BYTE_ORDER)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "damaged: byte order at offset %zu is 0x%08x; copy the file again",
                    offsetof(struct trace_header, byte_order), header->byte_order);
    if (header->major > TRACE_MAJOR)
        return fail(trace, error, TRACE_ERROR_NEWER,
                    "format version %u.%u at offset %zu is newer than this cuheap (%d.%d); "
                    "read it with the cuheap that came with its libcuheap.so",
                    header->major, header->minor, offsetof(struct trace_header, major), TRACE_MAJOR,
                    TRACE_MINOR);
    if (header->major < TRACE_MAJOR)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "format version %u.%u at offset %zu never existed; copy the file again",
                    header->major, header->minor, offsetof(struct trace_header, major));
    if (header->machine != MACHINE_X86_64 && header->machine != MACHINE_AARCH64)
        return fail(trace, error, TRACE_ERROR_FOREIGN,
                    "machine %u at offset %zu is neither x86-64 nor aarch64; "
                    "such traces cannot be read",
                    header->machine, offsetof(struct trace_header, machine));
    return true;
}

static bool check_header(const struct trace *trace, struct trace_error *error) {
    const struct trace_header *header = &trace->header;
    if (header->header_bytes < sizeof *header || header->header_bytes > header->directory_offset)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "damaged: header size %u at offset %zu is impossible; copy the file again",
                    header->header_bytes, offsetof(struct trace_header, header_bytes));
    uint64_t end = header->directory_offset +
                   (uint64_t)header->directory_capacity * sizeof(struct trace_region);
    if (header->directory_offset % 8 != 0 || end > TRACE_HEADER_BYTES)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "damaged: directory at offset %u, capacity %u, leaves the header block; "
                    "copy the file again",
                    header->directory_offset, header->directory_capacity);
    return true;
}

static bool check_region(const struct trace *trace, const struct region *region, uint64_t entry,
                         struct trace_error *error) {
    const char *name = trace_section_name(region->section);
    if (region->offset % TRACE_REGION_ALIGN != 0 || region->offset < TRACE_HEADER_BYTES ||
        region->bytes == 0 || region->bytes % 8 != 0)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "damaged: directory entry at offset %llu (%s) is impossible; "
                    "copy the file again",
                    (unsigned long long)entry, name);
    if (region->offset > trace->size || region->bytes > trace->size - region->offset)
        return fail(trace, error, TRACE_ERROR_CUT,
                    "cut off at offset %llu: section %s needs %llu bytes from offset %llu; "
                    "copy the whole file again",
                    (unsigned long long)trace->size, name, (unsigned long long)region->bytes,
                    (unsigned long long)region->offset);
    uint32_t expected = record_sizes[region->section];
    if (expected ? region->record_bytes < expected || region->record_bytes % 8 != 0
                 : region->record_bytes != 0)
        return fail(trace, error, TRACE_ERROR_DAMAGED,
                    "damaged: directory entry at offset %llu (%s) has records of %u bytes; "
                    "copy the file again",
                    (unsigned long long)entry, name, region->record_bytes);
    return true;
}

static int compare_regions(const void *left, const void *right) {
    const struct region *a = left, *b = right;
    if (a->section != b->section)
        return a->section < b->section ? -1 : 1;
    if (a->ordinal != b->ordinal)
        return a->ordinal < b->ordinal ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static bool check_overlap(const struct trace *trace, struct trace_error *error) {
    for (unsigned i = 1; i < trace->region_count; i++)
        for (unsigned j = 0; j < i; j++) {
            const struct region *a = &trace->regions[i], *b = &trace->regions[j];
            if (a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                return fail(trace, error, TRACE_ERROR_DAMAGED,
                            "damaged: sections %s and %s overlap at offset %llu; "
                            "copy the file again",
                            trace_section_name(a->section), trace_section_name(b->section),
                            (unsigned long long)(a->offset > b->offset ? a->offset : b->offset));
        }
    return true;
}

/* Reads one directory entry; false where the trace must be refused. */
static bool take_region(struct trace *trace, uint64_t entry, struct trace_error *error) {
    const struct trace_region *written =
        (const struct trace_region *)(const void *)(trace->base + entry);
    struct region *region = &trace->regions[trace->region_count];
    region->section = __atomic_load_n(&written->section, __ATOMIC_ACQUIRE);
    if (region->section == 0) {
        trace->pending_regions++;
        return true;
    }
    if (region->section >= TRACE_SECTION_LIMIT) {
        trace->unknown_regions++;
        return true;
    }
    region->ordinal = written->ordinal;
    region->record_bytes = written->record_bytes;
    region->offset = written->offset;
    region->bytes = written->bytes;
    region->claimed = &written->claimed;
    if (!check_region(trace, region, entry, error))
        return false;
    trace->region_count++;
    return true;
}

static bool read_directory(struct trace *trace, struct trace_error *error) {
    uint32_t count = trace->header.directory_count;
    if (count > trace->header.directory_capacity)
        count = trace->header.directory_capacity;
    trace->regions = calloc(count + 1u, sizeof *trace->regions);
    if (!trace->regions)
        return fail(trace, error, TRACE_ERROR_SYSTEM, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        uint64_t entry = trace->header.directory_offset + (uint64_t)i * sizeof(struct trace_region);
        if (!take_region(trace, entry, error))
            return false;
    }
    qsort(trace->regions, trace->region_count, sizeof *trace->regions, compare_regions);
    unsigned at = 0;
    for (unsigned section = 0; section <= TRACE_SECTION_LIMIT; section++) {
        while (at < trace->region_count && trace->regions[at].section < section)
            at++;
        trace->first[section] = at;
    }
    return check_overlap(trace, error);
}

/* A text of the header may fill its field: the copy ends it. */
static void end_texts(struct trace_header *header) {
#define END(field) header->field[sizeof header->field - 1] = '\0'
    END(boot_id);
    END(host);
    END(name);
    END(executable);
    END(job);
    END(job_source);
    END(writer);
    END(environment);
    header->environment[sizeof header->environment - 2] = '\0';
    for (unsigned i = 0; i < TRACE_DEVICES; i++)
        END(devices[i].name);
#undef END
}

static bool validate(struct trace *trace, struct trace_error *error) {
    if (!check_start(trace, error))
        return false;
    memcpy(&trace->header, trace->base, sizeof trace->header);
    end_texts(&trace->header);
    return check_version(trace, error) && check_header(trace, error) &&
           read_directory(trace, error);
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct trace *make_trace(const char *name, struct trace_error *error) {
    struct trace *trace = calloc(1, sizeof *trace);
    char *path = strdup(name);
    if (trace && path) {
        trace->path = path;
        return trace;
    }
    free(trace);
    free(path);
    if (error) {
        error->code = TRACE_ERROR_SYSTEM;
        snprintf(error->text, sizeof error->text, "out of memory");
    }
    return NULL;
}

static bool map_file(struct trace *trace, struct trace_error *error) {
    /* A FIFO or a device in place of a trace must not make us wait. */
    int fd = open(trace->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return fail(trace, error, TRACE_ERROR_SYSTEM, "cannot be opened: %s", strerror(errno));
    struct stat status;
    bool ok = fstat(fd, &status) == 0;
    if (!ok)
        fail(trace, error, TRACE_ERROR_SYSTEM, "cannot be read: %s", strerror(errno));
    else if (!S_ISREG(status.st_mode))
        ok = fail(trace, error, TRACE_ERROR_FOREIGN, "not a regular file; name a trace");
    else if (status.st_size > 0) {
        void *base = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
            ok = fail(trace, error, TRACE_ERROR_SYSTEM, "cannot be mapped: %s", strerror(errno));
        else {
            trace->base = base;
            trace->size = (uint64_t)status.st_size;
            trace->mapped = true;
        }
    }
    close(fd);
    return ok;
}

struct trace *trace_open(const char *path, struct trace_error *error) {
    struct trace *trace = make_trace(path, error);
    if (!trace)
        return NULL;
    if (map_file(trace, error) && validate(trace, error))
        return trace;
    trace_close(trace);
    return NULL;
}

struct trace *trace_open_bytes(const void *bytes, size_t size, const char *name,
                               struct trace_error *error) {
    struct trace *trace = make_trace(name, error);
    if (!trace)
        return NULL;
    trace->base = bytes;
    trace->size = size;
    if ((uintptr_t)bytes % 8 != 0)
        fail(trace, error, TRACE_ERROR_SYSTEM, "the copy is not aligned to 8 bytes");
    else if (validate(trace, error))
        return trace;
    trace_close(trace);
    return NULL;
}

void trace_close(struct trace *trace) {
    if (!trace)
        return;
    if (trace->mapped)
        munmap((void *)(uintptr_t)trace->base, (size_t)trace->size);
    free(trace->regions);
    free(trace->path);
    free(trace);
}

static void on_bus_error(int signal_number) {
    static const char line[] = "cuheap: a file was cut off by another process while being read; "
                               "run the command again\n";
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written;
    _exit(2);
}

void trace_exit_on_truncation(void) {
    struct sigaction action = {.sa_handler = on_bus_error};
    sigaction(SIGBUS, &action, NULL);
}

const char *trace_path(const struct trace *trace) {
    return trace->path;
}

uint64_t trace_bytes(const struct trace *trace) {
    return trace->size;
}

const struct trace_header *trace_get_header(const struct trace *trace) {
    return &trace->header;
}

/* ---- regions and records --------------------------------------------------------------------- */

static uint64_t region_claimed(const struct region *region) {
    uint64_t claimed = __atomic_load_n(region->claimed, __ATOMIC_ACQUIRE);
    return claimed < region->bytes ? claimed : region->bytes;
}

/* Bytes of a region that may hold records: in a hash table or a ring, all of them. */
static uint64_t region_used(const struct region *region) {
    if (region->section == TRACE_SECTION_LIVE_TABLE || region->section == TRACE_SECTION_HISTORY)
        return region->bytes;
    return region_claimed(region);
}

struct trace_section_size trace_section_size(const struct trace *trace, unsigned section) {
    struct trace_section_size size = {0};
    if (section >= TRACE_SECTION_LIMIT)
        return size;
    for (unsigned i = trace->first[section]; i < trace->first[section + 1]; i++) {
        const struct region *region = &trace->regions[i];
        size.regions++;
        size.bytes += region->bytes;
        size.claimed += section == TRACE_SECTION_HISTORY
                            ? __atomic_load_n(region->claimed, __ATOMIC_ACQUIRE)
                            : region_used(region);
        if (region->record_bytes)
            size.records += region_used(region) / region->record_bytes;
    }
    return size;
}

unsigned trace_unknown_regions(const struct trace *trace) {
    return trace->unknown_regions;
}

unsigned trace_pending_regions(const struct trace *trace) {
    return trace->pending_regions;
}

size_t trace_record_room(const struct trace *trace, enum trace_section section) {
    size_t room = 0;
    for (unsigned i = trace->first[section]; i < trace->first[section + 1]; i++)
        if (trace->regions[i].record_bytes)
            room += trace->regions[i].bytes / trace->regions[i].record_bytes;
    return room;
}

/* An index counts the room of the regions before, so that it stays the same while they fill. */
size_t trace_record_count(const struct trace *trace, enum trace_section section) {
    size_t count = 0, room = 0;
    for (unsigned i = trace->first[section]; i < trace->first[section + 1]; i++) {
        const struct region *region = &trace->regions[i];
        if (!region->record_bytes)
            continue;
        size_t used = region_used(region) / region->record_bytes;
        if (used > 0)
            count = room + used;
        room += region->bytes / region->record_bytes;
    }
    return count;
}

const void *trace_record(const struct trace *trace, enum trace_section section, size_t index) {
    for (unsigned i = trace->first[section]; i < trace->first[section + 1]; i++) {
        const struct region *region = &trace->regions[i];
        if (!region->record_bytes)
            return NULL;
        size_t room = region->bytes / region->record_bytes;
        if (index >= room) {
            index -= room;
            continue;
        }
        const void *record = trace->base + region->offset + index * region->record_bytes;
        return __atomic_load_n((const uint32_t *)record, __ATOMIC_ACQUIRE) ? record : NULL;
    }
    return NULL;
}

ptrdiff_t trace_record_index(const struct trace *trace, enum trace_section section, uint32_t ref) {
    uint64_t offset = (uint64_t)ref << TRACE_REF_SHIFT;
    size_t before = 0;
    for (unsigned i = trace->first[section]; i < trace->first[section + 1]; i++) {
        const struct region *region = &trace->regions[i];
        if (!region->record_bytes)
            return -1;
        size_t room = region->bytes / region->record_bytes;
        if (offset >= region->offset && offset - region->offset < room * region->record_bytes) {
            uint64_t within = offset - region->offset;
            if (within % region->record_bytes != 0)
                return -1;
            return (ptrdiff_t)(before + within / region->record_bytes);
        }
        before += room;
    }
    return -1;
}

struct trace_slots trace_live_table(const struct trace *trace, unsigned index) {
    unsigned first = trace->first[TRACE_SECTION_LIVE_TABLE];
    if (index >= trace->first[TRACE_SECTION_LIVE_TABLE + 1] - first)
        return (struct trace_slots){0};
    const struct region *region = &trace->regions[first + index];
    return (struct trace_slots){.base = trace->base + region->offset,
                                .count = region->bytes / region->record_bytes,
                                .stride = region->record_bytes};
}

/* ---- what refs name -------------------------------------------------------------------------- */

/* A record of variable length: its start, and the bytes from there that belong to records. */
static const void *variable_record(const struct trace *trace, enum trace_section section,
                                   uint32_t ref, uint64_t least, uint64_t *room) {
    uint64_t offset = (uint64_t)ref << TRACE_REF_SHIFT;
    for (unsigned i = trace->first[section]; ref && i < trace->first[section + 1]; i++) {
        const struct region *region = &trace->regions[i];
        if (offset < region->offset || offset - region->offset >= region->bytes)
            continue;
        uint64_t used = region_claimed(region), within = offset - region->offset;
        if (within >= used || used - within < least)
            return NULL;
        *room = used - within;
        return trace->base + offset;
    }
    return NULL;
}

struct trace_slots trace_failure_copy(const struct trace *trace, uint32_t ref, uint64_t *ns) {
    uint64_t room;
    const struct trace_copy *copy = variable_record(trace, TRACE_SECTION_FAILURE_COPIES, ref,
                                                    offsetof(struct trace_copy, slots), &room);
    if (!copy || __atomic_load_n(&copy->state, __ATOMIC_ACQUIRE) != 1 ||
        copy->count > (room - offsetof(struct trace_copy, slots)) / sizeof copy->slots[0])
        return (struct trace_slots){0};
    *ns = copy->ns;
    return (struct trace_slots){.base = (const uint8_t *)copy->slots,
                                .count = copy->count,
                                .stride = sizeof copy->slots[0]};
}

const char *trace_string(const struct trace *trace, uint32_t ref) {
    uint64_t room;
    const struct trace_string *string =
        variable_record(trace, TRACE_SECTION_STRINGS, ref, sizeof(struct trace_string), &room);
    if (!string)
        return NULL;
    uint32_t bytes = __atomic_load_n(&string->bytes, __ATOMIC_ACQUIRE);
    room -= offsetof(struct trace_string, text);
    if (bytes == 0 || bytes >= room || string->text[bytes] != '\0')
        return NULL;
    return string->text;
}

struct trace_native_frames trace_native_stack(const struct trace *trace, uint32_t ref) {
    uint64_t room;
    const struct trace_native_stack *stack = variable_record(
        trace, TRACE_SECTION_NATIVE_STACKS, ref, offsetof(struct trace_native_stack, pcs), &room);
    if (!stack || !(__atomic_load_n(&stack->flags, __ATOMIC_ACQUIRE) & TRACE_STACK_VALID))
        return (struct trace_native_frames){0};
    uint32_t depth = stack->depth;
    if (depth > (room - offsetof(struct trace_native_stack, pcs)) / sizeof stack->pcs[0])
        return (struct trace_native_frames){0};
    return (struct trace_native_frames){
        .pcs = stack->pcs, .depth = depth, .flags = stack->flags, .generation = stack->generation};
}

struct trace_python_frames trace_python_stack(const struct trace *trace, uint32_t ref) {
    uint64_t room;
    const struct trace_python_stack *stack =
        variable_record(trace, TRACE_SECTION_PYTHON_STACKS, ref,
                        offsetof(struct trace_python_stack, places), &room);
    if (!stack || !(__atomic_load_n(&stack->flags, __ATOMIC_ACQUIRE) & TRACE_STACK_VALID))
        return (struct trace_python_frames){0};
    uint32_t depth = stack->depth;
    if (depth > (room - offsetof(struct trace_python_stack, places)) / sizeof stack->places[0])
        return (struct trace_python_frames){0};
    return (struct trace_python_frames){
        .places = stack->places, .depth = depth, .flags = stack->flags};
}

const struct trace_python_place *trace_python_place(const struct trace *trace, uint32_t ref) {
    ptrdiff_t index = trace_record_index(trace, TRACE_SECTION_PYTHON_PLACES, ref);
    return index < 0 ? NULL : trace_record(trace, TRACE_SECTION_PYTHON_PLACES, (size_t)index);
}

const struct trace_module *trace_module_at(const struct trace *trace, uint64_t address,
                                           uint32_t generation) {
    size_t count = trace_record_count(trace, TRACE_SECTION_MODULES);
    for (size_t i = 0; i < count; i++) {
        const struct trace_module *module = trace_record(trace, TRACE_SECTION_MODULES, i);
        if (!module || address < module->start || address >= module->end)
            continue;
        uint32_t unloaded = module->unloaded_generation;
        if (module->loaded_generation <= generation && (!unloaded || generation < unloaded))
            return module;
    }
    return NULL;
}
