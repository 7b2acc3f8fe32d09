#include "reconcile.h"

static void add_site(struct reconciliation *sum, const struct profile_site *site) {
    if (site->ledger == TRACE_LEDGER_TENSOR) {
        sum->tensors = true;
        sum->allocated += site->end_of_work_bytes;
        sum->tensor_allocs += site->allocs;
        return;
    }
    if (trace_kind_group(site->kind) != TRACE_GROUP_DEVICE)
        return;
    sum->driver += site->end_of_work_bytes;
    if (site->flags & TRACE_SITE_SEGMENT) {
        sum->segments = true;
        sum->reserved += site->end_of_work_bytes;
        sum->segment_allocs += site->allocs;
    } else if (site->kind == TRACE_KIND_POOL) {
        sum->pools += site->end_of_work_bytes;
    }
}

void reconcile(struct reconciliation *sum, const struct profile *profile, unsigned ordinal) {
    for (size_t i = 0; i < profile->site_count; i++)
        if (profile->sites[i].device == ordinal)
            add_site(sum, &profile->sites[i]);
    sum->cached = (int64_t)(sum->reserved - sum->allocated);
    sum->other = sum->driver - sum->reserved - sum->pools;
}

bool reconcile_reuse_rate(const struct reconciliation *sum, double *rate) {
    if (!sum->tensors || !sum->segments || !sum->tensor_allocs)
        return false;
    *rate = 1 - (double)sum->segment_allocs / (double)sum->tensor_allocs;
    return true;
}
