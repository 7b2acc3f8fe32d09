/*
 * Addresses to names: against this very program, with code that was inlined, and against modules
 * that are gone or were replaced.
 */
#include "backtrace.h"
#include "symbols.h"
#include "text.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct trace_builder *builder;
static struct trace *trace;
static struct symbols *symbols;
static struct trace_module *self;

/* ---- code to look at ------------------------------------------------------------------------- */

static __attribute__((noinline)) uint64_t return_address(void) {
    return (uint64_t)__builtin_return_address(0);
}

static unsigned inner_line, outer_line;
static volatile uint64_t kept;

static inline __attribute__((always_inline)) void inlined_inner(void) {
    inner_line = __LINE__ + 1;
    kept = return_address();
    kept += 0;
}

__attribute__((noinline)) void symbols_test_outer(void);
__attribute__((noinline)) void symbols_test_outer(void) {
    outer_line = __LINE__ + 1;
    inlined_inner();
}

/* Mangled names as compilers make them, on code without debug information. */
__asm__(".text\n"
        ".globl _ZN5model4stepEPKfm\n"
        ".type _ZN5model4stepEPKfm, @function\n"
        "_ZN5model4stepEPKfm: nop\n nop\n nop\n nop\n"
        ".size _ZN5model4stepEPKfm, .-_ZN5model4stepEPKfm\n"
        ".globl _ZN6tensor4load17h0123456789abcdefE\n"
        ".type _ZN6tensor4load17h0123456789abcdefE, @function\n"
        "_ZN6tensor4load17h0123456789abcdefE: nop\n nop\n nop\n nop\n"
        ".size _ZN6tensor4load17h0123456789abcdefE, .-_ZN6tensor4load17h0123456789abcdefE\n");
extern char cxx_step[] __asm__("_ZN5model4stepEPKfm");
extern char rust_load[] __asm__("_ZN6tensor4load17h0123456789abcdefE");

static void set_up(void) {
    builder = builder_new();
    self = builder_this_program(builder);
    trace = builder_open(builder);
    symbols = symbols_open(false);
}

static void tear_down(void) {
    symbols_close(symbols);
    trace_close(trace);
    builder_free(builder);
}

TestSuite(symbols, .init = set_up, .fini = tear_down);

static const struct frame *find(uint64_t return_to, unsigned *count) {
    return symbols_find(symbols, trace, return_to, 0, count);
}

Test(symbols, tell_inlined_frames_their_files_and_lines) {
    unsigned count;
    symbols_test_outer();
    const struct frame *frames = find(kept, &count);
    cr_assert_eq(count, 2u);
    cr_expect_str_eq(frames[0].function, "inlined_inner");
    cr_expect(frames[0].inlined);
    cr_expect_eq(frames[0].line, inner_line, "line %u", frames[0].line);
    cr_expect_str_eq(frames[1].function, "symbols_test_outer");
    cr_expect_not(frames[1].inlined);
    cr_expect_eq(frames[1].line, outer_line, "line %u", frames[1].line);
    for (unsigned i = 0; i < 2; i++) {
        cr_expect_str_eq(text_basename(frames[i].file), "tools_symbols.c");
        cr_expect_eq(frames[i].file[0], '/', "the path is whole: %s", frames[i].file);
        cr_expect_str_eq(frames[i].module, trace_string(trace, self->path));
    }
    struct symbols_state state = symbols_of_module(symbols, trace, self);
    cr_expect_eq(state.level, SYMBOLS_LINES);
    cr_expect_null(state.reason);
}

Test(symbols, are_sought_for_the_byte_before_the_return_address) {
    unsigned count;
    const struct frame *frames = find((uint64_t)symbols_test_outer, &count);
    cr_expect(!frames[0].function || strcmp(frames[0].function, "symbols_test_outer") != 0);
    frames = find((uint64_t)symbols_test_outer + 1, &count);
    cr_expect_str_eq(frames[count - 1].function, "symbols_test_outer");
}

Test(symbols, are_demangled) {
    unsigned count;
    cr_expect_str_eq(find((uint64_t)cxx_step + 2, &count)->function,
                     "model::step(float const*, unsigned long)");
    cr_expect_str_eq(find((uint64_t)rust_load + 2, &count)->function, "tensor::load");
}

