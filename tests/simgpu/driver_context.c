/*
 * Contexts: created and primary ones, and each thread's stack of current ones. Bodies of entry
 * points: called with the driver's lock held, from any thread.
 *
 * Sources: CUDA driver API reference, "Context Management" and "Primary Context Management"; that a
 * destroyed context takes plain, pitched, managed and pinned memory with it but not stream-ordered
 * memory: the same, cuCtxDestroy and cudaDeviceReset.
 */
#include <string.h>

#include "driver.h"

#define STACK_DEPTH 64

static struct CUctx_st *contexts;
static __thread struct CUctx_st *stack[STACK_DEPTH];
static __thread unsigned int depth;

static bool context_known(const struct CUctx_st *context) {
    for (const struct CUctx_st *c = contexts; c; c = c->next)
        if (c == context)
            return true;
    return false;
}

static struct CUctx_st *top(void) {
    return depth ? stack[depth - 1] : NULL;
}

CUresult current_context(struct CUctx_st **context) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *context = top();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (*context)->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult context_check(const struct CUctx_st *context) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult context_start(struct CUctx_st *context) {
    if (device_free(context->device) < settings.context_memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    devices[context->device].context_bytes += settings.context_memory;
    context->active = true;
    return CUDA_SUCCESS;
}

static void context_end(struct CUctx_st *context) {
    blocks_of_context(context);
    devices[context->device].context_bytes -= settings.context_memory;
    context->active = false;
}

static struct CUctx_st *context_new(CUdevice device, unsigned int flags) {
    struct CUctx_st *context = store_take(sizeof *context);

    context->device = device;
    context->flags = flags;
    context->next = contexts;
    contexts = context;
    return context;
}

/* ---- primary contexts ---- */

CUresult sim_primary_retain(CUcontext *context, CUdevice device) {
    CUresult code = device_check(device);

    if (code)
        return code;
    if (!devices[device].primary) {
        devices[device].primary = context_new(device, 0);
        devices[device].primary->primary = true;
        devices[device].primary->api_version = 3020;
    }
    struct CUctx_st *primary = devices[device].primary;
    if (!primary->active && (code = context_start(primary)))
        return code;
    primary->references++;
    *context = primary;
    return CUDA_SUCCESS;
}

CUresult sim_primary_release(CUdevice device) {
    CUresult code = device_check(device);

    if (code)
        return code;
    struct CUctx_st *primary = devices[device].primary;
    if (!primary || !primary->references)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->references == 0 && primary->active)
        context_end(primary);
    return CUDA_SUCCESS;
}

CUresult sim_primary_reset(CUdevice device) {
    CUresult code = device_check(device);

    if (code)
        return code;
    struct CUctx_st *primary = devices[device].primary;
    if (primary && primary->active)
        context_end(primary);
    return CUDA_SUCCESS;
}

CUresult sim_primary_set_flags(CUdevice device, unsigned int flags) {
    CUresult code = device_check(device);

    if (!code && devices[device].primary)
        devices[device].primary->flags = flags;
    return code;
}

CUresult sim_primary_get_state(CUdevice device, unsigned int *flags, int *active) {
    CUresult code = device_check(device);

    if (code)
        return code;
    const struct CUctx_st *primary = devices[device].primary;
    if (flags)
        *flags = primary ? primary->flags : 0;
    if (active)
        *active = primary && primary->active;
    return CUDA_SUCCESS;
}

/* ---- created contexts ---- */

static CUresult context_create(CUcontext *result, unsigned int flags, CUdevice device,
                               unsigned int api_version) {
    CUresult code = device_check(device);

    if (code)
        return code;
    if (!result || depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUctx_st *context = context_new(device, flags);
    if ((code = context_start(context)))
        return code;
    context->api_version = api_version;
    context->references = 1;
    stack[depth++] = context;
    *result = context;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_create_v1(CUcontext *context, unsigned int flags, CUdevice device) {
    return context_create(context, flags, device, 3010);
}

CUresult sim_ctx_create_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return context_create(context, flags, device, 3020);
}

CUresult sim_ctx_create_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                           unsigned int flags, CUdevice device) {
    if (!affinity != !count)
        return CUDA_ERROR_INVALID_VALUE;
    return context_create(context, flags, device, 3020);
}

CUresult sim_ctx_create_v4(CUcontext *context, CUctxCreateParams *create, unsigned int flags,
                           CUdevice device) {
    (void)create;
    return context_create(context, flags, device, 3020);
}

/* Another thread that has it current gets CUDA_ERROR_CONTEXT_IS_DESTROYED from then on. */
CUresult sim_ctx_destroy(CUcontext context) {
    CUresult code = context ? context_check(context) : CUDA_ERROR_INVALID_VALUE;

    if (code)
        return code;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_end(context);
    if (top() == context)
        depth--;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_attach(CUcontext *context, unsigned int flags) {
    CUresult code = current_context(context);

    if (!code && flags)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        (*context)->references++;
    return code;
}

CUresult sim_ctx_detach(CUcontext context) {
    CUresult code = context_check(context);

    if (!code && --context->references == 0)
        code = sim_ctx_destroy(context);
    return code;
}

/* ---- the thread's current context ---- */

CUresult sim_ctx_push_current(CUcontext context) {
    CUresult code = context_check(context);

    if (!code && depth == STACK_DEPTH)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        stack[depth++] = context;
    return code;
}

CUresult sim_ctx_pop_current(CUcontext *context) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult sim_ctx_set_current(CUcontext context) {
    CUresult code = context ? context_check(context)
                            : (driver_initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED);

    if (code)
        return code;
    depth -= depth > 0;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult sim_ctx_get_current(CUcontext *context) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = top();
    return CUDA_SUCCESS;
}

/* A context that was destroyed still tells its device. */
CUresult sim_ctx_get_device_v2(CUdevice *device, CUcontext context) {
    CUresult code = context ? context_check(context) : current_context(&context);

    if (code == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        code = CUDA_SUCCESS;
    if (!code && !device)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        *device = context->device;
    return code;
}

CUresult sim_ctx_get_device(CUdevice *device) {
    return sim_ctx_get_device_v2(device, NULL);
}

CUresult sim_ctx_get_flags(unsigned int *flags) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (!code)
        *flags = context->flags;
    return code;
}

CUresult sim_ctx_get_api_version(CUcontext context, unsigned int *version) {
    CUresult code = context ? context_check(context) : current_context(&context);

    if (!code)
        *version = context->api_version;
    return code;
}

CUresult sim_ctx_synchronize_v2(CUcontext context) {
    CUresult code = context ? context_check(context) : current_context(&context);

    if (!code)
        pools_synchronize(context->device);
    return code;
}

CUresult sim_ctx_synchronize(void) {
    return sim_ctx_synchronize_v2(NULL);
}
