/*
 * What a report prints: tables that add up, filters, CSV, JSON, names that cannot do harm.
 */
#include "backtrace.h"
#include "columns.h"
#include "render.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITES 15

/* A job of one or two processes whose sites have Python stacks: names without a module. */
static struct trace_builder *builder;
static struct trace_total *total;
static struct job job;
static struct symbols *symbols;
static struct backtraces *backtraces;
static struct view view;
static struct findings findings;
static char path[2][64];
static char *kept[64]; /* texts of a test, freed at its end */
static unsigned kept_count;

static char *keep(char *text) {
    cr_assert_not_null(text);
    cr_assert_lt(kept_count, sizeof kept / sizeof *kept);
    return kept[kept_count++] = text;
}

static uint32_t python_stack(const char *function, const char *file, uint32_t line) {
    uint32_t places[] = {builder_python_place(builder, function, file, line),
                         builder_python_place(builder, "main", "/home/u/train.py", 99)};
    return builder_python_stack(builder, places, 2);
}

/* Site i allocates i + 1 times 1000 + i bytes at line 10 + i. */
static void fill(void) {
    total = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    builder_device(builder, 0, 0xaa, "GPU A", 1ull << 34);
    for (unsigned i = 0; i < SITES; i++) {
        char function[16];
        snprintf(function, sizeof function, "place_%u", i);
        struct trace_site *site =
            builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
        site->python_stack = python_stack(function, "/home/u/train.py", 10 + i);
        for (unsigned n = 0; n <= i; n++)
            builder_alloc(builder, site, total, 1000 + i);
    }
}

static void set_up(void) {
    builder = builder_new();
    fill();
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
    while (kept_count)
        free(kept[--kept_count]);
}

TestSuite(report, .init = set_up, .fini = tear_down);

/* Loads the built trace as `processes` processes and makes the view. */
static void load(unsigned processes, const struct view_filter *filter) {
    static const struct view_filter all;
    char *paths[2];
    struct trace_error error = {0};
    for (unsigned i = 0; i < processes; i++) {
        snprintf(path[i], sizeof path[i], "/tmp/cuheap-report-%d-%u.trace", (int)getpid(), i);
        builder->header->pid = 100 + i;
        builder_write(builder, path[i]);
        paths[i] = path[i];
    }
    bool loaded = job_load(&job, "report", paths, processes, NULL, &error);
    for (unsigned i = 0; i < processes; i++)
        unlink(path[i]);
    cr_assert(loaded, "%s", error.text);
    cr_assert(view_build(&view, &job, backtraces, filter ? filter : &all));
    cr_assert(findings_build(&view, backtraces, &findings));
}

static size_t width = 100;

static char *render(bool (*renderer)(const struct report *report, FILE *out), unsigned parts,
                    size_t top) {
    struct report report = {.job = &job,
                            .view = &view,
                            .findings = &findings,
                            .parts = parts,
                            .by = BY_LINE,
                            .top = top,
                            .width = width};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cr_assert(renderer(&report, out));
    fclose(out);
    return keep(text);
}

/* Adds up what the rows of a table hold; the sizes here are below 1 MiB and shown exactly or in
   KiB, so the sum is taken from the rows of the view instead of their text. */
static uint64_t sum_of(const struct view_rows *rows, enum measure measure) {
    uint64_t sum = 0;
    for (size_t i = 0; i < rows->count; i++)
        sum += rows->rows[i].values[measure];
    return sum;
}

Test(report, rows_add_up_to_the_total_and_are_sorted) {
    load(1, NULL);
    struct view_rows rows;
    struct view_grouping grouping = {.sort = MEASURE_LIVE_BYTES};
    cr_assert(view_group(&view, &grouping, &rows));
    cr_assert_eq(rows.count, (size_t)SITES);
    cr_expect_eq(sum_of(&rows, MEASURE_LIVE_BYTES), view.sums[0].live_bytes);
    cr_expect_eq(sum_of(&rows, MEASURE_AT_PEAK_BYTES), view.sums[0].peak_bytes);
    cr_expect_eq(rows.sums[MEASURE_LIVE_COUNT], (uint64_t)SITES * (SITES + 1) / 2);
    for (size_t i = 1; i < rows.count; i++)
        cr_expect_geq(rows.rows[i - 1].values[MEASURE_LIVE_BYTES],
                      rows.rows[i].values[MEASURE_LIVE_BYTES]);
    cr_expect_eq(rows.rows[0].values[MEASURE_LIVE_BYTES], 15u * 1014);
    view_rows_free(&rows);
}

