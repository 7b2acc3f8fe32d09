#include "contexts.h"

#include <errno.h>

#include "atomic.h"
#include "record.h"

#define CONTEXTS_ENDED  UINT64_MAX
#define CONTEXTS_ENDING (UINT64_MAX - 1)

/* ---- numbers --------------------------------------------------------------------------------- */

/* The number of a context that has not ended, from 1; 0: not known. */
static uint16_t number_of(const struct contexts *contexts, CUcontext context) {
    for (unsigned i = 0; i < CONTEXTS_MAX; i++) {
        uint64_t handle = load_acquire(&contexts->handles[i]); /* pairs with take */
        if (!handle)
            break;
        if (handle == (uintptr_t)context)
            return (uint16_t)(i + 1);
    }
    return 0;
}

static uint16_t primary_of(const struct contexts *contexts, CUdevice device) {
    for (uint16_t i = 0; i < CONTEXTS_MAX; i++) {
        const struct trace_context *record = load_acquire(&contexts->records[i]);
        if (record && record->flags & TRACE_CONTEXT_PRIMARY && record->device == device &&
            load_acquire(&contexts->handles[i]) == record->handle)
            return (uint16_t)(i + 1);
    }
    return 0;
}

uint16_t contexts_current(struct recorder *recorder) {
    CUcontext context;
    if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return 0;
    return number_of(&recorder->contexts, context);
}

/* Where the holds of a context are counted; NULL: nowhere. */
static uint32_t *references_of(struct contexts *contexts, uint16_t number) {
    return number ? &contexts->references[number - 1] : NULL;
}

static uint32_t *primary_references(struct contexts *contexts, CUdevice device) {
    return device >= 0 && device < TRACE_DEVICES ? &contexts->primary_references[device] : NULL;
}

/* ---- held ------------------------------------------------------------------------------------ */

/* Takes the first place that holds free_value. A primary context is the same for all who retain it,
   at once too: whoever comes second finds the place of the first. *number from 1; 0: no place. */
static bool take(struct contexts *contexts, uint64_t free_value, uint64_t handle, unsigned flags,
                 uint16_t *number) {
    for (uint16_t i = 0; i < CONTEXTS_MAX; i++) {
        uint64_t seen = free_value;
        *number = (uint16_t)(i + 1);
        if (cas_acq_rel(&contexts->handles[i], &seen, handle))
            return true;
        if (flags & TRACE_CONTEXT_PRIMARY && seen == handle)
            return false;
    }
    *number = 0;
    return false;
}

/* *number from 1. True if the caller is to describe it. */
static bool claim(struct recorder *recorder, uint64_t handle, unsigned flags, uint16_t *number) {
    struct contexts *contexts = &recorder->contexts;
    *number = flags & TRACE_CONTEXT_PRIMARY ? number_of(contexts, (CUcontext)handle) : 0;
    if (*number)
        return false;
    bool taken = take(contexts, 0, handle, flags, number);
    if (!*number)
        taken = take(contexts, CONTEXTS_ENDED, handle, flags, number);
    if (!*number)
        trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
    return taken;
}

static struct trace_context *describe(struct record_call *call, CUcontext context, CUdevice ordinal,
                                      unsigned flags, uint16_t number) {
    struct recorder *recorder = call->recorder;
    struct trace_writer *trace = &recorder->trace;
    struct trace_context *record =
        trace_append(trace, TRACE_SECTION_CONTEXTS, sizeof *record, sizeof *record);
    if (!record) {
        trace_lose(trace, TRACE_LOSS_RECORDS_FULL, 1);
        return NULL;
    }
    record->device = record_device(recorder, ordinal);
    record->flags = (uint16_t)flags;
    record->number = number;
    record->handle = (uintptr_t)context;
    record->created_ns = trace_now(trace);
    struct stack_refs stack = record_stack(call, record->created_ns);
    record->native_stack = stack.native;
    record->python_stack = stack.python;
    store_release(&record->state, 1u); /* pairs with the reader */
    store_release(&recorder->contexts.records[number - 1], record);
    return record;
}

static void hold(struct record_call *call, CUcontext context, CUdevice device, unsigned flags) {
    struct contexts *contexts = &call->recorder->contexts;
    int saved = errno;
    uint16_t number;
    struct trace_context *record = NULL;
    if (claim(call->recorder, (uintptr_t)context, flags, &number))
        record = describe(call, context, device, flags, number);
    else if (number) /* not there yet while another thread describes it: that use is not counted */
        record = load_acquire(&contexts->records[number - 1]);
    if (record)
        add_relaxed(&record->uses, 1);
    uint32_t *references = flags & TRACE_CONTEXT_PRIMARY ? primary_references(contexts, device)
                                                         : references_of(contexts, number);
    if (references)
        add_relaxed(references, 1u);
    errno = saved;
}

