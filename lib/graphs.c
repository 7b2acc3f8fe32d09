#include "graphs.h"

#include <errno.h>

#include "atomic.h"
#include "record.h"

enum { NODE_FREE = 0, NODE_BUSY, NODE_USED };

#define HOLDING_OFF       (1u << 31)
#define HOLD_OFF_PATIENCE 100000 /* looks: the other thread is inside one query of the driver */

bool graphs_init(struct graphs *graphs) {
    graphs->nodes = trace_private(GRAPHS_NODES * sizeof(struct graph_node));
    return graphs->nodes;
}

/* ---- capture --------------------------------------------------------------------------------- */

void graphs_ask(struct record_call *call, CUstream stream, is_capturing *ask) {
    int status;
    call->capturing = load_relaxed(&call->recorder->graphs.seen) && ask &&
                      ask(stream, &status) == CUDA_SUCCESS &&
                      status != CU_STREAM_CAPTURE_STATUS_NONE;
    call->key = (uintptr_t)stream;
}

void graphs_capture_begin(struct record_call *call) {
    struct graphs *graphs = &call->recorder->graphs;
    store_relaxed(&graphs->seen, 1u);
    /* Pairs with graphs_capture_hold_off. */
    uint32_t seen = add_acq_rel(&graphs->captures, 1u);
    for (int i = 0; seen & HOLDING_OFF && i < HOLD_OFF_PATIENCE; i++) {
        cpu_pause();
        seen = load_acquire(&graphs->captures);
    }
}

static bool swap_origin(struct graphs *graphs, uint64_t from, uint64_t to) {
    for (int i = 0; i < GRAPHS_ORIGINS; i++) {
        uint64_t seen = from;
        if (cas_acq_rel(&graphs->origins[i], &seen, to))
            return true;
    }
    return false;
}

static bool is_origin(const struct graphs *graphs, uint64_t stream) {
    for (int i = 0; i < GRAPHS_ORIGINS; i++)
        if (stream && load_acquire(&graphs->origins[i]) == stream)
            return true;
    return false;
}

void graphs_capture_begun(struct record_call *call, CUresult code, CUstream stream) {
    struct graphs *graphs = &call->recorder->graphs;
    if (code != CUDA_SUCCESS)
        add_acq_rel(&graphs->captures, -1u);
    else
        swap_origin(graphs, 0, (uintptr_t)stream);
}

bool graphs_capture_hold_off(struct graphs *graphs) {
    uint32_t none = 0;
    return cas_acq_rel(&graphs->captures, &none, HOLDING_OFF);
}

void graphs_capture_go_on(struct graphs *graphs) {
    add_acq_rel(&graphs->captures, -HOLDING_OFF); /* pairs with graphs_capture_begin */
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct graph_node *claim(struct recorder *recorder) {
    struct graphs *graphs = &recorder->graphs;
    for (uint32_t i = 0; i < GRAPHS_NODES; i++) {
        struct graph_node *node = &graphs->nodes[i];
        uint32_t unused = NODE_FREE;
        if (load_relaxed(&node->state) != NODE_FREE ||
            !cas_acq_rel(&node->state, &unused, (uint32_t)NODE_BUSY))
            continue;
        uint32_t limit = load_relaxed(&graphs->limit);
        while (limit <= i && !cas_acq_rel(&graphs->limit, &limit, i + 1))
            ;
        return node;
    }
    trace_lose(&recorder->trace, TRACE_LOSS_RECORDS_FULL, 1);
    return NULL;
}

static struct graph_node *next_node(struct graphs *graphs, uint32_t *cursor) {
    uint32_t limit = load_acquire(&graphs->limit);
    while (*cursor < limit) {
        struct graph_node *node = &graphs->nodes[(*cursor)++];
        if (load_acquire(&node->state) == NODE_USED) /* pairs with add_node */
            return node;
    }
    return NULL;
}

static void add_node(struct record_call *call, const struct graph_node *from) {
    struct graph_node *node = claim(call->recorder);
    if (!node)
        return;
    node->holders = 1;
    node->device = from->device;
    node->frees = from->frees;
    node->freed_inside = false;
    node->address = from->address;
    node->bytes = from->bytes;
    node->site = from->site;
    store_relaxed(&node->graph, from->graph);
    store_relaxed(&node->exec, 0u);
    store_relaxed(&node->stream, from->graph ? 0u : call->key);
    /* Pairs with take_captured. */
    store_release(&node->thread, from->graph ? NULL : record_thread());
    store_release(&node->state, (uint32_t)NODE_USED); /* pairs with next_node */
}

void graphs_node(struct record_call *call, CUresult code, CUgraph graph, CUdeviceptr address,
                 uint64_t bytes, uint16_t device) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    if (code != CUDA_SUCCESS) {
        failures_block(call, TRACE_KIND_GRAPH, device, code, bytes);
    } else {
        struct trace_site *site =
            record_site(call, TRACE_KIND_GRAPH, device, trace_now(&recorder->trace));
        struct graph_node node = {.device = device,
                                  .graph = (uintptr_t)graph,
                                  .address = address,
                                  .bytes = bytes,
                                  .site = site ? trace_ref(&recorder->trace, site) : 0};
        if (site)
            add_node(call, &node);
    }
    errno = saved;
}

