/*
 * Physical memory, its handles, and the addresses that it is mapped to. Bodies of entry points:
 * called with the driver's lock held, from any thread.
 *
 * Sources: CUDA driver API reference, "Virtual Memory Management": memory is freed when neither a
 * handle nor a mapping is left; an unmapping covers whole mappings. Measured on an H200, driver
 * 580.159: a handle keeps its value while its memory is mapped, cuMemRetainAllocationHandle gives
 * the same one. That a value comes again as soon as its memory is gone is harsher than measured.
 */
#include <sys/mman.h>

#include "driver.h"

#define FIRST_HANDLE ((uintptr_t)0x10000000)
#define HANDLE_STEP  ((uintptr_t)0x510)

struct mapping {
    uintptr_t address;
    size_t bytes;
    struct block *memory;
    struct mapping *next;
};

struct reservation {
    uintptr_t address; /* as given to the program; `range` is what was mapped for it */
    size_t bytes;
    void *range;
    size_t range_bytes;
    struct reservation *next;
};

/* A handle value that can be given out again. */
struct spare {
    uintptr_t handle;
    struct spare *next;
};

static struct mapping *mappings;
static struct reservation *reservations;
static struct spare *spares;
static uintptr_t next_handle = FIRST_HANDLE;

static uintptr_t handle_take(void) {
    struct spare *spare = spares;
    uintptr_t handle = next_handle;

    if (!spare) {
        next_handle += HANDLE_STEP;
        return handle;
    }
    handle = spare->handle;
    spares = spare->next;
    store_give(spare, sizeof *spare);
    return handle;
}

static void end_if_unused(struct block *memory) {
    if (memory->references || memory->mappings)
        return;
    struct spare *spare = store_take(sizeof *spare);
    *spare = (struct spare){memory->address, spares};
    spares = spare;
    memory->bare = true;
    block_remove(memory, FREED);
}

static struct block *memory_of(CUmemGenericAllocationHandle handle) {
    struct block *memory =
        handle >= FIRST_HANDLE && handle < next_handle ? block_find(handle) : NULL;
    return memory && memory->references ? memory : NULL;
}

static CUresult check(void) {
    return driver_initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUmemGenericAllocationHandle add_memory(enum simgpu_kind kind, CUdevice device,
                                               size_t bytes) {
    struct block memory = {.address = handle_take(),
                           .bytes = bytes,
                           .kind = kind,
                           .device = device,
                           .bare = true,
                           .references = 1};

    return block_add(&memory)->address;
}

CUresult sim_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                    const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult code = check();

    if (code)
        return code;
    if (!handle || !bytes || bytes % PAGE || !properties || flags ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        *handle = add_memory(SIMGPU_PINNED, 0, bytes);
        return CUDA_SUCCESS;
    }
    if ((code = device_check(properties->location.id)))
        return code;
    if (bytes > device_free(properties->location.id))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = add_memory(SIMGPU_VMM, properties->location.id, bytes);
    return CUDA_SUCCESS;
}

/* Another process's memory: any descriptor names some. */
CUresult sim_import(CUmemGenericAllocationHandle *handle, void *shareable,
                    CUmemAllocationHandleType type) {
    (void)shareable;
    if (check())
        return check();
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUctx_st *context;
    CUdevice device = current_context(&context) ? 0 : context->device;
    *handle = add_memory(SIMGPU_IMPORTED, device, PAGE);
    return CUDA_SUCCESS;
}

/* A handle that is mapped and released and owns no memory. */
CUresult sim_multicast_create(CUmemGenericAllocationHandle *handle,
                              const CUmulticastObjectProp *properties) {
    if (check())
        return check();
    if (!handle || !properties || !properties->numDevices || !properties->size)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = add_memory(SIMGPU_MULTICAST, 0, properties->size);
    return CUDA_SUCCESS;
}

CUresult sim_export(void *shareable, CUmemGenericAllocationHandle handle,
                    CUmemAllocationHandleType type, unsigned long long flags) {
    if (check())
        return check();
    if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !memory_of(handle))
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)shareable = -1;
    return CUDA_SUCCESS;
}

CUresult sim_release(CUmemGenericAllocationHandle handle) {
    if (check())
        return check();
    struct block *memory = memory_of(handle);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    memory->references--;
    end_if_unused(memory);
    return CUDA_SUCCESS;
}

CUresult sim_retain(CUmemGenericAllocationHandle *handle, void *address) {
    if (check())
        return check();
    for (struct mapping *m = mappings; m; m = m->next)
        if ((uintptr_t)address - m->address < m->bytes) {
            m->memory->references++;
            *handle = m->memory->address;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses ---- */

static bool is_reserved(uintptr_t address, size_t bytes) {
    for (const struct reservation *r = reservations; r; r = r->next)
        if (address >= r->address && address - r->address < r->bytes &&
            bytes <= r->bytes - (address - r->address))
            return true;
    return false;
}

static bool overlaps_mapping(uintptr_t address, size_t bytes) {
    for (const struct mapping *m = mappings; m; m = m->next)
        if (address < m->address + m->bytes && m->address < address + bytes)
            return true;
    return false;
}

CUresult sim_map(CUdeviceptr address, size_t bytes, size_t offset,
                 CUmemGenericAllocationHandle handle, unsigned long long flags) {
    if (check())
        return check();
    struct block *memory = memory_of(handle);
    if (!memory || !bytes || bytes % PAGE || offset || flags || bytes > memory->bytes ||
        !is_reserved(address, bytes) || overlaps_mapping(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping = store_take(sizeof *mapping);
    *mapping = (struct mapping){address, bytes, memory, mappings};
    mappings = mapping;
    memory->mappings++;
    return CUDA_SUCCESS;
}

/* Bytes of the mappings that lie within; SIZE_MAX: one lies across an end. */
static size_t mapped_within(uintptr_t address, size_t bytes) {
    size_t sum = 0;

    for (const struct mapping *m = mappings; m; m = m->next) {
        if (m->address >= address && m->address + m->bytes <= address + bytes)
            sum += m->bytes;
        else if (address < m->address + m->bytes && m->address < address + bytes)
            return SIZE_MAX;
    }
    return sum;
}

CUresult sim_unmap(CUdeviceptr address, size_t bytes) {
    if (check())
        return check();
    if (!bytes || mapped_within(address, bytes) != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *m = *link;
        if (m->address < address || m->address >= address + bytes) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        m->memory->mappings--;
        end_if_unused(m->memory);
        store_give(m, sizeof *m);
    }
    return CUDA_SUCCESS;
}

CUresult sim_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count) {
    if (check())
        return check();
    return access && count && bytes && mapped_within(address, bytes) == bytes
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_address_reserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
    (void)wanted;
    if (check())
        return check();
    if (!address || !bytes || bytes % PAGE || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    size_t unit = alignment > PAGE ? alignment : PAGE;
    void *range =
        mmap(NULL, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct reservation *r = store_take(sizeof *r);
    *r = (struct reservation){((uintptr_t)range + unit - 1) & ~(unit - 1), bytes, range,
                              bytes + unit, reservations};
    reservations = r;
    *address = r->address;
    return CUDA_SUCCESS;
}

CUresult sim_address_free(CUdeviceptr address, size_t bytes) {
    if (check())
        return check();
    struct reservation **link = &reservations;
    while (*link && ((*link)->address != address || (*link)->bytes != bytes))
        link = &(*link)->next;
    struct reservation *r = *link;
    if (!r || mapped_within(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *link = r->next;
    munmap(r->range, r->range_bytes);
    store_give(r, sizeof *r);
    return CUDA_SUCCESS;
}
