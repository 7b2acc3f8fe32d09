#include "failures.h"

#include <errno.h>

#include "atomic.h"
#include "limits.h"
#include "record.h"

#define COPY_EVERY_NS 100000000u /* of the live table, at most so often ... */
#define COPY_SHARE    32         /* ... none larger than this part of the largest trace ... */
#define COPIES_SHARE  4          /* ... and all of them no larger than this one */

enum { KEY_FREE = 0, KEY_BUSY = 1, KEY_LEAST = 2 };
enum { WATCH_FREE = 0, WATCH_BUSY, WATCH_OPEN };

/* Before a record is written anew; pairs with the reader: what is half overwritten is not there. */
static void unpublish(uint32_t *state) {
    uint32_t published = 1;
    cas_acq_rel(state, &published, 0u);
}

/* ---- what is free ---------------------------------------------------------------------------- */

static uint64_t events_of(struct recorder *recorder, uint16_t device, uint64_t *live) {
    const struct trace_total *total = load_acquire(sites_total_place(
        &recorder->sites, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, device)); /* see add_total */
    *live = total ? load_relaxed(&total->live_bytes) : 0;
    return total ? load_relaxed(&total->allocs) + load_relaxed(&total->frees) : 0;
}

/* Of two threads at once, one is enough. */
static void note_free(struct recorder *recorder, uint16_t device, uint64_t free_bytes,
                      uint64_t total_bytes) {
    struct failure_free *told = &recorder->failures.told[device];
    struct trace_device *record = &recorder->trace.header->devices[device];
    uint32_t idle = 0;
    uint64_t live;
    if (!cas_acq_rel(&told->writing, &idle, 1u))
        return;
    uint64_t events = events_of(recorder, device, &live);
    store_relaxed(&record->free_ns, 0);
    /* Release: who sees one of these sees no time; pairs with the reader. */
    store_release(&record->free_bytes, free_bytes);
    store_release(&record->free_live_bytes, live);
    store_release(&record->free_ns, trace_now(&recorder->trace));
    store_relaxed(&told->total_bytes, total_bytes);
    store_release(&told->events, events + 1); /* pairs with recall_free */
    store_release(&told->writing, 0u);
}

void failures_told(struct record_call *call, CUresult code, size_t *free_bytes, size_t *total) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    uint16_t device =
        code == CUDA_SUCCESS ? record_device_if_known(recorder) : (uint16_t)TRACE_DEVICE_UNKNOWN;
    if (device < TRACE_DEVICES && free_bytes && total)
        note_free(recorder, device, *free_bytes, *total);
    if (device < TRACE_DEVICES)
        limits_show(recorder, device, free_bytes, total);
    errno = saved;
}

static void set_free(struct recorder *recorder, struct trace_failure *failure, size_t free_bytes,
                     size_t total) {
    limits_show(recorder, failure->device, &free_bytes, &total);
    failure->free_bytes = free_bytes;
    failure->total_bytes = total;
    failure->flags |= TRACE_FAILURE_FREE_KNOWN;
}

/* Of the current device, for which alone the driver answers. */
static void ask_free(struct recorder *recorder, struct trace_failure *failure) {
    size_t free_bytes, total;
    if (!driver.cuMemGetInfo_v2 || failure->device >= TRACE_DEVICES ||
        !graphs_capture_hold_off(&recorder->graphs))
        return;
    CUresult code = driver.cuMemGetInfo_v2(&free_bytes, &total);
    graphs_capture_go_on(&recorder->graphs);
    if (code != CUDA_SUCCESS)
        return;
    note_free(recorder, failure->device, free_bytes, total);
    set_free(recorder, failure, free_bytes, total);
}

/* What was last told still holds if nothing was taken or given back since: PyTorch's report follows
   the driver's refusal, and its own question. */
static void recall_free(struct recorder *recorder, struct trace_failure *failure) {
    uint64_t live;
    if (failure->device >= TRACE_DEVICES)
        return;
    struct failure_free *told = &recorder->failures.told[failure->device];
    uint64_t events = load_acquire(&told->events); /* pairs with note_free */
    if (events && events == events_of(recorder, failure->device, &live) + 1)
        set_free(recorder, failure,
                 load_relaxed(&recorder->trace.header->devices[failure->device].free_bytes),
                 load_relaxed(&told->total_bytes));
}

/* ---- copies of the live table ---------------------------------------------------------------- */

static struct trace_copy *copy_at(struct trace_writer *trace, const struct failure_copy *place) {
    return (struct trace_copy *)(trace->base + place->region->offset);
}

