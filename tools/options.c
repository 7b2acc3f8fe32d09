/*
 * Parses and explains options by their table, on top of getopt_long. See options.h; no state.
 */
#include "options.h"

#include "text.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_HELP  256 /* getopt's value of --help; those of the rows follow */
#define VALUE_ROW   257
#define HELP_COLUMN 26
#define HELP_WIDTH  92

static enum options_result __attribute__((format(printf, 2, 3)))
refuse(const struct option_table *table, const char *format, ...) {
    char line[512], clean[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "cuheap %s: %s; see \"cuheap help %s\"\n", table->command,
            text_clean(clean, sizeof clean, line), table->command);
    return OPTIONS_ERROR;
}

static enum options_result store_choice(const struct option_table *table,
                                        const struct option_row *row, int *target,
                                        const char *value) {
    char known[256] = "";
    for (int i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], value) == 0) {
            *target = i;
            return OPTIONS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", row->choices[i]);
    }
    return refuse(table, "--%s takes one of %s, not \"%s\"", row->name, known, value);
}

static enum options_result store(const struct option_table *table, const struct option_row *row,
                                 void *settings, const char *value) {
    void *target = (char *)settings + row->target;
    char *end;
    unsigned long number;
    switch (row->type) {
    case OPTION_FLAG:
        *(bool *)target = true;
        return OPTIONS_OK;
    case OPTION_TEXT:
        *(const char **)target = value;
        return OPTIONS_OK;
    case OPTION_NUMBER:
        errno = 0;
        number = strtoul(value, &end, 10);
        if (errno || *end || end == value || *value < '0' || *value > '9' || number > 1u << 30)
            return refuse(table, "--%s takes a number, not \"%s\"", row->name, value);
        *(unsigned *)target = (unsigned)number;
        return OPTIONS_OK;
    case OPTION_CHOICE:
        return store_choice(table, row, target, value);
    }
    return OPTIONS_ERROR;
}

/* getopt's own forms of the table; `letters` needs three bytes a row, `options` two entries more.
 */
static void for_getopt(const struct option_table *table, char *letters, struct option *options) {
    if (table->first_ends)
        *letters++ = '+';
    *letters++ = ':';
    *letters++ = 'h';
    for (size_t i = 0; i < table->row_count; i++) {
        const struct option_row *row = &table->rows[i];
        options[i] =
            (struct option){row->name, row->type == OPTION_FLAG ? no_argument : required_argument,
                            NULL, VALUE_ROW + (int)i};
        if (row->letter) {
            *letters++ = row->letter;
            if (row->type != OPTION_FLAG)
                *letters++ = ':';
        }
    }
    *letters = '\0';
    options[table->row_count] = (struct option){"help", no_argument, NULL, VALUE_HELP};
    options[table->row_count + 1] = (struct option){0};
}

static const struct option_row *row_of(const struct option_table *table, int value) {
    if (value >= VALUE_ROW)
        return &table->rows[value - VALUE_ROW];
    for (size_t i = 0; i < table->row_count; i++)
        if (table->rows[i].letter == value)
            return &table->rows[i];
    return NULL;
}

/* getopt leaves the letter of a short option in optopt; a long one stands before optind. */
static enum options_result refuse_option(const struct option_table *table, int value, char **argv) {
    bool is_long = optind > 0 && argv[optind - 1] && strncmp(argv[optind - 1], "--", 2) == 0;
    char letter[3] = {'-', (char)optopt, '\0'};
    const char *name = is_long ? argv[optind - 1] : letter;
    if (value == ':')
        return refuse(table, "option %s needs a value", name);
    if (is_long && optopt)
        return refuse(table, "option %s takes no value", name);
    size_t length = strcspn(name, "="), like = 0;
    for (size_t i = 0; is_long && i < table->row_count; i++)
        like += strncmp(table->rows[i].name, name + 2, length - 2) == 0;
    return refuse(table, like > 1 ? "option %s could be several" : "no option %s", name);
}

enum options_result options_parse(const struct option_table *table, void *settings, int argc,
                                  char **argv, int *first) {
    char *letters = malloc(4 + 2 * table->row_count);
    struct option *options = calloc(table->row_count + 2, sizeof *options);
    enum options_result result = OPTIONS_OK;
    if (!letters || !options)
        result = refuse(table, "out of memory");
    else
        for_getopt(table, letters, options);
    optind = 0; /* glibc: begin anew */
    opterr = 0;
    for (int value;
         result == OPTIONS_OK && (value = getopt_long(argc, argv, letters, options, NULL)) != -1;) {
        const struct option_row *row = row_of(table, value);
        if (value == 'h' || value == VALUE_HELP) {
            options_help(table, stdout);
            result = OPTIONS_HELP;
        } else if (value == '?' || value == ':' || !row)
            result = refuse_option(table, value, argv);
        else
            result = store(table, row, settings, optarg);
    }
    *first = optind;
    free(letters);
    free(options);
    return result;
}

/* ---- help ------------------------------------------------------------------------------------ */

/* Prints words from `column` on, breaking lines at HELP_WIDTH. */
static void wrap(FILE *out, const char *text, size_t column) {
    size_t at = column;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (at > column && at + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)word, text);
        at += word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void help_row(FILE *out, char letter, const char *name, const char *argument,
                     const char *help) {
    char left[128];
    char prefix[6] = "    ";
    if (letter)
        snprintf(prefix, sizeof prefix, "-%c, ", letter);
    int used = snprintf(left, sizeof left, "  %s--%s%s%s", prefix, name, argument ? "=" : "",
                        argument ? argument : "");
    fprintf(out, "%s", left);
    if (used >= HELP_COLUMN - 1)
        fprintf(out, "\n%*s", HELP_COLUMN, "");
    else
        fprintf(out, "%*s", HELP_COLUMN - used, "");
    wrap(out, help, HELP_COLUMN);
}

void options_help(const struct option_table *table, FILE *out) {
    fprintf(out, "Usage: cuheap %s [OPTION...]%s%s\n\n", table->command,
            table->arguments[0] ? " " : "", table->arguments);
    wrap(out, table->summary, 0);
    fputc('\n', out);
    for (size_t i = 0; i < table->row_count; i++) {
        const struct option_row *row = &table->rows[i];
        help_row(out, row->letter, row->name, row->argument, row->help);
    }
    help_row(out, 'h', "help", NULL, "print this text");
    if (table->closing) {
        fputc('\n', out);
        wrap(out, table->closing, 0);
    }
}
