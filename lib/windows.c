#include "windows.h"

static uint32_t shift_for(uint64_t ns, uint32_t count) {
    int bits = 64 - __builtin_clzll(ns | 1);
    int shift = bits - __builtin_ctz(count);
    return shift < TRACE_WINDOW_SHIFT_MIN ? TRACE_WINDOW_SHIFT_MIN : (uint32_t)shift;
}

static struct trace_window merged(const struct trace_window *a, const struct trace_window *b) {
    return (struct trace_window){
        .min_bytes = a->min_bytes < b->min_bytes ? a->min_bytes : b->min_bytes,
        .max_bytes = a->max_bytes > b->max_bytes ? a->max_bytes : b->max_bytes,
        .last_bytes = b->last_bytes,
        .allocs = a->allocs + b->allocs,
        .frees = a->frees + b->frees,
    };
}

/* Doubles the width. */
static void fold(const struct windows *w) {
    uint32_t current = *w->current, half = current / 2;
    for (uint32_t i = 0; i <= half; i++) {
        const struct trace_window *a = &w->window[2 * i];
        w->window[i] = 2 * i + 1 <= current ? merged(a, a + 1) : *a;
    }
    for (uint32_t i = half + 1; i <= current; i++)
        w->window[i] = (struct trace_window){0};
    *w->current = half;
    ++*w->shift;
}

static void advance(const struct windows *w, uint64_t ns, uint64_t live) {
    uint32_t shift = shift_for(ns, w->count);
    if (!*w->shift) { /* born now: nothing was live before */
        *w->shift = shift;
        *w->current = (uint32_t)(ns >> shift);
        return;
    }
    while (*w->shift < shift)
        fold(w);
    uint32_t at = (uint32_t)(ns >> *w->shift);
    while (*w->current < at)
        w->window[++*w->current] = (struct trace_window){live, live, live, 0, 0};
}

void windows_change(const struct windows *w, uint64_t ns, uint64_t before, uint64_t after,
                    uint32_t allocs, uint32_t frees) {
    advance(w, ns, before);
    struct trace_window *now = &w->window[*w->current];
    if (after < now->min_bytes)
        now->min_bytes = after;
    if (after > now->max_bytes)
        now->max_bytes = after;
    now->last_bytes = after;
    now->allocs += allocs;
    now->frees += frees;
}
