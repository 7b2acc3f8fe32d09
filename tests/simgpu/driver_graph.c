/*
 * Graphs as far as memory goes: allocation and free nodes, executable graphs, launches. Bodies of
 * entry points: called with the driver's lock held, from any thread.
 *
 * Sources: CUDA C programming guide, "Graph Memory Nodes": a node's address is fixed, memory stands
 * behind it from the launch on. Measured on an H200, driver 580.159: a node takes no memory before
 * the launch; a second launch with memory unfreed is 1; cuMemFree of memory that its own graph
 * frees is 1; a graph with allocation nodes is instantiated once at a time (801); it can be
 * destroyed before its executable graph is launched. What a graph frees itself counts until its
 * executable graph is destroyed or the device's graph memory trimmed: the driver keeps it for the
 * next launch.
 */
#include <sys/mman.h>

#include "driver.h"

struct CUgraph_st {
    struct CUgraph_st *next;
};

struct CUgraphExec_st {
    bool auto_free;
    struct CUgraphExec_st *next;
};

struct node {
    bool frees;        /* a free node */
    bool freed_inside; /* an allocation node that its graph frees */
    uintptr_t address;
    size_t bytes;
    CUdevice device;
    struct CUgraph_st *graph;
    struct CUgraphExec_st *exec;
    struct node *next;
};

static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;
static struct node *nodes;

static bool graph_known(const struct CUgraph_st *graph) {
    for (const struct CUgraph_st *g = graphs; g; g = g->next)
        if (g == graph)
            return true;
    return false;
}

static bool exec_known(const struct CUgraphExec_st *exec) {
    for (const struct CUgraphExec_st *e = execs; e; e = e->next)
        if (e == exec)
            return true;
    return false;
}

struct CUgraph_st *graph_new(void) {
    struct CUgraph_st *graph = store_take(sizeof *graph);

    graph->next = graphs;
    graphs = graph;
    return graph;
}

CUresult sim_graph_create(CUgraph *graph, unsigned int flags) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_new();
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

static struct node *alloc_node_at(uintptr_t address) {
    for (struct node *n = nodes; n; n = n->next)
        if (!n->frees && n->address == address)
            return n;
    return NULL;
}

static void add(const struct node *from) {
    struct node *node = store_take(sizeof *node);

    *node = *from;
    node->next = nodes;
    nodes = node;
}

uintptr_t graph_alloc_node(struct CUgraph_st *graph, size_t bytes, CUdevice device) {
    void *range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (range == MAP_FAILED)
        return 0;
    add(&(struct node){
        .address = (uintptr_t)range, .bytes = bytes, .device = device, .graph = graph});
    return (uintptr_t)range;
}

bool graph_free_node(struct CUgraph_st *graph, uintptr_t address) {
    struct node *alloc = alloc_node_at(address);

    if (!alloc || alloc->freed_inside)
        return false;
    alloc->freed_inside = alloc->graph == graph;
    add(&(struct node){.frees = true, .address = address, .graph = graph});
    return true;
}

CUresult sim_add_alloc_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    (void)dependencies, (void)count;
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!node || !graph_known(graph) || !params || !params->bytesize ||
        params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        device_check(params->poolProps.location.id))
        return CUDA_ERROR_INVALID_VALUE;
    params->dptr = graph_alloc_node(graph, params->bytesize, params->poolProps.location.id);
    if (!params->dptr)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = (CUgraphNode)nodes;
    return CUDA_SUCCESS;
}

CUresult sim_add_free_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           size_t count, CUdeviceptr pointer) {
    (void)dependencies, (void)count;
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!node || !graph_known(graph) || !graph_free_node(graph, pointer))
        return CUDA_ERROR_INVALID_VALUE;
    *node = (CUgraphNode)nodes;
    return CUDA_SUCCESS;
}

CUresult sim_add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                      size_t count, CUgraphNodeParams *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return sim_add_alloc_node(node, graph, dependencies, count, &params->alloc);
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return sim_add_free_node(node, graph, dependencies, count, params->free.dptr);
    return graph_known(graph) && node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_add_node_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                         const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges;
    return sim_add_node(node, graph, dependencies, count, params);
}

