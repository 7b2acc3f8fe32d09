#include "record.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomic.h"
#include "config.h"
#include "elf_symbols.h"
#include "lifecycle.h"

#define FIRST_SLOTS 4096

/*
 * The outermost hooked call of this thread; sp 0: none. A call is inside it if it is further in on
 * the stack and the outer one's return address is still in its place: longjmp or an exception may
 * have left the outer one without a word. Initial-exec, since dynamic thread-local storage may call
 * malloc.
 */
static __thread __attribute__((tls_model("initial-exec"))) struct registers outermost;
static __thread __attribute__((tls_model("initial-exec"))) uintptr_t outermost_return;

/* What this thread last took from the driver, until a tensor lands in it. */
struct block {
    uint64_t address, bytes;
    bool mapped; /* physical memory, maybe of several handles */
};
static __thread __attribute__((tls_model("initial-exec"))) struct block latest_block;

/* ---- beginning and end
 * --------------------------------------------------------------------------- */

static struct trace_slot *more_slots(void *owner, uint32_t count) {
    struct trace_writer *trace = owner;
    struct trace_region *region =
        trace_add_region(trace, TRACE_SECTION_LIVE_TABLE, count * sizeof(struct trace_slot),
                         sizeof(struct trace_slot));
    return region ? (struct trace_slot *)(trace->base + region->offset) : NULL;
}

bool record_init(struct recorder *recorder, uint32_t stacks, uint32_t depth) {
    struct trace_writer *trace = &recorder->trace;
    recorder->want_stacks = stacks;
    recorder->attention = limits_active;
    return table_init(&recorder->table, FIRST_SLOTS, more_slots, trace) &&
           modules_init(&recorder->modules, trace) && sites_init(&recorder->sites, trace) &&
           stacks_init(&recorder->stacks, trace, &recorder->modules, depth) &&
           python_init(&recorder->python, trace, stacks & CONFIG_STACKS_PYTHON) &&
           handles_init(&recorder->handles) && graphs_init(&recorder->graphs);
}

static bool is_inside(const struct registers *from) {
    const struct registers *outer = &outermost;
    return from->sp < outer->sp && memory_readable((uintptr_t)outer->return_slot) &&
           *outer->return_slot == outermost_return;
}

bool record_enter(struct record_call *call, struct registers from) {
    int saved = errno;
    bool noted = outermost.sp != 0, inside = noted && is_inside(&from);
    call->recorder = inside ? lifecycle_recorder() : NULL;
    call->mark.slot = NULL;
    call->mark.bytes = 0;
    if (!inside) {
        outermost = from;
        outermost_return = *from.return_slot;
        call->from = from;
        call->recorder = lifecycle_start();
        if (!call->recorder)
            outermost.sp = 0;
    }
    if (noted && call->recorder)
        trace_count(&call->recorder->trace,
                    inside ? TRACE_COUNTER_NESTED_CALLS : TRACE_COUNTER_STALE_GUARDS, 1);
    errno = saved;
    return !inside && call->recorder;
}

void record_leave(void) {
    outermost.sp = 0;
}

const void *record_thread(void) {
    return &outermost;
}

/* ---- who and where
 * -------------------------------------------------------------------------------- */

static void describe_device(struct recorder *recorder, CUdevice ordinal) {
    struct trace_device *device = &recorder->trace.header->devices[ordinal];
    CUuuid uuid;
    size_t total;
    /* Claims it: state 2 is "being described", and a reader takes only 1. */
    uint32_t none = 0;
    if (!cas_acq_rel(&device->state, &none, 2u))
        return;
    if (driver.cuDeviceGetName &&
        driver.cuDeviceGetName(device->name, sizeof device->name - 1, ordinal) == CUDA_SUCCESS)
        device->known |= TRACE_DEVICE_NAME;
    if (driver.cuDeviceGetUuid && driver.cuDeviceGetUuid(&uuid, ordinal) == CUDA_SUCCESS) {
        memcpy(device->uuid, uuid.bytes, sizeof device->uuid);
        device->known |= TRACE_DEVICE_UUID;
    }
    if (driver.cuDeviceTotalMem_v2 && driver.cuDeviceTotalMem_v2(&total, ordinal) == CUDA_SUCCESS) {
        device->total_bytes = total;
        device->known |= TRACE_DEVICE_TOTAL;
    }
    store_release(&device->state, 1u);
}

