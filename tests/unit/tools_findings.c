/*
 * Fragmentation, verdicts and findings from traces made for them: each figure, and each condition
 * at its boundary.
 */
#include "findings.h"
#include "segment_map.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB       (1ull << 20)
#define GIB       (1ull << 30)
#define BASE      0x7f0000000000ull
#define WINDOW_NS (1ull << TRACE_WINDOW_SHIFT_MIN)

static struct trace_builder *builder;
static struct trace_total *driver, *tensors;
static struct job job;
static struct symbols *symbols;
static struct backtraces *backtraces;
static struct view view;
static struct findings findings;

static void set_up(void) {
    builder = builder_new();
    builder_device(builder, 0, 0xaa, "GPU A", 16 * GIB);
    driver = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    symbols = symbols_open(false);
    backtraces = backtraces_open(symbols);
}

static void tear_down(void) {
    findings_free(&findings);
    view_free(&view);
    backtraces_close(backtraces);
    symbols_close(symbols);
    job_close(&job);
    builder_free(builder);
}

TestSuite(findings, .init = set_up, .fini = tear_down);

static void analyse(void) {
    char path[64], *paths[] = {path};
    struct trace_error error = {0};
    snprintf(path, sizeof path, "/tmp/cuheap-findings-%d.trace", (int)getpid());
    builder_write(builder, path);
    bool loaded = job_load(&job, "report", paths, 1, NULL, &error);
    unlink(path);
    cr_assert(loaded, "%s", error.text);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){0}));
    cr_assert(findings_build(&view, backtraces, &findings));
}

/* The only one; NULL: there is none. */
static const struct finding *finding(enum finding_id id) {
    const struct finding *found = NULL;
    for (size_t i = 0; i < findings.count; i++) {
        if (findings.list[i].id != id)
            continue;
        cr_assert_null(found, "two findings %s", finding_ids[id]);
        found = &findings.list[i];
    }
    return found;
}

static uint32_t stack_in(const char *function) {
    uint32_t place = builder_python_place(builder, function, "/home/u/train.py", 7);
    return builder_python_stack(builder, &place, 1);
}

static struct trace_site *site_in(const char *function, unsigned ledger, unsigned kind) {
    struct trace_site *site = builder_site(builder, ledger, kind, 0, 0);
    site->python_stack = stack_in(function);
    return site;
}

static struct trace_slot *put(struct trace_site *site, uint64_t address, uint64_t bytes) {
    struct trace_slot *slot =
        builder_alloc(builder, site, site->ledger == TRACE_LEDGER_TENSOR ? tensors : driver, bytes);
    slot->address = address;
    if (site->ledger == TRACE_LEDGER_TENSOR)
        slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_TENSOR << 3;
    if (site->kind == TRACE_KIND_VMM)
        slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_VMM << 3;
    if (site->kind == TRACE_KIND_HOST)
        slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_HOST << 3;
    return slot;
}

/* ---- fragmentation --------------------------------------------------------------------------- */

static const struct fragmentation *moment(enum fragmentation_moment at) {
    cr_assert_eq(findings.space_count, 1u);
    const struct fragmentation *found = fragmentation_at(&findings.spaces[0].moments, at);
    cr_assert_not_null(found);
    return found;
}

Test(findings, rounding_counts_each_page_once) {
    struct trace_site *site = site_in("take", TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE);
    put(site, BASE, 512); /* three in one page */
    put(site, BASE + 512, 512);
    put(site, BASE + 2 * MIB - 512, 512);
    put(site, BASE + 4 * MIB, 2 * MIB + 1); /* two pages */
    put(site, BASE + 8 * MIB - 512, 1024);  /* the end of that, and another */
    analyse();
    const struct fragmentation *f = moment(FRAGMENTATION_EXIT);
    cr_expect(f->rounding_known);
    cr_expect_eq(f->plain_bytes, 3 * 512 + 2 * MIB + 1 + 1024);
    cr_expect_eq(f->rounding_waste_bytes, 4 * 2 * MIB - f->plain_bytes);
    cr_expect(moment(FRAGMENTATION_END_OF_WORK)->rounding_known, "nothing was freed after it");
}

