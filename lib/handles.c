#include "handles.h"

#include <errno.h>

#include "atomic.h"
#include "record.h"

#define FIRST_SLOTS 1024

static struct trace_slot *private_slots(void *owner, uint32_t count) {
    (void)owner;
    return trace_private(count * sizeof(struct trace_slot));
}

bool handles_init(struct handles *handles) {
    return table_init(&handles->counted, FIRST_SLOTS, private_slots, NULL);
}

uint32_t handles_note(struct recorder *recorder, enum handles_space space, uint64_t handle,
                      uint32_t ref) {
    struct table_entry entry = {.address = handle, .site = ref, .space = (uint8_t)space};
    struct table_entry old = {0};
    enum table_result result = table_insert(&recorder->handles.counted, &entry, &old);
    if (result == TABLE_FULL)
        trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
    return result == TABLE_SUPERSEDED || result == TABLE_REPLACED ? old.site : 0;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* One more of what is known. False: it is not, or is just ending. */
static bool refer(struct recorder *recorder, unsigned space, uint64_t key) {
    return table_refer_again(&recorder->handles.counted, space, key);
}

/* The first of a handle that the driver has just made, whatever is known of an older one. */
static void begin_count(struct recorder *recorder, unsigned space, uint64_t key) {
    struct table_entry first = {.address = key, .context = 1, .space = (uint8_t)space}, old;
    if (table_insert(&recorder->handles.counted, &first, &old) == TABLE_FULL)
        trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
}

/* One more, or the first one: true. */
static bool introduce(struct recorder *recorder, unsigned space, uint64_t key) {
    enum table_result result = table_refer(&recorder->handles.counted, space, key);
    if (result == TABLE_FULL)
        trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
    return result != TABLE_PRESENT;
}

/*
 * Before the driver is asked. False: not known. The block of the last one is marked before the
 * count says so: after that, the handle can be somebody else's, with a block of its own.
 */
static bool give_back(struct recorder *recorder, unsigned space, uint64_t key) {
    for (;;) {
        struct table_mark block = {0};
        struct table_mark count = table_live(&recorder->handles.counted, space, key);
        if (!count.slot)
            return false;
        bool last = table_count(&count) == 1;
        if (last)
            block = table_mark_freeing(&recorder->table, space, key);
        if (last ? table_begin_freeing(&count) : table_refer_less(&count))
            return true;
        if (block.slot)
            table_unmark(&block);
    }
}

/* After it agreed: the last one takes the block with it. */
static void confirm(struct recorder *recorder, unsigned space, uint64_t key) {
    struct table_mark count = table_marked(&recorder->handles.counted, space, key);
    struct table_mark block = table_marked(&recorder->table, space, key);
    /* One of them may be another's already, who was given the same handle meanwhile. */
    if (count.slot)
        table_erase(&count);
    if (block.slot)
        record_erase(recorder, &block, trace_now(&recorder->trace));
}

/* After it refused. */
static void undo(struct recorder *recorder, unsigned space, uint64_t key) {
    struct table_mark block = table_marked(&recorder->table, space, key);
    struct table_mark count = table_marked(&recorder->handles.counted, space, key);
    if (block.slot)
        table_unmark(&block);
    if (!count.slot || !table_unmark(&count))
        refer(recorder, space, key);
}

/* call->known: give_back knew it. */
static void finish(struct record_call *call, CUresult code, unsigned space, uint64_t key) {
    struct recorder *recorder = call->recorder;
    if (!call->known)
        trace_lose(&recorder->trace, TRACE_LOSS_UNKNOWN_FREES, 1);
    if (code != CUDA_SUCCESS)
        failures_free(call, code);
    if (call->known && code == CUDA_SUCCESS)
        confirm(recorder, space, key);
    else if (call->known)
        undo(recorder, space, key);
}

/* ---- physical memory ------------------------------------------------------------------------- */

static bool on_device(const CUmemAllocationProp *properties) {
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

bool handles_decide(struct record_call *call, uint64_t bytes,
                    const CUmemAllocationProp *properties) {
    if (!properties) /* the driver's to refuse */
        return false;
    return on_device(properties)
               ? limits_decide(call, TRACE_KIND_VMM,
                               record_device(call->recorder, properties->location.id), bytes)
               : limits_decide(call, TRACE_KIND_HOST, TRACE_DEVICE_HOST, bytes);
}

void handles_created(struct record_call *call, CUresult code,
                     const CUmemGenericAllocationHandle *handle, uint64_t bytes,
                     const CUmemAllocationProp *properties) {
    int saved = errno;
    /* The driver may have refused because there are no properties. */
    bool there = properties && on_device(properties);
    uint16_t device = there ? record_device(call->recorder, properties->location.id)
                            : (uint16_t)TRACE_DEVICE_UNKNOWN;
    if (code != CUDA_SUCCESS) {
        failures_block(call, TRACE_KIND_VMM, device, code, bytes);
    } else {
        begin_count(call->recorder, TRACE_SPACE_VMM, *handle);
        struct record_block block = {
            .kind = there ? TRACE_KIND_VMM : TRACE_KIND_HOST,
            .space = TRACE_SPACE_VMM,
            .device = there ? device : (uint16_t)TRACE_DEVICE_HOST,
            .address = *handle,
            .bytes = bytes,
        };
        record_block(call, &block);
    }
    errno = saved;
}

void handles_imported(struct record_call *call, CUresult code,
                      const CUmemGenericAllocationHandle *handle) {
    if (code != CUDA_SUCCESS) {
        failures_call(call, TRACE_KIND_IMPORTED, code, 0);
        return;
    }
    if (introduce(call->recorder, TRACE_SPACE_VMM, *handle))
        record_alloc(call, TRACE_KIND_IMPORTED, TRACE_SPACE_VMM, *handle, 0);
}

void handles_multicast(struct record_call *call, CUresult code,
                       const CUmemGenericAllocationHandle *handle) {
    if (code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_VMM, code, 0);
    else
        begin_count(call->recorder, TRACE_SPACE_VMM, *handle);
}

/* Of memory that was there before the trace, too: its releases are then known. */
void handles_retained(struct record_call *call, CUresult code,
                      const CUmemGenericAllocationHandle *handle) {
    if (code == CUDA_SUCCESS)
        introduce(call->recorder, TRACE_SPACE_VMM, *handle);
}

void handles_release_begin(struct record_call *call, CUmemGenericAllocationHandle handle) {
    call->known = give_back(call->recorder, TRACE_SPACE_VMM, handle);
}

void handles_release_end(struct record_call *call, CUresult code,
                         CUmemGenericAllocationHandle handle) {
    int saved = errno;
    finish(call, code, TRACE_SPACE_VMM, handle);
    errno = saved;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static void end_range(struct recorder *recorder, uint32_t ref) {
    struct trace_range *range = trace_at(&recorder->trace, ref);
    store_release(&range->removed_ns, trace_now(&recorder->trace)); /* pairs with the reader */
    reuse_ended(&recorder->handles.ranges, ref);
}

/* `from` says type, address, bytes, device and, of a mapping, handle and offset. */
static bool add_range(struct record_call *call, unsigned space, const struct trace_range *from) {
    struct recorder *recorder = call->recorder;
    struct trace_range *range = reuse_record(&recorder->handles.ranges, &recorder->trace,
                                             TRACE_SECTION_RANGES, sizeof *range);
    if (!range)
        return false;
    range->type = from->type;
    range->device = from->device;
    range->address = from->address;
    range->bytes = from->bytes;
    range->handle = from->handle;
    range->offset = from->offset;
    range->created_ns = trace_now(&recorder->trace);
    range->removed_ns = 0;
    struct stack_refs stack = record_stack(call, range->created_ns);
    range->native_stack = stack.native;
    range->python_stack = stack.python;
    store_release(&range->state, 1u); /* pairs with the reader */
    struct table_entry entry = {.address = from->address,
                                .bytes = from->bytes,
                                .site = trace_ref(&recorder->trace, range),
                                .space = (uint8_t)space};
    struct table_entry old;
    enum table_result result = table_insert(&recorder->handles.counted, &entry, &old);
    if (result == TABLE_FULL) {
        trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
        end_range(recorder, entry.site);
        return false;
    }
    if (result != TABLE_INSERTED) {
        /* Unmapped, though nobody has come back to say so. */
        const struct trace_range *gone = trace_at(&recorder->trace, old.site);
        if (result == TABLE_REPLACED && space == HANDLES_SPACE_MAPPING &&
            give_back(recorder, TRACE_SPACE_VMM, gone->handle))
            confirm(recorder, TRACE_SPACE_VMM, gone->handle);
        if (result == TABLE_SUPERSEDED && space == HANDLES_SPACE_MAPPING)
            confirm(recorder, TRACE_SPACE_VMM, gone->handle);
        end_range(recorder, old.site);
    }
    return true;
}

static uint16_t device_of(struct recorder *recorder, CUmemGenericAllocationHandle handle) {
    struct table_mark block = table_live(&recorder->table, TRACE_SPACE_VMM, handle);
    if (!block.slot)
        return TRACE_DEVICE_UNKNOWN;
    return ((const struct trace_site *)trace_at(&recorder->trace, block.site))->device;
}

void handles_mapped(struct record_call *call, CUresult code, CUdeviceptr address, uint64_t bytes,
                    uint64_t offset, CUmemGenericAllocationHandle handle) {
    int saved = errno;
    struct trace_range range = {.type = TRACE_RANGE_MAPPING,
                                .device = device_of(call->recorder, handle),
                                .address = address,
                                .bytes = bytes,
                                .handle = handle,
                                .offset = offset};
    if (code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_VMM, code, bytes);
    else if (add_range(call, HANDLES_SPACE_MAPPING, &range))
        refer(call->recorder, TRACE_SPACE_VMM, handle);
    if (code == CUDA_SUCCESS)
        record_mapped(address, bytes);
    errno = saved;
}

/* One unmap may cover several mappings, side by side. `begun`: they have been marked. */
static struct table_mark mapping_at(struct recorder *recorder, uint64_t address, bool begun) {
    struct table *counted = &recorder->handles.counted;
    return begun ? table_marked(counted, HANDLES_SPACE_MAPPING, address)
                 : table_mark_freeing(counted, HANDLES_SPACE_MAPPING, address);
}

static CUmemGenericAllocationHandle handle_of(struct recorder *recorder, uint32_t range) {
    return ((const struct trace_range *)trace_at(&recorder->trace, range))->handle;
}

void handles_segment(struct recorder *recorder, uint64_t address, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        struct table_mark mapping =
            table_live(&recorder->handles.counted, HANDLES_SPACE_MAPPING, address + done);
        if (!mapping.slot || !mapping.bytes)
            return;
        record_segment(recorder, TRACE_SPACE_VMM, handle_of(recorder, mapping.site));
        done += mapping.bytes;
    }
}

void handles_unmap_begin(struct record_call *call, CUdeviceptr address, uint64_t bytes) {
    struct recorder *recorder = call->recorder;
    call->known = true;
    for (uint64_t done = 0; done < bytes;) {
        struct table_mark mark = mapping_at(recorder, address + done, false);
        if (!mark.slot || !mark.bytes) {
            call->known = false;
            return;
        }
        give_back(recorder, TRACE_SPACE_VMM, handle_of(recorder, mark.site));
        done += mark.bytes;
    }
}

void handles_unmap_end(struct record_call *call, CUresult code, CUdeviceptr address,
                       uint64_t bytes) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    if (!call->known)
        trace_lose(&recorder->trace, TRACE_LOSS_UNKNOWN_FREES, 1);
    if (code != CUDA_SUCCESS)
        failures_free(call, code);
    for (uint64_t done = 0; done < bytes;) {
        struct table_mark mark = mapping_at(recorder, address + done, true);
        if (!mark.slot || !mark.bytes)
            break;
        CUmemGenericAllocationHandle handle = handle_of(recorder, mark.site);
        if (code != CUDA_SUCCESS) {
            if (table_unmark(&mark))
                undo(recorder, TRACE_SPACE_VMM, handle);
        } else if (table_erase(&mark)) {
            confirm(recorder, TRACE_SPACE_VMM, handle);
            end_range(recorder, mark.site);
        }
        done += mark.bytes;
    }
    errno = saved;
}

void handles_access_set(struct record_call *call, CUresult code, uint64_t bytes) {
    if (code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_VMM, code, bytes);
}

void handles_reserved(struct record_call *call, CUresult code, const CUdeviceptr *address,
                      uint64_t bytes) {
    int saved = errno;
    if (code != CUDA_SUCCESS) {
        failures_call(call, TRACE_KIND_VMM, code, bytes);
    } else {
        struct trace_range range = {.type = TRACE_RANGE_RESERVATION,
                                    .device = TRACE_DEVICE_UNKNOWN,
                                    .address = *address,
                                    .bytes = bytes};
        add_range(call, HANDLES_SPACE_RESERVATION, &range);
    }
    errno = saved;
}

void handles_unreserve_begin(struct record_call *call, CUdeviceptr address) {
    call->known =
        table_mark_freeing(&call->recorder->handles.counted, HANDLES_SPACE_RESERVATION, address)
            .slot != NULL;
}

void handles_unreserve_end(struct record_call *call, CUresult code, CUdeviceptr address) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    struct table_mark mark =
        table_marked(&recorder->handles.counted, HANDLES_SPACE_RESERVATION, address);
    if (!call->known)
        trace_lose(&recorder->trace, TRACE_LOSS_UNKNOWN_FREES, 1);
    if (code != CUDA_SUCCESS)
        failures_free(call, code);
    if (mark.slot && code != CUDA_SUCCESS)
        table_unmark(&mark);
    else if (mark.slot && table_erase(&mark))
        end_range(recorder, mark.site);
    errno = saved;
}

