/*
 * What the rules that make findings share: how a finding is added and filled. Each rule looks at
 * the whole job and adds what it finds. Called by findings.c, which has the table of rules; one
 * thread.
 */
#ifndef TOOLS_FINDING_RULES_H
#define TOOLS_FINDING_RULES_H

#include "findings.h"

struct inquiry {
    const struct view *view;
    struct findings *findings;
    bool failed; /* memory was exhausted */
};

typedef void finding_rule(struct inquiry *inquiry);

/* finding_rules_sites.c: of places in the program */
finding_rule find_growing, find_saturating, find_retained, find_late, find_unfreed, find_spikes,
    find_near_capacity, find_libraries, find_storms, find_opaque_pools;
/* finding_rules_failures.c: of calls that failed */
finding_rule find_failures, find_lost_frees;
/* finding_rules_space.c: of devices, pools, caches, contexts and code */
finding_rule find_growing_caches, find_low_reuse, find_rounding, find_pool_slack, find_holes,
    find_unclosed, find_held_unmapped, find_graph_memory, find_contexts, find_growing_modules,
    find_rounded_host;

/* An empty one, certain, without device; never NULL: where memory is exhausted, a spare. */
struct finding *finding_add(struct inquiry *inquiry, enum finding_id id, enum severity severity,
                            uint64_t bytes);
void finding_say(struct finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* appends */
void finding_evidence(struct finding *finding, const char *key, enum evidence_unit unit,
                      double value);
/* Names a row as one of its sites. */
void finding_site(struct finding *finding, const struct view_row *row);
void finding_stack(struct finding *finding, const struct backtrace *backtrace, unsigned ledger,
                   unsigned kind);

/* "train_step (leak.c:68)", "a place that is not known". */
#define PLACE_BYTES 320
char *finding_place(const struct view_row *row, char out[PLACE_BYTES]);
char *finding_place_of(const struct backtrace *backtrace, char out[PLACE_BYTES]);

/* The rows by line, the largest first; false: memory is exhausted, which is noted. */
bool finding_rows(struct inquiry *inquiry, enum measure sort, int ledger, struct view_rows *rows);

/* The fields that tell what advice fits; in advice.c. */
void advice_attach(const struct inquiry *inquiry, struct finding *finding);

#endif