static void describe_driver(struct recorder *recorder) {
    int version;
    uint32_t none = 0;
    if (load_relaxed(&recorder->driver_known) || !cas_acq_rel(&recorder->driver_known, &none, 1u))
        return;
    if (driver.cuDriverGetVersion && driver.cuDriverGetVersion(&version) == CUDA_SUCCESS)
        store_relaxed(&recorder->trace.header->driver_version, (uint32_t)version);
}

uint16_t record_device(struct recorder *recorder, CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= TRACE_DEVICES)
        return TRACE_DEVICE_UNKNOWN;
    if (!load_relaxed(&recorder->trace.header->devices[ordinal].state)) {
        describe_driver(recorder);
        describe_device(recorder, ordinal);
    }
    return (uint16_t)ordinal;
}

uint16_t record_device_if_known(struct recorder *recorder) {
    CUdevice ordinal;
    if (driver.cuCtxGetDevice && driver.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)
        return record_device(recorder, ordinal);
    return TRACE_DEVICE_UNKNOWN;
}

uint16_t record_current_device(struct recorder *recorder) {
    uint16_t device = record_device_if_known(recorder);
    if (device == TRACE_DEVICE_UNKNOWN)
        trace_lose(&recorder->trace, TRACE_LOSS_DEVICE_UNKNOWN, 1);
    return device;
}

/* Where Python frames are, native ones end at the interpreter, unless all are wanted. */
struct stack_refs record_stack(struct record_call *call, uint64_t ns) {
    static const struct code_range nowhere;
    struct recorder *recorder = call->recorder;
    struct python *python = &recorder->python;
    struct stack_refs refs = {0, 0};
    if (recorder->want_stacks & CONFIG_STACKS_PYTHON)
        refs.python = python_capture(python, ns);
    bool stop = refs.python && !(recorder->want_stacks & CONFIG_STACKS_FULL);
    if (recorder->want_stacks & CONFIG_STACKS_NATIVE)
        refs.native =
            stacks_capture(&recorder->stacks, &call->from, stop ? &python->module : &nowhere, ns);
    return refs;
}

/* ---- books
 * ---------------------------------------------------------------------------------------- */

/* Whoever follows each block: rare, so apart from the path of all others. */
static __attribute__((noinline, cold)) void
tell_taken(struct recorder *recorder, const struct trace_site *site, uint64_t bytes, uint64_t ns) {
    limits_took(recorder, site, bytes);
    failures_took(recorder, site, bytes, ns);
}

static __attribute__((noinline, cold)) void
tell_given(struct recorder *recorder, const struct trace_site *site, uint64_t bytes) {
    limits_gave(recorder, site, bytes);
    failures_gave(recorder, site, bytes);
}

static void book_free(struct recorder *recorder, uint32_t site_ref, uint64_t bytes, uint16_t pool,
                      uint64_t ns) {
    struct site_event event = {ns, bytes, false};
    sites_change(&recorder->sites, trace_at(&recorder->trace, site_ref), &event);
    if (pool)
        pools_give(&recorder->pools, pool, bytes);
    if (__builtin_expect(load_relaxed(&recorder->attention), 0))
        tell_given(recorder, trace_at(&recorder->trace, site_ref), bytes);
}

void record_erase(struct recorder *recorder, const struct table_mark *mark, uint64_t ns) {
    if (table_erase(mark))
        book_free(recorder, mark->site, mark->bytes, mark->pool, ns);
}

