/*
 * Modules and libraries of code loaded on the GPU: each with the stack that loaded it, since their
 * memory passes no allocation call.
 *
 * interpose calls this after the driver's functions; any thread, no locks.
 */
#ifndef CUHEAP_GPU_MODULES_H
#define CUHEAP_GPU_MODULES_H

#include <stdint.h>

#include "cuda_abi.h"
#include "cuheap/trace_format.h"
#include "reuse.h"

struct record_call;

struct gpu_modules {
    struct reuse ended;
};

void gpu_modules_loaded(struct record_call *call, CUresult code, enum trace_gpu_module_type type,
                        const void *handle); /* where the driver put it */
void gpu_modules_unload_begin(struct record_call *call, enum trace_gpu_module_type type,
                              const void *handle);
void gpu_modules_unload_end(struct record_call *call, CUresult code);

#endif
