/*
 * The CUHEAP_ variables: one table, read once when the library is loaded, before the program's own
 * code runs. Called by lifecycle only; afterwards `config` is constant and any thread may read it.
 */
#ifndef CUHEAP_CONFIG_H
#define CUHEAP_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define CONFIG_TEXT 512

enum config_stacks {
    CONFIG_STACKS_NONE = 0,
    CONFIG_STACKS_NATIVE = 1,
    CONFIG_STACKS_PYTHON = 2,
    CONFIG_STACKS_FULL = 4, /* with NATIVE and PYTHON: keep the interpreter's frames too */
};

struct config {
    char out[CONFIG_TEXT]; /* a pattern; empty: the default place */
    char run[128];
    char ranks[128];
    char exe[CONFIG_TEXT];
    uint32_t stacks; /* enum config_stacks */
    uint32_t depth;
    uint64_t history;  /* events */
    uint64_t max_size; /* bytes */
    uint32_t mode;     /* of the trace file */
    bool children;
    bool cmdline;
    bool off;
    char unknown[CONFIG_TEXT]; /* CUHEAP_ names that mean nothing, or values that were refused */
};

extern struct config config;

void config_read(void);

/* Reads digits and moves *text behind them; false: none, or too large. Not strtoul: the newest C
   library's headers give it a name that older ones lack. */
bool config_number(const char **text, unsigned base, uint64_t *number);

/* Bytes in "64M", "1GiB", "4096"; false if it is no size. */
bool config_size(const char *text, uint64_t *bytes);

/* Is `rank` in "0,8,16-23"? An unreadable list has none. */
bool config_in_list(const char *list, uint32_t rank);

#endif