/* The number in front of the first occurrence of a text's line. */
static char *line_with(const char *text, const char *what) {
    const char *at = strstr(text, what);
    cr_assert_not_null(at, "no \"%s\" in:\n%s", what, text);
    while (at > text && at[-1] != '\n')
        at--;
    return keep(strndup(at, strcspn(at, "\n")));
}

Test(report, shows_the_rest_in_one_row_so_that_columns_add_up) {
    load(1, NULL);
    char *text = render(render_table, PART_LEAKS, 3);
    uint64_t rest = 0, all = 0;
    for (unsigned i = 0; i < SITES; i++) {
        all += (i + 1ull) * (1000 + i);
        rest += i < SITES - 3 ? (i + 1ull) * (1000 + i) : 0;
    }
    char expected[64];
    snprintf(expected, sizeof expected, "(%" PRIu64 " bytes) in 120 blocks", all);
    cr_expect(strstr(text, expected), "%s", text);
    snprintf(expected, sizeof expected, "%.1f KiB", (double)rest / 1024);
    char *line = line_with(text, "(12 others)");
    cr_expect(strstr(line, expected), "%s", line);
    cr_expect(strstr(text, "place_14"));
    cr_expect(strstr(text, "place_12"));
    cr_expect_null(strstr(text, "place_11"));
    cr_expect(strstr(text, "the same as at end of work"), "%s", text);
}

Test(report, shows_what_was_in_flight_at_the_peak) {
    total->peak_bytes += 4096; /* which no site had a share in */
    load(1, NULL);
    char *line = line_with(render(render_table, PART_PEAK, 20), "(in flight)");
    cr_expect(strstr(line, "4.0 KiB"), "%s", line);
}

Test(report, prints_exact_totals_and_where) {
    load(1, NULL);
    char *text = render(render_table, PART_REST | PART_PEAK | PART_LEAKS, 10);
    char expected[64];
    snprintf(expected, sizeof expected, "(%" PRIu64 " bytes)", total->peak_bytes);
    char *line = line_with(text, "  peak ");
    cr_expect(strstr(line, expected), "%s", line);
    cr_expect(strstr(text, "program  pid 100 on testhost, exited with 0, after 1 min 00 s"), "%s",
              text);
    cr_expect(strstr(text, "device 0  GPU A  16.0 GiB  GPU-aa111111-1111"), "%s", text);
    line = line_with(text, "place_14");
    cr_expect(strstr(line, "place_14  /home/u/train.py:24"), "%s", line);
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
        cr_expect_leq(strcspn(at, "\n"), 100u, "%.*s", (int)strcspn(at, "\n"), at);
}

Test(report, in_a_narrow_terminal_the_folder_gives_way_first) {
    width = 70;
    load(1, NULL);
    char *line = line_with(render(render_table, PART_PEAK, 1), "place_14");
    cr_expect_eq(strlen(line), 70u, "%s", line);
    cr_expect(strstr(line, "place_14  ..."), "%s", line);
    cr_expect(strstr(line, "train.py:24"), "%s", line);
}

Test(report, names_what_was_lost) {
    builder->header->losses[TRACE_LOSS_LOST_FREES] = 17;
    load(1, NULL);
    char *text = render(render_table, PART_REST, 10);
    cr_expect(strstr(line_with(text, "a free unseen"), "17"), "%s", text);
    cr_expect_null(strstr(text, "their bytes"), "what was not lost is not told");
}

