/*
 * cuGetProcAddress in both forms, cuGetExportTable, and the driver's look-ups of itself. Bodies of
 * entry points, called with the driver's lock held, except self_lookup().
 *
 * Sources: CUDA driver API reference, "Driver Entry Point Access": the newest variant whose version
 * is not above the one asked for; what an H200 with driver 580.159 and CUDA 13.0 answered about
 * names, versions and flags that do not fit (conformance.txt).
 */
#include <dlfcn.h>
#include <string.h>

#include "driver.h"

enum stream_variant { LEGACY, THREAD };

static const struct lookup_row {
    const char *base;
    int version;
    enum stream_variant stream;
    void *function;
} rows[] = {
#define ENTRY(symbol, base, version, stream, capture, body, params, args)                          \
    {#base, version, stream, (void *)symbol},
#include "driver_api.def"
#undef ENTRY
};

enum { UNKNOWN, TOO_NEW, FOUND };

/* Newest fitting row of one stream variant. */
static int find(const char *name, int version, enum stream_variant stream,
                const struct lookup_row **best) {
    int result = UNKNOWN;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct lookup_row *row = &rows[i];
        if (row->version > settings.driver_version || row->stream != stream ||
            strcmp(row->base, name))
            continue;
        if (result == UNKNOWN)
            result = TOO_NEW;
        if (row->version <= version && (!*best || row->version > (*best)->version)) {
            *best = row;
            result = FOUND;
        }
    }
    return result;
}

/* A name with a variant for the per-thread default stream gives only that one where it is wanted.
 */
static CUresult look_up(const char *symbol, int version, cuuint64_t flags,
                        const struct lookup_row **row, int *result) {
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

    if (!symbol || version > settings.driver_version || flags & ~known)
        return CUDA_ERROR_INVALID_VALUE;
    *row = NULL;
    *result = UNKNOWN;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        *result = find(symbol, version, THREAD, row);
    if (*result == UNKNOWN)
        *result = find(symbol, version, LEGACY, row);
    return CUDA_SUCCESS;
}

/* What is not found is told by the status and a NULL function: the call itself succeeds. */
CUresult sim_get_proc_address_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
    static const CUdriverProcAddressQueryResult statuses[] = {
        [UNKNOWN] = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        [TOO_NEW] = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        [FOUND] = CU_GET_PROC_ADDRESS_SUCCESS,
    };
    const struct lookup_row *row;
    int result;
    CUresult code = look_up(symbol, version, flags, &row, &result);

    if (code)
        return code;
    *function = row ? row->function : NULL;
    if (status)
        *status = statuses[result];
    return CUDA_SUCCESS;
}

/* The first form has no status: it fails, and leaves the function as it was. */
CUresult sim_get_proc_address(const char *symbol, void **function, int version, cuuint64_t flags) {
    const struct lookup_row *row;
    int result;
    CUresult code = look_up(symbol, version, flags, &row, &result);

    if (!code && !row)
        code = CUDA_ERROR_NOT_FOUND;
    if (!code)
        *function = row->function;
    return code;
}

/* The private tables that real runtimes ask for are not simulated. */
CUresult sim_get_export_table(const void **table, const CUuuid *id) {
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- look-ups of itself ---- */

int self_lookup_result;

int simgpu_self_lookup(void) {
    return __atomic_load_n(&self_lookup_result, __ATOMIC_ACQUIRE);
}

/*
 * The driver under WSL looks its own functions up by dlsym on its own handle and calls what it
 * gets (HAMi-core pull request 326). It must get its own, not a tool's.
 */
void self_lookup(void) {
    Dl_info own;
    CUdeviceptr pointer;

    if (!dladdr((void *)self_lookup, &own))
        driver_abort("cannot find its own name");
    void *handle = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))dlsym(handle, "cuInit");
    CUresult (*alloc)(CUdeviceptr *, size_t) =
        (CUresult(*)(CUdeviceptr *, size_t))dlsym(handle, "cuMemAlloc_v2");
    int result = init == cuInit && alloc == cuMemAlloc_v2 ? 1 : -1;
    __atomic_store_n(&self_lookup_result, result, __ATOMIC_RELEASE);
    if (init(0) || alloc(&pointer, UNIT) != CUDA_ERROR_INVALID_CONTEXT)
        driver_abort("its own functions do not answer as they should");
    dlclose(handle);
}
