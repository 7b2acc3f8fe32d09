/*
 * The command table, dispatch and the errors that commands share. See command.h.
 */
#include "command.h"

#include "text.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

const struct command commands[] = {
    {"run", "record", cmd_run, &run_options}, {"report", NULL, cmd_report, &report_options},
    {"info", NULL, cmd_info, &info_options},  {"lib", NULL, cmd_lib, &lib_options},
    {"help", NULL, cmd_help, &help_options},
};
const size_t command_count = sizeof commands / sizeof *commands;

int command_error(const char *command, const char *format, ...) {
    char line[1024], clean[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "cuheap%s%s: %s\n", command ? " " : "", command ? command : "",
            text_clean(clean, sizeof clean, line));
    return EXIT_ERROR;
}

int command_finish(const char *command, int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return command_error(command, "cannot write the output: %s",
                         errno ? strerror(errno) : "write error");
}

static const struct command *find(const char *name) {
    for (size_t i = 0; i < command_count; i++)
        if (strcmp(commands[i].name, name) == 0 ||
            (commands[i].alias && strcmp(commands[i].alias, name) == 0))
            return &commands[i];
    return NULL;
}

static int overview(FILE *out) {
    fputs("Usage: cuheap COMMAND [OPTION...] [ARGUMENT...]\n\n"
          "Tells where the GPU memory of a CUDA program went.\n\n",
          out);
    for (size_t i = 0; i < command_count; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].options->summary);
    fputs("\n\"cuheap help COMMAND\" or \"cuheap COMMAND --help\" tells more; "
          "\"cuheap --version\" the version.\n",
          out);
    return 0;
}

const struct option_table help_options = {
    .command = "help",
    .arguments = "[COMMAND]",
    .summary = "Explain the commands, or one of them.",
};

int cmd_help(int argc, char **argv) {
    int first;
    switch (options_parse(&help_options, NULL, argc, argv, &first)) {
    case OPTIONS_ERROR:
        return EXIT_ERROR;
    case OPTIONS_HELP:
        return 0;
    case OPTIONS_OK:
        break;
    }
    if (first == argc)
        return overview(stdout);
    const struct command *command = find(argv[first]);
    if (!command)
        return command_error("help", "no command \"%s\"; see \"cuheap help\"", argv[first]);
    options_help(command->options, stdout);
    return 0;
}

int command_dispatch(int argc, char **argv) {
    if (argc < 2) {
        overview(stderr);
        return EXIT_ERROR;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("cuheap %s\n", CUHEAP_VERSION);
        return command_finish(NULL, 0);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return command_finish(NULL, overview(stdout));
    const struct command *command = find(argv[1]);
    if (!command)
        return command_error(NULL, "no command \"%s\"; see \"cuheap help\"", argv[1]);
    return command_finish(command->name, command->run(argc - 1, argv + 1));
}
