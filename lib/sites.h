/*
 * Counters of each place in the program, and of each total.
 *
 * A site is one (ledger, kind, device, stack). record calls this for every event, after the live
 * table has changed; any thread, without locks: where two threads meet at one site, the second
 * leaves its change in the late_ counters and goes on.
 *
 * Live at the peak, without a copy: a total's peak bytes are the name of its latest peak, since
 * every new peak is higher. A site about to change, whose saved share belongs to an older peak,
 * first saves what it holds. Live at the end of work is kept the same way, each allocation of the
 * total being the end of work until the next.
 */
#ifndef CUHEAP_SITES_H
#define CUHEAP_SITES_H

#include <stdbool.h>
#include <stdint.h>

#include "atomic.h"
#include "cuheap/trace_format.h"
#include "index.h"
#include "trace_writer.h"

#define SITES_INDEX_BITS 18
#define SITES_RESERVE    16 /* (other) sites */

struct sites {
    struct trace_writer *trace;
    struct index index;
    struct trace_site *reserve; /* SITES_RESERVE records */
    /* By ledger, group, device; device TRACE_DEVICES is unknown, the one after it the host. */
    struct trace_total *totals[2][TRACE_GROUP_LIMIT][TRACE_DEVICES + 2];
};

struct site_key {
    uint8_t ledger;
    uint8_t kind;
    uint16_t device;
    uint32_t native_stack;
    uint32_t python_stack;
    uint32_t flags; /* TRACE_SITE_OTHER or 0 */
};

struct site_event {
    uint64_t ns;
    uint64_t bytes;
    bool alloc;
};

bool sites_init(struct sites *sites, struct trace_writer *trace);

/* The group that a kind counts in. */
static inline enum trace_group sites_group(unsigned kind) {
    static const uint8_t groups[TRACE_KIND_LIMIT] = {
#define X(number, name, text, group) [number] = TRACE_GROUP_##group,
        TRACE_KINDS(X)
#undef X
    };
    return groups[kind];
}

static inline struct trace_total **sites_total_place(struct sites *sites, unsigned ledger,
                                                     unsigned kind, uint16_t device) {
    unsigned number = device < TRACE_DEVICES        ? device
                      : device == TRACE_DEVICE_HOST ? TRACE_DEVICES + 1
                                                    : TRACE_DEVICES;
    return &sites->totals[ledger - 1][sites_group(kind)][number];
}

/* The site of a key; without room the (other) site of its ledger, kind and device; NULL: neither.
 */
struct trace_site *sites_get(struct sites *sites, const struct site_key *key);

/* Books an event at a site and its total. */
void sites_change(struct sites *sites, struct trace_site *site, const struct site_event *event);

#endif