Test(report, filters_by_frame_and_device) {
    regex_t focus, ignore;
    cr_assert_eq(regcomp(&focus, "place_1", REG_EXTENDED | REG_NOSUB), 0);
    cr_assert_eq(regcomp(&ignore, "place_12$", REG_EXTENDED | REG_NOSUB), 0);
    load(1, &(struct view_filter){.focus = &focus, .ignore = &ignore});
    cr_expect_eq(view.site_count, 5u); /* 1, 10, 11, 13, 14 */
    view_free(&view);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){.device = "0"}));
    cr_expect_eq(view.site_count, (size_t)SITES);
    view_free(&view);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){.device = "gpu-AA11"}));
    cr_expect_eq(view.site_count, (size_t)SITES);
    view_free(&view);
    cr_assert(view_build(&view, &job, backtraces, &(struct view_filter){.device = "1"}));
    cr_expect_eq(view.site_count, 0u);
    view_free(&view);
    cr_assert(
        view_build(&view, &job, backtraces, &(struct view_filter){.ledger = TRACE_LEDGER_TENSOR}));
    cr_expect_eq(view.site_count + view.sum_count, 0u);
    regfree(&focus);
    regfree(&ignore);
}

Test(report, takes_processes_together_in_tables_and_apart_in_csv) {
    load(2, NULL);
    struct view_rows rows;
    struct view_grouping grouping = {.sort = MEASURE_LIVE_BYTES};
    cr_assert(view_group(&view, &grouping, &rows));
    cr_assert_eq(rows.count, (size_t)SITES);
    cr_expect_eq(rows.rows[0].values[MEASURE_LIVE_BYTES], 2u * 15 * 1014);
    cr_expect_eq(rows.rows[0].processes, 2u);
    view_rows_free(&rows);
    grouping.per_process = true;
    cr_assert(view_group(&view, &grouping, &rows));
    cr_expect_eq(rows.count, 2u * SITES);
    view_rows_free(&rows);
    cr_expect(strstr(render(render_table, PART_REST, 10), "the sum of the peaks of 2 processes"));
}

Test(report, groups_by_what_was_asked) {
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->python_stack = python_stack("place_14", "/home/u/train.py", 500);
    builder_alloc(builder, site, total, 1);
    load(1, NULL);
    static const size_t expected[] = {
        [BY_LINE] = SITES + 1, [BY_FUNCTION] = SITES, [BY_LIBRARY] = 1, [BY_STACK] = SITES + 1};
    for (enum view_by by = BY_LINE; by <= BY_STACK; by++) {
        struct view_rows rows;
        cr_assert(view_group(&view, &(struct view_grouping){.by = by, .sort = MEASURE_LIVE_BYTES},
                             &rows));
        cr_expect_eq(rows.count, expected[by], "by %s: %zu", view_by_names[by], rows.count);
        cr_expect_eq(rows.sums[MEASURE_LIVE_BYTES], view.sums[0].live_bytes);
        view_rows_free(&rows);
    }
}

/* ---- tensors and the cache they lie in ------------------------------------------------------- */

#define SEGMENT_BYTES (4u << 20)

/* Two tensors in one segment; the driver's other blocks are those of fill(). */
static void fill_tensors(void) {
    struct trace_total *tensors =
        builder_total(builder, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, 0);
    struct trace_site *segment =
        builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    struct trace_site *tensor = builder_site(builder, TRACE_LEDGER_TENSOR, TRACE_KIND_TENSOR, 0, 0);
    segment->python_stack = python_stack("take_segment", "/home/u/train.py", 70);
    tensor->python_stack = python_stack("make_tensor", "/home/u/train.py", 71);
    struct trace_slot *block = builder_alloc(builder, segment, total, SEGMENT_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        struct trace_slot *slot = builder_alloc(builder, tensor, tensors, 1000);
        slot->word = TRACE_SLOT_LIVE | TRACE_SPACE_TENSOR << 3;
        slot->address = block->address + 512;
    }
}

static void expect_order(const char *text, const char *const *parts) {
    for (const char *at = text; *parts; parts++) {
        at = strstr(at, *parts);
        cr_assert_not_null(at, "\"%s\" is missing or out of order:\n%s", *parts, text);
    }
}