void graphs_alloc_node(struct record_call *call, CUresult code, CUgraph graph,
                       const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    if (params)
        graphs_node(call, code, graph, code == CUDA_SUCCESS ? params->dptr : 0, params->bytesize,
                    record_device(call->recorder, params->poolProps.location.id));
}

void graphs_free_node(struct record_call *call, CUresult code, CUgraph graph, CUdeviceptr address) {
    struct graph_node from = {.frees = true, .graph = (uintptr_t)graph, .address = address};
    if (code != CUDA_SUCCESS)
        failures_free(call, code);
    else if (address)
        add_node(call, &from);
}

void graphs_any_node(struct record_call *call, CUresult code, CUgraph graph,
                     const CUgraphNodeParams *params) {
    if (params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        graphs_alloc_node(call, code, graph, &params->alloc);
    else if (params && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        graphs_free_node(call, code, graph, params->free);
}

/* The last of its holders lets it go. */
static void let_go(struct graph_node *node) {
    if (add_acq_rel(&node->holders, -1u) == 1)
        store_release(&node->state, (uint32_t)NODE_FREE); /* pairs with claim */
}

static uint32_t open_captures(const struct graphs *graphs) {
    return load_acquire(&graphs->captures) & ~HOLDING_OFF;
}

/*
 * Which nodes were captured by a capture that ends: those of its stream; of streams that joined it,
 * told by the thread that used them; and what is left, if no other one is open. That is asked after
 * the node was seen: the capture that it belongs to is open until it has taken all of its nodes.
 */
static bool take_captured(struct graphs *graphs, struct graph_node *node, uint64_t stream) {
    const void *thread = load_acquire(&node->thread); /* pairs with add_node */
    uint64_t of = load_relaxed(&node->stream);
    if (!thread)
        return false;
    bool mine = of == stream || (!is_origin(graphs, of) &&
                                 (thread == record_thread() || open_captures(graphs) <= 1));
    return mine && cas_acq_rel(&node->thread, &thread, NULL);
}

void graphs_capture_ended(struct record_call *call, CUresult code, CUstream stream,
                          const CUgraph *graph) {
    struct graphs *graphs = &call->recorder->graphs;
    uint64_t handle = code == CUDA_SUCCESS ? (uintptr_t)*graph : 0;
    if (code != CUDA_SUCCESS &&
        (code < CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || code > CUDA_ERROR_CAPTURED_EVENT))
        return; /* it goes on */
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (!take_captured(graphs, node, (uintptr_t)stream))
            continue;
        store_relaxed(&node->graph, handle);
        if (!handle)
            let_go(node);
    }
    swap_origin(graphs, (uintptr_t)stream, 0);
    if (open_captures(graphs))
        add_acq_rel(&graphs->captures, -1u); /* pairs with take_captured */
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static bool is_freed_by(struct graphs *graphs, uint64_t graph, uint64_t address) {
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->graph) == graph && node->frees && node->address == address)
            return true;
    }
    return false;
}

void graphs_instantiated(struct record_call *call, CUresult code, CUgraph graph,
                         const CUgraphExec *exec) {
    struct graphs *graphs = &call->recorder->graphs;
    if (code != CUDA_SUCCESS) {
        failures_call(call, TRACE_KIND_GRAPH, code, 0);
        return;
    }
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->graph) != (uintptr_t)graph)
            continue;
        node->freed_inside = !node->frees && is_freed_by(graphs, (uintptr_t)graph, node->address);
        add_relaxed(&node->holders, 1u);
        store_relaxed(&node->exec, (uintptr_t)*exec);
        add_relaxed(&graphs->in_execs, 1u);
    }
}

/*
 * Whatever ends in a call is marked before the driver is asked and taken off after: meanwhile
 * another thread may be given the same handle or address.
 */
#define ENDING (1ull << 63) /* in place of a handle: no handle, and another one for each ending */

static uint64_t new_ending(struct record_call *call) {
    return call->key = ENDING | add_relaxed(&call->recorder->graphs.endings, 1);
}

static void release_begin(struct recorder *recorder, uint64_t address) {
    table_mark_freeing(&recorder->table, TRACE_SPACE_POINTER, address);
}

static void release_end(struct recorder *recorder, uint64_t address, CUresult code) {
    struct table_mark mark = table_marked(&recorder->table, TRACE_SPACE_POINTER, address);
    record_settle(recorder, &mark, code);
}

