/*
 * The reader of traces: what it refuses and how it says so, and that nothing in a file, whatever it
 * holds, leads outside of it.
 */
#include "profile.h"
#include "text.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- refusals -------------------------------------------------------------------------------- */

struct corruption {
    const char *what;
    int code;
    const char *expected; /* in the message */
    void (*apply)(struct trace_builder *builder);
};

static void nothing_there(struct trace_builder *b) {
    b->size = 0;
}
static void zeros(struct trace_builder *b) {
    memset(b->bytes, 0, b->size);
}
static void foreign(struct trace_builder *b) {
    memcpy(b->bytes, "\177ELF", 4);
}
static void three_foreign_bytes(struct trace_builder *b) {
    memcpy(b->bytes, "abc", 3);
    b->size = 3;
}
static void only_magic(struct trace_builder *b) {
    b->size = 8;
}
static void inside_header(struct trace_builder *b) {
    b->size = 40000;
}
static void big_endian(struct trace_builder *b) {
    b->header->byte_order = 0x04030201;
}
static void odd_byte_order(struct trace_builder *b) {
    b->header->byte_order = 7;
}
static void newer_major(struct trace_builder *b) {
    b->header->major = 2;
}
static void major_zero(struct trace_builder *b) {
    b->header->major = 0;
}
static void other_machine(struct trace_builder *b) {
    b->header->machine = 243;
}
static void short_header(struct trace_builder *b) {
    b->header->header_bytes = 100;
}
static void long_header(struct trace_builder *b) {
    b->header->header_bytes = 32769;
}
static void directory_outside(struct trace_builder *b) {
    b->header->directory_capacity = 900;
}
static void directory_wraps(struct trace_builder *b) {
    b->header->directory_offset = 0xfffffff8;
    b->header->directory_capacity = 0xffffffff;
}
static void unaligned_region(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->offset += 8;
}
static void region_in_header(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->offset = 0;
}
static void empty_region(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->bytes = 0;
}
static void cut_off(struct trace_builder *b) {
    b->size -= 65536;
}
static void region_wraps(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->bytes = UINT64_MAX - 65535;
}
static void region_far_away(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->offset = 1ull << 62;
}
static void short_records(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->record_bytes = 8;
}
static void records_of_no_length(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->record_bytes = 0;
}
static void records_in_strings(struct trace_builder *b) {
    b->regions[TRACE_SECTION_STRINGS]->record_bytes = 16;
}
static void overlap(struct trace_builder *b) {
    b->regions[TRACE_SECTION_SITES]->offset = b->regions[TRACE_SECTION_LIVE_TABLE]->offset;
}

static const struct corruption corruptions[] = {
    {"no byte", TRACE_ERROR_EMPTY, "empty: the process ended while", nothing_there},
    {"only zeros", TRACE_ERROR_EMPTY, "nothing was recorded", zeros},
    {"another file", TRACE_ERROR_FOREIGN, "not a cuheap trace", foreign},
    {"a tiny other file", TRACE_ERROR_FOREIGN, "not a cuheap trace", three_foreign_bytes},
    {"only the magic", TRACE_ERROR_CUT, "cut off at offset 8,", only_magic},
    {"cut within the header", TRACE_ERROR_CUT, "cut off at offset 40000,", inside_header},
    {"big-endian", TRACE_ERROR_FOREIGN, "byte order at offset 16 is big-endian", big_endian},
    {"no byte order", TRACE_ERROR_DAMAGED, "byte order at offset 16", odd_byte_order},
    {"newer major", TRACE_ERROR_NEWER, "version 2.0 at offset 8 is newer", newer_major},
    {"major 0", TRACE_ERROR_DAMAGED, "version 0.0 at offset 8", major_zero},
    {"other machine", TRACE_ERROR_FOREIGN, "machine 243 at offset 20", other_machine},
    {"short header", TRACE_ERROR_DAMAGED, "header size 100 at offset 12", short_header},
    {"long header", TRACE_ERROR_DAMAGED, "header size 32769", long_header},
    {"directory too large", TRACE_ERROR_DAMAGED, "capacity 900", directory_outside},
    {"directory wraps", TRACE_ERROR_DAMAGED, "leaves the header block", directory_wraps},
    {"unaligned region", TRACE_ERROR_DAMAGED, "(sites) is impossible", unaligned_region},
    {"region in the header", TRACE_ERROR_DAMAGED, "(sites) is impossible", region_in_header},
    {"region of no bytes", TRACE_ERROR_DAMAGED, "(sites) is impossible", empty_region},
    {"cut off", TRACE_ERROR_CUT, "cut off at offset 1114112: section gpu-modules", cut_off},
    {"region wraps", TRACE_ERROR_CUT, "section sites needs", region_wraps},
    {"region far away", TRACE_ERROR_CUT, "from offset 4611686018427387904", region_far_away},
    {"short records", TRACE_ERROR_DAMAGED, "(sites) has records of 8 bytes", short_records},
    {"no record length", TRACE_ERROR_DAMAGED, "has records of 0 bytes", records_of_no_length},
    {"fixed strings", TRACE_ERROR_DAMAGED, "(strings) has records of 16", records_in_strings},
    {"overlap", TRACE_ERROR_DAMAGED, "overlap at offset", overlap},
};