Test(report, tensors_come_first_and_their_cache_is_no_leak) {
    fill_tensors();
    load(1, NULL);
    char *text = render(render_table, PART_REST | PART_PEAK | PART_LEAKS, 3);
    expect_order(text, (const char *const[]){
                           "WHERE THE MEMORY IS  device 0", "2.0 KiB (2000 bytes)", "allocated",
                           "4.0 MiB (4192304 bytes)", "cached", "4.0 MiB (4194304 bytes)",
                           "reserved", "taken from the driver", "+ unknown", "= unknown",
                           "TOTAL  device 0, tensor", "TOTAL  device 0, driver",
                           "PEAK BY SITE  device 0, tensor", "PEAK BY SITE  device 0, driver",
                           "cache of PyTorch", "LIVE AT END OF WORK  tensor",
                           "LIVE AT END OF WORK  driver", "(cache of PyTorch: 1 segment", NULL});
    char *live = strstr(text, "LIVE AT END OF WORK  driver");
    cr_expect_null(strstr(live, "take_segment"), "%s", live);
    char expected[64];
    snprintf(expected, sizeof expected, "(%" PRIu64 " bytes) in 121 blocks", total->live_bytes);
    cr_expect(strstr(live, expected), "the cache is part of the sum: %s", live);
}

Test(report, segments_stand_by_themselves_where_the_driver_is_asked_for) {
    fill_tensors();
    load(1, &(struct view_filter){.ledger = TRACE_LEDGER_DRIVER});
    char *text = render(render_table, PART_LEAKS, 3);
    expect_order(text, (const char *const[]){"LIVE AT END OF WORK  driver", "take_segment",
                                             "cache of PyTorch\n", "place_14", NULL});
    cr_expect_null(strstr(text, "tensor"), "%s", text);
}

/* Gives a site windows of 1 ms in which 100 bytes in 2 blocks stay, and one more allocation that
   ends the work. */
static void make_growing(struct trace_site *site, struct trace_total *of) {
    for (unsigned i = 0; i < 20; i++)
        builder_alloc(builder, site, of, 100);
    site->window_shift = TRACE_WINDOW_SHIFT_MIN;
    site->window_current = 20;
    for (unsigned i = 0; i <= 20; i++)
        site->windows[i] = (struct trace_window){100 * i, 100 * i + 100, 100 * i + 100, 2, 0};
    site->first_ns = 1;
    site->last_ns = of->last_ns = of->last_alloc_ns = (20ull << TRACE_WINDOW_SHIFT_MIN) + 1;
}

Test(report, names_what_is_growing_and_how_fast) {
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->python_stack = python_stack("keep", "/home/u/train.py", 80);
    make_growing(site, total);
    load(1, NULL);
    char *text = render(render_table, PART_LEAKS, 3);
    expect_order(text, (const char *const[]){"GROWING  driver", "A MINUTE", "keep",
                                             "LIVE AT END OF WORK  driver", NULL});
    /* 100 bytes in 2^20 ns are 5722045 in a minute. */
    cr_expect(strstr(line_with(text, "GROWING"), "(5722045 bytes) a minute, to 2.0 KiB in 20"),
              "%s", text);
    json_error_t error;
    json_t *root = json_loads(render(render_json, PART_REST, 3), 0, &error);
    json_t *json = json_array_get(json_object_get(root, "sites"), SITES);
    cr_expect_str_eq(json_string_value(json_object_get(json, "class")), "growing");
    json_decref(root);
}

Test(report, a_segment_that_grows_is_not_called_growing) {
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->flags = TRACE_SITE_SEGMENT;
    make_growing(site, total);
    load(1, NULL);
    cr_expect_null(strstr(render(render_table, PART_LEAKS, 3), "GROWING"));
}