static void back_with_memory(struct recorder *recorder, const struct graph_node *node) {
    struct table_entry entry = {
        .address = node->address, .bytes = node->bytes, .space = TRACE_SPACE_POINTER};
    if (!table_live(&recorder->table, TRACE_SPACE_POINTER, node->address).slot)
        record_publish(recorder, trace_at(&recorder->trace, node->site), &entry,
                       trace_now(&recorder->trace));
}

static bool is_own(struct graphs *graphs, uint64_t exec, uint64_t address) {
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->exec) == exec && !node->frees && node->address == address)
            return true;
    }
    return false;
}

/* What another graph left and this one frees. */
static bool frees_others(struct graphs *graphs, const struct graph_node *node, CUgraphExec exec) {
    return load_relaxed(&node->exec) == (uintptr_t)exec && node->frees &&
           !is_own(graphs, (uintptr_t)exec, node->address);
}

void graphs_launch_begin(struct record_call *call, CUgraphExec exec) {
    struct graphs *graphs = &call->recorder->graphs;
    struct graph_node *node;
    if (!load_relaxed(&graphs->in_execs))
        return;
    for (uint32_t at = 0; (node = next_node(graphs, &at));)
        if (frees_others(graphs, node, exec))
            release_begin(call->recorder, node->address);
}

void graphs_launched(struct record_call *call, CUresult code, CUgraphExec exec) {
    struct recorder *recorder = call->recorder;
    struct graphs *graphs = &recorder->graphs;
    int saved = errno;
    bool any = false;
    struct graph_node *node;
    if (!load_relaxed(&graphs->in_execs))
        return;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->exec) != (uintptr_t)exec)
            continue;
        any = true;
        if (frees_others(graphs, node, exec))
            release_end(recorder, node->address, code);
        else if (!node->frees && code == CUDA_SUCCESS)
            back_with_memory(recorder, node);
    }
    if (any && code != CUDA_SUCCESS)
        failures_call(call, TRACE_KIND_GRAPH, code, 0);
    errno = saved;
}

void graphs_destroy_begin(struct record_call *call, CUgraph graph) {
    uint64_t ending = new_ending(call);
    struct graph_node *node;
    for (uint32_t at = 0; graph && (node = next_node(&call->recorder->graphs, &at));)
        if (load_relaxed(&node->graph) == (uintptr_t)graph)
            store_relaxed(&node->graph, ending);
}

void graphs_destroyed(struct record_call *call, CUresult code, CUgraph graph) {
    struct graph_node *node;
    for (uint32_t at = 0; graph && (node = next_node(&call->recorder->graphs, &at));) {
        if (load_relaxed(&node->graph) != call->key)
            continue;
        store_relaxed(&node->graph, code == CUDA_SUCCESS ? 0 : (uintptr_t)graph);
        if (code == CUDA_SUCCESS)
            let_go(node);
    }
}

void graphs_exec_destroy_begin(struct record_call *call, CUgraphExec exec) {
    struct graphs *graphs = &call->recorder->graphs;
    uint64_t ending = new_ending(call);
    struct graph_node *node;
    if (!load_relaxed(&graphs->in_execs))
        return;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->exec) != (uintptr_t)exec)
            continue;
        store_relaxed(&node->exec, ending);
        if (node->freed_inside)
            release_begin(call->recorder, node->address);
    }
}

void graphs_exec_destroyed(struct record_call *call, CUresult code, CUgraphExec exec) {
    struct recorder *recorder = call->recorder;
    struct graphs *graphs = &recorder->graphs;
    int saved = errno;
    struct graph_node *node;
    if (!load_relaxed(&graphs->in_execs))
        return;
    for (uint32_t at = 0; (node = next_node(graphs, &at));) {
        if (load_relaxed(&node->exec) != call->key)
            continue;
        if (node->freed_inside)
            release_end(recorder, node->address, code);
        store_relaxed(&node->exec, code == CUDA_SUCCESS ? 0 : (uintptr_t)exec);
        if (code != CUDA_SUCCESS)
            continue;
        add_relaxed(&graphs->in_execs, -1u);
        let_go(node);
    }
    errno = saved;
}

static bool is_trimmed(const struct graph_node *node, CUdevice device) {
    return load_relaxed(&node->exec) && node->freed_inside && node->device == device;
}

void graphs_trim_begin(struct record_call *call, CUdevice device) {
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(&call->recorder->graphs, &at));)
        if (is_trimmed(node, device))
            release_begin(call->recorder, node->address);
}

void graphs_trimmed(struct record_call *call, CUresult code, CUdevice device) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    struct graph_node *node;
    for (uint32_t at = 0; (node = next_node(&recorder->graphs, &at));)
        if (is_trimmed(node, device))
            release_end(recorder, node->address, code);
    errno = saved;
}
