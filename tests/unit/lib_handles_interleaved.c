/*
 * References to the memory of another process under interleavings of our choosing: whoever opens
 * what another thread is just closing for the last time still has it in the books. See
 * interleave.h.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define handles_access_set      stepped_handles_access_set
#define handles_close_begin     stepped_handles_close_begin
#define handles_close_end       stepped_handles_close_end
#define handles_context_ended   stepped_handles_context_ended
#define handles_created         stepped_handles_created
#define handles_decide          stepped_handles_decide
#define handles_imported        stepped_handles_imported
#define handles_init            stepped_handles_init
#define handles_mapped          stepped_handles_mapped
#define handles_multicast       stepped_handles_multicast
#define handles_note            stepped_handles_note
#define handles_opened          stepped_handles_opened
#define handles_release_begin   stepped_handles_release_begin
#define handles_release_end     stepped_handles_release_end
#define handles_reserved        stepped_handles_reserved
#define handles_retained        stepped_handles_retained
#define handles_segment         stepped_handles_segment
#define handles_unmap_begin     stepped_handles_unmap_begin
#define handles_unmap_end       stepped_handles_unmap_end
#define handles_unreserve_begin stepped_handles_unreserve_begin
#define handles_unreserve_end   stepped_handles_unreserve_end

#define STEPPED(name) handles_stepped_##name
#include "stepped_table.h"

#include "record.h"

#include "config.h"
#include "interleave.h"

/* Stops before each step on the table, too: it is compiled again, with names of its own. */
#undef load_acquire
#undef load_seq_cst
#undef exchange_seq_cst
#undef cas_acq_rel
#define load_acquire(p)        (stop(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define load_seq_cst(p)        (stop(), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define exchange_seq_cst(p, v) (stop(), __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
#define cas_acq_rel(p, expected, desired)                                                          \
    (stop(), __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_ACQ_REL,      \
                                         __ATOMIC_ACQUIRE))
#define record_alloc(...) (stop(), record_alloc(__VA_ARGS__))
#include "../../lib/table.c"

#include "../../lib/handles.c"

#define ADDRESS 0x7f0000000000ull
#define ROUNDS  2000 /* short ones: at the end of each the books must be empty */

static char path[64];
static struct recorder *recorder;
static uint64_t left;
static unsigned references; /* the driver's own count */

static CUresult no_context(CUcontext *context) {
    *context = NULL;
    return CUDA_SUCCESS;
}

static void open_memory(struct record_call *call) {
    CUdeviceptr address = ADDRESS;
    stop();
    references++;
    stop();
    stepped_handles_opened(call, CUDA_SUCCESS, &address);
}

static void close_memory(struct record_call *call) {
    stepped_handles_close_begin(call, ADDRESS);
    stop();
    references--;
    stop();
    stepped_handles_close_end(call, CUDA_SUCCESS, ADDRESS);
}

static void body(void) {
    struct record_call call = {.recorder = recorder};
    int me = running, held = 0;
    while (left) {
        left--;
        if (held && next_random() & 1) {
            held--;
            close_memory(&call);
        } else if (held < 2) {
            held++;
            open_memory(&call);
        }
    }
    while (held--)
        close_memory(&call);
    finished[me] = true;
}

/* One more reference than the driver has at the end, so that there is something to be lost. */
static void leave_one_open(void) {
    struct record_call call = {.recorder = recorder};
    open_memory(&call);
}

static void begin(void) {
    void *header = calloc(1, TRACE_HEADER_BYTES);
    recorder = calloc(1, sizeof *recorder);
    snprintf(path, sizeof path, "/tmp/cuheap-handles-%d.trace", getpid());
    cr_assert_eq(trace_create(&recorder->trace, path, 0600, 4 << 20, header), 0);
    cr_assert(record_init(recorder, CONFIG_STACKS_NONE, 64));
    free(header);
    unlink(path);
    driver.cuCtxGetCurrent = no_context;
    references = 0;
}

static uint64_t booked(uint64_t *count) {
    struct table_mark block = table_live(&recorder->table, TRACE_SPACE_IPC, ADDRESS);
    struct table_mark counted = table_live(&recorder->handles.counted, TRACE_SPACE_IPC, ADDRESS);
    *count = counted.slot ? table_count(&counted) : 0;
    return block.slot != NULL;
}

Test(handles_interleaved, who_opens_while_the_last_one_closes_is_not_forgotten) {
    uint64_t count;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        seed = round;
        begin();
        left = 5 + round % 50;
        run_all(body);
        cr_assert_eq(references, 0);
        cr_assert_eq(booked(&count), 0, "round %lu", round);
        cr_assert_eq(count, 0, "round %lu", round);
        cr_assert_eq(recorder->trace.header->losses[TRACE_LOSS_UNKNOWN_FREES], 0,
                     "round %lu: a close of what was opened is known", round);
        leave_one_open();
        cr_assert_eq(booked(&count), 1);
        cr_assert_eq(count, 1);
        munmap(recorder->trace.base, recorder->trace.max_bytes);
        free(recorder);
    }
}
