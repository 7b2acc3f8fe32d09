/*
 * Interpreters that are refused, and structures that are not what they should be: Python stacks go
 * off, with one note that says why; native stacks are whole and the program is unharmed. What real
 * interpreters do is compared in tests/python.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS      200 /* as programs/python_fakes.c has it */
#define BLOCK_BYTES 1000
#define CHANGE      100
#define DEPTH       128

struct fake {
    char what[32];
    char reason[64]; /* part of the note; "": none may be there */
    unsigned python; /* allocations with Python frames */
    unsigned depth;  /* so many each */
};

/* Python frames of a site, each of them the one that there is; at least one native frame. */
static unsigned python_frames(json_t *report, json_t *site) {
    json_t *stack = json_array_get(json_at(report, "stacks"), json_number(site, "stack")), *index;
    unsigned count = 0;
    size_t i;
    json_array_foreach(stack, i, index) {
        json_t *frame = json_array_get(json_at(report, "frames"), json_integer_value(index));
        if (strcmp(json_text(frame, "kind"), "python") != 0)
            continue;
        count++;
        cr_assert_str_eq(json_text(frame, "function"), "Fake.function");
        cr_assert_str_eq(json_text(frame, "file"), "fake.py");
        cr_assert_eq(json_number(frame, "line"), 11);
    }
    return count;
}

/* Without Python frames the native ones must lead from work() to main(). */
static void check_native(json_t *report, json_t *site) {
    const char *names[64];
    unsigned count = site_frames(report, site, names, 64), found = 0;
    for (unsigned i = 0; i < count; i++)
        found += !strcmp(names[i], "work") || (found && !strcmp(names[i], "main"));
    cr_assert_eq(found, 2, "the native stack is not whole");
}

static void check_stacks(json_t *report, const struct fake *fake) {
    unsigned with = 0, without = 0;
    json_t *site;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        unsigned allocs = (unsigned)json_number(site, "allocs");
        unsigned frames = python_frames(report, site);
        cr_assert_eq(json_number(site, "live_bytes"), UINT64_C(1) * allocs * BLOCK_BYTES);
        if (frames) {
            cr_assert_eq(frames, fake->depth);
            with += allocs;
        } else {
            check_native(report, site);
            without += allocs;
        }
    }
    cr_assert_eq(with, fake->python, "%u allocations with Python frames", with);
    cr_assert_eq(without, BLOCKS - fake->python, "%u allocations without", without);
}

static void check_notes(const char *trace, const struct fake *fake) {
    json_t *info = cuheap_json("info", trace), *note;
    unsigned notes = 0;
    size_t i;
    json_array_foreach(json_at(info, "notes"), i, note) {
        const char *text = json_string_value(note);
        if (!strstr(text, "Python"))
            continue;
        notes++;
        cr_assert(fake->reason[0] && strstr(text, fake->reason), "%s", text);
    }
    cr_assert_eq(notes, fake->reason[0] != 0);
    json_decref(info);
}

ParameterizedTestParameters(python, what_is_not_as_it_should_be_is_left_alone) {
#define THREAD "a thread's state did not name the thread"
#define FRAME  "a frame was not what it should be"
    static struct fake fakes[] = {
        {"supported", "", BLOCKS, 1},
        {"frame_cycle", "", BLOCKS, DEPTH},
        {"without_state", "", 0, 0},
        {"finalizing", "", 0, 0},
        {"pre_release", "pre-release", 0, 0},
        {"unknown", "this version is not known", 0, 0},
        {"trace_refs", "do not begin as this version's do", 0, 0},
        {"state_unmapped", THREAD, 0, 0},
        {"state_of_another", THREAD, 0, 0},
        {"frame_unmapped", FRAME, 0, 0},
        {"frame_misaligned", FRAME, 0, 0},
        {"frame_small_number", FRAME, 0, 0},
        {"code_unmapped", FRAME, 0, 0},
        {"code_of_another_type", FRAME, 0, 0},
        {"code_later", FRAME, CHANGE, 1},
        {"file_unmapped", FRAME, 0, 0},
        {"name_of_another_type", FRAME, 0, 0},
        {"name_endless", FRAME, 0, 0},
        {"name_not_compact", FRAME, 0, 0},
        {"lines_unmapped", FRAME, 0, 0},
        {"lines_of_another_type", FRAME, 0, 0},
    };
#undef THREAD
#undef FRAME
    return cr_make_param_array(struct fake, fakes, sizeof fakes / sizeof *fakes);
}

ParameterizedTest(struct fake *fake, python, what_is_not_as_it_should_be_is_left_alone) {
    struct run *run =
        run_program(&(struct launch){.program = PROGRAM("python_fakes"), .args = {fake->what}});
    cr_expect_str_eq(run->err, "");
    run_must_succeed(run);
    cr_assert_str_eq(run->out, "done\n");
    json_t *report = cuheap_json("report", run_trace(run));
    check_stacks(report, fake);
    check_notes(run_trace(run), fake);
    json_decref(report);
    run_free(run);
}
