/*
 * Addresses to names by libdwfl. See symbols.h; one thread at a time.
 *
 * A module is opened by the path that the trace names, at its own file addresses (load bias 0), and
 * looked into only if its build-id is the one that was loaded: names from another build would be
 * wrong without a sign of it. A return address may be the first byte of the next line or function,
 * so the look-up is for the byte before.
 */
#include "symbols.h"

#include "text.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <fcntl.h>
#include <libiberty/demangle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

#define MANGLED_MAX    65536 /* a longer symbol is shown as it is */
#define NAME_MAX_BYTES 8192
#define INLINE_MAX     64

/* An object file, opened once however many processes and generations loaded it. */
struct object {
    UT_hash_handle hh;
    Dwfl *dwfl;
    Dwfl_Module *module;
    struct symbols_state state;
    const char *path;
    size_t key_bytes;
    char key[]; /* path, NUL, build-id */
};

struct place_key {
    const struct object *object;
    uint64_t address;
    uint64_t flags;
};

/* What one address resolved to. */
struct place {
    UT_hash_handle hh;
    struct place_key key;
    unsigned count;
    struct frame frames[];
};

struct name {
    UT_hash_handle hh;
    char text[];
};

struct symbols {
    struct object *objects;
    struct place *places;
    struct name *names;
    struct frame nothing; /* answered when memory is exhausted */
};

/* dwfl_standard_find_debuginfo asks debuginfod exactly when DEBUGINFOD_URLS is set. */
static const Dwfl_Callbacks callbacks = {
    .find_elf = dwfl_build_id_find_elf,
    .find_debuginfo = dwfl_standard_find_debuginfo,
    .section_address = dwfl_offline_section_address,
};

struct symbols *symbols_open(bool ask_debuginfod) {
    if (!ask_debuginfod)
        unsetenv("DEBUGINFOD_URLS");
    return calloc(1, sizeof(struct symbols));
}

void symbols_close(struct symbols *symbols) {
    if (!symbols)
        return;
    struct object *object, *next_object;
    HASH_ITER(hh, symbols->objects, object, next_object) {
        HASH_DEL(symbols->objects, object);
        dwfl_end(object->dwfl);
        free(object);
    }
    struct place *place, *next_place;
    HASH_ITER(hh, symbols->places, place, next_place) {
        HASH_DEL(symbols->places, place);
        free(place);
    }
    struct name *name, *next_name;
    HASH_ITER(hh, symbols->names, name, next_name) {
        HASH_DEL(symbols->names, name);
        free(name);
    }
    free(symbols);
}

/* ---- names ----------------------------------------------------------------------------------- */

const char *symbols_intern(struct symbols *symbols, const char *text) {
    if (!text)
        return NULL;
    char clean[NAME_MAX_BYTES];
    text_clean(clean, sizeof clean, text);
    size_t bytes = strlen(clean);
    struct name *name;
    HASH_FIND(hh, symbols->names, clean, bytes, name);
    if (name)
        return name->text;
    name = malloc(sizeof *name + bytes + 1);
    if (!name)
        return NULL;
    memcpy(name->text, clean, bytes + 1);
    HASH_ADD_KEYPTR(hh, symbols->names, name->text, bytes, name);
    return name->text;
}

static const char *intern_function(struct symbols *symbols, const char *mangled) {
    if (!mangled || strlen(mangled) > MANGLED_MAX)
        return symbols_intern(symbols, mangled);
    char *demangled = cplus_demangle(mangled, DMGL_PARAMS | DMGL_ANSI | DMGL_AUTO);
    const char *name = symbols_intern(symbols, demangled ? demangled : mangled);
    free(demangled);
    return name;
}

static const char *intern_path(struct symbols *symbols, const char *directory, const char *path) {
    if (!path || path[0] == '/' || !directory || !directory[0])
        return symbols_intern(symbols, path);
    char joined[NAME_MAX_BYTES];
    snprintf(joined, sizeof joined, "%s/%s", directory, path);
    return symbols_intern(symbols, joined);
}

/* ---- object files ---------------------------------------------------------------------------- */

static bool build_ids_differ(const struct object *object, const struct trace_module *module) {
    const unsigned char *bits;
    GElf_Addr address;
    int bytes = dwfl_module_build_id(object->module, &bits, &address);
    if (bytes <= 0 || module->build_id_bytes == 0)
        return false;
    size_t known = module->build_id_bytes;
    if (known > sizeof module->build_id) /* recorded cut off: compare what there is */
        known = sizeof module->build_id;
    else if (known != (size_t)bytes)
        return true;
    return known > (size_t)bytes || memcmp(bits, module->build_id, known) != 0;
}

