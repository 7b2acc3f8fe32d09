/*
 * cuheap lib: prints the path to preload.
 */
#include "command.h"
#include "library.h"

#include <limits.h>

const struct option_table lib_options = {
    .command = "lib",
    .arguments = "",
    .summary = "Print the path of libcuheap.so, to be put into LD_PRELOAD.",
    .closing = "LD_PRELOAD=$(cuheap lib) PROGRAM ...",
};

int cmd_lib(int argc, char **argv) {
    char path[4 * PATH_MAX];
    int first;
    switch (options_parse(&lib_options, NULL, argc, argv, &first)) {
    case OPTIONS_ERROR:
        return EXIT_ERROR;
    case OPTIONS_HELP:
        return 0;
    case OPTIONS_OK:
        break;
    }
    if (first < argc)
        return command_error("lib", "takes no argument, not \"%s\"", argv[first]);
    if (!library_find(path, sizeof path))
        return command_error("lib", "libcuheap.so is not found; looked at %s", path);
    printf("%s\n", path);
    return 0;
}