static uint64_t slots_in(const struct trace_region *region) {
    return region ? (region->bytes - offsetof(struct trace_copy, slots)) / sizeof(struct trace_slot)
                  : 0;
}

/* From now on the place holds no copy. */
static void clear_copy(struct trace_writer *trace, const struct failure_copy *place) {
    struct trace_copy *copy = copy_at(trace, place);
    uint32_t ref = trace_ref(trace, copy);
    cas_acq_rel(&place->of->copy, &ref, 0u);
    unpublish(&copy->state);
}

/* Room for so many slots, and some more for threads that go on meanwhile. */
static bool make_room(struct recorder *recorder, struct failure_copy *place, uint64_t slots) {
    struct failures *failures = &recorder->failures;
    struct trace_writer *trace = &recorder->trace;
    uint64_t wanted = slots + slots / 16 + 64;
    uint64_t bytes = offsetof(struct trace_copy, slots) + wanted * sizeof(struct trace_slot);
    if (wanted <= slots_in(place->region))
        return true;
    if (bytes > trace->max_bytes / COPY_SHARE ||
        failures->copied_bytes + bytes > trace->max_bytes / COPIES_SHARE)
        return false;
    struct trace_region *region = trace_add_region(trace, TRACE_SECTION_FAILURE_COPIES, bytes, 0);
    if (!region)
        return false;
    failures->copied_bytes += region->bytes;
    place->region = region;
    return true;
}

static bool write_copy(struct recorder *recorder, struct failure_copy *place,
                       struct trace_failure *failure, uint64_t ns) {
    struct trace_writer *trace = &recorder->trace;
    if (place->of)
        clear_copy(trace, place);
    place->of = NULL;
    if (!make_room(recorder, place, table_copy(&recorder->table, NULL, 0)))
        return false;
    struct trace_copy *copy = copy_at(trace, place);
    uint64_t room = slots_in(place->region);
    uint64_t count = table_copy(&recorder->table, copy->slots, room);
    if (count > room)
        return false;
    copy->failure = trace_ref(trace, failure);
    copy->ns = ns;
    copy->count = count;
    store_relaxed(&place->region->claimed,
                  offsetof(struct trace_copy, slots) + count * sizeof(struct trace_slot));
    store_release(&copy->state, 1u); /* pairs with the reader */
    store_release(&failure->copy, trace_ref(trace, copy));
    place->of = failure;
    return true;
}

static struct failure_copy *next_place(struct failures *failures) {
    uint32_t first = FAILURES_COPIES - FAILURES_LATEST, n = failures->copied;
    return &failures->copies[n < first ? n : first + (n - first) % FAILURES_LATEST];
}

/* One thread at a time; what comes meanwhile, or too soon after, has no copy. */
static void copy_table(struct recorder *recorder, struct trace_failure *failure, uint64_t ns) {
    struct failures *failures = &recorder->failures;
    uint32_t idle = 0;
    bool done = false;
    if (cas_acq_rel(&failures->copying, &idle, 1u)) {
        bool due = !failures->copied || ns - failures->copied_ns >= COPY_EVERY_NS;
        done = due && write_copy(recorder, next_place(failures), failure, ns);
        if (done) {
            failures->copied++;
            failures->copied_ns = ns;
        }
        store_release(&failures->copying, 0u);
    }
    trace_count(&recorder->trace, TRACE_COUNTER_COPIES_LEFT_OUT, !done);
}

/* ---- what comes after ------------------------------------------------------------------------ */

static bool is_own(const struct failure_watch *watch) {
    return load_acquire(&watch->state) == WATCH_OPEN &&
           load_relaxed(&watch->thread) == record_thread();
}

/* One that is free; else the next one loses its place, so that threads which ended keep none. */
static struct failure_watch *claim_watch(struct recorder *recorder) {
    struct failures *failures = &recorder->failures;
    struct failure_watch *watch;
    uint32_t state;
    for (int i = 0; i < FAILURES_WATCHED; i++) {
        watch = &failures->watches[i];
        state = WATCH_FREE;
        if (load_relaxed(&watch->state) == WATCH_FREE &&
            cas_acq_rel(&watch->state, &state, (uint32_t)WATCH_BUSY)) {
            add_relaxed(&recorder->attention, 1);
            return watch;
        }
    }
    watch = &failures->watches[add_relaxed(&failures->replaced, 1) % FAILURES_WATCHED];
    state = WATCH_OPEN;
    return cas_acq_rel(&watch->state, &state, (uint32_t)WATCH_BUSY) ? watch : NULL;
}

