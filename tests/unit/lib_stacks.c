/*
 * Native stacks: what the walk finds, against the C library's own backtrace and against what is
 * known of the frames.
 */
#include <alloca.h>
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "elf_symbols.h"
#include "resolve.h"
#include "stacks.h"

#define NOINLINE __attribute__((noinline, noclone))

static const struct code_range nowhere;

static char path[64];
static struct trace_writer trace;
static struct modules *modules;
static struct stacks *stacks;

static void open_trace(void) {
    struct trace_header *header = calloc(1, TRACE_HEADER_BYTES);
    snprintf(path, sizeof path, "/tmp/cuheap-unit-%d.trace", getpid());
    unlink(path);
    resolve_init();
    unwind_load(resolve_real_dlsym);
    if (unwind_kind() != TRACE_UNWINDER_LIBUNWIND)
        cr_skip_test("libunwind is not installed");
    cr_assert_eq(trace_create(&trace, path, 0600, 16 << 20, header), 0);
    free(header);
    modules = calloc(1, sizeof *modules);
    stacks = calloc(1, sizeof *stacks);
    cr_assert(modules_init(modules, &trace));
    cr_assert(stacks_init(stacks, &trace, modules, STACKS_DEPTH_MAX));
}

static void drop_trace(void) {
    unlink(path);
}

TestSuite(stacks, .fini = drop_trace);
TestSuite(modules, .fini = drop_trace);

struct capture {
    uint64_t pcs[STACKS_DEPTH_MAX];
    unsigned depth;
    uint32_t flags;
    void *expected[256];
    int expected_depth;
};

/* Both ways at once, from one frame: this function's caller. */
NOINLINE static void capture(struct capture *c) {
    struct registers from = CALLER_REGISTERS();
    memset(c, 0, sizeof *c);
    c->depth = unwind_walk(modules, &from, &nowhere, c->pcs, STACKS_DEPTH_MAX, &c->flags);
    void *all[256];
    int n = backtrace(all, 256), first = 0;
    while (first < n && (uintptr_t)all[first] != from.pc)
        first++;
    c->expected_depth = n - first;
    memcpy(c->expected, all + first, (size_t)c->expected_depth * sizeof *all);
}

static void compare(const struct capture *c) {
    cr_assert_eq(c->flags & TRACE_STACK_INCOMPLETE, 0);
    unsigned want = (unsigned)c->expected_depth;
    if (want > STACKS_DEPTH_MAX) {
        cr_assert(c->flags & TRACE_STACK_TRUNCATED);
        want = STACKS_DEPTH_MAX;
    }
    cr_assert_eq(c->depth, want, "%u frames, not %u", c->depth, want);
    for (unsigned i = 0; i < want; i++)
        cr_assert_eq(c->pcs[i], (uintptr_t)c->expected[i], "frame %u", i);
}

NOINLINE static int deep(int n, struct capture *c) {
    volatile char *frame = alloca((size_t)(100 + 13 * n % 700));
    frame[0] = 1;
    if (n)
        return deep(n - 1, c) + frame[0];
    capture(c);
    return frame[0];
}

Test(stacks, equal_backtrace_cold_and_warm) {
    static struct capture c;
    open_trace();
    for (int round = 0; round < 3; round++)
        for (int n = 0; n < 30; n++) {
            deep(n, &c);
            compare(&c);
        }
    cr_assert_eq(trace.header->losses[TRACE_LOSS_STACK_INCOMPLETE], 0);
}

Test(stacks, too_deep_keeps_the_inner_frames_and_says_so) {
    static struct capture c;
    open_trace();
    deep(150, &c);
    cr_assert(c.flags & TRACE_STACK_TRUNCATED);
    compare(&c);
}

/* The compiler realigns the stack here: the frame begins where a saved pointer says. */
NOINLINE static void realigned(struct capture *c, int n) {
    _Alignas(64) volatile char block[64];
    volatile char *more = alloca((size_t)n);
    block[0] = 1;
    more[0] = 1;
    capture(c);
    __asm__ volatile("" ::"r"(block), "r"(more) : "memory");
}