void record_publish(struct recorder *recorder, struct trace_site *site, struct table_entry *entry,
                    uint64_t ns) {
    struct trace_writer *trace = &recorder->trace;
    struct table_entry old;
    entry->site = trace_ref(trace, site);
    entry->time_ms = (uint32_t)(ns / 1000000);
    enum table_result result = table_insert(&recorder->table, entry, &old);
    if (result == TABLE_FULL) {
        trace_lose(trace, TRACE_LOSS_TABLE_FULL, 1);
        trace_lose(trace, TRACE_LOSS_TABLE_FULL_BYTES, entry->bytes);
        return;
    }
    if (result == TABLE_REPLACED)
        trace_lose(trace, TRACE_LOSS_LOST_FREES, 1);
    if (result != TABLE_INSERTED)
        book_free(recorder, old.site, old.bytes, old.pool, ns);
    struct site_event event = {ns, entry->bytes, true};
    sites_change(&recorder->sites, site, &event);
    if (entry->pool)
        pools_take(&recorder->pools, entry->pool, entry->bytes);
    if (__builtin_expect(load_relaxed(&recorder->attention), 0))
        tell_taken(recorder, site, entry->bytes, ns);
}

/*
 * Threads of autograd have no Python frames: who waits for them is noted, at the first event of the
 * site and at the 16th, 256th, 4096th... (some 100 us each).
 */
static void notice_caller(struct recorder *recorder, struct trace_site *site) {
    uint64_t events = load_relaxed(&site->allocs);
    if (!(load_relaxed(&recorder->trace.header->features) & TRACE_FEATURE_TENSORS))
        return;
    if (events && (events == 1 || events & (events - 1) || __builtin_ctzll(events) % 4))
        return;
    uint32_t caller = python_waiting(&recorder->python);
    uint32_t before = load_relaxed(&site->called_from);
    if (!caller || caller == before)
        return;
    if (before)
        or_relaxed(&site->flags, TRACE_SITE_VARIES);
    store_relaxed(&site->called_from, caller);
}

struct trace_site *record_site(struct record_call *call, enum trace_kind kind, uint16_t device,
                               uint64_t ns) {
    struct stack_refs stack = record_stack(call, ns);
    struct site_key key = {
        .ledger = kind == TRACE_KIND_TENSOR ? TRACE_LEDGER_TENSOR : TRACE_LEDGER_DRIVER,
        .kind = (uint8_t)kind,
        .device = device,
        .native_stack = stack.native,
        .python_stack = stack.python,
    };
    struct trace_site *site = sites_get(&call->recorder->sites, &key);
    if (site && !key.python_stack && !(load_relaxed(&site->flags) & TRACE_SITE_OTHER))
        notice_caller(call->recorder, site);
    return site;
}

static void book_alloc(struct recorder *recorder, struct trace_site *site,
                       struct table_entry *entry, uint64_t ns) {
    struct trace_writer *trace = &recorder->trace;
    if (site) {
        record_publish(recorder, site, entry, ns);
        return;
    }
    trace_lose(trace, TRACE_LOSS_TABLE_FULL, 1);
    trace_lose(trace, TRACE_LOSS_TABLE_FULL_BYTES, entry->bytes);
}

void record_block(struct record_call *call, const struct record_block *block) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    uint64_t ns = trace_now(&recorder->trace);
    uint16_t device =
        block->device == RECORD_DEVICE_CURRENT ? record_current_device(recorder) : block->device;
    struct trace_site *site = record_site(call, block->kind, device, ns);
    struct table_entry entry = {
        .address = block->address,
        .bytes = block->bytes,
        .context = contexts_current(recorder),
        .pool = block->pool,
        .space = (uint8_t)block->space,
    };
    book_alloc(recorder, site, &entry, ns);
    errno = saved;
}

void record_alloc(struct record_call *call, enum trace_kind kind, enum trace_space space,
                  uint64_t address, uint64_t bytes) {
    struct record_block block = {
        .kind = kind,
        .space = space,
        .device = record_is_host(kind) ? TRACE_DEVICE_HOST : RECORD_DEVICE_CURRENT,
        .address = address,
        .bytes = bytes,
    };
    /* cuMemHostAlloc and cuMemAllocAsync of 0 bytes succeed with NULL (measured on an H200, driver
       580.159): there is nothing to free. */
    if (!address)
        return;
    record_block(call, &block);
    if (kind == TRACE_KIND_DEVICE)
        latest_block = (struct block){address, bytes, false};
}

