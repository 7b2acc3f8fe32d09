/*
 * See toolkit.h. The headers are read as the preprocessor leaves them, so that a declaration is
 * seen under the name that the driver exports.
 */
#include "toolkit.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void text_add(struct text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t more = (size_t)vsnprintf(NULL, 0, format, again);
    va_end(again);
    text->bytes = realloc(text->bytes, text->length + more + 1);
    cr_assert(text->bytes);
    vsnprintf(text->bytes + text->length, more + 1, format, arguments);
    text->length += more;
    va_end(arguments);
}

static char *file_text(const char *path) {
    struct text text = {0};
    FILE *file = fopen(path, "re");
    cr_assert(file, "%s: %s (run from the top of the source tree)", path, strerror(errno));
    text_add(&text, "%s", "");
    char part[4096];
    for (size_t got; (got = fread(part, 1, sizeof part - 1, file)) > 0;) {
        part[got] = 0;
        text_add(&text, "%s", part);
    }
    fclose(file);
    return text.bytes;
}

/* ---- the toolkit ---- */

static bool holds_header(const char *root) {
    char path[600];
    snprintf(path, sizeof path, "%s/include/cuda.h", root);
    return !access(path, R_OK);
}

/* "/opt/cuda" for a PATH that finds /opt/cuda/bin/nvcc. */
static bool root_of_nvcc(char *root, size_t size) {
    const char *path = getenv("PATH");
    for (const char *from = path ? path : ""; *from;) {
        size_t length = strcspn(from, ":");
        char nvcc[500];
        snprintf(nvcc, sizeof nvcc, "%.*s/nvcc", (int)length, from);
        char *real = access(nvcc, X_OK) ? NULL : realpath(nvcc, NULL);
        char *end = real ? strstr(real, "/bin/nvcc") : NULL;
        if (end) {
            snprintf(root, size, "%.*s", (int)(end - real), real);
            return holds_header(root);
        }
        from += length + (from[length] == ':');
    }
    return false;
}

const char *toolkit_root(void) {
    static char root[512];
    const char *home = getenv("CUDA_HOME");
    if (root[0])
        return root;
    if (home && *home && holds_header(home))
        snprintf(root, sizeof root, "%s", home);
    else if (!root_of_nvcc(root, sizeof root) && holds_header("/usr/local/cuda"))
        snprintf(root, sizeof root, "/usr/local/cuda");
    return root[0] && holds_header(root) ? root : NULL;
}

struct run *compile(const char *source, const char *options) {
    char dir[] = "/tmp/cuheap-conformity-XXXXXX", path[64], flags[1400], command[2048];
    cr_assert(mkdtemp(dir), "no temporary folder: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/source.c", dir);
    FILE *file = fopen(path, "we");
    cr_assert(file && fputs(source, file) >= 0 && !fclose(file));
    size_t used = 0;
    for (const char *at = options; *at; at++)
        if (at[0] == '%' && at[1] == 's')
            used +=
                (size_t)snprintf(flags + used, sizeof flags - used, "%s", (at++, toolkit_root()));
        else
            used += (size_t)snprintf(flags + used, sizeof flags - used, "%c", *at);
    snprintf(command, sizeof command,
             "mv %s/source.c . && rmdir %s && %s -std=gnu11 -w -D__CUDA_API_VERSION_INTERNAL "
             "-I'%s/include' -o object source.c %s",
             dir, dir, CUHEAP_CC, toolkit_root(), flags);
    return run_program(&(struct launch){
        .program = "/bin/sh", .args = {"-c", command}, .plain = true, .no_driver = true});
}

static char *preprocessed(const char *source) {
    struct run *run = compile(source, "-E -P");
    char path[96];
    run_must_succeed(run);
    snprintf(path, sizeof path, "%s/object", run->dir);
    char *text = file_text(path);
    run_free(run);
    return text;
}

int header_version(void) {
    const char *value =
        strstr(preprocessed("#include <cuda.h>\nversion_is CUDA_VERSION\n"), "version_is ");
    cr_assert(value);
    return atoi(value + strlen("version_is "));
}

/* ---- names ---- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static void list_add(struct name_list *list, const char *name, size_t length) {
    cr_assert_lt(length, sizeof *list->names);
    list->names = realloc(list->names, (list->count + 1) * sizeof *list->names);
    cr_assert(list->names);
    snprintf(list->names[list->count++], sizeof *list->names, "%.*s", (int)length, name);
}

bool name_in(const struct name_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (!strcmp(list->names[i], name))
            return true;
    return false;
}

/* Words with that beginning and a capital behind it which `after` follows. */
static struct name_list words(const char *text, const char *prefix, char after) {
    struct name_list list = {0};
    size_t length = strlen(prefix);
    for (const char *at = text; (at = strstr(at, prefix)) != NULL;) {
        const char *end = at;
        while (is_word(*end))
            end++;
        const char *next = end + strspn(end, " \n");
        if ((at == text || !is_word(at[-1])) && isalpha((unsigned char)at[length]) &&
            (after != '(' || isupper((unsigned char)at[length])) && *next == after)
            list_add(&list, at, (size_t)(end - at));
        at = end > at ? end : at + 1;
    }
    return list;
}

