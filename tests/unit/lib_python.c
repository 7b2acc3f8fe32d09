/*
 * Python frames out of a made-up interpreter, in each layout: what real ones cannot be made to show
 * at will. That the layouts are true is shown by tests/python, on the interpreters themselves.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "python.h"

#define THREADS 4

static char path[64];
static struct trace_writer trace;
static struct python *python;
static unsigned long version;
static uint64_t runtime[3] = {0, 0, 0};
static const void *type_type, *code_type[8], *text_type[8], *bytes_type[8];
static char *first_of_list;
static int finalizing;
static bool versions_out; /* code objects have none of their own any more */
static __thread char *this_thread;

static void *get_thread(void) {
    return this_thread;
}

static int is_finalizing(void) {
    return finalizing;
}

static void *main_interpreter(void) {
    return runtime;
}

static void *first_thread(void *interpreter) {
    cr_assert_eq(interpreter, runtime);
    return first_of_list;
}

static const struct {
    unsigned long version;
    bool free_threaded;
} interpreters[] = {
    {0x030812f0, false}, {0x030912f0, false}, {0x030a0df0, false}, {0x030b07f0, false},
    {0x030c01f0, false}, {0x030d00f0, false}, {0x030e02f0, false}, {0x030f02f0, false},
    {0x030d00f0, true},  {0x030e02f0, true},  {0x030f02f0, true},
};
#define INTERPRETERS (sizeof interpreters / sizeof *interpreters)

static const char *choose(unsigned which) {
    version = interpreters[which].version;
    memcpy(runtime, "xdebugpy", 8);
    runtime[2] = interpreters[which].free_threaded;
    memset(code_type, 0, sizeof code_type);
    code_type[interpreters[which].free_threaded ? 3 : 1] = &type_type;
    python->names = (struct python_names){
        .this_thread = get_thread,
        .is_finalizing = is_finalizing,
        .main_interpreter = main_interpreter,
        .first_thread = first_thread,
        .version = &version,
        .code_type = code_type,
        .text_type = text_type,
        .bytes_type = bytes_type,
        .type_type = &type_type,
        .runtime = runtime,
    };
    return python_choose_layout(&python->names, &python->layout);
}

static void begin(unsigned which) {
    struct trace_header *header = calloc(1, TRACE_HEADER_BYTES);
    snprintf(path, sizeof path, "/tmp/cuheap-python-%d.trace", getpid());
    unlink(path);
    memset(&trace, 0, sizeof trace);
    cr_assert_eq(trace_create(&trace, path, 0600, 16 << 20, header), 0);
    free(header);
    python = calloc(1, sizeof *python);
    cr_assert(python_init(python, &trace, true));
    cr_assert_null(choose(which));
    python->state = PYTHON_ON;
}

static void drop_trace(void) {
    unlink(path);
    free(python);
    python = NULL;
}

TestSuite(python, .fini = drop_trace);

/* ---- the made-up interpreter ----------------------------------------------------------------- */

/* Zeroed memory that lives as long as the test; under the sanitizer nothing behind its end may be
   read. */
static void *keep(size_t bytes) {
    static struct kept {
        struct kept *next;
        void *memory;
    } * kept;
    static uint32_t lock;
    struct kept *one = calloc(1, sizeof *one);
    one->memory = calloc(1, bytes);
    while (__atomic_exchange_n(&lock, 1u, __ATOMIC_ACQUIRE))
        sched_yield();
    one->next = kept;
    kept = one;
    __atomic_store_n(&lock, 0u, __ATOMIC_RELEASE);
    return one->memory;
}

static void *new_object(const void *type, size_t bytes) {
    char *object = keep(bytes);
    memcpy(object + python->layout.type, &type, sizeof type);
    return object;
}

static void put_word(void *object, uint16_t at, uintptr_t word) {
    memcpy((char *)object + at, &word, sizeof word);
}

static void put_int(void *object, uint16_t at, int32_t number) {
    memcpy((char *)object + at, &number, sizeof number);
}

static void *new_text_of(unsigned width, bool ascii, const void *data, size_t length) {
    const struct python_layout *l = &python->layout;
    char *text = new_object(text_type, 128 + length * width);
    put_word(text, l->text_length, length);
    put_int(
        text, l->text_state,
        (int32_t)(width << l->kind_bit | 1u << l->compact_bit | (unsigned)ascii << l->ascii_bit));
    memcpy(text + (ascii ? l->ascii_data : l->other_data), data, length * width);
    return text;
}