Test(report, released_at_end_is_less_than_a_tenth_left) {
    static const struct {
        uint64_t work, left;
        bool released;
    } cases[] = {
        {1000, 99, true}, {1000, 100, false}, {1000, 1000, false}, {0, 0, false}, {1, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct view_row row = {
            .values = {
                [MEASURE_END_OF_WORK_BYTES] = cases[i].work, [MEASURE_LIVE_BYTES] = cases[i].left}};
        cr_expect_eq(view_is_released(&row), cases[i].released, "%zu", i);
    }
}

/* ---- machines read it
 * ---------------------------------------------------------------------------- */

Test(report, csv_has_a_row_a_site_and_exact_figures) {
    load(1, NULL);
    char *text = render(render_csv, PART_REST | PART_PEAK | PART_LEAKS, 3);
    size_t lines = 0;
    for (char *at = text; (at = strstr(at, "\r\n")); at += 2)
        lines++;
    cr_expect_eq(lines, (size_t)SITES + 1);
    cr_expect_eq(strncmp(text, "process,pid,ledger,kind,device,id,at_peak_bytes,", 48), 0, "%s",
                 text);
    cr_expect(strstr(text, ",15210,15210,15,15210,15,15210,15,0,place_14,/home/u/train.py,24,"),
              "%s", text);
}

Test(report, csv_quotes_what_needs_it) {
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->python_stack = python_stack("=cmd(\"a\",b)", "@file", 1);
    builder_alloc(builder, site, total, 1);
    load(1, NULL);
    char *text = render(render_csv, PART_REST, 3);
    cr_expect(strstr(text, ",\"'=cmd(\"\"a\"\",b)\",\"'@file\",1,"), "%s", text);
}

static void expect_keys(json_t *object, const char *const *keys) {
    for (; *keys; keys++)
        cr_expect_not_null(json_object_get(object, *keys), "no key \"%s\"", *keys);
}

static json_t *load_json(void) {
    json_error_t error;
    json_t *root = json_loads(render(render_json, PART_REST, 3), JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(root, "%s", error.text);
    return root;
}

Test(report, json_has_every_key_of_its_schema) {
    load(1, NULL);
    json_t *root = load_json();
    expect_keys(root, (const char *const[]){"schema", "job", "processes", "frames", "stacks",
                                            "sites", "findings", NULL});
    json_t *process = json_array_get(json_object_get(root, "processes"), 0);
    expect_keys(process,
                (const char *const[]){"index", "pid", "ppid", "name", "hostname", "rank", "state",
                                      "exit_code", "start", "duration_s", "end_of_work_s",
                                      "devices", "host_memory", "failures", "losses", NULL});
    json_t *device = json_array_get(json_object_get(process, "devices"), 0);
    expect_keys(device, (const char *const[]){"index", "name", "uuid", "total_bytes", "driver",
                                              "tensor", "reconciliation", "untracked_bytes",
                                              "reuse_rate", "fragmentation", NULL});
    expect_keys(json_object_get(device, "reconciliation"),
                (const char *const[]){"at", "allocated_bytes", "cached_bytes", "reserved_bytes",
                                      "other_bytes", "pool_bytes", "driver_bytes",
                                      "untracked_bytes", "used_bytes", NULL});
    json_t *driver = json_object_get(device, "driver");
    expect_keys(json_object_get(driver, "total"),
                (const char *const[]){"live_bytes", "end_of_work_bytes", "peak_bytes",
                                      "peak_time_s", NULL});
    expect_keys(
        json_object_get(json_object_get(driver, "kinds"), "device"),
        (const char *const[]){"live_bytes", "live_count", "peak_bytes", "allocs", "frees", NULL});
    json_t *site = json_array_get(json_object_get(root, "sites"), 0);
    expect_keys(site,
                (const char *const[]){"id", "process", "ledger", "kind", "device", "class",
                                      "released_at_end", "cache_of", "live_bytes", "live_count",
                                      "end_of_work_bytes", "own_peak_bytes", "at_peak_bytes",
                                      "allocs", "frees", "blame", "stack", NULL});
    expect_keys(json_object_get(site, "blame"),
                (const char *const[]){"function", "file", "line", "module", NULL});
    expect_keys(
        json_array_get(json_object_get(root, "frames"), 0),
        (const char *const[]){"kind", "function", "file", "line", "module", "inlined", NULL});
    cr_expect(json_is_null(json_object_get(device, "untracked_bytes")), "unknown is null");
    cr_expect(json_is_null(json_object_get(device, "tensor")));
    cr_expect_str_eq(json_string_value(json_object_get(process, "state")), "exited");
    cr_expect(json_is_null(json_object_get(process, "rank")));
    json_decref(root);
}

Test(report, json_stacks_lead_to_frames) {
    load(2, NULL);
    json_t *root = load_json();
    json_t *frames = json_object_get(root, "frames"), *stacks = json_object_get(root, "stacks");
    cr_expect_eq(json_array_size(frames), (size_t)SITES + 1, "main is there once");
    cr_expect_eq(json_array_size(stacks), (size_t)SITES, "both processes have the same");
    size_t i;
    json_t *site;
    json_array_foreach(json_object_get(root, "sites"), i, site) {
        json_t *stack =
            json_array_get(stacks, (size_t)json_integer_value(json_object_get(site, "stack")));
        json_t *frame =
            json_array_get(frames, (size_t)json_integer_value(json_array_get(stack, 0)));
        cr_expect(json_equal(json_object_get(json_object_get(site, "blame"), "function"),
                             json_object_get(frame, "function")));
        cr_expect_str_eq(json_string_value(json_object_get(frame, "kind")), "python");
    }
    json_decref(root);
}

Test(report, names_from_a_trace_can_do_no_harm) {
    strcpy(builder->header->name, "\033]0;owned\a\xff");
    strcpy(builder->header->job, "job\n\xc2\x9b");
    strcpy(builder->header->devices[0].name, "GPU\r\033[2J");
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    site->python_stack = python_stack("f\033[31m\n\xe2\x80\xae", "/a\177\xc3.py", 1);
    builder_alloc(builder, site, total, 1 << 20);
    struct trace_note *note = builder_append(builder, TRACE_SECTION_NOTES, sizeof *note);
    note->text = builder_string(builder, "note\033[5m");
    note->state = 1;
    load(2, NULL);
    static bool (*const renderers[])(const struct report *, FILE *) = {render_table, render_csv,
                                                                       render_json};
    for (size_t i = 0; i < 3; i++) {
        char *text = render(renderers[i], PART_REST | PART_PEAK | PART_LEAKS, 20);
        for (const unsigned char *c = (unsigned char *)text; *c; c++)
            cr_expect(*c == '\n' || *c == '\r' || (*c >= ' ' && *c < 0x7f), "byte %02x", *c);
        cr_expect(
            strstr(text, i == 2 ? "f\\\\x1b[31m\\\\x0a\\\\u{202e}" : "f\\x1b[31m\\x0a\\u{202e}"),
            "%s", text);
    }
    json_decref(load_json());
}

Test(report, an_other_site_and_a_site_without_a_stack_say_so) {
    struct trace_site *other = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_POOL, 0, 0);
    other->flags = TRACE_SITE_OTHER;
    builder_alloc(builder, other, total, 1 << 20);
    builder_alloc(builder, builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_ARRAY, 0, 0),
                  total, 1 << 19);
    load(1, NULL);
    char *text = render(render_table, PART_PEAK, 20);
    cr_expect(strstr(line_with(text, "(other)"), "pool"), "%s", text);
    cr_expect(strstr(line_with(text, "(no stack)"), "array"), "%s", text);
    json_t *root = load_json();
    json_t *site = json_array_get(json_object_get(root, "sites"), SITES);
    cr_expect(json_is_null(json_object_get(site, "stack")));
    cr_expect(json_is_null(json_object_get(site, "blame")));
    json_decref(root);
}

Test(report, each_column_has_its_own_key) {
    for (size_t i = 0; i < column_count; i++) {
        cr_expect_eq(column_by_key(column_table[i].key), &column_table[i]);
        cr_expect((column_table[i].unit == UNIT_TEXT) == (column_table[i].write != NULL));
    }
    cr_expect_null(column_by_key("no such"));
}
