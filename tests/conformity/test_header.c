/*
 * The table of entry points and the ABI types, held against <cuda.h> and <cudaTypedefs.h> of an
 * installed toolkit: every prototype, every variant, every function of the header accounted for.
 * Skipped where there is no toolkit; the table's own order is looked at everywhere.
 */
#include <ctype.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "toolkit.h"

/* ---- the table itself ---- */

static struct name_list exports_of_library(void) {
    struct name_list list = {0};
    struct run *run = run_program(
        &(struct launch){.program = "/bin/sh",
                         .args = {"-c", "nm -D --defined-only " BUILD_LIBRARY
                                        " | sed -n 's/@.*//; s/^.* T \\(cu[A-Z].*\\)$/\\1/p'"},
                         .plain = true,
                         .no_driver = true});
    run_must_succeed(run);
    for (char *save, *name = strtok_r(run->out, "\n", &save); name;
         name = strtok_r(NULL, "\n", &save)) {
        list.names = realloc(list.names, (list.count + 1) * sizeof *list.names);
        cr_assert(list.names);
        snprintf(list.names[list.count++], sizeof *list.names, "%s", name);
    }
    return list;
}

/* What reads the table as text reads what the preprocessor sees. */
Test(conformity, rows_are_what_the_library_exports) {
    const struct table *table = hooked_rows();
    struct name_list exports = exports_of_library();
    for (size_t i = 0; i < table->count; i++)
        cr_expect(name_in(&exports, table->rows[i].symbol), "%s is a row and not exported",
                  table->rows[i].symbol);
    for (size_t i = 0; i < exports.count; i++)
        cr_expect(hooked_row(exports.names[i]), "%s is exported and no row is read for it",
                  exports.names[i]);
    cr_assert_eq(exports.count, table->count);
}

Test(conformity, no_function_stands_twice) {
    const struct not_hooked *list = not_hooked_list();
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->functions[i].name;
        cr_expect(!hooked_row(name), "%s is a row, and not_hooked.txt has it too", name);
        for (size_t j = 0; j < i; j++)
            cr_expect(strcmp(list->functions[j].name, name), "not_hooked.txt has %s twice", name);
    }
}

/* ---- every function of the header ---- */

Test(conformity, every_function_of_the_header_is_accounted_for) {
    NEEDS_TOOLKIT();
    struct name_list functions = header_functions();
    for (size_t i = 0; i < functions.count; i++)
        cr_expect(hooked_row(functions.names[i]) || not_hooked_class(functions.names[i]),
                  "%s of <cuda.h> is no row of lib/cuda_api.def and not in not_hooked.txt: does it "
                  "take or give back memory?",
                  functions.names[i]);
    cr_assert(name_in(&functions, "cuInit") && name_in(&functions, "cuMemAlloc") &&
                  name_in(&functions, "cuMemAllocAsync_ptsz"),
              "the header was not read: %zu functions", functions.count);
}

/* A name that was never one of the header's would hide a new function that has it. */
Test(conformity, every_name_is_one_of_the_header) {
    NEEDS_TOOLKIT();
    const struct not_hooked *list = not_hooked_list();
    struct name_list functions = header_functions();
    if (header_version() / 1000 != list->header_version / 1000)
        cr_skip_test("the header is of another CUDA release than the list");
    for (size_t i = 0; i < list->count; i++)
        cr_expect(name_in(&functions, list->functions[i].name),
                  "not_hooked.txt: <cuda.h> has no %s", list->functions[i].name);
    const struct table *table = hooked_rows();
    for (size_t i = 0; i < table->count; i++)
        cr_expect(name_in(&functions, table->rows[i].symbol), "<cuda.h> has no %s",
                  table->rows[i].symbol);
}

/* Where one ABI of a name is hooked, all are: but for the 32-bit one of CUDA 2. */
Test(conformity, variants_of_a_hooked_name_are_rows) {
    NEEDS_TOOLKIT();
    const struct table *table = hooked_rows();
    struct name_list functions = header_functions();
    for (size_t i = 0; i < functions.count; i++) {
        const char *name = functions.names[i], *class = not_hooked_class(name);
        size_t length = base_length(name);
        if (hooked_row(name) || (class && !strcmp(class, "v1")))
            continue;
        for (size_t r = 0; r < table->count; r++)
            cr_expect(base_length(table->rows[r].symbol) != length ||
                          strncmp(table->rows[r].symbol, name, length),
                      "%s is hooked, %s is not", table->rows[r].symbol, name);
    }
}

