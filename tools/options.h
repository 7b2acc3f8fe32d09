/*
 * Command-line options as tables: one row an option, and from it parsing, --help and the usage
 * line.
 *
 * Each command has a table whose rows say where in its settings a value goes. GNU habits: long
 * options may be shortened, options and arguments mix, "--" ends options. Called by the commands
 * and by the check that man pages name every option; no state.
 */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum option_type {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char * */
    OPTION_NUMBER, /* unsigned */
    OPTION_CHOICE, /* int: index in choices */
};

struct option_row {
    const char *name;
    char letter; /* 0: none */
    enum option_type type;
    size_t target;              /* offset in the command's settings */
    const char *argument;       /* what help calls the value; NULL for flags */
    const char *const *choices; /* NULL-terminated */
    const char *help;
};

struct option_table {
    const char *command;
    const char *arguments; /* "[TRACE|DIR...]" */
    const char *summary;   /* one sentence */
    const char *closing;   /* after the options; may be NULL */
    bool first_ends;       /* the first argument ends the options: what follows is another's */
    const struct option_row *rows;
    size_t row_count;
};

enum options_result {
    OPTIONS_OK,
    OPTIONS_HELP,  /* asked for and printed */
    OPTIONS_ERROR, /* reported in one line on stderr */
};

/* *first becomes the index of the first argument; arguments stand together from there. */
enum options_result options_parse(const struct option_table *table, void *settings, int argc,
                                  char **argv, int *first);
void options_help(const struct option_table *table, FILE *out);

#endif
