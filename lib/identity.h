/*
 * Who this process is: the parts of the trace's header that do not depend on CUDA.
 *
 * Called by lifecycle when a trace begins: cold, one thread. Command lines and environments carry
 * secrets: the program's and script's name and a fixed list of variables are all that is taken.
 */
#ifndef CUHEAP_IDENTITY_H
#define CUHEAP_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuheap/trace_format.h"

/* Fills process, host, name, job, rank, environment. Uses /proc; what cannot be told stays 0. */
void identity_fill(struct trace_header *header);

/* The rank of this process in its job; UINT32_MAX: none. */
uint32_t identity_rank(void);

/* File name of the program, for CUHEAP_EXE. */
void identity_program(char *name, size_t bytes);

#endif
