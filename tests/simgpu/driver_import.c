/*
 * Memory of other processes (cuIpc) and of other interfaces (external memory). Bodies of entry
 * points: called with the driver's lock held, from any thread.
 *
 * Sources: CUDA driver API reference: opening a handle again in one context gives the same address
 * and counts (cuIpcOpenMemHandle); a process cannot open its own handles; a mapped buffer is freed
 * with cuMemFree (cuExternalMemoryGetMappedBuffer). Nothing is checked with the exporter, and any
 * external memory can be imported.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

struct ipc_content {
    char magic[8];
    int process;
    CUdevice device;
    uint64_t address, bytes;
};

/* What is open, in which context. */
struct opened {
    struct ipc_content content;
    struct CUctx_st *context;
    uintptr_t address;
    struct opened *next;
};
static struct opened *opened;

uintptr_t imported_addresses(size_t bytes, struct CUctx_st *context) {
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (range == MAP_FAILED)
        return 0;
    block_add(&(struct block){.address = (uintptr_t)range,
                              .bytes = bytes,
                              .kind = SIMGPU_IMPORTED,
                              .device = context->device,
                              .context = context});
    return (uintptr_t)range;
}

CUresult sim_ipc_get(CUipcMemHandle *handle, CUdeviceptr pointer) {
    const struct block *block = driver_initialized ? block_find(pointer) : NULL;

    if (!handle || !block || block->kind != SIMGPU_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc_content content = {"simipc", getpid(), block->device, pointer, block->bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return CUDA_SUCCESS;
}

/* A context that ended took what was opened in it along: its blocks are gone. */
static struct opened **find(const struct ipc_content *content, const struct CUctx_st *context) {
    struct opened **link = &opened;

    while (*link) {
        struct opened *o = *link;
        const struct block *block = block_find(o->address);
        if (!block || block->context != o->context || !block->references) {
            *link = o->next;
            store_give(o, sizeof *o);
            continue;
        }
        if (o->context == context && !memcmp(&o->content, content, sizeof *content))
            return link;
        link = &o->next;
    }
    return link;
}

CUresult sim_ipc_open(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    struct CUctx_st *context;
    struct ipc_content content;
    CUresult code = current_context(&context);

    (void)flags;
    if (code)
        return code;
    memcpy(&content, &handle, sizeof content);
    if (!pointer || strcmp(content.magic, "simipc") || !content.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (content.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct opened **known = find(&content, context);
    if (*known) {
        block_find((*known)->address)->references++;
        *pointer = (*known)->address;
        return CUDA_SUCCESS;
    }
    *pointer = imported_addresses(content.bytes, context);
    if (!*pointer)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block_find(*pointer)->references = 1;
    struct opened *o = store_take(sizeof *o);
    *o = (struct opened){content, context, *pointer, opened};
    opened = o;
    return CUDA_SUCCESS;
}

CUresult sim_ipc_close(CUdeviceptr pointer) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    struct block *block = block_find(pointer);
    if (!block || block->kind != SIMGPU_IMPORTED || !block->references || block->context != context)
        return CUDA_ERROR_INVALID_VALUE;
    if (--block->references == 0)
        block_remove(block, FREED);
    return CUDA_SUCCESS;
}

/* ---- external memory ---- */

CUresult sim_external_import(CUexternalMemory *memory,
                             const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!memory || !description || !description->size)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t *record = store_take(sizeof *record);
    *record = description->size;
    block_add(&(struct block){.address = (uintptr_t)record,
                              .bytes = description->size,
                              .kind = SIMGPU_IMPORTED,
                              .device = context->device,
                              .context = context,
                              .bare = true});
    *memory = (CUexternalMemory)record;
    return CUDA_SUCCESS;
}

static struct block *external(CUexternalMemory memory) {
    struct block *block = driver_initialized ? block_find((uintptr_t)memory) : NULL;

    return block && block->kind == SIMGPU_IMPORTED && block->bare && !block->flags ? block : NULL;
}

CUresult sim_external_destroy(CUexternalMemory memory) {
    struct block *block = external(memory);

    if (!block)
        return CUDA_ERROR_INVALID_HANDLE;
    block_remove(block, FREED);
    return CUDA_SUCCESS;
}

CUresult sim_external_buffer(CUdeviceptr *pointer, CUexternalMemory memory,
                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!pointer || !description || !description->size || !external(memory))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = imported_addresses(description->size, context);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
