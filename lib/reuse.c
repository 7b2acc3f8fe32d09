#include "reuse.h"

#include "atomic.h"

void reuse_ended(struct reuse *reuse, uint32_t ref) {
    /* An older one that nobody has taken yet is forgotten: it stays in the file as it is. */
    store_release(&reuse->refs[add_acq_rel(&reuse->ended, 1) % REUSE_SLOTS], ref);
}

uint32_t reuse_take(struct reuse *reuse) {
    uint64_t taken = load_relaxed(&reuse->taken);
    if (load_acquire(&reuse->ended) - taken <= REUSE_KEPT)
        return 0;
    if (!cas_acq_rel(&reuse->taken, &taken, taken + 1))
        return 0; /* another thread has it; this one's record is appended */
    /* 0 while its place is being written, just now: that record is forgotten, too. */
    return exchange_relaxed(&reuse->refs[taken % REUSE_SLOTS], 0u);
}