Test(stacks, pass_through_realigned_frames) {
    static struct capture c;
    open_trace();
    for (int n = 1; n < 200; n += 40) {
        realigned(&c, n);
        compare(&c);
    }
}

static struct capture in_handler;

static void handler(int number) {
    struct registers from = CALLER_REGISTERS();
    (void)number;
    in_handler.depth =
        unwind_walk(modules, &from, &nowhere, in_handler.pcs, STACKS_DEPTH_MAX, &in_handler.flags);
}

NOINLINE static void raises(void) {
    raise(SIGUSR1);
    __asm__ volatile("" ::: "memory");
}

Test(stacks, pass_through_signal_handlers) {
#ifdef __SANITIZE_THREAD__
    cr_skip_test("ThreadSanitizer calls handlers later, from elsewhere");
#endif
    open_trace();
    signal(SIGUSR1, handler);
    raises();
    cr_assert_eq(in_handler.flags & TRACE_STACK_INCOMPLETE, 0);
    bool found = false;
    for (unsigned i = 0; i < in_handler.depth; i++)
        found |=
            in_handler.pcs[i] > (uintptr_t)raises && in_handler.pcs[i] < (uintptr_t)raises + 64;
    cr_assert(found, "the function that was interrupted is on the stack");
}

static void *thread_body(void *c) {
    deep(5, c);
    return NULL;
}

Test(stacks, end_where_a_thread_begins) {
    static struct capture c;
    pthread_t thread;
    open_trace();
    pthread_create(&thread, NULL, thread_body, &c);
    pthread_join(thread, NULL);
    compare(&c);
}

#if defined(__x86_64__)
/* No CFI, but a frame pointer, as a JIT may leave it. */
int without_cfi(int (*function)(void *), void *argument);
__asm__(".text\n.globl without_cfi\n.type without_cfi, @function\nwithout_cfi:\n"
        "push %rbp\nmov %rsp, %rbp\nsub $64, %rsp\nmov %rdi, %rax\nmov %rsi, %rdi\ncall *%rax\n"
        "leave\nret\n.size without_cfi, . - without_cfi\n");

static int call_capture(void *c) {
    capture(c);
    return 1;
}

NOINLINE static int outside(struct capture *c) {
    return without_cfi(call_capture, c) + 1;
}

Test(stacks, follow_the_frame_pointer_where_there_is_no_unwind_information) {
    static struct capture c;
    open_trace();
    outside(&c);
    bool found = false;
    for (unsigned i = 0; i < c.depth; i++)
        found |= c.pcs[i] > (uintptr_t)outside && c.pcs[i] < (uintptr_t)outside + 64;
    cr_assert(found);
}
#endif

NOINLINE static uint32_t intern(void) {
    struct registers from = CALLER_REGISTERS();
    return stacks_capture(stacks, &from, &nowhere, 1);
}

NOINLINE static uint32_t intern_at(int n) {
    uint32_t ref = n ? intern_at(n - 1) : intern();
    __asm__ volatile("" : "+r"(ref));
    return ref;
}

Test(stacks, one_stack_is_kept_once) {
    open_trace();
    uint32_t refs[10];
    for (int n = 0; n < 10; n++)
        refs[n] = intern_at(n);
    for (int n = 0; n < 10; n++) {
        cr_assert_neq(refs[n], 0);
        for (int again = 0; again < n; again++)
            cr_assert_neq(refs[n], refs[again]);
    }
    uint64_t claimed = trace.current[TRACE_SECTION_NATIVE_STACKS]->claimed;
    for (int n = 0; n < 10; n++)
        intern_at(n); /* other call sites: new stacks */
    uint64_t more = trace.current[TRACE_SECTION_NATIVE_STACKS]->claimed;
    cr_assert_gt(more, claimed);
    for (int round = 0; round < 3; round++)
        for (int n = 0; n < 10; n++)
            intern_at(n);
    uint64_t once = trace.current[TRACE_SECTION_NATIVE_STACKS]->claimed;
    cr_assert_eq(once - more, more - claimed, "three rounds of one loop add its stacks once");
    const struct trace_native_stack *stack = trace_at(&trace, refs[3]);
    cr_assert_eq(stack->flags, TRACE_STACK_VALID);
    cr_assert_eq(stack->generation, trace.header->module_generation);
}

