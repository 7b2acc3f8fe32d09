#include "python_layout.h"

#include <stddef.h>
#include <string.h>

#include "elf_symbols.h"

#define NO PYTHON_NO_FIELD

/* clang-format off */
#define OBJECT        .type = 8, .size = 16, .bytes_data = 32, .text_length = 16, .text_hash = 24, .text_state = 32
#define OBJECT_T      .type = 24, .size = 32, .bytes_data = 48, .text_length = 32, .text_hash = 40, .text_state = 48
#define TEXT_OLD      .ascii_data = 48, .other_data = 72, .kind_bit = 2, .compact_bit = 5, .ascii_bit = 6
#define TEXT          .ascii_data = 40, .other_data = 56, .kind_bit = 2, .compact_bit = 5, .ascii_bit = 6
#define TEXT_13T      .ascii_data = 56, .other_data = 72, .kind_bit = 2, .compact_bit = 5, .ascii_bit = 6
#define TEXT_14T      .ascii_data = 56, .other_data = 72, .kind_bit = 8, .compact_bit = 11, .ascii_bit = 12
#define FRAME_OBJECT  .thread_frame = 24, .cframe_frame = NO, .thread_id = 176, .code = 32, .previous = 24, \
                      .is_entry = NO, .owner = NO, .bytecode_index = NO, .bytecodes = NO
#define CODE_OLD      .first_line = 40, .file = 104, .name = 112, .qualified = NO, .line_table = 120, .bytecode = NO, \
                      .code_version = NO
#define CODE_NAMES    .file = 112, .name = 120, .qualified = 128, .line_table = 136
#define CODE_NAMES_T  .first_line = 84, .file = 128, .name = 136, .qualified = 144, .line_table = 152
#define FRAME         .line = NO, .trace = NO, .instruction = 56
#define SHIMS         .code = 0, .previous = 8, .is_entry = NO, .code_version = 92
#define SHIMS_T       .code = 0, .previous = 8, .is_entry = NO, .code_version = 108

static const struct python_layout layouts[] = {
    {.version = 0x0308, FRAME_OBJECT, .instruction = 104, .line = 108, .trace = 80, CODE_OLD, OBJECT, TEXT_OLD,
     .lines = PYTHON_LINES_LNOTAB},
    {.version = 0x0309, FRAME_OBJECT, .instruction = 104, .line = 108, .trace = 80, CODE_OLD, OBJECT, TEXT_OLD,
     .lines = PYTHON_LINES_LNOTAB},
    {.version = 0x030a, FRAME_OBJECT, .instruction = 96, .line = 100, .trace = NO, CODE_OLD, OBJECT, TEXT_OLD,
     .lines = PYTHON_LINES_RANGES},
    {.version = 0x030b, .thread_frame = 56, .cframe_frame = 8, .thread_id = 152, FRAME, .code = 32, .previous = 48,
     .is_entry = 68, .owner = 69, .code_version = NO, .bytecode_index = NO, .first_line = 72, CODE_NAMES, .bytecode = 184,
     .bytecodes = NO, OBJECT, TEXT_OLD, .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030c, .thread_frame = 56, .cframe_frame = 0, .thread_id = 136, FRAME, SHIMS, .owner = 70,
     .bytecode_index = NO, .first_line = 68, CODE_NAMES, .bytecode = 192, .bytecodes = NO, OBJECT, TEXT,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030d, .thread_frame = 72, .cframe_frame = NO, .thread_id = 152, FRAME, SHIMS, .owner = 70,
     .bytecode_index = NO, .first_line = 68, CODE_NAMES, .bytecode = 200, .bytecodes = NO, OBJECT, TEXT,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030e, .thread_frame = 72, .cframe_frame = NO, .thread_id = 152, FRAME, SHIMS, .owner = 74,
     .bytecode_index = NO, .first_line = 68, CODE_NAMES, .bytecode = 208, .bytecodes = NO, OBJECT, TEXT,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030f, .thread_frame = 72, .cframe_frame = NO, .thread_id = 176, FRAME, SHIMS, .owner = 74,
     .bytecode_index = NO, .first_line = 68, CODE_NAMES, .bytecode = 208, .bytecodes = NO, OBJECT, TEXT,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030d, .free_threaded = true, .thread_frame = 72, .cframe_frame = NO, .thread_id = 152, FRAME, SHIMS_T,
     .owner = 70, .bytecode_index = NO, CODE_NAMES_T, .bytecode = 216, .bytecodes = NO, OBJECT_T, TEXT_13T,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030e, .free_threaded = true, .thread_frame = 72, .cframe_frame = NO, .thread_id = 152, FRAME, SHIMS_T,
     .owner = 78, .bytecode_index = 72, CODE_NAMES_T, .bytecode = 232, .bytecodes = 224, OBJECT_T, TEXT_14T,
     .lines = PYTHON_LINES_LOCATIONS},
    {.version = 0x030f, .free_threaded = true, .thread_frame = 72, .cframe_frame = NO, .thread_id = 176, FRAME, SHIMS_T,
     .owner = 78, .bytecode_index = 72, CODE_NAMES_T, .bytecode = 232, .bytecodes = 224, OBJECT_T, TEXT_14T,
     .lines = PYTHON_LINES_LOCATIONS},
};
/* clang-format on */

