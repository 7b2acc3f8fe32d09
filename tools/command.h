/*
 * The commands of cuheap: one row each. main.c passes its arguments on to the dispatch here; each
 * cmd_*.c provides one row's function and options.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "options.h"

#define EXIT_ERROR 2 /* of every command but run, whose own is 125 */

struct command {
    const char *name;
    const char *alias; /* NULL: none */
    int (*run)(int argc, char **argv);
    const struct option_table *options;
};

extern const struct command commands[];
extern const size_t command_count;

/* Runs the command that argv[1] names; returns the exit code. */
int command_dispatch(int argc, char **argv);

int cmd_run(int argc, char **argv);
int cmd_lib(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_help(int argc, char **argv);

extern const struct option_table run_options;
extern const struct option_table lib_options;
extern const struct option_table report_options;
extern const struct option_table info_options;
extern const struct option_table help_options;

/* One line on stderr, "cuheap COMMAND: TEXT"; the text is made harmless. Returns EXIT_ERROR. */
int __attribute__((format(printf, 2, 3)))
command_error(const char *command, const char *format, ...);

/* What was printed must have arrived: `code`, or EXIT_ERROR with a line where it did not. */
int command_finish(const char *command, int code);

#endif
