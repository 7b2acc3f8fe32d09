/*
 * The types and constants of the CUDA Driver API that the library uses, so that no CUDA toolkit is
 * needed to build. Values and layouts are those of <cuda.h>; they are ABI and have not changed
 * since CUDA 4 (64-bit pointers), pools since CUDA 11.2. tests/unit/lib_cuda_abi.c compares them
 * with <cuda.h> where a toolkit is installed.
 */
#ifndef CUHEAP_CUDA_ABI_H
#define CUHEAP_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* an enum in <cuda.h> */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct {
    char bytes[16];
} CUuuid;

/* Passed through by address only. */
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUctxCreateParams_st CUctxCreateParams;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_STUB_LIBRARY = 34,
};

#endif