/* The addresses go with the last of graph, executable graph and memory. */
static void end_unused_nodes(void) {
    for (struct node **link = &nodes; *link;) {
        struct node *node = *link;
        if (node->graph || node->exec) {
            link = &node->next;
            continue;
        }
        struct block *block = node->frees ? NULL : block_find(node->address);
        if (block)
            block->bare = false;
        else if (!node->frees)
            munmap((void *)node->address, node->bytes);
        *link = node->next;
        store_give(node, sizeof *node);
    }
}

/* ---- executable graphs ---- */

CUresult sim_instantiate_with_flags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!exec || !graph_known(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct node *n = nodes; n; n = n->next)
        if (n->graph == graph && n->exec)
            return CUDA_ERROR_NOT_SUPPORTED;
    *exec = store_take(sizeof **exec);
    (*exec)->auto_free = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    (*exec)->next = execs;
    execs = *exec;
    for (struct node *n = nodes; n; n = n->next)
        if (n->graph == graph)
            n->exec = *exec;
    return CUDA_SUCCESS;
}

CUresult sim_instantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                         size_t bytes) {
    (void)error, (void)log, (void)bytes;
    return sim_instantiate_with_flags(exec, graph, 0);
}

CUresult sim_instantiate_with_params(CUgraphExec *exec, CUgraph graph,
                                     CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return params ? sim_instantiate_with_flags(exec, graph, params->flags)
                  : CUDA_ERROR_INVALID_VALUE;
}

static bool is_own(const struct node *free_node) {
    const struct node *alloc = alloc_node_at(free_node->address);

    return alloc && alloc->exec == free_node->exec;
}

static CUresult launch_allowed(const struct CUgraphExec_st *exec) {
    size_t needed = 0;

    for (const struct node *n = nodes; n; n = n->next) {
        const struct block *block = n->exec == exec ? block_find(n->address) : NULL;
        if (n->exec != exec)
            continue;
        if (n->frees ? !is_own(n) && !block : block && !n->freed_inside && !exec->auto_free)
            return CUDA_ERROR_INVALID_VALUE;
        if (!n->frees && !block && (needed += n->bytes) > device_free(n->device))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult sim_graph_launch(CUgraphExec exec, CUstream stream) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!stream_known(stream) || !exec_known(exec))
        return CUDA_ERROR_INVALID_VALUE;
    if ((code = launch_allowed(exec)))
        return code;
    for (struct node *n = nodes; n; n = n->next) {
        struct block *block = n->exec == exec ? block_find(n->address) : NULL;
        if (n->exec != exec)
            continue;
        if (!n->frees && !block)
            block_add(&(struct block){.address = n->address,
                                      .bytes = n->bytes,
                                      .kind = SIMGPU_GRAPH,
                                      .device = n->device,
                                      .bare = true,
                                      .freed_inside = n->freed_inside});
        else if (n->frees && !is_own(n))
            block_remove(block, FREED);
    }
    return CUDA_SUCCESS;
}

static void release_inside(const struct CUgraphExec_st *exec, CUdevice device) {
    for (struct node *n = nodes; n; n = n->next) {
        struct block *block = n->freed_inside && n->exec ? block_find(n->address) : NULL;
        if (block && (exec ? n->exec == exec : n->device == device))
            block_remove(block, FREED);
    }
}

CUresult sim_exec_destroy(CUgraphExec exec) {
    struct CUgraphExec_st **link = &execs;

    while (*link && *link != exec)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_VALUE;
    release_inside(exec, 0);
    for (struct node *n = nodes; n; n = n->next)
        if (n->exec == exec)
            n->exec = NULL;
    end_unused_nodes();
    *link = exec->next;
    store_give(exec, sizeof *exec);
    return CUDA_SUCCESS;
}

CUresult graph_end(struct CUgraph_st *graph) {
    struct CUgraph_st **link = &graphs;

    while (*link && *link != graph)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct node *n = nodes; n; n = n->next)
        if (n->graph == graph)
            n->graph = NULL;
    end_unused_nodes();
    *link = graph->next;
    store_give(graph, sizeof *graph);
    return CUDA_SUCCESS;
}

CUresult sim_graph_destroy(CUgraph graph) {
    return graph_end(graph);
}

CUresult sim_graph_trim(CUdevice device) {
    CUresult code = device_check(device);

    if (!code)
        release_inside(NULL, device);
    return code;
}
