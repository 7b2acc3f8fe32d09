#include "reuse.h"

#include "atomic.h"

void reuse_ended(struct reuse *reuse, uint32_t ref) {
    /* An older one that nobody has taken yet is forgotten: it stays in the file as it is. */
    store_release(&reuse->refs[add_acq_rel(&reuse->ended, 1) % REUSE_SLOTS], ref);
}

/* The ref of a record to write anew; 0: none yet. */
static uint32_t take(struct reuse *reuse) {
    uint64_t taken = load_relaxed(&reuse->taken);
    if (load_acquire(&reuse->ended) - taken <= REUSE_KEPT)
        return 0;
    if (!cas_acq_rel(&reuse->taken, &taken, taken + 1))
        return 0; /* another thread has it; this one's record is appended */
    /* 0 while its place is being written, just now: that record is forgotten, too. */
    return exchange_relaxed(&reuse->refs[taken % REUSE_SLOTS], 0u);
}

void *reuse_record(struct reuse *reuse, struct trace_writer *trace, enum trace_section section,
                   uint32_t bytes) {
    uint32_t ref = take(reuse), *state = ref ? trace_at(trace, ref) : NULL;
    if (!ref) {
        state = trace_append(trace, section, bytes, bytes);
        if (!state)
            trace_lose(trace, TRACE_LOSS_RECORDS_FULL, 1);
        return state;
    }
    store_release(state, 0u); /* not to be read until it is written anew */
    return state;
}