/* ---- prototypes ---- */

static const char header_compiles[] = "#include <cuda.h>\n#include <cudaTypedefs.h>\n"
                                      "#define SAME(a, b) __builtin_types_compatible_p(a, b)\n";

static void must_compile(const struct text *source) {
    struct run *run = compile(source->bytes, "-fsyntax-only");
    cr_assert(run->code == 0, "%s", run->err);
    run_free(run);
}

Test(conformity, prototypes_are_those_of_the_header) {
    NEEDS_TOOLKIT();
    const struct table *table = all_rows();
    struct name_list functions = header_functions();
    struct text source = {0};
    text_add(&source, "%s", header_compiles);
    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        cr_assert(row->params[0], "%s: the row has no parameters", row->symbol);
        if (name_in(&functions, row->symbol))
            text_add(&source,
                     "typedef CUresult row_%s%s;\n"
                     "_Static_assert(SAME(__typeof__(%s), row_%s), \"%s\");\n",
                     row->symbol, row->params, row->symbol, row->symbol, row->symbol);
    }
    must_compile(&source);
}

/* PFN_cuMemAlloc_v3020 is a type of the base cuMemAlloc, PFN_..._v11020_ptsz of its _ptsz variant.
 */
static bool typedef_fits(const char *type, const char *symbol) {
    const char *name = type + strlen("PFN_");
    size_t length = base_length(symbol);
    return base_length(name) == length && !strncmp(name, symbol, length) &&
           !strcmp(stream_suffix(name), stream_suffix(symbol));
}

/* The variants of a name follow each other as its versions do. */
Test(conformity, prototypes_are_those_of_the_typedefs) {
    NEEDS_TOOLKIT();
    const struct table *table = all_rows();
    struct name_list functions = header_functions(), types = header_typedefs();
    struct text source = {0};
    size_t compared = 0;
    text_add(&source, "%s", header_compiles);
    for (size_t i = 0; i < table->count; i++) {
        const struct row *row = &table->rows[i];
        if (!name_in(&functions, row->symbol))
            continue;
        text_add(&source, "typedef CUresult row_%s%s;\n_Static_assert(0", row->symbol, row->params);
        for (size_t t = 0; t < types.count; t++)
            if (typedef_fits(types.names[t], row->symbol)) {
                text_add(&source, " || SAME(%s, row_%s *)", types.names[t], row->symbol);
                compared++;
            }
        text_add(&source, ", \"%s: none of its PFN_ types\");\n", row->symbol);
    }
    cr_assert_geq(compared, table->count / 2, "the types were not found");
    must_compile(&source);
}

/* ---- ABI types and constants: lib/cuda_abi.h through its debug information ---- */

/* Members of a structure at `base` of `type`; those of one without a name are the outer one's. */
static void add_members(struct text *source, const char *type, const char *path, Dwarf_Word base,
                        Dwarf_Die *die) {
    Dwarf_Die member, of;
    Dwarf_Attribute attribute;
    if (dwarf_child(die, &member))
        return;
    do {
        Dwarf_Word offset = 0, size = 0;
        const char *word = dwarf_diename(&member);
        char name[200];
        if (dwarf_tag(&member) != DW_TAG_member)
            continue;
        snprintf(name, sizeof name, "%s%s%s", path, path[0] && word ? "." : "", word ? word : "");
        if (dwarf_attr(&member, DW_AT_data_member_location, &attribute))
            dwarf_formudata(&attribute, &offset);
        cr_assert(dwarf_formref_die(dwarf_attr(&member, DW_AT_type, &attribute), &of));
        cr_assert(dwarf_peel_type(&of, &of) == 0 && dwarf_aggregate_size(&of, &size) == 0);
        if (word)
            text_add(source,
                     "_Static_assert(offsetof(%s, %s) == %ju, \"%s.%s: offset\");\n"
                     "_Static_assert(sizeof ((%s *)0)->%s == %ju, \"%s.%s: size\");\n",
                     type, name, (uintmax_t)(base + offset), type, name, type, name,
                     (uintmax_t)size, type, name);
        if (dwarf_tag(&of) == DW_TAG_structure_type || dwarf_tag(&of) == DW_TAG_union_type)
            add_members(source, type, name, base + offset, &of);
    } while (!dwarf_siblingof(&member, &member));
}