/* Leaves object->module set where names may be taken from it; otherwise says why not. */
static void load_object(struct symbols *symbols, struct object *object, const char *path,
                        const struct trace_module *module) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        object->state.reason =
            symbols_intern(symbols, fd >= 0 ? "not a regular file" : strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    object->dwfl = dwfl_begin(&callbacks);
    if (object->dwfl)
        object->module = dwfl_report_elf(object->dwfl, path, path, fd, 0, true);
    if (!object->module) {
        object->state.reason = symbols_intern(symbols, dwfl_errmsg(-1));
        close(fd);
        return;
    }
    dwfl_report_end(object->dwfl, NULL, NULL);
    GElf_Addr bias;
    if (!dwfl_module_getelf(object->module, &bias)) {
        object->state.reason = symbols_intern(symbols, dwfl_errmsg(-1));
        object->module = NULL;
    } else if (build_ids_differ(object, module)) {
        object->state.reason = "the file has another build-id than what was loaded";
        object->module = NULL;
    }
}

static void judge_object(struct object *object) {
    if (!object->module)
        return;
    Dwarf_Addr bias;
    if (dwfl_module_getdwarf(object->module, &bias)) {
        object->state = (struct symbols_state){SYMBOLS_LINES, NULL};
    } else if (dwfl_module_getsymtab(object->module) > 1) {
        object->state = (struct symbols_state){
            SYMBOLS_NAMES, "no debug information: build with -g, or install its debug package"};
    } else {
        object->state = (struct symbols_state){SYMBOLS_NONE, "stripped"};
        object->module = NULL;
    }
}

static struct object *find_object(struct symbols *symbols, const struct trace *trace,
                                  const struct trace_module *module) {
    const char *path = trace_string(trace, module->path);
    if (!path)
        path = "";
    size_t id_bytes = module->build_id_bytes;
    if (id_bytes > sizeof module->build_id)
        id_bytes = sizeof module->build_id;
    size_t path_bytes = strlen(path) + 1, bytes = path_bytes + id_bytes;
    struct object *object = calloc(1, sizeof *object + bytes);
    if (!object)
        return NULL;
    memcpy(object->key, path, path_bytes);
    memcpy(object->key + path_bytes, module->build_id, id_bytes);
    struct object *known;
    HASH_FIND(hh, symbols->objects, object->key, bytes, known);
    if (known) {
        free(object);
        return known;
    }
    object->path = symbols_intern(symbols, path[0] ? path : "[unknown]");
    if (module->flags & TRACE_MODULE_VDSO)
        object->state.reason = "the kernel's vdso";
    else if (path[0] != '/')
        object->state.reason = "no path recorded";
    else
        load_object(symbols, object, path, module);
    judge_object(object);
    HASH_ADD_KEYPTR(hh, symbols->objects, object->key, bytes, object);
    return object;
}

struct symbols_state symbols_of_module(struct symbols *symbols, const struct trace *trace,
                                       const struct trace_module *module) {
    const struct object *object = find_object(symbols, trace, module);
    return object ? object->state : (struct symbols_state){SYMBOLS_NONE, "out of memory"};
}

/* ---- frames ---------------------------------------------------------------------------------- */

static const char *die_name(Dwarf_Die *die) {
    Dwarf_Attribute attribute;
    Dwarf_Attribute *linkage = dwarf_attr_integrate(die, DW_AT_linkage_name, &attribute);
    if (!linkage)
        linkage = dwarf_attr_integrate(die, DW_AT_MIPS_linkage_name, &attribute);
    const char *name = linkage ? dwarf_formstring(linkage) : NULL;
    return name ? name : dwarf_diename(die);
}

/* Where the code that was inlined as `die` was called from. */
static void call_place(struct symbols *symbols, Dwarf_Die *unit, Dwarf_Die *die,
                       struct frame *frame) {
    Dwarf_Attribute attribute;
    Dwarf_Word line = 0, file = 0;
    Dwarf_Files *files;
    size_t count;
    frame->file = NULL;
    dwarf_formudata(dwarf_attr(die, DW_AT_call_line, &attribute), &line);
    frame->line = (unsigned)line;
    if (dwarf_formudata(dwarf_attr(die, DW_AT_call_file, &attribute), &file) == 0 &&
        dwarf_getsrcfiles(unit, &files, &count) == 0 && file < count) {
        const char *directory = dwarf_formstring(dwarf_attr(unit, DW_AT_comp_dir, &attribute));
        frame->file =
            intern_path(symbols, directory, dwarf_filesrc(files, (size_t)file, NULL, NULL));
    }
}

