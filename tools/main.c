/*
 * cuheap: tells where the GPU memory of a CUDA program went. Everything is in the commands.
 */
#include "command.h"
#include "trace_reader.h"

#include <locale.h>

int main(int argc, char **argv) {
    /* Regular expressions and shortened names are to count characters, not bytes. */
    setlocale(LC_CTYPE, "");
    trace_exit_on_truncation();
    return command_dispatch(argc, argv);
}