/* A failure that repeats itself in its thread is watched from the first time on. */
static void begin_watch(struct recorder *recorder, struct trace_failure *failure,
                        const struct trace_failure *what) {
    struct failures *failures = &recorder->failures;
    for (int i = 0; i < FAILURES_WATCHED; i++)
        if (is_own(&failures->watches[i]) &&
            load_relaxed(&failures->watches[i].record) == failure &&
            load_relaxed(&failures->watches[i].request) == what->request_bytes)
            return;
    struct failure_watch *watch = claim_watch(recorder);
    if (!watch)
        return;
    store_relaxed(&watch->ledger, what->ledger);
    store_relaxed(&watch->group, (uint8_t)sites_group(what->kind));
    store_relaxed(&watch->device, what->device);
    store_relaxed(&watch->thread, record_thread());
    store_relaxed(&watch->request, what->request_bytes);
    store_relaxed(&watch->ns, what->ns);
    store_relaxed(&watch->freed_bytes, 0);
    store_relaxed(&watch->record, failure);
    store_release(&watch->state, (uint32_t)WATCH_OPEN); /* pairs with is_own */
}

static bool concerns(const struct failure_watch *watch, const struct trace_site *site) {
    return load_acquire(&watch->state) == WATCH_OPEN &&
           load_relaxed(&watch->group) == sites_group(site->kind) &&
           load_relaxed(&watch->device) == site->device;
}

static bool is_retry(const struct failure_watch *watch, const struct trace_site *site,
                     uint64_t bytes) {
    return load_relaxed(&watch->ledger) == TRACE_LEDGER_DRIVER &&
           site->ledger == TRACE_LEDGER_DRIVER && load_relaxed(&watch->request) == bytes &&
           load_relaxed(&watch->freed_bytes);
}

static void close_watch(struct recorder *recorder, struct failure_watch *watch) {
    uint32_t open = WATCH_OPEN;
    if (cas_acq_rel(&watch->state, &open, (uint32_t)WATCH_FREE))
        add_relaxed(&recorder->attention, (uint32_t)-1);
}

/* A chain of failures that ended in one success is one flush and retry, told by its first. */
static void count_retry(struct trace_writer *trace, uint64_t freed, uint64_t since, uint64_t ns) {
    trace_count(trace, TRACE_COUNTER_FLUSH_RETRIES, 1);
    trace_count(trace, TRACE_COUNTER_FLUSH_RETRY_BYTES, freed);
    trace_count(trace, TRACE_COUNTER_FLUSH_RETRY_NS, ns - since);
}

void failures_took(struct recorder *recorder, const struct trace_site *site, uint64_t bytes,
                   uint64_t ns) {
    struct failures *failures = &recorder->failures;
    uint64_t freed = 0, since = ns;
    for (int i = 0; i < FAILURES_WATCHED; i++) {
        struct failure_watch *watch = &failures->watches[i];
        if (!concerns(watch, site))
            continue;
        struct trace_failure *failure = load_relaxed(&watch->record);
        /* The watch of another thread may be about another failure by now: its time tells. */
        if (ns >= load_relaxed(&failure->last_ns))
            or_relaxed(&failure->flags, (uint32_t)TRACE_FAILURE_HANDLED);
        if (!is_own(watch))
            continue;
        if (is_retry(watch, site, bytes)) {
            uint64_t mine = load_relaxed(&watch->freed_bytes), began = load_relaxed(&watch->ns);
            store_relaxed(&failure->freed_bytes, mine);
            store_relaxed(&failure->retry_ns, ns);
            freed = mine > freed ? mine : freed;
            since = began < since ? began : since;
        }
        close_watch(recorder, watch);
    }
    if (freed)
        count_retry(&recorder->trace, freed, since, ns);
}