/* Two segments; tensors leave holes of 1, 3 and 8 MiB in them. */
static void fill_segments(void) {
    tensors = builder_total(builder, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    struct trace_site *segments = site_in("reserve", TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE);
    struct trace_site *site = site_in("forward", TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR);
    segments->flags |= TRACE_SITE_SEGMENT;
    put(segments, BASE, 20 * MIB);
    put(segments, BASE + 100 * MIB, 10 * MIB);
    put(site, BASE + 1 * MIB, 9 * MIB);
    put(site, BASE + 13 * MIB, 7 * MIB);
    put(site, BASE + 100 * MIB, 2 * MIB);
}

Test(findings, holes_lie_between_tensors) {
    fill_segments();
    analyse();
    const struct fragmentation *f = moment(FRAGMENTATION_END_OF_WORK);
    cr_expect(f->holes_known);
    cr_expect_eq(f->segments, 2u);
    cr_expect_eq(f->segment_bytes, 30 * MIB);
    cr_expect_eq(f->holes, 3u);
    cr_expect_eq(f->holes_bytes, 12 * MIB);
    cr_expect_eq(f->largest_hole_bytes, 8 * MIB);
    cr_expect_float_eq(f->external_ratio, 1 - 8 / 12., 1e-9);
    cr_expect(f->cached_known);
    cr_expect_eq(f->cached_bytes, (int64_t)(12 * MIB));
}

Test(findings, the_map_shows_cells_of_segments) {
    struct segment_map map;
    char bar[11];
    fill_segments();
    analyse();
    cr_assert(segment_map_build(job.processes[0].profile, 0, 1, &map));
    cr_assert_eq(map.count, 2u);
    segment_map_draw(&map.segments[0], bar, 10); /* cells of 2 MiB: 1..10 and 13..20 are used */
    cr_expect_str_eq(bar, "+####.+###");
    segment_map_draw(&map.segments[1], bar, 10);
    cr_expect_str_eq(bar, "##........");
    segment_map_free(&map);
}

static struct trace_range *range(unsigned type, uint64_t address, uint64_t bytes, uint64_t handle) {
    struct trace_range *record = builder_append(builder, TRACE_SECTION_RANGES, sizeof *record);
    record->type = (uint16_t)type;
    record->address = address;
    record->bytes = bytes;
    record->handle = handle;
    record->created_ns = 1;
    record->state = 1;
    return record;
}

Test(findings, what_is_held_and_mapped_nowhere) {
    struct trace_site *site = site_in("wake", TRACE_LEDGER_DRIVER, TRACE_KIND_VMM);
    put(site, 0x11, 64 * MIB);
    put(site, 0x22, 64 * MIB);
    put(site, 0x33, 2 * MIB);
    range(TRACE_RANGE_RESERVATION, BASE, 256 * MIB, 0);
    range(TRACE_RANGE_MAPPING, BASE, 64 * MIB, 0x11);
    range(TRACE_RANGE_MAPPING, BASE + 64 * MIB, 64 * MIB, 0x22)->removed_ns = 5;
    analyse();
    const struct fragmentation *f = moment(FRAGMENTATION_EXIT);
    cr_expect_eq(f->reserved_bytes, 256 * MIB);
    cr_expect_eq(f->mapped_bytes, 64 * MIB);
    cr_expect_eq(f->held_unmapped, 2u);
    cr_expect_eq(f->held_unmapped_bytes, 66 * MIB);
    cr_assert_not_null(finding(FINDING_VMM_HELD_UNMAPPED));
    cr_expect_eq(finding(FINDING_VMM_HELD_UNMAPPED)->severity, SEVERITY_WARNING);
}

static struct trace_pool *pool(uint64_t reserved, uint64_t used) {
    struct trace_pool *record = builder_append(builder, TRACE_SECTION_POOLS, sizeof *record);
    record->reserved_bytes = reserved;
    record->used_bytes = used;
    record->sampled_ns = 5;
    record->number = 1;
    record->state = 1;
    return record;
}

Test(findings, pool_slack_is_told_from_its_bounds_on) {
    pool(1000 * MIB, 701 * MIB);
    pool(200 * MIB, 137 * MIB);
    pool(10 * GIB, 0)->sampled_ns = 0; /* never sampled: not known */
    analyse();
    cr_expect_null(finding(FINDING_FRAG_POOL_SLACK), "29.9 %%, 63 MiB");
}

Test(findings, pool_slack_at_its_bounds) {
    pool(1000 * MIB, 700 * MIB);
    analyse();
    const struct finding *found = finding(FINDING_FRAG_POOL_SLACK);
    cr_assert_not_null(found);
    cr_expect_eq(found->bytes, 300 * MIB);
    cr_expect_eq(found->severity, SEVERITY_NOTE);
    cr_expect_eq(found->advice_count, 1u);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static struct trace_failure *fail(const char *call, int code, uint64_t request) {
    struct trace_failure *record = builder_append(builder, TRACE_SECTION_FAILURES, sizeof *record);
    record->ns = ++builder->now_ns;
    record->call = builder_string(builder, call);
    record->code = code;
    record->ledger = TRACE_LEDGER_DRIVER;
    record->kind = TRACE_KIND_DEVICE;
    record->python_stack = stack_in("forward");
    record->request_bytes = request;
    record->state = 1;
    return record;
}

static struct trace_failure *run_out(uint64_t request, uint64_t free_bytes) {
    struct trace_failure *record = fail("cuMemAlloc_v2", 2, request);
    record->flags |= TRACE_FAILURE_FREE_KNOWN;
    record->free_bytes = free_bytes;
    record->total_bytes = 16 * GIB;
    return record;
}

static struct trace_failure *report_by_framework(uint64_t request) {
    struct trace_failure *record = fail("c10::reportOutOfMemoryToProfiler", 2, request);
    record->flags |= TRACE_FAILURE_FRAMEWORK;
    record->ledger = TRACE_LEDGER_TENSOR;
    record->kind = TRACE_KIND_TENSOR;
    return record;
}

static const struct failure *only_failure(void) {
    const struct failure *found = NULL;
    for (size_t i = 0; i < findings.failures.count; i++) {
        if (findings.failures.list[i].superseded)
            continue;
        cr_assert_null(found);
        found = &findings.failures.list[i];
    }
    cr_assert_not_null(found);
    return found;
}

struct verdict_case {
    uint64_t request, free_bytes, slack;
    enum verdict verdict;
    enum finding_id id;
};

static void judge(const struct verdict_case *c) {
    pool(c->slack + 1000, 1000);
    run_out(c->request, c->free_bytes);
    analyse();
    cr_expect_eq(only_failure()->verdict, c->verdict, "%s", verdict_names[only_failure()->verdict]);
    cr_expect_eq(only_failure()->slack_bytes, c->slack);
    const struct finding *found = finding(c->id);
    cr_assert_not_null(found);
    cr_expect_eq(found->severity, SEVERITY_ERROR);
    cr_expect_eq(found->bytes, c->request);
}

Test(findings, as_much_was_free_as_was_asked_for) {
    judge(&(struct verdict_case){1000, 1000, 0, VERDICT_REFUSED, FINDING_OOM_REFUSED});
}
Test(findings, free_and_slack_are_just_enough) {
    judge(&(struct verdict_case){1000, 999, 1, VERDICT_FRAGMENTATION, FINDING_OOM_FRAGMENTATION});
}
Test(findings, free_and_slack_lack_a_byte) {
    judge(&(struct verdict_case){1001, 999, 1, VERDICT_CAPACITY, FINDING_OOM_CAPACITY});
}

Test(findings, what_was_free_is_not_known) {
    fail("cuMemAlloc_v2", 2, 1000);
    analyse();
    cr_expect_eq(only_failure()->verdict, VERDICT_UNKNOWN);
    cr_assert_not_null(finding(FINDING_OOM_UNKNOWN));
    cr_expect_float_eq(finding(FINDING_OOM_UNKNOWN)->certainty, 0.5, 1e-9);
}

Test(findings, a_probe_that_was_handled_is_a_note) {
    run_out(GIB, 0)->flags |= TRACE_FAILURE_HANDLED;
    analyse();
    cr_expect_eq(finding(FINDING_OOM_CAPACITY)->severity, SEVERITY_NOTE);
    cr_expect(strstr(finding(FINDING_OOM_CAPACITY)->text, "The program went on"));
}

Test(findings, the_framework_alone_means_a_limit) {
    report_by_framework(GIB);
    analyse();
    cr_expect_eq(only_failure()->verdict, VERDICT_LIMIT);
    cr_expect_not_null(finding(FINDING_OOM_LIMIT));
}

/* Asked for a segment, flushed, asked again, and told the program. */
Test(findings, the_framework_after_the_driver_tells_for_it) {
    run_out(1026 * MIB, 100 * MIB);
    run_out(1026 * MIB, 500 * MIB);
    report_by_framework(GIB);
    analyse();
    cr_expect_eq(findings.failures.count, 3u);
    cr_expect_eq(only_failure()->verdict, VERDICT_CAPACITY);
    cr_expect_eq(only_failure()->free_bytes, 500 * MIB, "as of the last attempt");
    cr_expect_eq(only_failure()->request_bytes, 1026 * MIB);
}

Test(findings, a_smaller_failure_before_is_not_the_frameworks) {
    run_out(MIB, 0);
    report_by_framework(GIB);
    analyse();
    cr_expect_not_null(finding(FINDING_OOM_CAPACITY));
    cr_expect_not_null(finding(FINDING_OOM_LIMIT));
}

Test(findings, pinned_memory_is_not_the_devices) {
    struct trace_failure *record = fail("cuMemHostAlloc", 2, GIB);
    record->kind = TRACE_KIND_HOST;
    record->device = TRACE_DEVICE_HOST;
    analyse();
    cr_expect_eq(only_failure()->verdict, VERDICT_HOST);
    cr_expect_not_null(finding(FINDING_OOM_HOST));
}

static void flush(unsigned times) {
    struct trace_failure *record = run_out(64 * MIB, 0);
    record->retry_ns = record->ns + 1000;
    record->freed_bytes = 80 * MIB;
    record->repeats = times - 1;
    builder->header->counters[TRACE_COUNTER_FLUSH_RETRIES] = times;
    builder->header->counters[TRACE_COUNTER_FLUSH_RETRY_BYTES] = times * 80 * MIB;
    analyse();
}

Test(findings, four_flushes_are_a_note) {
    flush(4);
    cr_expect_eq(finding(FINDING_OOM_FLUSH_RETRY)->severity, SEVERITY_NOTE);
}

Test(findings, five_flushes_are_a_warning) {
    flush(5);
    const struct finding *found = finding(FINDING_OOM_FLUSH_RETRY);
    cr_expect_eq(found->severity, SEVERITY_WARNING);
    cr_expect_eq(found->bytes, 400 * MIB);
    cr_expect(strstr(found->text, "5 times an allocation failed"), "%s", found->text);
}

/* A copy of the live table says who held what then, whatever is live in the end. */
static void copy_tables(struct trace_failure *failure, const struct trace_slot *slots,
                        size_t count) {
    size_t bytes = sizeof(struct trace_copy) + (count - 1) * sizeof *slots;
    struct trace_copy *copy = builder_append(builder, TRACE_SECTION_FAILURE_COPIES, bytes);
    copy->ns = failure->ns;
    copy->count = count;
    memcpy(copy->slots, slots, count * sizeof *slots);
    copy->state = 1;
    failure->copy = builder_ref(builder, copy);
}

Test(findings, a_copy_tells_who_held_memory) {
    fill_segments();
    struct trace_slot slots[6];
    struct trace_site *attention = site_in("attention", TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR);
    slots[5] = *put(attention, BASE + 105 * MIB, 5 * MIB);
    const struct trace_region *live = builder->regions[TRACE_SECTION_LIVE_TABLE];
    memcpy(slots, builder->bytes + live->offset, 5 * sizeof *slots);
    builder_free_block(builder, attention, tensors,
                       (struct trace_slot *)(void *)(builder->bytes + live->offset) + 5);
    struct trace_failure *failure = run_out(8 * MIB, 2 * MIB);
    copy_tables(failure, slots, 6);
    analyse();
    const struct failure *judged = only_failure();
    cr_expect_eq(judged->verdict, VERDICT_FRAGMENTATION);
    cr_expect_eq(judged->cache_slack_bytes, 7 * MIB);
    cr_expect_str_eq(judged->held_at, "then");
    cr_expect_eq(judged->held_bytes, 23 * MIB);
    cr_assert_eq(judged->holder_count, 2u);
    cr_expect_eq(judged->holders[0].bytes, 18 * MIB);
    cr_expect_eq(judged->holders[1].bytes, 5 * MIB);
    const struct fragmentation *f = moment(FRAGMENTATION_FAILURE);
    cr_expect_eq(f->holes, 3u); /* of 1, 3 and 3 */
    cr_expect_eq(f->largest_hole_bytes, 3 * MIB);
    cr_expect_float_eq(f->unusable_ratio, 1, 1e-9);
}

Test(findings, a_copy_that_claims_too_much_is_none) {
    struct trace_slot slot = {.word = TRACE_SLOT_LIVE | TRACE_SPACE_POINTER << 3, .bytes = 1};
    struct trace_failure *failure = run_out(8 * MIB, 2 * MIB);
    copy_tables(failure, &slot, 1);
    struct trace_copy *copy = (void *)(builder->bytes + (size_t)failure->copy * 8);
    copy->count = 1ull << 60;
    analyse();
    cr_expect_str_eq(only_failure()->held_at, "then");
}

/* ---- failed calls ---------------------------------------------------------------------------- */

Test(findings, failed_frees_by_their_number) {
    fail("cuMemFreeHost", 800, 8)->repeats = 14;
    analyse();
    cr_expect_eq(finding(FINDING_FREE_FAILED)->severity, SEVERITY_WARNING);
    cr_expect_eq(finding(FINDING_FREE_FAILED)->bytes, 15u * 8);
    cr_expect_eq(finding(FINDING_FREE_FAILED)->advice_count, 1u);
}

Test(findings, sixteen_failed_frees_are_an_error) {
    fail("cuMemFree_v2", 1, 8)->repeats = 15;
    analyse();
    cr_expect_eq(finding(FINDING_FREE_FAILED)->severity, SEVERITY_ERROR);
    cr_expect_eq(finding(FINDING_FREE_FAILED)->advice_count, 0u, "it was no callback");
}

Test(findings, what_fails_at_the_end_is_harmless) {
    fail("cuMemFree_v2", 709, 8)->repeats = 100;
    analyse();
    cr_expect_eq(finding(FINDING_FREE_FAILED)->severity, SEVERITY_NOTE);
}

Test(findings, calls_are_told_apart) {
    fail("cuMemHostRegister_v2", 712, 1);
    fail("cuMemHostUnregister", 713, 1);
    fail("cuMemSetAccess", 1, 1);
    fail("cuIpcOpenMemHandle_v2", 201, 1);
    fail("cuCtxCreate_v2", 101, 1);
    fail("cuMemCreate", 801, 1);
    analyse();
    cr_expect_not_null(finding(FINDING_REGISTER_FAILED));
    cr_expect_not_null(finding(FINDING_FREE_FAILED));
    cr_expect_not_null(finding(FINDING_MAP_FAILED));
    cr_expect_not_null(finding(FINDING_IMPORT_FAILED));
    cr_expect_not_null(finding(FINDING_CALL_FAILED));
    cr_expect_eq(finding(FINDING_ALLOC_FAILED)->severity, SEVERITY_NOTE, "it is not supported");
}

/* ---- code, contexts, host memory ------------------------------------------------------------- */

static void load_modules(unsigned count, unsigned slices) {
    for (unsigned i = 0; i < count; i++) {
        struct trace_gpu_module *module =
            builder_append(builder, TRACE_SECTION_GPU_MODULES, sizeof *module);
        module->loaded_ns = 1000 + (uint64_t)(i % slices) * 1000;
        module->state = 1;
    }
    builder->now_ns = 0;
    analyse();
}

Test(findings, modules_that_keep_coming) {
    load_modules(32, 8);
    cr_expect_not_null(finding(FINDING_MODULES_GROWING));
}
Test(findings, few_modules_are_none) {
    load_modules(31, 8);
    cr_expect_null(finding(FINDING_MODULES_GROWING));
}
Test(findings, modules_of_a_few_moments_are_none) {
    load_modules(400, 6);
    cr_expect_null(finding(FINDING_MODULES_GROWING));
}

static void context(uint16_t device, uint64_t created_ns, uint64_t destroyed_ns) {
    struct trace_context *record = builder_append(builder, TRACE_SECTION_CONTEXTS, sizeof *record);
    record->device = device;
    record->created_ns = created_ns;
    record->destroyed_ns = destroyed_ns;
    record->state = 1;
}

Test(findings, contexts_at_one_time_are_extra) {
    context(0, 10, 20);
    context(0, 19, 0);
    analyse();
    cr_assert_not_null(finding(FINDING_CONTEXT_EXTRA));
    cr_expect(strstr(finding(FINDING_CONTEXT_EXTRA)->text, "2 contexts"));
}

Test(findings, contexts_one_after_the_other_are_not) {
    context(0, 10, 20);
    context(0, 20, 0);
    context(1, 15, 0);
    analyse();
    cr_expect_null(finding(FINDING_CONTEXT_EXTRA));
}

Test(findings, a_context_on_a_device_that_is_not_used) {
    builder_device(builder, 1, 0xbb, "GPU B", 16 * GIB);
    put(site_in("train", TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE), BASE, MIB);
    context(0, 10, 0);
    context(1, 11, 0);
    analyse();
    cr_assert_not_null(finding(FINDING_CONTEXT_EXTRA));
    cr_expect_str_eq(job.devices[finding(FINDING_CONTEXT_EXTRA)->device].label, "1");
}

static void pin(const uint64_t *sizes, unsigned count) {
    struct trace_site *site =
        builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_HOST, TRACE_DEVICE_HOST, 0);
    for (unsigned i = 0; i < count; i++)
        put(site, BASE + i * GIB, sizes[i % 4]);
    analyse();
}

Test(findings, powers_of_two_are_rounded) {
    pin((const uint64_t[]){2 * MIB, 4 * MIB, 8 * MIB, 2 * MIB}, 8);
    cr_assert_not_null(finding(FINDING_HOST_ROUNDED));
    cr_expect_float_eq(finding(FINDING_HOST_ROUNDED)->certainty, 1 - 1 / 8., 1e-9);
}
Test(findings, one_other_size_is_not_rounded) {
    pin((const uint64_t[]){2 * MIB, 4 * MIB, 8 * MIB, 2 * MIB - 1}, 8);
    cr_expect_null(finding(FINDING_HOST_ROUNDED));
}
Test(findings, two_sizes_are_chance) {
    pin((const uint64_t[]){2 * MIB, 4 * MIB, 2 * MIB, 4 * MIB}, 8);
    cr_expect_null(finding(FINDING_HOST_ROUNDED));
}

/* ---- peaks ----------------------------------------------------------------------------------- */

/* 20 windows at `usual`, of which `high` come to 1000 MiB. */
static void peak(uint64_t usual, unsigned high) {
    struct trace_site *site = site_in("forward", TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE);
    driver->window_shift = TRACE_WINDOW_SHIFT_MIN;
    driver->window_current = 21;
    for (unsigned i = 2; i <= 21; i++)
        driver->windows[i] = (struct trace_window){0, i - 2 < high ? 1000 * MIB : usual, 0, 1, 1};
    driver->first_ns = 2 * WINDOW_NS;
    driver->last_alloc_ns = driver->last_ns = 21 * WINDOW_NS + 1;
    driver->peak_bytes = site->own_peak_bytes = 1000 * MIB;
    driver->allocs = driver->frees = site->allocs = site->frees = 20;
    site->peak_epoch = driver->peak_bytes;
    site->at_peak_bytes = 1000 * MIB;
    site->first_ns = driver->first_ns;
    site->last_ns = driver->last_ns;
    builder->header->sealed_ns = 22 * WINDOW_NS;
    analyse();
}

Test(findings, a_short_peak_is_a_spike) {
    peak(750 * MIB, 3);
    const struct finding *found = finding(FINDING_PEAK_SPIKE);
    cr_assert_not_null(found);
    cr_expect_eq(found->bytes, 250 * MIB);
    cr_expect(strstr(found->text, "forward (train.py:7), 1000.0 MiB"), "%s", found->text);
}
Test(findings, a_longer_peak_is_a_plateau) {
    peak(750 * MIB, 4);
    cr_expect_null(finding(FINDING_PEAK_SPIKE));
}
Test(findings, a_low_peak_is_none) {
    peak(751 * MIB, 1);
    cr_expect_null(finding(FINDING_PEAK_SPIKE));
}

/* ---- order, pretence ------------------------------------------------------------------------- */

Test(findings, the_worst_and_most_costly_come_first) {
    pool(4 * GIB, GIB);
    run_out(5 * GIB, GIB)->python_stack = stack_in("small");
    run_out(9 * GIB, GIB)->python_stack = stack_in("large");
    fail("cuMemFree_v2", 1, 9 * GIB);
    analyse();
    cr_assert_geq(findings.count, 4u);
    cr_expect_eq(findings.list[0].bytes, 9 * GIB);
    cr_expect_eq(findings.list[1].bytes, 5 * GIB);
    cr_expect_eq(findings.list[2].severity, SEVERITY_WARNING);
    for (size_t i = 1; i < findings.count; i++)
        cr_expect_leq(findings.list[i].severity, findings.list[i - 1].severity);
}

Test(findings, what_was_pretended_is_known_by_its_note) {
    struct trace_note *note = builder_append(builder, TRACE_SECTION_NOTES, sizeof *note);
    note->text = builder_string(builder, "pretended: a capacity of 8.0 GiB");
    note->state = 1;
    note = builder_append(builder, TRACE_SECTION_NOTES, sizeof *note);
    note->text = builder_string(builder, "an unknown variable was pretended: no");
    note->state = 1;
    analyse();
    cr_expect_str_eq(findings_pretended(job.processes[0].trace, 0),
                     "pretended: a capacity of 8.0 GiB");
    cr_expect_null(findings_pretended(job.processes[0].trace, 1));
}