static void *new_text(const char *text) {
    return new_text_of(1, true, text, strlen(text));
}

/* Every instruction at 0 is in line first + 1, all from byte 4 on in line first + 3. */
static void *new_table(void) {
    static const struct {
        unsigned char data[8];
        size_t bytes;
    } tables[] = {
        [PYTHON_LINES_LNOTAB] = {{0, 1, 4, 2}, 4},
        [PYTHON_LINES_RANGES] = {{4, 1, 100, 2}, 4},
        /* ONE_LINE1 of 2 units with two column bytes; NO_COLUMNS of 8 units, +2 */
        [PYTHON_LINES_LOCATIONS] = {{0x80 | 11 << 3 | 1, 1, 2, 0x80 | 13 << 3 | 7, 4}, 5},
    };
    const struct python_layout *l = &python->layout;
    char *table = new_object(bytes_type, 128);
    put_word(table, l->size, tables[l->lines].bytes);
    memcpy(table + l->bytes_data, tables[l->lines].data, tables[l->lines].bytes);
    return table;
}

static void set_code(void *code, void *file, void *name, int first_line) {
    static uint32_t versions;
    const struct python_layout *l = &python->layout;
    if (l->code_version != PYTHON_NO_FIELD && !versions_out)
        put_int(code, l->code_version, (int32_t)__atomic_add_fetch(&versions, 1, __ATOMIC_RELAXED));
    put_word(code, l->size, 10);
    put_int(code, l->first_line, first_line);
    put_word(code, l->file, (uintptr_t)file);
    put_word(code, l->name, (uintptr_t)name);
    if (l->qualified != PYTHON_NO_FIELD)
        put_word(code, l->qualified, (uintptr_t)name);
    put_word(code, l->line_table, (uintptr_t)new_table());
}

static void *new_code(const char *file, const char *name, int first_line) {
    void *code = new_object(code_type, 512);
    set_code(code, new_text(file), new_text(name), first_line);
    return code;
}

/* A frame `offset` bytes into the code; `entered`: by native code. */
static void *new_frame(void *code, unsigned offset, void *outer, bool entered) {
    const struct python_layout *l = &python->layout;
    char *frame = keep(112);
    if (l->version >= 0x030c && entered) {
        char *shim = keep(112);
        shim[l->owner] = 3;
        put_word(shim, l->previous, (uintptr_t)outer);
        outer = shim;
    }
    put_word(frame, l->code, (uintptr_t)code | (l->version >= 0x030e));
    put_word(frame, l->previous, (uintptr_t)outer);
    if (l->bytecode != PYTHON_NO_FIELD)
        put_word(frame, l->instruction, (uintptr_t)code + l->bytecode + offset);
    else
        put_int(frame, l->instruction, (int32_t)offset / (l->lines == PYTHON_LINES_RANGES ? 2 : 1));
    if (l->is_entry != PYTHON_NO_FIELD)
        frame[l->is_entry] = entered;
    return frame;
}

static char *new_thread(void *frame, uintptr_t self) {
    const struct python_layout *l = &python->layout;
    char *thread = keep(192);
    put_word(thread, 16, (uintptr_t)runtime);
    put_word(thread, l->thread_id, self);
    if (l->cframe_frame == PYTHON_NO_FIELD) {
        put_word(thread, l->thread_frame, (uintptr_t)frame);
    } else {
        char *cframe = keep(32);
        put_word(cframe, l->cframe_frame, (uintptr_t)frame);
        put_word(thread, l->thread_frame, (uintptr_t)cframe);
    }
    return thread;
}

static void enter(void *frame) {
    this_thread = new_thread(frame, (uintptr_t)pthread_self());
}

/* ---- what the trace says --------------------------------------------------------------------- */

static const char *text_at(uint32_t ref) {
    return ref ? ((struct trace_string *)trace_at(&trace, ref))->text : "";
}

static const struct trace_python_stack *stack_at(uint32_t ref) {
    cr_assert(ref);
    return trace_at(&trace, ref);
}

static const struct trace_python_place *place_at(uint32_t stack, unsigned frame) {
    cr_assert_lt(frame, stack_at(stack)->depth);
    return trace_at(&trace, stack_at(stack)->places[frame]);
}

static void expect(uint32_t stack, unsigned frame, const char *name, unsigned line, bool entered) {
    const struct trace_python_place *place = place_at(stack, frame);
    cr_assert_str_eq(text_at(place->function), name);
    cr_assert_eq(place->line, line, "%lx, frame %u: line %u, not %u", version, frame, place->line,
                 line);
    cr_assert_eq(place->flags, entered ? TRACE_PLACE_ENTRY : 0u, "%lx, frame %u: flags %u", version,
                 frame, place->flags);
}

