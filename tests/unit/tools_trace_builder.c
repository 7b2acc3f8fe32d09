/*
 * Makes traces in memory. See tools_trace_builder.h.
 */
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REGION_BYTES 65536u
#define ROOM_BYTES   (48u * REGION_BYTES)

static const uint32_t record_bytes[TRACE_SECTION_LIMIT] = {
    [TRACE_SECTION_MODULES] = 112,    [TRACE_SECTION_PYTHON_PLACES] = 32,
    [TRACE_SECTION_SITES] = 1392,     [TRACE_SECTION_LIVE_TABLE] = 32,
    [TRACE_SECTION_TOTALS] = 8584,    [TRACE_SECTION_CONTEXTS] = 56,
    [TRACE_SECTION_POOLS] = 96,       [TRACE_SECTION_RANGES] = 64,
    [TRACE_SECTION_MARKS] = 24,       [TRACE_SECTION_FAILURES] = 112,
    [TRACE_SECTION_HISTORY] = 32,     [TRACE_SECTION_NOTES] = 24,
    [TRACE_SECTION_GPU_MODULES] = 64,
};

struct trace_region *builder_add_region(struct trace_builder *builder, unsigned section,
                                        uint64_t bytes, uint32_t record) {
    struct trace_header *header = builder->header;
    struct trace_region *region =
        (struct trace_region *)(void *)(builder->bytes + 32768) + header->directory_count;
    cr_assert(builder->size + bytes <= ROOM_BYTES);
    region->section = section;
    region->ordinal = builder->regions[section] ? builder->regions[section]->ordinal + 1 : 0;
    region->offset = builder->size;
    region->bytes = bytes;
    region->record_bytes = record;
    header->directory_count++;
    builder->size += bytes;
    header->file_bytes = builder->size;
    builder->regions[section] = region;
    return region;
}

struct trace_builder *builder_new(void) {
    struct trace_builder *builder = calloc(1, sizeof *builder);
    cr_assert_not_null(builder);
    builder->bytes = aligned_alloc(REGION_BYTES, ROOM_BYTES);
    cr_assert_not_null(builder->bytes);
    memset(builder->bytes, 0, ROOM_BYTES);
    builder->size = REGION_BYTES;
    struct trace_header *header = builder->header = (void *)builder->bytes;
    memcpy(header->magic, "cuheap\r\n", 8);
    header->major = 1;
    header->header_bytes = sizeof *header;
    header->byte_order = 0x01020304;
    header->machine = 62;
    header->directory_offset = 32768;
    header->directory_capacity = 800;
    header->state = TRACE_STATE_SEALED;
    header->max_bytes = ROOM_BYTES;
    header->start_realtime_ns = 1700000000ull * 1000000000u;
    header->sealed_ns = 60ull * 1000000000u;
    header->pid = 4242;
    header->parent_pid = 4241;
    header->rank = UINT32_MAX;
    header->features = TRACE_FEATURE_NATIVE_STACKS;
    header->unwinder = TRACE_UNWINDER_LIBUNWIND;
    strcpy(header->host, "testhost");
    strcpy(header->name, "program");
    strcpy(header->job, "testjob");
    for (unsigned section = 1; section < TRACE_SECTION_LIMIT; section++)
        builder_add_region(builder, section, REGION_BYTES, record_bytes[section]);
    return builder;
}

void builder_free(struct trace_builder *builder) {
    free(builder->bytes);
    free(builder);
}

void *builder_append(struct trace_builder *builder, unsigned section, size_t bytes) {
    struct trace_region *region = builder->regions[section];
    bytes = (bytes + 7) & ~(size_t)7;
    cr_assert(region->claimed + bytes <= region->bytes);
    void *record = builder->bytes + region->offset + region->claimed;
    region->claimed += bytes;
    return record;
}

uint32_t builder_ref(const struct trace_builder *builder, const void *record) {
    return (uint32_t)((size_t)((const uint8_t *)record - builder->bytes) / 8);
}

uint32_t builder_string(struct trace_builder *builder, const char *text) {
    size_t bytes = strlen(text);
    struct trace_string *string = builder_append(builder, TRACE_SECTION_STRINGS, 4 + bytes + 1);
    memcpy(string->text, text, bytes);
    string->bytes = (uint32_t)bytes;
    return builder_ref(builder, string);
}