/* ---- memory of other processes --------------------------------------------------------------- */

/* Each context counts its own opens, of one address maybe. */
static uint64_t ipc_key(CUdeviceptr address, uint16_t context) {
    return address | (uint64_t)context << TRACE_IPC_CONTEXT_SHIFT;
}

void handles_opened(struct record_call *call, CUresult code, const CUdeviceptr *address) {
    if (code != CUDA_SUCCESS) {
        failures_call(call, TRACE_KIND_IMPORTED, code, 0);
        return;
    }
    uint64_t key = ipc_key(*address, contexts_current(call->recorder));
    if (introduce(call->recorder, TRACE_SPACE_IPC, key))
        record_alloc(call, TRACE_KIND_IMPORTED, TRACE_SPACE_IPC, key, 0);
}

void handles_close_begin(struct record_call *call, CUdeviceptr address) {
    call->key = ipc_key(address, contexts_current(call->recorder));
    call->known = give_back(call->recorder, TRACE_SPACE_IPC, call->key);
}

void handles_close_end(struct record_call *call, CUresult code, CUdeviceptr address) {
    int saved = errno;
    (void)address;
    finish(call, code, TRACE_SPACE_IPC, call->key);
    errno = saved;
}

static void close_one(void *owner, struct table_mark *mark) {
    const struct record_call *call = owner;
    uint64_t address = load_relaxed(&mark->slot->address);
    if (TRACE_SLOT_SPACE(mark->word) == TRACE_SPACE_IPC &&
        address >> TRACE_IPC_CONTEXT_SHIFT == call->ending && table_begin_freeing(mark))
        table_erase(mark);
}

void handles_context_ended(struct record_call *call) {
    table_walk(&call->recorder->handles.counted, TRACE_SLOT_LIVE, close_one, call);
}