void record_mapped(uint64_t address, uint64_t bytes) {
    struct block *latest = &latest_block;
    if (latest->mapped && address == latest->address + latest->bytes)
        latest->bytes += bytes;
    else
        *latest = (struct block){address, bytes, true};
}

void record_exported(struct record_call *call, CUresult code, enum trace_space space,
                     uint64_t address) {
    if (code == CUDA_SUCCESS)
        table_add_flags(&call->recorder->table, space, address, TRACE_SLOT_EXPORTED);
}

/* ---- tensors --------------------------------------------------------------------------------- */

uint16_t record_tensor_device(int device) {
    return device < TRACE_DEVICES ? (uint16_t)device : (uint16_t)TRACE_DEVICE_UNKNOWN;
}

void record_segment(struct recorder *recorder, enum trace_space space, uint64_t key) {
    uint32_t site = table_add_flags(&recorder->table, space, key, TRACE_SLOT_SEGMENT);
    if (site)
        or_relaxed(&((struct trace_site *)trace_at(&recorder->trace, site))->flags,
                   TRACE_SITE_SEGMENT);
}

/* The framework's allocator puts the first tensor into memory that its thread has just taken from
   the driver: that is a segment, its cache. */
static void notice_segment(struct recorder *recorder, uint64_t address, uint64_t bytes) {
    struct block *latest = &latest_block;
    if (address >= latest->address + latest->bytes || address + bytes <= latest->address)
        return;
    if (latest->mapped)
        handles_segment(recorder, latest->address, latest->bytes);
    else
        record_segment(recorder, TRACE_SPACE_POINTER, latest->address);
    latest->bytes = 0;
}

void record_tensor(struct record_call *call, uint64_t address, uint64_t bytes, int device) {
    struct recorder *recorder = call->recorder;
    struct trace_writer *trace = &recorder->trace;
    int saved = errno;
    uint64_t ns = trace_now(trace);
    if (!(load_relaxed(&trace->header->features) & TRACE_FEATURE_TENSORS))
        or_relaxed(&trace->header->features, (uint64_t)TRACE_FEATURE_TENSORS);
    notice_segment(recorder, address, bytes);
    struct trace_site *site =
        record_site(call, TRACE_KIND_TENSOR, record_tensor_device(device), ns);
    struct table_entry entry = {.address = address, .bytes = bytes, .space = TRACE_SPACE_TENSOR};
    book_alloc(recorder, site, &entry, ns);
    errno = saved;
}

void record_tensor_free(struct record_call *call, uint64_t address) {
    record_free_begin(call, TRACE_SPACE_TENSOR, address);
    record_free_end(call, address, CUDA_SUCCESS);
}

/* ---- frees ----------------------------------------------------------------------------------- */

void record_free_begin(struct record_call *call, enum trace_space space, uint64_t address) {
    call->mark = address ? table_mark_freeing(&call->recorder->table, space, address)
                         : (struct table_mark){0};
}

void record_free_end(struct record_call *call, uint64_t address, CUresult code) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    if (address && !call->mark.slot)
        trace_lose(&recorder->trace, TRACE_LOSS_UNKNOWN_FREES, 1);
    if (address && code != CUDA_SUCCESS)
        failures_free(call, code);
    record_settle(recorder, &call->mark, code);
    errno = saved;
}

/* ---- marks ----------------------------------------------------------------------------------- */

void record_mark(struct recorder *recorder, const char *name) {
    struct trace_writer *trace = &recorder->trace;
    char text[256];
    size_t bytes = name ? strnlen(name, sizeof text - 1) : 0;
    memcpy(text, name ? name : "", bytes);
    text[bytes] = 0;
    struct trace_mark *mark = trace_append(trace, TRACE_SECTION_MARKS, sizeof *mark, sizeof *mark);
    if (!mark) {
        trace_lose(trace, TRACE_LOSS_RECORDS_FULL, 1);
        return;
    }
    mark->name = trace_add_string(trace, text);
    mark->ns = trace_now(trace);
    mark->thread = (uint32_t)syscall(SYS_gettid);
    store_release(&mark->state, 1u); /* pairs with the reader */
}
