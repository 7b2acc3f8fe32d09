/*
 * Stacks as people read them: whose frame is to blame, and where Python frames stand in stacks
 * taken whole.
 */
#include "backtrace.h"
#include "blame.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct trace_builder *builder;
static struct trace *trace;
static struct symbols *symbols;
static struct backtraces *backtraces;

static void set_up(void) {
    builder = builder_new();
    trace = builder_open(builder);
    symbols = symbols_open(false);
    backtraces = backtraces_open(symbols);
}

static void tear_down(void) {
    backtraces_close(backtraces);
    symbols_close(symbols);
    trace_close(trace);
    builder_free(builder);
}

TestSuite(backtrace, .init = set_up, .fini = tear_down);

/* ---- blame, of frames made by hand ----------------------------------------------------------- */

#define FRAMES 8

/* A stack as lines: "P file function" and "N module function", innermost first; "" ends it. */
struct blamed {
    const char *what;
    struct frame frames[FRAMES];
    unsigned index;
    bool own;
    const char *node; /* the name of the node of autograd, where that is the blame */
};

#define P(path, name)                                                                              \
    { .python = true, .file = path, .function = name, .line = 1 }
#define N(path, name)                                                                              \
    { .module = path, .function = name }
#define INTERPRETER(path, name)                                                                    \
    { .module = path, .function = name, .module_flags = TRACE_MODULE_PYTHON }

#define TORCH    "/v/lib/python3.12/site-packages/torch/"
#define C10      TORCH "lib/libc10_cuda.so"
#define CPU      TORCH "lib/libtorch_cpu.so"
#define CUDA     TORCH "lib/libtorch_cuda.so"
#define LIBC     "/lib/x86_64-linux-gnu/libc.so.6"
#define LIBCXX   "/lib/x86_64-linux-gnu/libstdc++.so.6"
#define ALLOCATE N(C10, "c10::cuda::CUDACachingAllocator::Native::allocate(unsigned long)")
#define EMPTY    N(CPU, "at::detail::empty_generic(c10::ArrayRef<long>)")
#define OPERATOR N(CPU, "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)")

