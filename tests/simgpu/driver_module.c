/*
 * Modules and libraries of code: handles, and no memory. Bodies of entry points: called with the
 * driver's lock held, from any thread.
 *
 * Source: CUDA driver API reference, "Module Management" and "Library Management".
 */
#include "driver.h"

struct code {
    bool library;
    struct code *next;
};
static struct code *loaded;

static CUresult load(void **handle, const void *image, bool library) {
    struct CUctx_st *context;
    CUresult code = library ? CUDA_SUCCESS : current_context(&context);

    if (code || !driver_initialized)
        return code ? code : CUDA_ERROR_NOT_INITIALIZED;
    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct code *record = store_take(sizeof *record);
    *record = (struct code){library, loaded};
    loaded = record;
    *handle = record;
    return CUDA_SUCCESS;
}

static CUresult unload(void *handle, bool library) {
    struct code **link = &loaded;

    while (*link && *link != handle)
        link = &(*link)->next;
    if (!*link || (*link)->library != library)
        return CUDA_ERROR_INVALID_HANDLE;
    struct code *record = *link;
    *link = record->next;
    store_give(record, sizeof *record);
    return CUDA_SUCCESS;
}

CUresult sim_module_load(CUmodule *module, const char *name) {
    return load((void **)module, name, false);
}

CUresult sim_module_load_data(CUmodule *module, const void *image) {
    return load((void **)module, image, false);
}

CUresult sim_module_unload(CUmodule module) {
    return unload(module, false);
}

CUresult sim_library_load_data(CUlibrary *library, const void *image, int *jit_options,
                               void **jit_values, unsigned int jit_count, int *options,
                               void **values, unsigned int count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load((void **)library, image, true);
}

CUresult sim_library_unload(CUlibrary library) {
    return unload(library, true);
}