/* The scopes around an address, innermost first, as they lie in the concrete code: what
   dwarf_getscopes alone answers goes on in the abstract function that was inlined. */
static int concrete_scopes(Dwarf_Die *unit, Dwarf_Addr address, Dwarf_Die **scopes) {
    Dwarf_Die *around = NULL;
    *scopes = NULL;
    if (dwarf_getscopes(unit, address, &around) <= 0)
        return 0;
    Dwarf_Die innermost = around[0];
    free(around);
    int count = dwarf_getscopes_die(&innermost, scopes);
    return count > 0 ? count : 0;
}

/* Fills frames from debug information: `at` holds file and line of the address itself. */
static unsigned frames_by_scopes(struct symbols *symbols, const struct object *object,
                                 uint64_t address, struct frame at, struct frame *frames) {
    Dwarf_Addr bias;
    Dwarf_Die *unit = dwfl_module_addrdie(object->module, address, &bias);
    Dwarf_Die *scopes = NULL;
    unsigned count = 0;
    int scope_count = unit ? concrete_scopes(unit, address - bias, &scopes) : 0;
    for (int i = 0; i < scope_count && count < INLINE_MAX; i++) {
        int tag = dwarf_tag(&scopes[i]);
        if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_subprogram)
            continue;
        frames[count] = at;
        frames[count].function = intern_function(symbols, die_name(&scopes[i]));
        frames[count].inlined = tag == DW_TAG_inlined_subroutine;
        count++;
        if (tag == DW_TAG_subprogram)
            break;
        call_place(symbols, unit, &scopes[i], &at);
    }
    free(scopes);
    return count;
}

static const char *symbol_at(struct symbols *symbols, const struct object *object,
                             uint64_t address) {
    GElf_Off offset;
    GElf_Sym symbol;
    const char *name =
        dwfl_module_addrinfo(object->module, address, &offset, &symbol, NULL, NULL, NULL);
    if (!name || !name[0] || (symbol.st_size > 0 && offset >= symbol.st_size))
        return NULL;
    return intern_function(symbols, name);
}

static unsigned resolve(struct symbols *symbols, const struct object *object, uint64_t address,
                        struct frame at, struct frame *frames) {
    unsigned count = 0;
    if (object && object->module) {
        Dwfl_Line *line = dwfl_module_getsrc(object->module, address);
        int number = 0;
        const char *path = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
        at.file = intern_path(symbols, line ? dwfl_line_comp_dir(line) : NULL, path);
        at.line = path ? (unsigned)number : 0;
        count = frames_by_scopes(symbols, object, address, at, frames);
        at.function = symbol_at(symbols, object, address);
    }
    if (count == 0)
        frames[count++] = at;
    /* The outermost may lack a name of its own (hand-written assembly in a unit with lines). */
    if (!frames[count - 1].function)
        frames[count - 1].function = at.function;
    return count;
}

static struct place *add_place(struct symbols *symbols, struct place_key key) {
    struct frame frames[INLINE_MAX];
    struct frame at = {.offset = key.address,
                       .module = key.object ? key.object->path : NULL,
                       .module_flags = (uint32_t)key.flags};
    unsigned count = resolve(symbols, key.object, key.address, at, frames);
    struct place *place = calloc(1, sizeof *place + count * sizeof *frames);
    if (!place)
        return NULL;
    place->key = key;
    place->count = count;
    memcpy(place->frames, frames, count * sizeof *frames);
    HASH_ADD(hh, symbols->places, key, sizeof place->key, place);
    return place;
}

const struct frame *symbols_find(struct symbols *symbols, const struct trace *trace,
                                 uint64_t return_address, uint32_t generation, unsigned *count) {
    uint64_t address = return_address - 1;
    const struct trace_module *module = trace_module_at(trace, address, generation);
    struct place_key key = {.address = address};
    if (module) {
        key.object = find_object(symbols, trace, module);
        key.address = address - module->bias;
        key.flags = module->flags;
    }
    struct place *place;
    HASH_FIND(hh, symbols->places, &key, sizeof key, place);
    if (!place)
        place = add_place(symbols, key);
    *count = place ? place->count : 1;
    return place ? place->frames : &symbols->nothing;
}