struct trace_module *builder_module(struct trace_builder *builder, const char *path, uint64_t start,
                                    uint64_t end, uint64_t bias) {
    struct trace_module *module = builder_append(builder, TRACE_SECTION_MODULES, sizeof *module);
    module->path = builder_string(builder, path);
    module->start = start;
    module->end = end;
    module->bias = bias;
    module->state = 1;
    return module;
}

struct self {
    struct trace_builder *builder;
    struct trace_module *module;
};

static int describe_self(struct dl_phdr_info *info, size_t size, void *argument) {
    struct self *self = argument;
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    (void)size;
    cr_assert_gt(length, 0);
    path[length] = '\0';
    uint64_t start = UINT64_MAX, end = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uint64_t from = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        start = from < start ? from : start;
        end = from + segment->p_memsz > end ? from + segment->p_memsz : end;
    }
    self->module = builder_module(self->builder, path, start, end, info->dlpi_addr);
    return 1; /* the first is the program */
}

struct trace_module *builder_this_program(struct trace_builder *builder) {
    struct self self = {builder, NULL};
    dl_iterate_phdr(describe_self, &self);
    return self.module;
}

uint32_t builder_native_stack(struct trace_builder *builder, const uint64_t *pcs, uint32_t depth) {
    struct trace_native_stack *stack =
        builder_append(builder, TRACE_SECTION_NATIVE_STACKS, 24 + (size_t)depth * sizeof *pcs);
    stack->depth = depth;
    memcpy(stack->pcs, pcs, depth * sizeof *pcs);
    stack->flags = TRACE_STACK_VALID;
    return builder_ref(builder, stack);
}

uint32_t builder_python_place(struct trace_builder *builder, const char *function, const char *file,
                              uint32_t line) {
    struct trace_python_place *place =
        builder_append(builder, TRACE_SECTION_PYTHON_PLACES, sizeof *place);
    place->function = builder_string(builder, function);
    place->file = builder_string(builder, file);
    place->line = line;
    place->state = 1;
    return builder_ref(builder, place);
}

static void *record_at(const struct trace_builder *builder, uint32_t ref) {
    return builder->bytes + (size_t)ref * 8;
}

void builder_place_entry(struct trace_builder *builder, uint32_t place) {
    struct trace_python_place *record = record_at(builder, place);
    record->flags |= TRACE_PLACE_ENTRY;
}

void builder_place_qualified(struct trace_builder *builder, uint32_t place, const char *name) {
    struct trace_python_place *record = record_at(builder, place);
    record->qualified = builder_string(builder, name);
}

/* Of native and Python stacks: both begin with them. */
void builder_stack_flags(struct trace_builder *builder, uint32_t stack, uint32_t flags) {
    *(uint32_t *)record_at(builder, stack) |= flags;
}

uint32_t builder_python_stack(struct trace_builder *builder, const uint32_t *places,
                              uint32_t depth) {
    struct trace_python_stack *stack =
        builder_append(builder, TRACE_SECTION_PYTHON_STACKS, 16 + (size_t)depth * sizeof *places);
    stack->depth = depth;
    memcpy(stack->places, places, depth * sizeof *places);
    stack->flags = TRACE_STACK_VALID;
    return builder_ref(builder, stack);
}

struct trace_total *builder_total(struct trace_builder *builder, unsigned ledger, unsigned group,
                                  uint16_t device) {
    struct trace_total *total = builder_append(builder, TRACE_SECTION_TOTALS, sizeof *total);
    total->ledger = (uint8_t)ledger;
    total->group = (uint8_t)group;
    total->device = device;
    total->state = 1;
    return total;
}

struct trace_site *builder_site(struct trace_builder *builder, unsigned ledger, unsigned kind,
                                uint16_t device, uint32_t native_stack) {
    struct trace_site *site = builder_append(builder, TRACE_SECTION_SITES, sizeof *site);
    site->ledger = (uint8_t)ledger;
    site->kind = (uint8_t)kind;
    site->device = device;
    site->native_stack = native_stack;
    site->state = TRACE_SITE_USED;
    return site;
}

