/*
 * Pretended capacity and failures: CUHEAP_LIMIT makes a device look smaller, CUHEAP_FAIL refuses
 * chosen allocations. The only part of cuheap that answers the program in the driver's place.
 *
 * config hands the texts over when the library is loaded. interpose asks before the driver is
 * asked, record tells what was taken and given back; any thread, no locks. Unset, each of them
 * costs one branch.
 *
 * Capacity counts what the driver ledger's device total counts: pools by what is used of them. What
 * is asked for is set aside before the driver is asked, so that threads together cannot take more.
 * Memory of a graph's nodes is counted and not refused; managed and host memory are not counted.
 */
#ifndef CUHEAP_LIMITS_H
#define CUHEAP_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "cuheap/trace_format.h"

#define LIMITS_NUMBERS 32
#define LIMITS_TEXT    128

struct record_call;
struct recorder;

enum limits_choice { LIMITS_NONE, LIMITS_LIST, LIMITS_EVERY, LIMITS_CHANCE };

struct limits_settings {
    uint64_t capacity[TRACE_DEVICES]; /* bytes; 0: as large as it is */
    enum limits_choice choice;        /* which allocations fail, counted from 1 */
    uint32_t count;
    uint64_t numbers[LIMITS_NUMBERS]; /* LIST: these; EVERY: multiples of the first */
    uint64_t chance;                  /* CHANCE: of 2^32 */
    uint64_t seed;
    char capacity_text[LIMITS_TEXT]; /* as they were set; empty: not */
    char choice_text[LIMITS_TEXT];
};
extern struct limits_settings limits_settings;
extern bool limits_active; /* constant once the settings were read */

/* What belongs to one process. */
struct limits {
    uint64_t taken[TRACE_DEVICES]; /* of devices with a pretended capacity, and set aside */
    uint64_t asked;                /* allocations so far */
};

/* ---- settings -------------------------------------------------------------------------------- */

void limits_reset(void);
/* "8GiB", or by device "0:8GiB,1:16GiB". False: not understood, and nothing is changed. */
bool limits_read_capacity(const char *text);
/* "3", "3,7", "every:10", "p:0.01", "p:0.01,42" or "p:0.01,seed=42": the same ones in each run. */
bool limits_read_choice(const char *text);

/* Does allocation `number` fail by the settings? */
bool limits_chosen(uint64_t number);

/* The sentence for the trace; bytes: at least 2 * LIMITS_TEXT + 128. */
void limits_note(char *text, size_t bytes);

/* ---- around a call --------------------------------------------------------------------------- */

bool limits_decide(struct record_call *call, enum trace_kind kind, uint16_t device, uint64_t bytes);

/* Is this allocation to fail before the driver is asked? device: or RECORD_DEVICE_CURRENT. */
static inline bool limits_refuse(struct record_call *call, enum trace_kind kind, uint16_t device,
                                 uint64_t bytes) {
    return __builtin_expect(limits_active, 0) && limits_decide(call, kind, device, bytes);
}

/* After a failure: what was set aside is not needed. True: it was ours. */
bool limits_failed(struct recorder *recorder);

/* A block was booked at that site, or its end. */
void limits_took(struct recorder *recorder, const struct trace_site *site, uint64_t bytes);
void limits_gave(struct recorder *recorder, const struct trace_site *site, uint64_t bytes);

/* ---- answers --------------------------------------------------------------------------------- */

/* Makes what the driver said of a device agree with its pretended capacity; either may be NULL. */
void limits_show(struct recorder *recorder, uint16_t device, size_t *free_bytes, size_t *total);
void limits_show_total(CUresult code, CUdevice device, size_t *total);

#endif