Test(reader, refuses_with_one_clear_line) {
    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        const struct corruption *corruption = &corruptions[i];
        struct trace_builder *builder = builder_new();
        struct trace_error error = {0};
        corruption->apply(builder);
        struct trace *trace = trace_open_bytes(builder->bytes, builder->size, "some\nfile", &error);
        cr_assert_null(trace, "%s", corruption->what);
        cr_expect_eq((int)error.code, corruption->code, "%s: %s", corruption->what, error.text);
        cr_expect(strstr(error.text, corruption->expected), "%s: %s", corruption->what, error.text);
        cr_expect_eq(strncmp(error.text, "some\\x0afile: ", 14), 0, "%s", error.text);
        cr_expect_null(strchr(error.text, '\n'));
        builder_free(builder);
    }
}

Test(reader, names_a_file_that_cannot_be_opened) {
    struct trace_error error = {0};
    cr_assert_null(trace_open("/nonexistent/a.trace", &error));
    cr_expect_eq(error.code, TRACE_ERROR_SYSTEM);
    cr_expect_str_eq(error.text,
                     "/nonexistent/a.trace: cannot be opened: No such file or directory");
}

Test(reader, does_not_wait_for_a_fifo) {
    char path[64];
    struct trace_error error = {0};
    snprintf(path, sizeof path, "/tmp/cuheap-reader-%d.trace", (int)getpid());
    cr_assert_eq(mkfifo(path, 0600), 0);
    struct trace *trace = trace_open(path, &error);
    unlink(path);
    cr_assert_null(trace);
    cr_expect_eq(error.code, TRACE_ERROR_FOREIGN);
}

Test(reader, opens_a_file_and_an_empty_file) {
    char path[64];
    struct trace_builder *builder = builder_new();
    struct trace_error error = {0};
    snprintf(path, sizeof path, "/tmp/cuheap-reader-%d.trace", (int)getpid());
    builder_write(builder, path);
    struct trace *trace = trace_open(path, &error);
    cr_assert_not_null(trace, "%s", error.text);
    cr_expect_str_eq(trace_path(trace), path);
    cr_expect_eq(trace_bytes(trace), builder->size);
    cr_expect_eq(trace_get_header(trace)->pid, 4242u);
    trace_close(trace);
    cr_assert_eq(truncate(path, 0), 0);
    cr_expect_null(trace_open(path, &error));
    cr_expect_eq(error.code, TRACE_ERROR_EMPTY);
    unlink(path);
    builder_free(builder);
}

/* ---- tolerance ------------------------------------------------------------------------------- */

Test(reader, tolerates_a_newer_minor_with_longer_records_and_new_sections) {
    struct trace_builder *builder = builder_new();
    builder->header->minor = 9;
    builder->header->header_bytes = sizeof *builder->header + 512;
    struct trace_region *longer = builder_add_region(builder, TRACE_SECTION_NOTES, 65536, 40);
    struct trace_note *first = builder_append(builder, TRACE_SECTION_NOTES, 40);
    struct trace_note *second = builder_append(builder, TRACE_SECTION_NOTES, 40);
    first->state = second->state = 1;
    first->ns = 11;
    second->ns = 22;
    (void)longer;
    /* A section of a number that this version does not know. */
    unsigned at = builder->header->directory_count;
    builder_add_region(builder, TRACE_SECTION_POOLS, 65536, 96);
    ((struct trace_region *)(void *)(builder->bytes + 32768))[at].section = 77;
    struct trace *trace = builder_open(builder);
    size_t room = 65536 / 24;
    const struct trace_note *note = trace_record(trace, TRACE_SECTION_NOTES, room + 1);
    cr_assert_not_null(note);
    cr_expect_eq(note->ns, 22u);
    cr_expect_eq(trace_record_count(trace, TRACE_SECTION_NOTES), room + 2);
    cr_expect_eq(trace_record_index(trace, TRACE_SECTION_NOTES, builder_ref(builder, second)),
                 (ptrdiff_t)room + 1);
    cr_expect_eq(trace_unknown_regions(trace), 1u);
    trace_close(trace);
    builder_free(builder);
}