static void add_constants(struct text *source, Dwarf_Die *die) {
    Dwarf_Die constant;
    Dwarf_Attribute attribute;
    if (dwarf_child(die, &constant))
        return;
    do {
        Dwarf_Sword value;
        cr_assert(dwarf_attr(&constant, DW_AT_const_value, &attribute));
        cr_assert(!(dwarf_whatform(&attribute) == DW_FORM_sdata
                        ? dwarf_formsdata(&attribute, &value)
                        : dwarf_formudata(&attribute, (Dwarf_Word *)&value)));
        text_add(source, "_Static_assert((long long)%s == %lld, \"%s\");\n",
                 dwarf_diename(&constant), (long long)value, dwarf_diename(&constant));
    } while (!dwarf_siblingof(&constant, &constant));
}

static size_t add_type(struct text *source, Dwarf_Die *die) {
    const char *name = dwarf_diename(die);
    Dwarf_Die of;
    Dwarf_Attribute attribute;
    Dwarf_Word size;
    if (dwarf_tag(die) == DW_TAG_enumeration_type)
        return add_constants(source, die), 1;
    if (dwarf_tag(die) != DW_TAG_typedef || strncmp(name, "CU", 2))
        return 0;
    cr_assert(dwarf_formref_die(dwarf_attr(die, DW_AT_type, &attribute), &of));
    if (dwarf_peel_type(&of, &of) || dwarf_aggregate_size(&of, &size))
        return 0; /* passed by address only */
    text_add(source, "_Static_assert(sizeof(%s) == %ju, \"%s: size\");\n", name, (uintmax_t)size,
             name);
    if (dwarf_tag(&of) == DW_TAG_structure_type || dwarf_tag(&of) == DW_TAG_union_type)
        add_members(source, name, "", 0, &of);
    return 1;
}

/* Constants that are macros, since they are pointers. */
static void add_macros(struct text *source, const char *options) {
    char macros[700], path[96], line[300], name[80], value[200];
    snprintf(macros, sizeof macros, "-E -dM %s", options);
    struct run *run = compile("#include \"cuda_abi.h\"\n", macros);
    run_must_succeed(run);
    snprintf(path, sizeof path, "%s/object", run->dir);
    FILE *file = fopen(path, "re");
    cr_assert(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "#define %79[A-Z0-9a-z_] %199[^\n]", name, value) == 2 &&
            !strncmp(name, "CU", 2))
            text_add(source,
                     "_Static_assert((unsigned long)(%s) == (unsigned long)(%s), \"%s\");\n", name,
                     value, name);
    fclose(file);
    run_free(run);
}

Test(conformity, abi_types_and_constants_are_those_of_the_header) {
    NEEDS_TOOLKIT();
    char path[96], options[600], top[512];
    struct text source = {0};
    size_t compared = 0;
    cr_assert(getcwd(top, sizeof top));
    snprintf(options, sizeof options,
             "-shared -fPIC -g -fno-eliminate-unused-debug-types -I'%s/lib'", top);
    struct run *run = compile("#include \"cuda_abi.h\"\n", options);
    run_must_succeed(run);
    snprintf(path, sizeof path, "%s/object", run->dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Dwarf *dwarf = dwarf_begin(fd, DWARF_C_READ);
    cr_assert(dwarf, "%s: %s", path, dwarf_errmsg(-1));
    text_add(&source, "#include <stddef.h>\n%s", header_compiles);
    add_macros(&source, options);
    Dwarf_CU *unit = NULL;
    Dwarf_Die unit_die, die;
    while (!dwarf_get_units(dwarf, unit, &unit, NULL, NULL, &unit_die, NULL)) {
        cr_assert(!dwarf_child(&unit_die, &die));
        do
            compared += add_type(&source, &die);
        while (!dwarf_siblingof(&die, &die));
    }
    dwarf_end(dwarf);
    close(fd);
    run_free(run);
    cr_assert(compared > 3 && strstr(source.bytes, "CUDA_ERROR_OUT_OF_MEMORY"));
    must_compile(&source);
}