static const char *note(void) {
    const struct trace_region *regions =
        (const struct trace_region *)(trace.base + TRACE_DIRECTORY_OFFSET);
    for (uint32_t i = 0; i < trace.header->directory_count; i++)
        if (regions[i].section == TRACE_SECTION_NOTES)
            return text_at(((struct trace_note *)(trace.base + regions[i].offset))->text);
    return "";
}

Test(python, every_layout_gives_frames_lines_and_entries) {
    for (unsigned i = 0; i < INTERPRETERS; i++) {
        begin(i);
        bool all = python->layout.version <= 0x030a; /* each frame is an entry there */
        void *outer = new_frame(new_code("/a.py", "main", 10), 0, NULL, true);
        void *middle = new_frame(new_code("/a.py", "middle", 20), 4, outer, false);
        void *inner = new_frame(new_code("/b.py", "inner", 3000), 6, middle, true);
        enter(inner);
        for (int times = 0; times < 100; times++) { /* through the trial and beyond */
            uint32_t stack = python_capture(python, 1);
            cr_assert_eq(stack_at(stack)->depth, 3);
            cr_assert_eq(stack_at(stack)->flags, TRACE_STACK_VALID);
            expect(stack, 0, "inner", 3003, true);
            expect(stack, 1, "middle", 23, all);
            expect(stack, 2, "main", 11, true);
            cr_assert_str_eq(text_at(place_at(stack, 0)->file), "/b.py");
        }
        cr_assert_eq(python->trial, 0);
        cr_assert_str_eq(note(), "");
        drop_trace();
    }
}

Test(python, threads_with_a_copy_of_the_bytecode_of_their_own) {
    begin(9); /* 3.14, free-threaded */
    const struct python_layout *l = &python->layout;
    char *code = new_code("/a.py", "main", 10), *frame = new_frame(code, 0, NULL, true);
    uintptr_t copies[3] = {2, (uintptr_t)code + l->bytecode, (uintptr_t)keep(64)};
    put_word(code, l->bytecodes, (uintptr_t)copies);
    put_int(frame, l->bytecode_index, 1);
    put_word(frame, l->instruction, copies[2] + 6);
    enter(frame);
    expect(python_capture(python, 1), 0, "main", 13, true);
}

Test(python, lines_kept_by_the_frame_while_it_is_traced) {
    for (unsigned i = 0; i < 3; i++) {
        begin(i);
        const struct python_layout *l = &python->layout;
        char *frame = new_frame(new_code("/a.py", "main", 10), 6, NULL, true);
        put_int(frame, l->line, 77);
        if (l->trace != PYTHON_NO_FIELD)
            put_word(frame, l->trace, (uintptr_t)runtime);
        enter(frame);
        expect(python_capture(python, 1), 0, "main", 77, true);
        drop_trace();
    }
}

Test(python, names_of_every_kind_of_string_are_utf8) {
    static const uint8_t latin[] = {'m', 0xe9};
    static const uint16_t two[] = {0x20ac, 'x', 0xdc80, 0};
    static const uint32_t four[] = {0x1f600, 0x110000};
    begin(5);
    void *file = new_text("/a.py"), *code = new_object(code_type, 512);
    static const char *const expected[] = {"m\xc3\xa9", "\xe2\x82\xacx\xef\xbf\xbd\xef\xbf\xbd",
                                           "\xf0\x9f\x98\x80\xef\xbf\xbd"};
    void *names[] = {new_text_of(1, false, latin, 2), new_text_of(2, false, two, 4),
                     new_text_of(4, false, four, 2)};
    for (int i = 0; i < 3; i++) {
        set_code(code, file, names[i], 10);
        enter(new_frame(code, 0, NULL, true));
        expect(python_capture(python, 1), 0, expected[i], 11, true);
    }
}

Test(python, endless_names_are_cut) {
    begin(5);
    char *name = keep(100001);
    memset(name, 'x', 100000);
    enter(new_frame(new_code("/a.py", name, 10), 0, NULL, true));
    name[4096] = 0;
    expect(python_capture(python, 1), 0, name, 11, true);
}

