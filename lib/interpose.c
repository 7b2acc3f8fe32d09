/*
 * The exported wrappers, made from the table. Each calls the driver with the arguments as they came
 * and returns what it returned; what it records is in record.
 */
#include "arrays.h"
#include "cuda_abi.h"
#include "lifecycle.h"
#include "record.h"
#include "resolve.h"

#define EXPORT __attribute__((visibility("default")))

#define ALLOC(symbol, params, args, kind, space, key, bytes, request)                              \
    EXPORT CUresult symbol params;                                                                 \
    EXPORT CUresult symbol params {                                                                \
        CUresult(*real) params = resolve_real(ROW_##symbol);                                       \
        struct record_call call;                                                                   \
        if (!real)                                                                                 \
            return CUDA_ERROR_STUB_LIBRARY;                                                        \
        if (!record_enter(&call, CALLER_REGISTERS()))                                              \
            return real args;                                                                      \
        CUresult rc = limits_refuse(&call, TRACE_KIND_##kind, RECORD_DEVICE_CURRENT, request)      \
                          ? CUDA_ERROR_OUT_OF_MEMORY                                               \
                          : real args;                                                             \
        call.row = ROW_##symbol;                                                                   \
        if (rc == CUDA_SUCCESS)                                                                    \
            record_alloc(&call, TRACE_KIND_##kind, TRACE_SPACE_##space, key, bytes);               \
        else                                                                                       \
            failures_alloc(&call, TRACE_KIND_##kind, rc, request);                                 \
        record_leave();                                                                            \
        return rc;                                                                                 \
    }

#define FREE(symbol, params, args, space, key)                                                     \
    EXPORT CUresult symbol params;                                                                 \
    EXPORT CUresult symbol params {                                                                \
        CUresult(*real) params = resolve_real(ROW_##symbol);                                       \
        struct record_call call;                                                                   \
        if (!real)                                                                                 \
            return CUDA_ERROR_STUB_LIBRARY;                                                        \
        if (!record_enter(&call, CALLER_REGISTERS()))                                              \
            return real args;                                                                      \
        call.row = ROW_##symbol;                                                                   \
        record_free_begin(&call, TRACE_SPACE_##space, key);                                        \
        CUresult rc = real args;                                                                   \
        record_free_end(&call, key, rc);                                                           \
        record_leave();                                                                            \
        return rc;                                                                                 \
    }

#define NOTHING ((void)0)

#define TAKE(symbol, params, args, before, refuse, after)                                          \
    EXPORT CUresult symbol params;                                                                 \
    EXPORT CUresult symbol params {                                                                \
        CUresult(*real) params = resolve_real(ROW_##symbol);                                       \
        struct record_call call;                                                                   \
        if (!real)                                                                                 \
            return CUDA_ERROR_STUB_LIBRARY;                                                        \
        if (!record_enter(&call, CALLER_REGISTERS()))                                              \
            return real args;                                                                      \
        call.row = ROW_##symbol;                                                                   \
        before;                                                                                    \
        CUresult rc = refuse ? CUDA_ERROR_OUT_OF_MEMORY : real args;                               \
        after;                                                                                     \
        record_leave();                                                                            \
        return rc;                                                                                 \
    }

#define CALL(symbol, params, args, before, after) TAKE(symbol, params, args, before, false, after)

#define ANSWER(symbol, params, args, after)                                                        \
    EXPORT CUresult symbol params;                                                                 \
    EXPORT CUresult symbol params {                                                                \
        CUresult(*real) params = resolve_real(ROW_##symbol);                                       \
        if (!real)                                                                                 \
            return CUDA_ERROR_STUB_LIBRARY;                                                        \
        CUresult rc = real args;                                                                   \
        after;                                                                                     \
        return rc;                                                                                 \
    }

#include "cuda_api.def"

/* Plain linkage finds a wrapper, dlsym does not: exports.map tells how. */
#define HOOK(symbol, params) __asm__(".symver " #symbol ", " #symbol "@CUHEAP, hidden");
#include "cuda_api.def"

/* <cuheap/cuheap.h> finds this by name. */
EXPORT void cuheap_mark(const char *name);
EXPORT void cuheap_mark(const char *name) {
    struct record_call call;
    if (!record_enter(&call, CALLER_REGISTERS()))
        return;
    record_mark(call.recorder, name);
    record_leave();
}