struct name_list header_functions(void) {
    struct name_list all = words(preprocessed("#include <cuda.h>\n"), "cu", '('), list = {0};
    for (size_t i = 0; i < all.count; i++)
        if (!name_in(&list, all.names[i]))
            list_add(&list, all.names[i], strlen(all.names[i]));
    return list;
}

struct name_list header_typedefs(void) {
    return words(preprocessed("#include <cudaTypedefs.h>\n"), "PFN_", ')');
}

const char *stream_suffix(const char *symbol) {
    size_t length = strlen(symbol);
    const char *end = length > 5 ? symbol + length - 5 : "";
    return !strcmp(end, "_ptsz") || !strcmp(end, "_ptds") ? end : "";
}

size_t base_length(const char *symbol) {
    size_t length = strlen(symbol) - strlen(stream_suffix(symbol)), digits = length;
    while (digits && isdigit((unsigned char)symbol[digits - 1]))
        digits--;
    return digits < length && digits > 2 && !strncmp(symbol + digits - 2, "_v", 2) ? digits - 2
                                                                                   : length;
}

/* ---- the table ---- */

/* Comments become blanks. */
static void blank_comments(char *text) {
    for (char *from = text; (from = strstr(from, "/*")) != NULL;) {
        char *end = strstr(from, "*/");
        cr_assert(end, "a comment without an end");
        memset(from, ' ', (size_t)(end + 2 - from));
    }
}

static const char *closing(const char *open) {
    int depth = 0;
    for (const char *at = open; *at; at++) {
        depth += (*at == '(') - (*at == ')');
        if (!depth)
            return at;
    }
    cr_assert(false, "lib/cuda_api.def: no ) for: %.40s", open);
    return open;
}

/* A row begins in column 0: TYPE(symbol, (parameters), ... */
static void read_row(struct table *table, const char *line) {
    const char *open = line + strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    if (open == line || *open != '(')
        return;
    cr_assert_lt(table->count, sizeof table->rows / sizeof *table->rows);
    struct row *row = &table->rows[table->count++];
    const char *symbol = open + 1, *end = symbol;
    while (is_word(*end))
        end++;
    snprintf(row->type, sizeof row->type, "%.*s", (int)(open - line), line);
    snprintf(row->symbol, sizeof row->symbol, "%.*s", (int)(end - symbol), symbol);
    const char *next = *end == ',' ? end + 1 + strspn(end + 1, " \n") : end;
    if (*next != '(')
        return;
    int length = (int)(closing(next) + 1 - next);
    cr_assert_lt((size_t)length, sizeof row->params);
    snprintf(row->params, sizeof row->params, "%.*s", length, next);
}

const struct table *all_rows(void) {
    static struct table table;
    if (table.count)
        return &table;
    char *text = file_text("lib/cuda_api.def");
    blank_comments(text);
    for (char *line = text; *line; line = strchrnul(line, '\n'), line += *line == '\n')
        read_row(&table, line);
    return &table;
}

const struct table *hooked_rows(void) {
    static struct table hooked;
    const struct table *all = all_rows();
    for (size_t i = hooked.count ? all->count : 0; i < all->count; i++)
        if (strcmp(all->rows[i].type, "OWN"))
            hooked.rows[hooked.count++] = all->rows[i];
    return &hooked;
}

const struct row *hooked_row(const char *symbol) {
    const struct table *table = hooked_rows();
    for (size_t i = 0; i < table->count; i++)
        if (!strcmp(table->rows[i].symbol, symbol))
            return &table->rows[i];
    return NULL;
}

/* ---- not_hooked.txt ---- */

static void read_functions(struct not_hooked *list, const char *line, const char *class) {
    for (const char *name = line; *name;) {
        size_t length = strcspn(name, " \n");
        cr_assert_lt(list->count, sizeof list->functions / sizeof *list->functions);
        snprintf(list->functions[list->count].name, sizeof list->functions->name, "%.*s",
                 (int)length, name);
        snprintf(list->functions[list->count++].class, sizeof list->functions->class, "%s", class);
        name += length + strspn(name + length, " ");
    }
}

const struct not_hooked *not_hooked_list(void) {
    static struct not_hooked list;
    char class[24] = "";
    if (list.count)
        return &list;
    char *save, *text = file_text("tests/conformity/not_hooked.txt");
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *reason = strchr(line, ']');
        if (line[0] == '#' || sscanf(line, "header %d", &list.header_version) == 1)
            continue;
        if (line[0] != '[') {
            cr_assert(class[0], "not_hooked.txt: no class before: %s", line);
            read_functions(&list, line, class);
            continue;
        }
        cr_assert(reason && strlen(reason) > 10, "not_hooked.txt: no reason: %s", line);
        snprintf(class, sizeof class, "%.*s", (int)(reason - line - 1), line + 1);
    }
    return &list;
}

const char *not_hooked_class(const char *name) {
    const struct not_hooked *list = not_hooked_list();
    for (size_t i = 0; i < list->count; i++)
        if (!strcmp(list->functions[i].name, name))
            return list->functions[i].class;
    return NULL;
}