void failures_gave(struct recorder *recorder, const struct trace_site *site, uint64_t bytes) {
    if (site->ledger != TRACE_LEDGER_DRIVER)
        return;
    for (int i = 0; i < FAILURES_WATCHED; i++) {
        struct failure_watch *watch = &recorder->failures.watches[i];
        if (concerns(watch, site) && is_own(watch))
            add_owned(&watch->freed_bytes, bytes);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

static uint32_t call_name(struct recorder *recorder, unsigned row, const char *name) {
    uint32_t *place = &recorder->failures.names[row];
    uint32_t ref = load_relaxed(place);
    if (!ref) {
        ref = trace_add_string(&recorder->trace, name);
        store_relaxed(place, ref);
    }
    return ref;
}

static void add_moment(struct record_call *call, struct trace_failure *what) {
    what->ns = what->last_ns = trace_now(&call->recorder->trace);
    what->last_request_bytes = what->request_bytes;
    what->last_free_bytes = what->free_bytes;
    struct stack_refs stack = record_stack(call, what->ns);
    what->native_stack = stack.native;
    what->python_stack = stack.python;
}

/* Its first word is 0. */
static void publish(struct trace_failure *failure, const struct trace_failure *what) {
    *failure = *what;
    store_release(&failure->state, 1u); /* pairs with the reader */
}

static struct trace_failure *new_record(struct recorder *recorder) {
    struct trace_failure *failure =
        trace_append(&recorder->trace, TRACE_SECTION_FAILURES, sizeof *failure, sizeof *failure);
    if (!failure)
        trace_lose(&recorder->trace, TRACE_LOSS_RATE_LIMITED, 1);
    return failure;
}

static uint64_t mix(uint64_t x, uint64_t more) {
    x = (x ^ more) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

/* Failures of one key are alike: call, code, flags, stack, device and the size's power of two. */
static uint64_t key_of(const struct trace_failure *what) {
    uint64_t key = mix(what->call, (uint64_t)what->native_stack << 32 | what->python_stack);
    key = mix(key, (uint64_t)(uint32_t)what->code << 32 | what->device);
    key = mix(key, (uint64_t)what->ledger << 32 | (uint64_t)what->kind << 24 | what->flags);
    key = mix(key, (uint64_t)__builtin_clzll(what->request_bytes | 1));
    return key < KEY_LEAST ? KEY_LEAST : key;
}

static struct trace_failure *find_alike(struct failures *failures, uint64_t key) {
    for (int i = 0; i < FAILURES_KEPT; i++)
        if (load_acquire(&failures->kinds[i].key) == key) /* pairs with add_kind */
            return failures->kinds[i].record;
    return NULL;
}

/* The latest of them has not been got over yet. */
static void repeat(struct trace_failure *failure, const struct trace_failure *what) {
    store_relaxed(&failure->last_ns, what->ns);
    and_relaxed(&failure->flags, ~(uint32_t)TRACE_FAILURE_HANDLED);
    store_relaxed(&failure->retry_ns, 0);
    store_relaxed(&failure->freed_bytes, 0);
    store_relaxed(&failure->last_request_bytes, what->request_bytes);
    store_relaxed(&failure->last_free_bytes, what->free_bytes);
    add_relaxed(&failure->repeats, 1);
}

/* Claims a place whose record may be written; NULL: another thread was faster. */
static struct failure_kind *claim_kind(struct recorder *recorder) {
    struct failures *failures = &recorder->failures;
    struct failure_kind *kind;
    for (int i = 0; i < FAILURES_KEPT; i++) {
        uint64_t unused = KEY_FREE;
        kind = &failures->kinds[i];
        if (load_relaxed(&kind->key) == KEY_FREE &&
            cas_acq_rel(&kind->key, &unused, (uint64_t)KEY_BUSY))
            return kind;
    }
    uint32_t turn = add_relaxed(&failures->rolled, 1) % FAILURES_ROLLING;
    kind = &failures->kinds[FAILURES_KEPT - FAILURES_ROLLING + turn];
    uint64_t key = load_relaxed(&kind->key);
    trace_lose(&recorder->trace, TRACE_LOSS_RATE_LIMITED, 1);
    return key != KEY_BUSY && cas_acq_rel(&kind->key, &key, (uint64_t)KEY_BUSY) ? kind : NULL;
}

static struct trace_failure *add_kind(struct recorder *recorder, uint64_t key,
                                      const struct trace_failure *what) {
    struct failure_kind *kind = claim_kind(recorder);
    if (!kind)
        return NULL;
    if (kind->record) {
        trace_lose(&recorder->trace, TRACE_LOSS_RATE_LIMITED, load_relaxed(&kind->record->repeats));
        unpublish(&kind->record->state);
    } else {
        kind->record = new_record(recorder);
    }
    if (kind->record)
        publish(kind->record, what);
    store_release(&kind->key, kind->record ? key : (uint64_t)KEY_FREE); /* pairs with find_alike */
    return kind->record;
}

/* Two threads may both be the first to meet a kind: it then has two records. */
static void add(struct record_call *call, struct trace_failure *what) {
    struct recorder *recorder = call->recorder;
    trace_count(&recorder->trace, TRACE_COUNTER_FAILED_ALLOCS, what->ledger == TRACE_LEDGER_DRIVER);
    add_moment(call, what);
    uint64_t key = key_of(what);
    struct trace_failure *failure = find_alike(&recorder->failures, key);
    if (failure)
        repeat(failure, what);
    else
        failure = add_kind(recorder, key, what);
    if (!failure)
        return;
    if (what->code == CUDA_ERROR_OUT_OF_MEMORY)
        copy_table(recorder, failure, what->ns);
    begin_watch(recorder, failure, what);
}

/* ---- what was refused ------------------------------------------------------------------------ */

static struct trace_failure describe(struct record_call *call, enum trace_kind kind,
                                     uint16_t device, CUresult code, uint64_t bytes) {
    return (struct trace_failure){
        .call = call_name(call->recorder, call->row, resolve_names[call->row]),
        .code = code,
        .ledger = TRACE_LEDGER_DRIVER,
        .kind = (uint8_t)kind,
        .device = device,
        .request_bytes = bytes,
    };
}

static void add_block(struct record_call *call, struct trace_failure *failure, bool current) {
    struct recorder *recorder = call->recorder;
    if (limits_failed(recorder))
        failure->flags |= TRACE_FAILURE_PRETENDED;
    if (failure->code == CUDA_ERROR_OUT_OF_MEMORY) {
        if (current || record_device_if_known(recorder) == failure->device)
            ask_free(recorder, failure);
        pools_sample_all(recorder);
    }
    add(call, failure);
}

void failures_block(struct record_call *call, enum trace_kind kind, uint16_t device, CUresult code,
                    uint64_t request) {
    int saved = errno;
    struct trace_failure failure = describe(call, kind, device, code, request);
    add_block(call, &failure, false);
    errno = saved;
}

void failures_alloc(struct record_call *call, enum trace_kind kind, CUresult code,
                    uint64_t request) {
    int saved = errno;
    struct trace_failure failure = describe(
        call, kind,
        record_is_host(kind) ? (uint16_t)TRACE_DEVICE_HOST : record_current_device(call->recorder),
        code, request);
    add_block(call, &failure, true);
    errno = saved;
}

void failures_tensor(struct record_call *call, const char *name, uint64_t request,
                     uint16_t device) {
    int saved = errno;
    struct trace_failure failure = {
        .flags = TRACE_FAILURE_FRAMEWORK,
        .call = call_name(call->recorder, ROW_COUNT, name),
        .code = CUDA_ERROR_OUT_OF_MEMORY,
        .ledger = TRACE_LEDGER_TENSOR,
        .kind = TRACE_KIND_TENSOR,
        .device = device,
        .request_bytes = request,
    };
    recall_free(call->recorder, &failure);
    add(call, &failure);
    errno = saved;
}

/* One record for each call and code: a program that tries for ever does not hide what matters. */
void failures_call(struct record_call *call, enum trace_kind kind, CUresult code, uint64_t bytes) {
    struct recorder *recorder = call->recorder;
    struct trace_failure **calls = recorder->failures.calls;
    int saved = errno;
    struct trace_failure what = describe(call, kind,
                                         record_is_host(kind) ? (uint16_t)TRACE_DEVICE_HOST
                                                              : record_device_if_known(recorder),
                                         code, bytes);
    for (int i = 0; i < FAILURES_CALLS; i++) {
        struct trace_failure *known = load_acquire(&calls[i]); /* pairs with the swap */
        if (known && (known->call != what.call || known->code != code))
            continue;
        struct trace_failure *none = NULL, *mine = known ? NULL : new_record(recorder);
        if (mine) {
            add_moment(call, &what);
            publish(mine, &what);
            cas_acq_rel(&calls[i], &none, mine);
        } else if (known) {
            store_relaxed(&known->last_ns, trace_now(&recorder->trace));
            add_relaxed(&known->repeats, 1);
        }
        errno = saved;
        return;
    }
    trace_lose(&recorder->trace, TRACE_LOSS_RATE_LIMITED, 1);
    errno = saved;
}

/* Frees during the driver's shutdown fail in every program that leaves them to destructors. */
void failures_free(struct record_call *call, CUresult code) {
    trace_lose(&call->recorder->trace, TRACE_LOSS_FAILED_FREES, 1);
    if (code != CUDA_ERROR_DEINITIALIZED)
        failures_call(call, 0, code, call->mark.bytes);
}
