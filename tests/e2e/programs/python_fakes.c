// LINK: @O@/simgpu/libcuda.so.1 -rdynamic
/*
 * Exports the names by which an interpreter is known and lays out the objects of CPython 3.12 as
 * far as stacks are read from them: one frame, in Fake.function of fake.py at line 11. Then, by its
 * argument, something of that is not as it should be. Each case makes FAKE_BLOCKS allocations.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <sys/mman.h>

#define FAKE_BLOCKS 200 /* as tests/e2e/test_python.c has it */
#define FAKE_BYTES  1000
#define FAKE_CHANGE 100 /* when a case of the kind "later" changes */

typedef unsigned char object[256] __attribute__((aligned(16)));

/* Offsets of CPython 3.12. */
enum { TYPE = 8, SIZE = 16 };
enum { STATE_CFRAME = 56, STATE_THREAD = 136 };
enum { FRAME_CODE = 0, FRAME_PREVIOUS = 8, FRAME_INSTRUCTION = 56 };
enum { CODE_LINE = 68, CODE_FILE = 112, CODE_NAME = 120, CODE_QUALIFIED = 128, CODE_LINES = 136 };
enum { CODE_CODE = 192 };
enum { TEXT_LENGTH = 16, TEXT_STATE = 32, TEXT_DATA = 40, BYTES_DATA = 32 };
#define ASCII_COMPACT (1u << 2 | 1u << 5 | 1u << 6)

object PyType_Type, PyCode_Type, PyUnicode_Type, PyBytes_Type, _PyRuntime;
unsigned long Py_Version = 0x030c01f0;
void *PyGILState_GetThisThreadState(void);
int _Py_IsFinalizing(void);

static object state, cframe, frame, code, file, name, qualified, lines;
static void *known_state = state;
static int finalizing;
static unsigned char *unmapped; /* may not be touched */

void *PyGILState_GetThisThreadState(void) {
    return known_state;
}

int _Py_IsFinalizing(void) {
    return finalizing;
}

static void put(void *to, size_t offset, const void *value) {
    memcpy((char *)to + offset, &value, sizeof value);
}

static void put_int(void *to, size_t offset, unsigned value) {
    memcpy((char *)to + offset, &value, sizeof value);
}

static void make_text(object text, const char *characters) {
    put(text, TYPE, PyUnicode_Type);
    put(text, TEXT_LENGTH, (void *)strlen(characters));
    put_int(text, TEXT_STATE, ASCII_COMPACT);
    strcpy((char *)text + TEXT_DATA, characters);
}

static void make_interpreter(void) {
    put(PyType_Type, TYPE, PyType_Type);
    put(PyCode_Type, TYPE, PyType_Type);
    put(PyUnicode_Type, TYPE, PyType_Type);
    put(PyBytes_Type, TYPE, PyType_Type);
    make_text(file, "fake.py");
    make_text(name, "function");
    make_text(qualified, "Fake.function");
    /* One entry: the next line, for eight units of code. */
    put(lines, TYPE, PyBytes_Type);
    put(lines, SIZE, (void *)3);
    memcpy(lines + BYTES_DATA, (unsigned char[]){0x80 | 11 << 3 | 7, 1, 2}, 3);
    put(code, TYPE, PyCode_Type);
    put(code, SIZE, (void *)8);
    put_int(code, CODE_LINE, 10);
    put(code, CODE_FILE, file);
    put(code, CODE_NAME, name);
    put(code, CODE_QUALIFIED, qualified);
    put(code, CODE_LINES, lines);
    put(frame, FRAME_CODE, code);
    put(frame, FRAME_INSTRUCTION, code + CODE_CODE + 2);
    put(cframe, 0, frame);
    put(state, STATE_CFRAME, cframe);
    put(state, STATE_THREAD, (void *)pthread_self());
}

/* Puts the type where it is in a build that traces references: each object begins with two more
   words. */
static void trace_references(void) {
    put(PyCode_Type, TYPE, (void *)1);
    put(PyCode_Type, TYPE + 16, PyType_Type);
}

/* Makes the case; false: there is none of the name. "later" cases are as they should be at first.
 */
static bool change(const char *what) {
#define CASE(word, ...)                                                                            \
    if (!strcmp(what, word)) {                                                                     \
        __VA_ARGS__;                                                                               \
        return true;                                                                               \
    }
    CASE("supported", )
    CASE("pre_release", Py_Version = 0x030f00a1)
    CASE("unknown", Py_Version = 0x040000f0)
    CASE("trace_refs", trace_references())
    CASE("without_state", known_state = NULL)
    CASE("finalizing", finalizing = 1)
    CASE("state_unmapped", known_state = unmapped)
    CASE("state_of_another", put(state, STATE_THREAD, (void *)0x7000))
    CASE("frame_unmapped", put(cframe, 0, unmapped))
    CASE("frame_misaligned", put(cframe, 0, frame + 1))
    CASE("frame_small_number", put(cframe, 0, (void *)8))
    CASE("frame_cycle", put(frame, FRAME_PREVIOUS, frame))
    CASE("code_unmapped", put(frame, FRAME_CODE, unmapped))
    CASE("code_of_another_type", put(code, TYPE, PyBytes_Type))
    CASE("code_later", put(code, TYPE, PyBytes_Type))
    CASE("file_unmapped", put(code, CODE_FILE, unmapped))
    CASE("name_of_another_type", put(name, TYPE, PyBytes_Type))
    CASE("name_endless", put(name, TEXT_LENGTH, (void *)(1ull << 40)))
    CASE("name_not_compact", put_int(name, TEXT_STATE, 1u << 2))
    CASE("lines_unmapped", put(code, CODE_LINES, unmapped))
    CASE("lines_of_another_type", put(lines, TYPE, PyUnicode_Type))
#undef CASE
    return false;
}

PLACE void work(const char *what, bool later) {
    for (int i = 0; i < FAKE_BLOCKS; i++) {
        CUdeviceptr block;
        if (later && i == FAKE_CHANGE)
            MUST(!change(what));
        MUST(cuMemAlloc_v2(&block, FAKE_BYTES));
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    bool later = strstr(what, "_later") != NULL;
    unmapped = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(unmapped == MAP_FAILED);
    make_interpreter();
    MUST(!later && !change(what));
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    work(what, later);
    puts("done");
    return 0;
}
