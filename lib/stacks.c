#include "stacks.h"

#include <string.h>

#include "atomic.h"

struct stack_key {
    uint64_t hash;
    const uint64_t *pcs;
    uint32_t depth;
    uint32_t flags;
    uint32_t remap;
};

static uint64_t hash_of(const uint64_t *pcs, unsigned depth, uint32_t seed) {
    uint64_t hash = 0x9e3779b97f4a7c15ull ^ seed;
    for (unsigned i = 0; i < depth; i++) {
        hash = (hash ^ pcs[i]) * 0xbf58476d1ce4e5b9ull;
        hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
}

static bool matches(const void *owner, uint32_t ref, const void *wanted) {
    const struct trace_native_stack *stack = trace_at(owner, ref);
    const struct stack_key *key = wanted;
    return stack->hash == key->hash && stack->depth == key->depth && stack->remap == key->remap &&
           stack->flags == key->flags &&
           !memcmp(stack->pcs, key->pcs, key->depth * sizeof *key->pcs);
}

bool stacks_init(struct stacks *stacks, struct trace_writer *trace, struct modules *modules,
                 uint32_t depth) {
    stacks->trace = trace;
    stacks->modules = modules;
    stacks->depth = depth < STACKS_DEPTH_MAX ? depth : STACKS_DEPTH_MAX;
    return index_init(&stacks->index, STACKS_INDEX_BITS);
}

/* Every object that the stack points into must be in the trace before the stack is. */
static void know_modules(struct modules *modules, const struct stack_key *key, uint64_t ns) {
    for (uint32_t i = 0; i < key->depth; i++)
        if (!modules_find(modules, key->pcs[i] - 1)) {
            modules_scan(modules, ns);
            return;
        }
}

static uint32_t add(struct stacks *stacks, const struct stack_key *key, uint64_t ns) {
    struct trace_writer *trace = stacks->trace;
    struct trace_native_stack *stack = NULL;
    know_modules(stacks->modules, key, ns);
    if (index_has_room(&stacks->index))
        stack = trace_append(
            trace, TRACE_SECTION_NATIVE_STACKS,
            (uint32_t)(offsetof(struct trace_native_stack, pcs) + key->depth * sizeof *key->pcs),
            0);
    if (!stack) {
        trace_lose(trace, TRACE_LOSS_STACKS_FULL, 1);
        return 0;
    }
    stack->depth = key->depth;
    stack->hash = key->hash;
    stack->generation = load_acquire(&trace->header->module_generation);
    stack->remap = key->remap;
    memcpy(stack->pcs, key->pcs, key->depth * sizeof *key->pcs);
    store_release(&stack->flags, key->flags); /* pairs with the reader */
    uint32_t ref =
        index_add(&stacks->index, key->hash, trace_ref(trace, stack), matches, trace, key);
    if (!ref)
        trace_lose(trace, TRACE_LOSS_STACKS_FULL, 1);
    return ref;
}

uint32_t stacks_capture(struct stacks *stacks, const struct registers *from,
                        const struct code_range *stop, uint64_t ns) {
    uint64_t pcs[STACKS_DEPTH_MAX];
    struct stack_key key = {.pcs = pcs, .flags = TRACE_STACK_VALID};
    modules_catch_up(stacks->modules, ns);
    key.depth = unwind_walk(stacks->modules, from, stop, pcs, stacks->depth, &key.flags);
    if (!key.depth)
        return 0;
    key.remap = modules_remap(stacks->modules, pcs, key.depth);
    key.hash = hash_of(pcs, key.depth, key.remap);
    uint32_t ref = index_find(&stacks->index, key.hash, matches, stacks->trace, &key);
    return ref ? ref : add(stacks, &key, ns);
}