Test(symbols, are_not_taken_from_another_build) {
    unsigned count;
    self->build_id_bytes = 20;
    memset(self->build_id, 0x5a, 20);
    struct symbols_state state = symbols_of_module(symbols, trace, self);
    cr_expect_eq(state.level, SYMBOLS_NONE);
    cr_expect(strstr(state.reason, "another build-id"), "%s", state.reason);
    const struct frame *frame = find((uint64_t)symbols_test_outer + 1, &count);
    cr_expect_null(frame->function);
    cr_expect_eq(frame->offset, (uint64_t)symbols_test_outer - self->bias);
}

Test(symbols, say_why_there_are_none) {
    unsigned count;
    struct trace_module *gone = builder_module(builder, "/no/such/lib.so", 0x10, 0x20, 0x10);
    struct trace_module *device = builder_module(builder, "/dev/null", 0x20, 0x30, 0x20);
    struct trace_module *text = builder_module(builder, "/proc/version", 0x30, 0x40, 0x30);
    cr_expect_str_eq(symbols_of_module(symbols, trace, gone).reason, "No such file or directory");
    cr_expect_str_eq(symbols_of_module(symbols, trace, device).reason, "not a regular file");
    cr_expect_not_null(symbols_of_module(symbols, trace, text).reason);
    const struct frame *frame = find(0x19, &count);
    cr_assert_eq(count, 1u);
    cr_expect_null(frame->function);
    cr_expect_str_eq(frame->module, "/no/such/lib.so");
    cr_expect_eq(frame->offset, 8u);
    frame = find(0x7000, &count);
    cr_expect_null(frame->module);
    cr_expect_eq(frame->offset, 0x6fffu);
}

Test(symbols, one_text_is_one_pointer_and_harmless) {
    cr_expect_eq(symbols_intern(symbols, "a\033b"), symbols_intern(symbols, "a\\x1bb"));
    cr_expect_str_eq(symbols_intern(symbols, "a\033b"), "a\\x1bb");
    cr_expect_null(symbols_intern(symbols, NULL));
}

/* ---- identity of sites ------------------------------------------------------------------------
 */

static void id_of(uint32_t python_stack, unsigned ledger, unsigned kind, char id[SITE_ID_BYTES]) {
    struct backtraces *backtraces = backtraces_open(symbols);
    backtrace_site_id(backtraces_find(backtraces, trace, 0, python_stack), ledger, kind, false, id);
    backtraces_close(backtraces);
}

Test(symbols, a_site_id_stays_where_lines_folders_and_callers_change) {
    char ids[6][SITE_ID_BYTES];
    uint32_t here = builder_python_place(builder, "step", "/home/u/train.py", 7);
    uint32_t moved = builder_python_place(builder, "step", "/elsewhere/train.py", 9);
    uint32_t renamed = builder_python_place(builder, "leap", "/home/u/train.py", 7);
    uint32_t generated = builder_python_place(builder, "call", "/tmp/torchinductor_u/aa.py", 1);
    uint32_t regenerated = builder_python_place(builder, "call", "/tmp/torchinductor_u/bb.py", 1);
    uint32_t nested[] = {here, renamed};
    id_of(builder_python_stack(builder, &here, 1), TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, ids[0]);
    id_of(builder_python_stack(builder, &moved, 1), TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, ids[1]);
    id_of(builder_python_stack(builder, nested, 2), TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, ids[2]);
    id_of(builder_python_stack(builder, &renamed, 1), TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE,
          ids[3]);
    id_of(builder_python_stack(builder, &here, 1), TRACE_LEDGER_DRIVER, TRACE_KIND_POOL, ids[4]);
    id_of(builder_python_stack(builder, &here, 1), TRACE_LEDGER_TENSOR, TRACE_KIND_DEVICE, ids[5]);
    cr_expect_eq(strlen(ids[0]), 16u);
    cr_expect_eq(strspn(ids[0], "0123456789abcdef"), 16u);
    cr_expect_str_eq(ids[1], ids[0]);
    cr_expect_str_eq(ids[2], ids[0]);
    for (unsigned i = 3; i < 6; i++)
        cr_expect_str_neq(ids[i], ids[0]);
    id_of(builder_python_stack(builder, &generated, 1), 1, 1, ids[0]);
    id_of(builder_python_stack(builder, &regenerated, 1), 1, 1, ids[1]);
    cr_expect_str_eq(ids[1], ids[0]);
    /* The value itself is what scripts keep: it must not change from one version to the next. */
    id_of(0, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, ids[0]);
    cr_expect_str_eq(ids[0], "f1eb150705cd4b69", "%s", ids[0]);
}