/* The space that it would take could never be found again. */
Test(stacks, a_full_index_takes_nothing_from_the_trace) {
    open_trace();
    cr_assert_neq(intern_at(0), 0);
    const struct trace_region *region = trace.current[TRACE_SECTION_NATIVE_STACKS];
    uint64_t claimed = region->claimed;
    stacks->index.used = stacks->index.mask;
    for (int n = 1; n < 5; n++)
        cr_assert_eq(intern_at(n), 0);
    cr_assert_eq(trace.header->losses[TRACE_LOSS_STACKS_FULL], 4);
    cr_assert_eq(trace.current[TRACE_SECTION_NATIVE_STACKS], region);
    cr_assert_eq(region->claimed, claimed);
}

static void *keep_interning(void *result) {
    for (int i = 0; i < 2000; i++)
        ((uint32_t *)result)[i % 20] = intern_at(i % 20);
    return NULL;
}

Test(stacks, eight_threads_agree) {
    pthread_t threads[8];
    static uint32_t refs[8][20];
    open_trace();
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, keep_interning, refs[i]);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int n = 0; n < 20; n++)
        for (int i = 1; i < 8; i++)
            cr_assert_eq(refs[i][n], refs[0][n]);
}

Test(modules, have_path_range_and_build_id) {
    open_trace();
    modules_scan(modules, 1);
    const struct module *self = modules_find(modules, (uintptr_t)&open_trace);
    cr_assert_not_null(self);
    cr_assert(self->record->flags & TRACE_MODULE_EXECUTABLE);
    const struct trace_string *text = trace_at(&trace, self->record->path);
    char exe[4096];
    ssize_t bytes = readlink("/proc/self/exe", exe, sizeof exe);
    cr_assert_eq(text->bytes, bytes);
    cr_assert_arr_eq(text->text, exe, (size_t)bytes);
    const struct module *libc = modules_find(
        modules, (uintptr_t)dlsym(dlopen("libc.so.6", RTLD_NOLOAD | RTLD_LAZY), "puts"));
    cr_assert_not_null(libc);
    cr_assert_eq(libc->record->build_id_bytes, 20);
    cr_assert_null(modules_find(modules, 4096));
}

/* ---- objects
 * -------------------------------------------------------------------------------------------- */

Test(elf_symbols, finds_what_dlsym_finds) {
    static const char *const names[] = {"malloc", "dlsym",     "pthread_create", "fallocate",
                                        "puts",   "backtrace", "secure_getenv",  "on_exit"};
    struct object libc;
    void *handle = dlopen("libc.so.6", RTLD_NOLOAD | RTLD_LAZY);
    cr_assert(objects_find((uintptr_t)dlsym(handle, "puts"), &libc));
    cr_assert(object_named(&libc, "libc.so"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_eq(object_symbol(&libc, names[i]), dlsym(handle, names[i]), "%s", names[i]);
    cr_assert_null(object_symbol(&libc, "no_such_function_anywhere"));
}

struct list {
    uintptr_t start[256];
    int count;
};

static bool collect(const struct object *object, void *argument) {
    struct list *list = argument;
    list->start[list->count++] = object->start;
    return false;
}

Test(elf_symbols, walking_without_the_lock_finds_the_same_objects) {
    struct list locked = {.count = 0}, unlocked = {.count = 0};
    objects_each(collect, &locked);
    objects_avoid_lock();
    objects_each(collect, &unlocked);
    cr_assert_gt(locked.count, 3);
    int missing = 0;
    for (int i = 0; i < locked.count; i++) {
        bool found = false;
        for (int k = 0; k < unlocked.count; k++)
            found |= locked.start[i] == unlocked.start[k];
        missing += !found;
    }
    cr_assert_eq(missing, 0);
}

Test(elf_symbols, unreadable_memory_is_told) {
    cr_assert(memory_readable((uintptr_t)&stacks));
    cr_assert_not(memory_readable(0));
    cr_assert_not(memory_readable(4096));
    cr_assert_not(memory_readable(UINTPTR_MAX - 64));
}