void contexts_made(struct record_call *call, CUresult code, const CUcontext *context,
                   CUdevice device, unsigned flags) {
    if (code == CUDA_SUCCESS)
        hold(call, *context, device, flags);
    else
        failures_call(call, 0, code, 0);
}

void contexts_attached(struct record_call *call, CUresult code, const CUcontext *context) {
    struct contexts *contexts = &call->recorder->contexts;
    if (code != CUDA_SUCCESS)
        return;
    uint32_t *references = references_of(contexts, number_of(contexts, *context));
    if (references)
        add_relaxed(references, 1u);
}

/* ---- ended ----------------------------------------------------------------------------------- */

/*
 * CUDA driver API reference, cuCtxDestroy: plain, pitched, managed and pinned memory, arrays and
 * what was registered or imported go with the context; stream-ordered and physical memory
 * (cuMemCreate) does not, nor that of graphs.
 */
static bool goes_with_context(unsigned kind) {
    return kind != TRACE_KIND_POOL && kind != TRACE_KIND_VMM && kind != TRACE_KIND_GRAPH;
}

static bool belongs(const struct record_call *call, const struct table_mark *mark) {
    if (mark->context != call->ending || TRACE_SLOT_SPACE(mark->word) == TRACE_SPACE_VMM)
        return false;
    const struct trace_site *site = trace_at(&call->recorder->trace, mark->site);
    return goes_with_context(site->kind);
}

static void mark_one(void *owner, struct table_mark *mark) {
    if (belongs(owner, mark))
        table_begin_freeing(mark);
}

static void unmark_one(void *owner, struct table_mark *mark) {
    if (belongs(owner, mark))
        table_unmark(mark);
}

static void erase_one(void *owner, struct table_mark *mark) {
    struct record_call *call = owner;
    struct trace_writer *trace = &call->recorder->trace;
    if (!belongs(call, mark))
        return;
    record_erase(call->recorder, mark, trace_now(trace));
    trace_count(trace, TRACE_COUNTER_IMPLICIT_FREES, 1);
    trace_count(trace, TRACE_COUNTER_IMPLICIT_FREE_BYTES, mark->bytes);
}

static void begin(struct record_call *call, uint16_t ending) {
    call->ending = ending;
    if (!ending)
        return;
    /* Its handle may come again before the call has returned: from now on it has none. */
    call->key = load_relaxed(&call->recorder->contexts.handles[ending - 1]);
    store_release(&call->recorder->contexts.handles[ending - 1], CONTEXTS_ENDING);
    table_walk(&call->recorder->table, TRACE_SLOT_LIVE, mark_one, call);
}

void contexts_destroy_begin(struct record_call *call, CUcontext context) {
    call->released = NULL;
    begin(call, number_of(&call->recorder->contexts, context));
}

/* Gives one hold back; with the last one the context ends. */
static void release_begin(struct record_call *call, uint32_t *references, uint16_t number) {
    uint32_t held = references ? load_relaxed(references) : 0;
    while (held && !cas_acq_rel(references, &held, held - 1))
        ;
    call->released = held ? references : NULL;
    begin(call, held == 1 ? number : 0);
}

void contexts_detach_begin(struct record_call *call, CUcontext context) {
    struct contexts *contexts = &call->recorder->contexts;
    uint16_t number = number_of(contexts, context);
    release_begin(call, references_of(contexts, number), number);
}

void contexts_release_begin(struct record_call *call, CUdevice device) {
    struct contexts *contexts = &call->recorder->contexts;
    release_begin(call, primary_references(contexts, device), primary_of(contexts, device));
}

void contexts_reset_begin(struct record_call *call, CUdevice device) {
    call->released = NULL;
    begin(call, primary_of(&call->recorder->contexts, device));
}

static void close_record(struct recorder *recorder, uint16_t number) {
    struct contexts *contexts = &recorder->contexts;
    struct trace_context *record = load_acquire(&contexts->records[number - 1]);
    if (record)
        store_relaxed(&record->destroyed_ns, trace_now(&recorder->trace));
    store_relaxed(&contexts->references[number - 1], 0u);
    /* Pairs with the swap in take. */
    store_release(&contexts->handles[number - 1], CONTEXTS_ENDED);
}

void contexts_end(struct record_call *call, CUresult code) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    if (code != CUDA_SUCCESS && call->released)
        add_relaxed(call->released, 1u);
    if (call->ending) {
        table_walk(&recorder->table, TRACE_SLOT_FREEING,
                   code == CUDA_SUCCESS ? erase_one : unmark_one, call);
        if (code == CUDA_SUCCESS) {
            handles_context_ended(call);
            close_record(recorder, call->ending);
        } else {
            store_release(&recorder->contexts.handles[call->ending - 1], call->key);
        }
    }
    errno = saved;
}
