/*
 * How much an array takes, from its descriptor. The driver tells it of arrays with deferred mapping
 * alone (cuArrayGetMemoryRequirements gives 1 for others: measured on an H200, driver 580.159), and
 * those, like sparse ones, hold nothing until memory is mapped to them.
 */
#ifndef CUHEAP_ARRAYS_H
#define CUHEAP_ARRAYS_H

#include <stdint.h>

#include "cuda_abi.h"

uint64_t arrays_bytes(const CUDA_ARRAY_DESCRIPTOR *array);
uint64_t arrays_bytes_3d(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels);

#endif