Test(reader, skips_what_is_not_published) {
    struct trace_builder *builder = builder_new();
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->state = TRACE_SITE_UNUSED;
    builder->regions[TRACE_SECTION_NOTES]->section = 0;
    struct trace *trace = builder_open(builder);
    cr_expect_null(trace_record(trace, TRACE_SECTION_SITES, 0));
    cr_expect_eq(trace_record_count(trace, TRACE_SECTION_SITES), 1u);
    cr_expect_eq(trace_pending_regions(trace), 1u);
    cr_expect_eq(trace_section_size(trace, TRACE_SECTION_NOTES).regions, 0u);
    trace_close(trace);
    builder_free(builder);
}

Test(reader, counts_what_racing_writers_claimed_past_the_end) {
    struct trace_builder *builder = builder_new();
    builder->regions[TRACE_SECTION_SITES]->claimed = 65536 + 5 * 1392;
    builder->header->directory_count = 5000;
    struct trace *trace = builder_open(builder);
    cr_expect_eq(trace_record_count(trace, TRACE_SECTION_SITES), 65536u / 1392);
    cr_expect_null(trace_record(trace, TRACE_SECTION_SITES, 65536 / 1392));
    cr_expect_eq(trace_pending_regions(trace), 800u - 17u);
    trace_close(trace);
    builder_free(builder);
}

/* ---- refs ------------------------------------------------------------------------------------ */

Test(reader, strings_end_within_what_was_claimed) {
    struct trace_builder *builder = builder_new();
    uint32_t good = builder_string(builder, "a name"), bad = builder_string(builder, "endless");
    struct trace_string *string = (void *)(builder->bytes + (size_t)bad * 8);
    struct trace *trace = builder_open(builder);
    cr_expect_str_eq(trace_string(trace, good), "a name");
    cr_expect_str_eq(trace_string(trace, bad), "endless");
    string->bytes = 6; /* no NUL there */
    cr_expect_null(trace_string(trace, bad));
    string->bytes = 60000;
    cr_expect_null(trace_string(trace, bad));
    string->bytes = UINT32_MAX;
    cr_expect_null(trace_string(trace, bad));
    string->bytes = 0;
    cr_expect_null(trace_string(trace, bad));
    cr_expect_null(trace_string(trace, 0));
    cr_expect_null(trace_string(trace, bad + 100)); /* past what was claimed */
    cr_expect_null(trace_string(trace, 1));         /* in the header */
    cr_expect_null(trace_string(trace, UINT32_MAX));
    trace_close(trace);
    builder_free(builder);
}

Test(reader, stacks_end_within_what_was_claimed) {
    struct trace_builder *builder = builder_new();
    uint64_t pcs[3] = {0x1000, 0x2000, 0x3000};
    uint32_t ref = builder_native_stack(builder, pcs, 3);
    struct trace_native_stack *stack = (void *)(builder->bytes + (size_t)ref * 8);
    struct trace *trace = builder_open(builder);
    cr_assert_eq(trace_native_stack(trace, ref).depth, 3u);
    cr_expect_eq(trace_native_stack(trace, ref).pcs[2], 0x3000u);
    stack->depth = 4;
    cr_expect_eq(trace_native_stack(trace, ref).depth, 0u);
    stack->depth = UINT32_MAX;
    cr_expect_eq(trace_native_stack(trace, ref).depth, 0u);
    stack->depth = 3;
    stack->flags = 0;
    cr_expect_eq(trace_native_stack(trace, ref).depth, 0u);
    cr_expect_eq(trace_native_stack(trace, ref + 1).depth, 0u);
    cr_expect_eq(trace_python_stack(trace, ref).depth, 0u);
    trace_close(trace);
    builder_free(builder);
}

Test(reader, a_ref_must_name_the_beginning_of_a_record) {
    struct trace_builder *builder = builder_new();
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    uint32_t ref = builder_ref(builder, site);
    struct trace *trace = builder_open(builder);
    cr_expect_eq(trace_record_index(trace, TRACE_SECTION_SITES, ref), 0);
    cr_expect_eq(trace_record_index(trace, TRACE_SECTION_SITES, ref + 1), -1);
    cr_expect_eq(trace_record_index(trace, TRACE_SECTION_SITES, 0), -1);
    /* 65536 = 47 * 1392 + 112: the tail of a region is no record. */
    cr_expect_eq(trace_record_index(trace, TRACE_SECTION_SITES, ref + 47 * 1392 / 8), -1);
    trace_close(trace);
    builder_free(builder);
}