void builder_device(struct trace_builder *builder, unsigned ordinal, uint8_t uuid_first,
                    const char *name, uint64_t total_bytes) {
    struct trace_device *device = &builder->header->devices[ordinal];
    device->known = TRACE_DEVICE_TOTAL | TRACE_DEVICE_UUID | TRACE_DEVICE_NAME;
    memset(device->uuid, 0x11, sizeof device->uuid);
    device->uuid[0] = uuid_first;
    device->total_bytes = total_bytes;
    snprintf(device->name, sizeof device->name, "%s", name);
    device->state = 1;
}

/* ---- events ---------------------------------------------------------------------------------- */

static uint64_t tick(struct trace_builder *builder) {
    return builder->now_ns += 1000000;
}

struct trace_slot *builder_book_slot(struct trace_builder *builder, const struct trace_site *site,
                                     uint64_t bytes) {
    const struct trace_region *region = builder->regions[TRACE_SECTION_LIVE_TABLE];
    struct trace_slot *slot = (void *)(builder->bytes + region->offset);
    slot += builder->next_slot++;
    slot->address = 0x7f0000000000 + builder->next_slot * 0x200000;
    slot->bytes = bytes;
    slot->site = builder_ref(builder, site);
    slot->time_ms = (uint32_t)(tick(builder) / 1000000);
    slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_POINTER << 3;
    return slot;
}

void builder_book_site(struct trace_builder *builder, struct trace_site *site,
                       const struct trace_total *total, uint64_t bytes, bool alloc) {
    uint64_t live = site->alloc_bytes - site->free_bytes;
    if (site->peak_epoch != total->peak_bytes) {
        site->at_peak_bytes = live;
        site->peak_epoch = total->peak_bytes;
    }
    if (site->work_epoch != total->allocs) {
        site->at_work_bytes = live;
        site->at_work_count = site->allocs - site->frees;
        site->work_epoch = total->allocs;
    }
    *(alloc ? &site->allocs : &site->frees) += 1;
    *(alloc ? &site->alloc_bytes : &site->free_bytes) += bytes;
    live = site->alloc_bytes - site->free_bytes;
    if (live > site->own_peak_bytes)
        site->own_peak_bytes = live;
    site->last_ns = builder->now_ns;
    if (!site->first_ns)
        site->first_ns = builder->now_ns;
}

void builder_book_total(struct trace_builder *builder, struct trace_total *total, unsigned kind,
                        uint64_t bytes, bool alloc) {
    uint64_t change = alloc ? bytes : -bytes;
    total->live_bytes += change;
    total->kind_live_bytes[kind] += change;
    if (total->kind_live_bytes[kind] > total->kind_peak_bytes[kind])
        total->kind_peak_bytes[kind] = total->kind_live_bytes[kind];
    if (total->live_bytes > total->peak_bytes) {
        total->peak_bytes = total->live_bytes;
        total->peak_ns = builder->now_ns;
    }
    if (alloc)
        total->last_alloc_ns = builder->now_ns;
    *(alloc ? &total->allocs : &total->frees) += 1;
    total->last_ns = builder->now_ns;
}

struct trace_slot *builder_alloc(struct trace_builder *builder, struct trace_site *site,
                                 struct trace_total *total, uint64_t bytes) {
    struct trace_slot *slot = builder_book_slot(builder, site, bytes);
    builder_book_site(builder, site, total, bytes, true);
    builder_book_total(builder, total, site->kind, bytes, true);
    return slot;
}

void builder_free_block(struct trace_builder *builder, struct trace_site *site,
                        struct trace_total *total, struct trace_slot *slot) {
    tick(builder);
    slot->word = TRACE_SLOT_EMPTY;
    builder_book_site(builder, site, total, slot->bytes, false);
    builder_book_total(builder, total, site->kind, slot->bytes, false);
}

/* ---- opening --------------------------------------------------------------------------------- */

struct trace *builder_open(const struct trace_builder *builder) {
    struct trace_error error = {0};
    struct trace *trace = trace_open_bytes(builder->bytes, builder->size, "built.trace", &error);
    cr_assert_not_null(trace, "%s", error.text);
    return trace;
}

void builder_write(const struct trace_builder *builder, const char *path) {
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(builder->bytes, 1, builder->size, file), builder->size);
    cr_assert_eq(fclose(file), 0);
}