Test(python, of_a_deep_stack_the_innermost_frames_are_kept) {
    begin(5);
    void *frame = NULL, *code = new_code("/a.py", "f", 10);
    for (int i = 0; i < PYTHON_DEPTH_MAX; i++)
        frame = new_frame(code, 0, frame, i == 0);
    enter(frame);
    uint32_t whole = python_capture(python, 1);
    cr_assert_eq(stack_at(whole)->depth, PYTHON_DEPTH_MAX);
    cr_assert_eq(stack_at(whole)->flags, TRACE_STACK_VALID);
    enter(new_frame(new_code("/a.py", "innermost", 20), 0, frame, false));
    uint32_t cut = python_capture(python, 1);
    cr_assert_eq(stack_at(cut)->depth, PYTHON_DEPTH_MAX);
    cr_assert_eq(stack_at(cut)->flags, TRACE_STACK_VALID | TRACE_STACK_TRUNCATED);
    expect(cut, 0, "innermost", 21, false);
    cr_assert_eq(trace.header->losses[TRACE_LOSS_STACK_TRUNCATED], 1);
}

Test(python, a_ring_of_frames_ends) {
    begin(5);
    char *frame = new_frame(new_code("/a.py", "f", 10), 0, NULL, false);
    put_word(frame, python->layout.previous, (uintptr_t)frame);
    enter(frame);
    cr_assert_eq(stack_at(python_capture(python, 1))->depth, PYTHON_DEPTH_MAX);
    frame[python->layout.owner] = 3;
    cr_assert_eq(python_capture(python, 1), 0);
}

Test(python, other_code_at_the_address_of_dead_code_is_noticed) {
    static const struct {
        unsigned interpreter;
        bool versions_out;
    } cases[] = {{2, false}, {3, false}, {5, false}, {5, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        begin(cases[c].interpreter);
        versions_out = cases[c].versions_out;
        char *code = new_object(code_type, 512);
        char *file = new_text("/a.py"), *name = new_text("f0000");
        set_code(code, file, name, 10);
        enter(new_frame(code, 0, NULL, true));
        for (int i = 0; i < 2000; i++) {
            /* Nothing moves; only what is in the name, then only what is in the file, differs. */
            char *text = i % 2 ? file : name, wanted[] = "f0000";
            sprintf(text + python->layout.ascii_data, i % 2 ? "%05d" : "f%04d", i);
            put_word(text, python->layout.text_hash, i % 2 ? UINTPTR_MAX : (uintptr_t)i);
            if (python->layout.code_version != PYTHON_NO_FIELD && !versions_out)
                put_int(code, python->layout.code_version, 100000 + i);
            sprintf(wanted, "f%04d", i & ~1);
            uint32_t stack = python_capture(python, 1);
            expect(stack, 0, wanted, 11, true);
            sprintf(wanted, "%05d", i);
            if (i % 2)
                cr_assert_str_eq(text_at(place_at(stack, 0)->file), wanted);
        }
        drop_trace();
    }
}

Test(python, the_first_failed_check_turns_it_off) {
    for (int late = 0; late < 2; late++) {
        begin(5);
        void *code = new_code("/a.py", "f", 10);
        enter(new_frame(code, 0, NULL, true));
        for (int i = 0; i < 100 * late; i++)
            cr_assert(python_capture(python, 1));
        put_word(code, python->layout.type, (uintptr_t)bytes_type);
        cr_assert_eq(python_capture(python, 1), 0);
        cr_assert_str_eq(note(), "Python stacks are off: a frame was not what it should be");
        put_word(code, python->layout.type, (uintptr_t)code_type);
        for (int i = 0; i < 10; i++)
            cr_assert_eq(python_capture(python, 1), 0);
        cr_assert_eq(trace.header->losses[TRACE_LOSS_PYTHON_REFUSED], 10);
        drop_trace();
    }
}

Test(python, addresses_that_are_none_do_not_fault_in_the_trial) {
    static const uintptr_t bad[] = {8, 12, 1ull << 60, (1ull << 46) + 8, 0x7000};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin(5);
        enter((void *)bad[i]);
        cr_assert_eq(python_capture(python, 1), 0);
        cr_assert_eq(python->state, PYTHON_OFF);
        drop_trace();
    }
}

Test(python, a_state_of_another_thread_turns_it_off) {
    begin(5);
    this_thread = new_thread(new_frame(new_code("/a.py", "f", 10), 0, NULL, true), 12345);
    cr_assert_eq(python_capture(python, 1), 0);
    cr_assert_str_eq(note(), "Python stacks are off: a thread's state did not name the thread");
}