static const struct blamed cases[] = {
    {"the innermost Python frame outside PyTorch",
     {ALLOCATE, P(TORCH "nn/modules/linear.py", "Linear.forward"),
      P("/home/u/model.py", "Net.forward"), P(TORCH "nn/modules/module.py", "Module._call_impl"),
      P("/home/u/train.py", "<module>")},
     2,
     true,
     NULL},
    {"functorch, JAX, Flax, CuPy, Numba, Triton, Keras",
     {P("/v/site-packages/functorch/a.py", "f"), P("/v/site-packages/jax/_src/a.py", "f"),
      P("/v/dist-packages/flax/a.py", "f"), P("/v/site-packages/cupy/_core/a.py", "f"),
      P("/v/site-packages/numba/cuda/a.py", "f"), P("/v/site-packages/triton/a.py", "f"),
      P("/v/site-packages/keras/a.py", "f"), P("/home/u/x.py", "f")},
     7,
     true,
     NULL},
    {"an installed package that is no framework",
     {P(TORCH "a.py", "f"), P("/v/site-packages/transformers/models/gpt2.py", "GPT2.forward"),
      P("/home/u/x.py", "<module>")},
     1,
     true,
     NULL},
    {"a file of a package's name and a folder of the program's are no framework",
     {P("/v/site-packages/jax.py", "f"), P("/home/u/x.py", "f")},
     0,
     true,
     NULL},
    {"a folder of that name elsewhere",
     {P("/home/u/torch/a.py", "f"), P("/home/u/x.py", "f")},
     0,
     true,
     NULL},
    {"Python's own library, also of a free-threaded build",
     {P("/usr/lib/python3.11/contextlib.py", "_GeneratorContextManager.__enter__"),
      P("/opt/lib/python3.13t/threading.py", "Thread.run"),
      P("/u/lib64/python3.9/functools.py", "f"), P("/home/u/x.py", "f")},
     3,
     true,
     NULL},
    {"a folder that only begins like it",
     {P("/u/lib/python3.x/a.py", "f"), P("/home/u/x.py", "f")},
     0,
     true,
     NULL},
    {"generated code",
     {P("/tmp/torchinductor_u/ab/cab.py", "call"), P("<eval_with_key>.12", "forward"),
      P("<frozen importlib._bootstrap>", "_load"), P("<string>", "__init__"),
      P("/tmp/tmpab12_xyz.py", "f"), P("/tmp/tmpab12_xyz/m.py", "f"), P("/home/u/x.py", "f")},
     6,
     true,
     NULL},
    {"not any file in /tmp", {P("/tmp/tmpreal.py", "f"), P("/home/u/x.py", "f")}, 0, true, NULL},
    {"what is typed", {P(TORCH "a.py", "f"), P("<stdin>", "<module>")}, 1, true, NULL},
    {"a cell of a notebook",
     {P("/tmp/ipykernel_7/12.py", "<module>"), P("/v/site-packages/IPython/a.py", "run")},
     0,
     true,
     NULL},
    {"a text after python -c",
     {P(TORCH "a.py", "f"), P("<string>", "make"), P("<string>", "<module>")},
     1,
     true,
     NULL},
    {"a script of the framework's own",
     {P(TORCH "b.py", "f"), P(TORCH "run.py", "main"), P(TORCH "run.py", "<module>"),
      P("<frozen runpy>", "_run_code")},
     1,
     true,
     NULL},
    {"a thread of the framework's own",
     {P(TORCH "utils/pin_memory.py", "pin"), P("/usr/lib/python3.11/threading.py", "Thread.run")},
     0,
     false,
     NULL},
    {"a frame without a file is nobody's", {P(NULL, NULL), P("/home/u/x.py", "f")}, 1, true, NULL},
    {"a Python line before native code of the program",
     {N("/home/u/ext.so", "launch(int)"), P("/home/u/x.py", "f")},
     1,
     true,
     NULL},

    {"native code of the program between PyTorch's",
     {ALLOCATE, EMPTY, N("/home/u/ext.so", "launch(at::Tensor)"), OPERATOR},
     2,
     true,
     NULL},
    {"PyTorch's headers in a library of the program",
     {ALLOCATE, N("/home/u/ext.so", "at::empty(c10::ArrayRef<long>)"),
      N("/home/u/ext.so", "launch(int)")},
     2,
     true,
     NULL},
    {"which are the program's names where there is no PyTorch",
     {N("/x/libcuda.so.1", "cuMemAlloc_v2"), N("/home/u/a.out", "at::work()"),
      N("/home/u/a.out", "main")},
     1,
     true,
     NULL},
    {"a node of autograd",
     {ALLOCATE, EMPTY, N(CUDA, "at::native::mm(at::Tensor)"),
      N(CPU, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"),
      OPERATOR, N(LIBCXX, "execute_native_thread_routine"), N(LIBC, "start_thread")},
     3,
     false,
     "AddmmBackward0"},
    {"the node that adds up gradients",
     {EMPTY, N(CPU, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"), OPERATOR},
     1,
     false,
     "AccumulateGrad"},
    {"a node of a Python function",
     {EMPTY,
      N(TORCH "lib/libtorch_python.so",
        "torch::autograd::PyNode::apply(std::vector<at::Tensor>&&)"),
      OPERATOR},
     1,
     false,
     "PyNode"},
    {"a node by whoever runs it",
     {EMPTY, N(CPU, "(anonymous namespace)::Scale<2>::apply(std::vector<at::Tensor>&&)"), OPERATOR},
     1,
     false,
     "Scale<2>"},
    {"a C++ function of the program, known by its adapter alone",
     {EMPTY,
      N("/home/u/ext.so", "torch::autograd::CppNode<my::Scale>::apply(std::vector<at::Tensor>&&)"),
      OPERATOR},
     1,
     false,
     "my::Scale"},
    {"an apply() that is no node",
     {EMPTY, N(CPU, "at::apply_op::apply(int)"), N(CPU, "at::add(int)")},
     1,
     false,
     NULL},
    {"an operator, not the allocator",
     {ALLOCATE, EMPTY, N(CUDA, "at::TensorIteratorBase::build(int)"),
      N(CUDA, "at::native::relu(int)")},
     3,
     false,
     NULL},
    {"the operator that was called, not those that it calls",
     {ALLOCATE, EMPTY, N(CUDA, "at::_ops::sum_out::call(at::Tensor const&)"),
      N(CPU, "at::_ops::sum_dim_IntList::redispatch(c10::DispatchKeySet)"),
      N(CPU, "at::_ops::sum_dim_IntList::call(at::Tensor const&)"),
      N(CPU, "torch::autograd::Engine::evaluate_function(int)")},
     4,
     false,
     "sum_dim_IntList"},
    {"a node, not the operators under it",
     {ALLOCATE, N(CPU, "at::_ops::mm::call(at::Tensor const&)"),
      N(CPU, "torch::autograd::generated::MmBackward0::apply(int)"),
      N(CPU, "at::_ops::outer::call(at::Tensor const&)")},
     2,
     false,
     "MmBackward0"},
    {"an operator, not the interpreter under it",
     {ALLOCATE, N(CPU, "at::native::relu(int)"),
      INTERPRETER("/usr/bin/python3.11", "PyObject_Call"), N("/x/libpython3.12.so.1.0", "Py_Main")},
     1,
     false,
     NULL},
    {"the program's code past the C and C++ libraries",
     {N("/x/libcuda.so.1", "cuMemAlloc_v2"), N(LIBCXX, "std::call_once"), N(LIBC, "pthread_once"),
      N("/home/u/a.out", "start")},
     3,
     true,
     NULL},
    {"the innermost outside CUDA, for want of another",
     {N("/x/libcuda.so.1", "cuMemAlloc_v2"), N(LIBC, "start_thread"), N(LIBC, "clone")},
     1,
     false,
     NULL},
    {"nobody", {N("/x/libcuda.so.1", "cuMemAlloc_v2")}, 1, false, NULL},
};

Test(backtrace, blames_whom_the_rules_say) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct blamed *c = &cases[i];
        const struct frame *frames[FRAMES];
        struct backtrace stack = {.frames = frames};
        char name[64] = "";
        while (stack.count < FRAMES &&
               (c->frames[stack.count].python || c->frames[stack.count].module)) {
            frames[stack.count] = &c->frames[stack.count];
            stack.count++;
        }
        struct blame blame = blame_find(&stack);
        cr_expect_eq(blame.index, c->index, "%s: %u", c->what, blame.index);
        cr_expect_eq(blame.own, c->own, "%s", c->what);
        cr_expect_eq(blame.short_name, c->node != NULL, "%s", c->what);
        if (blame.short_name && c->node)
            cr_expect_str_eq(blame_short_name(frames[blame.index], name, sizeof name), c->node,
                             "%s: %s", c->what, name);
    }
}

/* ---- blame, of a trace ----------------------------------------------------------------------- */

/* Modules whose frames have no names but offsets: enough to tell whose they are. */
static uint64_t in_module(const char *path, uint32_t flags) {
    static uint64_t next = 0x100000;
    struct trace_module *module = builder_module(builder, path, next, next + 0x1000, next);
    module->flags = flags;
    next += 0x1000;
    return next - 0x800 + 1;
}

Test(backtrace, blame_is_the_innermost_frame_of_the_users_own) {
    uint64_t cuheap = in_module("/x/libcuheap.so", TRACE_MODULE_CUHEAP);
    uint64_t driver = in_module("/x/libcuda.so.1", TRACE_MODULE_DRIVER);
    uint64_t runtime = in_module("/x/libcudart.so.12", 0);
    uint64_t user = in_module("/x/libmodel.so", 0);
    uint64_t pcs[] = {cuheap, driver, runtime, user, user + 16};
    const struct backtrace *stack =
        backtraces_find(backtraces, trace, builder_native_stack(builder, pcs, 5), 0);
    cr_assert_eq(stack->count, 5u);
    cr_expect_eq(stack->blame, 3u);
    cr_expect_str_eq(backtrace_blame(stack)->module, "/x/libmodel.so");
    stack = backtraces_find(backtraces, trace, builder_native_stack(builder, pcs, 3), 0);
    cr_expect_null(backtrace_blame(stack), "nobody's but CUDA's");
    stack = backtraces_find(backtraces, trace, 0, 0);
    cr_expect_eq(stack->count, 0u);
    cr_expect_null(backtrace_blame(stack));
}

Test(backtrace, a_python_line_of_the_users_own_comes_before_native_code) {
    uint64_t user = in_module("/x/libtorch.so", 0);
    uint32_t places[] = {
        builder_python_place(builder, "forward", "/usr/lib/python3/dist-packages/torch/nn.py", 3),
        builder_python_place(builder, "step", "/home/u/train.py", 7),
    };
    const struct backtrace *stack =
        backtraces_find(backtraces, trace, builder_native_stack(builder, &user, 1),
                        builder_python_stack(builder, places, 2));
    cr_assert_eq(stack->count, 3u);
    const struct frame *blame = backtrace_blame(stack);
    cr_expect_str_eq(blame->function, "step");
    cr_expect_str_eq(blame->file, "/home/u/train.py");
    cr_expect_eq(blame->line, 7u);
    cr_expect(blame->python);
    stack = backtraces_find(backtraces, trace, 0, builder_python_stack(builder, places, 1));
    cr_expect_str_eq(backtrace_blame(stack)->function, "forward", "for want of another");
}

Test(backtrace, functions_have_their_qualified_names) {
    uint32_t place = builder_python_place(builder, "forward", "/home/u/model.py", 3);
    builder_place_qualified(builder, place, "Net.forward");
    const struct backtrace *stack =
        backtraces_find(backtraces, trace, 0, builder_python_stack(builder, &place, 1));
    cr_expect_str_eq(backtrace_blame(stack)->function, "Net.forward");
}

/* ---- Python frames in stacks taken whole ----------------------------------------------------- */

/* The interpreter's loop and its pieces, as compilers name them. */
#define FUNCTION(name)                                                                             \
    ".globl \"" name "\"\n.type \"" name "\", @function\n\"" name "\": nop\n nop\n nop\n nop\n"    \
    ".size \"" name "\", . - \"" name "\"\n"
__asm__(".text\n" FUNCTION("_PyEval_EvalFrameDefault") FUNCTION("_PyEval_EvalFrameDefault.cold")
            FUNCTION("_PyEval_EvalFrameDefault.part.0")
                FUNCTION("_PyEval_EvalFrameDefault.constprop.1") FUNCTION("PyEval_EvalFrameEx")
                    FUNCTION("_PyEval_EvalFrameDefaults") FUNCTION("PyObject_Call"));
extern char loop[] __asm__("_PyEval_EvalFrameDefault");
extern char cold[] __asm__("\"_PyEval_EvalFrameDefault.cold\"");
extern char part[] __asm__("\"_PyEval_EvalFrameDefault.part.0\"");
extern char clone_of[] __asm__("\"_PyEval_EvalFrameDefault.constprop.1\"");
extern char old_name[] __asm__("PyEval_EvalFrameEx");
extern char other_name[] __asm__("_PyEval_EvalFrameDefaults");
extern char call[] __asm__("PyObject_Call");

/* A stack by letters: l loop, c its cold part, p a part it calls, k a clone, e by its older name, o
   a function that only begins so, f PyObject_Call, n code of a library; and the Python frames a,
   b... innermost first, as capitals where native code entered the interpreter. Answers the merged
   stack in the same letters. */
struct merging {
    const char *native, *python, *merged;
    uint32_t native_flags, python_flags;
};

static char letter_of(const struct frame *frame) {
    static const struct {
        const char *name;
        char letter;
    } names[] = {
        {"_PyEval_EvalFrameDefault", 'l'},
        {"_PyEval_EvalFrameDefault.cold", 'c'},
        {"_PyEval_EvalFrameDefault.part.0", 'p'},
        {"_PyEval_EvalFrameDefault.constprop.1", 'k'},
        {"PyEval_EvalFrameEx", 'e'},
        {"_PyEval_EvalFrameDefaults", 'o'},
        {"PyObject_Call", 'f'},
    };
    if (frame->python)
        return frame->function[0];
    for (size_t i = 0; frame->function && i < sizeof names / sizeof *names; i++)
        if (strcmp(frame->function, names[i].name) == 0)
            return names[i].letter;
    return 'n';
}

static uint64_t address_of(char letter, uint64_t library) {
    const char *code = letter == 'l'   ? loop
                       : letter == 'c' ? cold
                       : letter == 'p' ? part
                       : letter == 'k' ? clone_of
                       : letter == 'e' ? old_name
                       : letter == 'o' ? other_name
                       : letter == 'f' ? call
                                       : NULL;
    return code ? (uint64_t)(uintptr_t)code + 2 : library;
}

static const char *merge(const struct merging *m, uint64_t library, char out[32]) {
    uint64_t pcs[16];
    uint32_t places[16], depth = 0, frames = 0;
    for (const char *at = m->native; *at; at++)
        pcs[depth++] = address_of(*at, library);
    for (const char *at = m->python; *at; at++) {
        char name[2] = {(char)(*at | 0x20), 0};
        places[frames] = builder_python_place(builder, name, "/home/u/x.py", 1);
        if (*at < 'a')
            builder_place_entry(builder, places[frames]);
        frames++;
    }
    uint32_t native = builder_native_stack(builder, pcs, depth);
    uint32_t python = builder_python_stack(builder, places, frames);
    builder_stack_flags(builder, native, m->native_flags);
    builder_stack_flags(builder, python, m->python_flags);
    const struct backtrace *stack = backtraces_find(backtraces, trace, native, python);
    for (unsigned i = 0; i < stack->count; i++)
        out[i] = letter_of(stack->frames[i]);
    out[stack->count] = '\0';
    return out;
}

static void expect_merged(const struct merging *cases_of, size_t count) {
    uint64_t library = in_module("/x/libops.so", 0);
    for (size_t i = 0; i < count; i++) {
        const struct merging *m = &cases_of[i];
        char out[32];
        cr_expect_str_eq(merge(m, library, out), m->merged, "%s and %s: %s, not %s", m->native,
                         m->python, out, m->merged);
    }
}

#define MERGE(table) expect_merged(table, sizeof table / sizeof *table)

Test(backtrace, python_frames_stand_where_the_interpreter_evaluated_them) {
    builder_this_program(builder)->flags |= TRACE_MODULE_PYTHON;
    static const struct merging table[] = {
        {"nflfn", "A", "nfafn", 0, 0}, {"nlflf", "aBcD", "nabfcdf", 0, 0},
        {"ll", "AB", "ab", 0, 0},      {"nclfkf", "ABC", "nabfcf", 0, 0},
        {"plfl", "AB", "afb", 0, 0},   /* a part belongs to the loop that called it */
        {"lefl", "AB", "afb", 0, 0},   /* and the older name to the newer */
        {"elfe", "ABC", "abfc", 0, 0}, /* not the other way round */
        {"nlf", "ab", "nabf", 0, 0},   /* the outermost has been entered, marked or not */
        {"nofl", "A", "nofa", 0, 0},   {"nflf", "", "nflf", 0, 0},
    };
    MERGE(table);
}

Test(backtrace, python_frames_stand_together_where_it_cannot_be_told) {
    builder_this_program(builder)->flags |= TRACE_MODULE_PYTHON;
    static const struct merging table[] = {
        {"nnlflf", "ABC", "nnabclflf", 0, 0},
        {"nnfllf", "A", "nnafllf", 0, 0},
        {"nnff", "aB", "nnabff", 0, 0}, /* no loop: calls from one instruction to the next */
    };
    MERGE(table);
}

Test(backtrace, a_stack_that_was_cut_off_keeps_what_it_has) {
    builder_this_program(builder)->flags |= TRACE_MODULE_PYTHON;
    static const struct merging table[] = {
        {"nlfl", "AB", "nafb", TRACE_STACK_TRUNCATED, 0},
        {"nlf", "ABc", "nafbc", TRACE_STACK_TRUNCATED, 0},
        {"n", "aB", "nab", TRACE_STACK_INCOMPLETE, 0},
        {"nlflfl", "aB", "nabflfl", 0, TRACE_STACK_TRUNCATED},
        {"nlflfl", "Ab", "nafbfl", 0, TRACE_STACK_TRUNCATED},
    };
    MERGE(table);
}

Test(backtrace, a_stack_that_ends_at_the_interpreter_has_python_frames_last) {
    static const struct merging table[] = {
        {"nnn", "aBcD", "nnnabcd", TRACE_STACK_TO_PYTHON, 0},
        {"", "aB", "ab", 0, 0},
        {"nn", "", "nn", 0, 0},
    };
    MERGE(table);
}