/* ---- names ----------------------------------------------------------------------------------- */

/* The first object that defines a name serves all, as the loader would have it. */
static const struct {
    const char *name;
    size_t at;
} exported[] = {
    {"PyGILState_GetThisThreadState", offsetof(struct python_names, this_thread)},
    {"_Py_IsFinalizing", offsetof(struct python_names, is_finalizing)}, /* to 3.12 */
    {"Py_IsFinalizing", offsetof(struct python_names, is_finalizing)},
    {"PyInterpreterState_Main", offsetof(struct python_names, main_interpreter)},
    {"PyInterpreterState_ThreadHead", offsetof(struct python_names, first_thread)},
    {"Py_GetVersion", offsetof(struct python_names, get_version)},
    {"Py_Version", offsetof(struct python_names, version)},
    {"PyCode_Type", offsetof(struct python_names, code_type)},
    {"PyUnicode_Type", offsetof(struct python_names, text_type)},
    {"PyBytes_Type", offsetof(struct python_names, bytes_type)},
    {"PyType_Type", offsetof(struct python_names, type_type)},
    {"_PyRuntime", offsetof(struct python_names, runtime)},
};

struct search {
    struct python_names *names;
    struct code_range *module;
};

static bool look_in(const struct object *object, void *argument) {
    const struct search *search = argument;
    for (size_t i = 0; i < sizeof exported / sizeof *exported; i++) {
        void **to = (void **)((char *)search->names + exported[i].at);
        if (*to || !(*to = object_symbol(object, exported[i].name)))
            continue;
        if (exported[i].at == offsetof(struct python_names, this_thread))
            *search->module = (struct code_range){object->start, object->end};
    }
    return false;
}

bool python_find_names(struct python_names *names, struct code_range *module) {
    struct search search = {names, module};
    memset(names, 0, sizeof *names);
    objects_each(look_in, &search);
    return names->this_thread && names->code_type && names->text_type && names->bytes_type &&
           names->type_type && (names->version || names->get_version);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static unsigned digits(const char **text) {
    unsigned number = 0;
    while (**text >= '0' && **text <= '9' && number < 1000)
        number = number * 10 + (unsigned)(*(*text)++ - '0');
    return number;
}

/* As Py_Version has it: major, minor, micro, level and serial. Level 15 is a final release. */
static uint32_t version_of(const struct python_names *names) {
    if (names->version)
        return (uint32_t)*names->version;
    /* "3.10.13 (main, ...": the text was made when the interpreter was initialised. */
    const char *text = names->get_version();
    unsigned major = digits(&text);
    unsigned minor = *text == '.' ? (text++, digits(&text)) : 0;
    unsigned micro = *text == '.' ? (text++, digits(&text)) : 0;
    unsigned final = *text == ' ' || *text == '+' ? 0xf0 : 0;
    return major << 24 | minor << 16 | micro << 8 | final;
}

/* From 3.13 on, the runtime begins with a description of itself for debuggers (_Py_DebugOffsets):
   a cookie, the version, and whether it is free-threaded. */
static bool is_free_threaded(const struct python_names *names) {
    const uint64_t *words = names->runtime;
    return words && !memcmp(words, "xdebugpy", 8) && words[2] == 1;
}

const char *python_choose_layout(const struct python_names *names, struct python_layout *layout) {
    uint32_t version = version_of(names);
    bool free_threaded = version >= 0x030d0000 && is_free_threaded(names);
    if ((version & 0xf0) != 0xf0)
        return "it is a pre-release, whose inner layout is not known";
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const struct python_layout *l = &layouts[i];
        if (l->version != version >> 16 || l->free_threaded != free_threaded)
            continue;
        /* In a build that traces references every object begins with two more words. */
        if (*(const void *const *)((const char *)names->code_type + l->type) != names->type_type)
            return "its objects do not begin as this version's do (a build for debugging?)";
        *layout = *l;
        return NULL;
    }
    return "this version is not known";
}