Test(python, threads_without_python_and_a_finalising_interpreter_have_no_frames) {
    begin(5);
    cr_assert_eq(python_capture(python, 1), 0);
    enter(new_frame(new_code("/a.py", "f", 10), 0, NULL, true));
    cr_assert(python_capture(python, 1));
    finalizing = 1;
    cr_assert_eq(python_capture(python, 1), 0);
    cr_assert_eq(python->state, PYTHON_ON);
    cr_assert_str_eq(note(), "");
}

Test(python, interpreters_that_are_not_known_are_refused) {
    static const unsigned long unknown[] = {0x030700f0, 0x031000f0, 0x040800f0, 0x020712f0};
    begin(5);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        version = unknown[i];
        cr_assert_str_eq(python_choose_layout(&python->names, &python->layout),
                         "this version is not known");
    }
    version = 0x030f00a1;
    cr_assert_str_eq(python_choose_layout(&python->names, &python->layout),
                     "it is a pre-release, whose inner layout is not known");
    version = 0x030b07f0;
    code_type[1] = NULL;
    code_type[3] = &type_type;
    cr_assert_str_eq(python_choose_layout(&python->names, &python->layout),
                     "its objects do not begin as this version's do (a build for debugging?)");
}

/* ---- threads at once ------------------------------------------------------------------------- */

static void *capture_in_turns(void *argument) {
    enum { CODES = 50, ROUNDS = 200 };
    unsigned number = (unsigned)(uintptr_t)argument;
    void *frames[CODES];
    char names[CODES][16];
    for (unsigned i = 0; i < CODES; i++) {
        snprintf(names[i], sizeof names[i], "f%u", i % 25); /* half are named as others */
        frames[i] = new_frame(new_code("/a.py", names[i], 100 * (int)number), 0, NULL, true);
    }
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < CODES; i++) {
            enter(frames[i]);
            expect(python_capture(python, 1), 0, names[i], 100 * number + 1, true);
        }
    return NULL;
}

Test(python, threads_share_the_cache) {
    pthread_t threads[THREADS];
    begin(5);
    for (uintptr_t i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, capture_in_turns, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_str_eq(note(), "");
}

/* ---- the thread that waits ------------------------------------------------------------------- */

static char *new_waiting(const char *file, const char *name) {
    void *frame = new_frame(new_code("/train.py", "main", 10), 0, NULL, true);
    return new_thread(new_frame(new_code(file, name, 20), 0, frame, false), 1);
}

static void link_threads(char *first, char *second, char *third) {
    char *threads[] = {first, second, third, NULL};
    first_of_list = first;
    for (int i = 0; threads[i]; i++)
        put_word(threads[i], 8, (uintptr_t)threads[i + 1]);
}

Test(python, the_one_thread_that_waits_in_backward_is_found) {
    for (unsigned i = 0; i < INTERPRETERS; i++) {
        begin(i);
        char *other = new_waiting("/x/torch/autograd/graph.py", "save_on_cpu");
        char *waiting = new_waiting("/x/torch/autograd/graph.py", "_engine_run_backward");
        char *idle = new_thread(NULL, 3);
        link_threads(other, idle, waiting);
        uint32_t stack = python_waiting(python);
        cr_assert_eq(stack_at(stack)->depth, 2);
        expect(stack, 0, "_engine_run_backward", 21, python->layout.version <= 0x030a);
        expect(stack, 1, "main", 11, true);
        drop_trace();
    }
}

Test(python, nobody_is_named_where_it_is_not_sure_who_waits) {
    begin(5);
    char *one = new_waiting("/x/torch/autograd/graph.py", "_engine_run_backward");
    char *two = new_waiting("/x/torch/autograd/__init__.py", "backward");
    link_threads(new_waiting("/x/mine/autograd/graph.py", "_engine_run_backward"), NULL, NULL);
    cr_assert_eq(python_waiting(python), 0);
    link_threads(one, two, NULL);
    cr_assert_eq(python_waiting(python), 0);
    link_threads(one, NULL, NULL);
    cr_assert(python_waiting(python));
    put_word(one, 8, 1ull << 46); /* a list that leads nowhere */
    cr_assert_eq(python_waiting(python), 0);
    put_word(one, 8, (uintptr_t)one); /* or round and round */
    cr_assert_eq(python_waiting(python), 0);
    link_threads(one, NULL, NULL);
    put_word(one, 16, 0x7000); /* of another interpreter */
    cr_assert_eq(python_waiting(python), 0);
    cr_assert_eq(python->state, PYTHON_ON);
}
