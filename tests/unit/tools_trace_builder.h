/*
 * Makes traces in memory, as the library would leave them, for the tests of the reader.
 *
 * The format is written out here a second time, by hand, so that a test does not only find the
 * library's own mistakes agreeing with each other. An event can be booked step by step (slot, site,
 * total) to leave it in flight at any of them.
 */
#ifndef TESTS_TOOLS_TRACE_BUILDER_H
#define TESTS_TOOLS_TRACE_BUILDER_H

#include <cuheap/trace_format.h>
#include <stdbool.h>
#include <stddef.h>

#include "trace_reader.h"

struct trace_builder {
    uint8_t *bytes; /* the file, aligned to 64 KiB */
    size_t size;
    struct trace_header *header;
    struct trace_region *regions[TRACE_SECTION_LIMIT];
    uint64_t now_ns;
    size_t next_slot;
};

/* An empty trace of pid 4242 on "testhost", job "testjob", sealed, with all sections. */
struct trace_builder *builder_new(void);
void builder_free(struct trace_builder *builder);

/* Adds a further region of a section (the first are there). */
struct trace_region *builder_add_region(struct trace_builder *builder, unsigned section,
                                        uint64_t bytes, uint32_t record_bytes);
/* Zeroed bytes at the end of a section's latest region. */
void *builder_append(struct trace_builder *builder, unsigned section, size_t bytes);
uint32_t builder_ref(const struct trace_builder *builder, const void *record);

uint32_t builder_string(struct trace_builder *builder, const char *text);
struct trace_module *builder_module(struct trace_builder *builder, const char *path, uint64_t start,
                                    uint64_t end, uint64_t bias);
/* The running program as a loaded object. */
struct trace_module *builder_this_program(struct trace_builder *builder);
uint32_t builder_native_stack(struct trace_builder *builder, const uint64_t *pcs, uint32_t depth);
uint32_t builder_python_place(struct trace_builder *builder, const char *function, const char *file,
                              uint32_t line);
void builder_place_entry(struct trace_builder *builder, uint32_t place);
void builder_place_qualified(struct trace_builder *builder, uint32_t place, const char *name);
void builder_stack_flags(struct trace_builder *builder, uint32_t stack, uint32_t flags);
uint32_t builder_python_stack(struct trace_builder *builder, const uint32_t *places,
                              uint32_t depth);
struct trace_total *builder_total(struct trace_builder *builder, unsigned ledger, unsigned group,
                                  uint16_t device);
struct trace_site *builder_site(struct trace_builder *builder, unsigned ledger, unsigned kind,
                                uint16_t device, uint32_t native_stack);
void builder_device(struct trace_builder *builder, unsigned ordinal, uint8_t uuid_first,
                    const char *name, uint64_t total_bytes);

/* The steps of an event, in the order of the library. Each advances the clock by 1 ms. */
struct trace_slot *builder_book_slot(struct trace_builder *builder, const struct trace_site *site,
                                     uint64_t bytes);
void builder_book_site(struct trace_builder *builder, struct trace_site *site,
                       const struct trace_total *total, uint64_t bytes, bool alloc);
void builder_book_total(struct trace_builder *builder, struct trace_total *total, unsigned kind,
                        uint64_t bytes, bool alloc);

/* Whole events. */
struct trace_slot *builder_alloc(struct trace_builder *builder, struct trace_site *site,
                                 struct trace_total *total, uint64_t bytes);
void builder_free_block(struct trace_builder *builder, struct trace_site *site,
                        struct trace_total *total, struct trace_slot *slot);

/* Opens it; fails the test where that fails. */
struct trace *builder_open(const struct trace_builder *builder);
void builder_write(const struct trace_builder *builder, const char *path);

#endif