Test(reader, finds_the_module_that_was_loaded_then) {
    struct trace_builder *builder = builder_new();
    struct trace_module *old = builder_module(builder, "/old.so", 0x1000, 0x2000, 0x1000);
    struct trace_module *new = builder_module(builder, "/new.so", 0x1000, 0x2000, 0x1000);
    old->loaded_generation = 1;
    old->unloaded_generation = 5;
    new->loaded_generation = 5;
    struct trace *trace = builder_open(builder);
    cr_expect_eq(trace_module_at(trace, 0x1800, 4), old);
    cr_expect_eq(trace_module_at(trace, 0x1800, 5), new);
    cr_expect_null(trace_module_at(trace, 0x1800, 0));
    cr_expect_null(trace_module_at(trace, 0x2000, 5));
    trace_close(trace);
    builder_free(builder);
}

/* ---- hostile files --------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static struct trace_builder *full_trace(void) {
    struct trace_builder *builder = builder_new();
    uint64_t pcs[2] = {0x1100, 0x1200};
    builder_module(builder, "/bin/true", 0x1000, 0x2000, 0x1000);
    uint32_t place = builder_python_place(builder, "step", "/home/u/train.py", 7);
    uint32_t stack = builder_native_stack(builder, pcs, 2);
    struct trace_total *total = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    struct trace_site *site =
        builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, stack);
    site->python_stack = builder_python_stack(builder, &place, 1);
    for (unsigned i = 0; i < 20; i++)
        builder_alloc(builder, site, total, 512);
    return builder;
}

/* Reads everything that the reader hands out. */
static uint64_t walk(const struct trace *trace) {
    uint64_t sum = 0;
    for (unsigned section = 1; section < TRACE_SECTION_LIMIT; section++) {
        sum += trace_section_size(trace, section).records;
        size_t count = trace_record_count(trace, section);
        for (size_t i = 0; i < count && section != TRACE_SECTION_LIVE_TABLE; i++) {
            const uint32_t *record = trace_record(trace, section, i);
            sum += record ? *record : 0;
        }
    }
    struct profile *profile = profile_build(trace);
    cr_assert_not_null(profile);
    for (size_t i = 0; i < profile->site_count; i++) {
        const struct profile_site *site = &profile->sites[i];
        struct trace_native_frames native = trace_native_stack(trace, site->native_stack);
        for (unsigned f = 0; f < native.depth; f++) {
            const struct trace_module *module =
                trace_module_at(trace, native.pcs[f] - 1, native.generation);
            const char *path = module ? trace_string(trace, module->path) : NULL;
            sum += path ? strlen(path) : 0;
        }
        struct trace_python_frames python = trace_python_stack(trace, site->python_stack);
        for (unsigned f = 0; f < python.depth; f++) {
            const struct trace_python_place *place = trace_python_place(trace, python.places[f]);
            const char *name = place ? trace_string(trace, place->function) : NULL;
            sum += name ? strlen(name) : 0;
        }
    }
    profile_free(profile);
    return sum;
}

Test(reader, survives_any_damage) {
    struct trace_builder *builder = full_trace();
    uint8_t *intact = malloc(builder->size);
    cr_assert_not_null(intact);
    memcpy(intact, builder->bytes, builder->size);
    uint64_t seed = 0x1234567, opened = 0, refused = 0;
    for (unsigned round = 0; round < 3000; round++) {
        memcpy(builder->bytes, intact, builder->size);
        unsigned hits = 1 + next_random(&seed) % 8;
        for (unsigned i = 0; i < hits; i++) {
            /* Mostly where there is something to damage. */
            static const unsigned starts[] = {0,         4,         8,         32768,
                                              65536,     2 * 65536, 3 * 65536, 4 * 65536,
                                              5 * 65536, 6 * 65536, 7 * 65536};
            size_t at = starts[next_random(&seed) % 11] + next_random(&seed) % 700;
            builder->bytes[at] = (uint8_t)next_random(&seed);
        }
        struct trace_error error = {0};
        struct trace *trace = trace_open_bytes(builder->bytes, builder->size, "damaged", &error);
        if (!trace) {
            cr_assert(error.code != TRACE_ERROR_NONE && error.text[0]);
            refused++;
            continue;
        }
        walk(trace);
        trace_close(trace);
        opened++;
    }
    cr_expect_gt(opened, 300u);
    cr_expect_gt(refused, 300u);
    free(intact);
    builder_free(builder);
}

Test(reader, survives_any_length) {
    struct trace_builder *builder = full_trace();
    for (size_t size = 0; size <= builder->size; size += size < 256 ? 1 : 4093) {
        /* A buffer of its own, so that a read past the end is seen. */
        uint8_t *copy = aligned_alloc(8, (size + 8) & ~(size_t)7);
        cr_assert_not_null(copy);
        memcpy(copy, builder->bytes, size);
        struct trace *trace = trace_open_bytes(copy, size, "cut", NULL);
        cr_expect_null(trace, "%zu bytes", size);
        trace_close(trace);
        free(copy);
    }
    builder_free(builder);
}
