/*
 * Memory of graphs: allocation and free nodes, added or captured, and what they hold.
 *
 * A node is an address and no memory. Its bytes are booked, at the stack that made it, by the first
 * launch of an executable graph that has it; they stay until the address is freed by the program or
 * by another graph, or, where the graph itself frees it, until the executable graph is destroyed or
 * the device's graph memory is trimmed: till then the driver keeps the memory for the next launch.
 *
 * interpose calls this around the driver's functions. Any thread, no locks; of one graph, CUDA
 * allows no two calls at once. Which graph a captured node belongs to is told by the stream or
 * thread that ends its capture.
 */
#ifndef CUHEAP_GRAPHS_H
#define CUHEAP_GRAPHS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define GRAPHS_NODES   32768 /* allocation and free nodes at one time */
#define GRAPHS_ORIGINS 16    /* open captures whose stream is remembered */

struct record_call;
struct recorder;

struct graph_node {
    uint32_t state;   /* enum in graphs.c */
    uint32_t holders; /* its graph or capture, and its executable graph */
    uint16_t device;
    bool frees;        /* a free node */
    bool freed_inside; /* an allocation node whose own graph frees it */
    uint64_t graph;    /* handle; 0: destroyed, or still being captured */
    uint64_t exec;     /* 0: not instantiated */
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;    /* whose capture it is part of */
    const void *thread; /* that captures it; NULL: it belongs to a graph */
    uint32_t site;
};

struct graphs {
    struct graph_node *nodes;
    uint32_t limit;    /* one past the highest node ever used */
    uint32_t in_execs; /* nodes in executable graphs: without any, a launch costs nothing */
    uint64_t endings;  /* of graphs and executable graphs, begun so far */
    uint32_t captures; /* open ones; the top bit: no capture may begin just now */
    uint64_t origins[GRAPHS_ORIGINS]; /* streams whose capture is open; 0: none */
    uint32_t seen;                    /* a capture has ever been begun */
};

bool graphs_init(struct graphs *graphs);

/* ---- capture --------------------------------------------------------------------------------- */

typedef CUresult is_capturing(CUstream stream, int *status);

/* Before a stream-ordered call: sets call->capturing. `ask` is the variant for this stream. */
void graphs_ask(struct record_call *call, CUstream stream, is_capturing *ask);
void graphs_capture_begin(struct record_call *call);
void graphs_capture_begun(struct record_call *call, CUresult code, CUstream stream);
void graphs_capture_ended(struct record_call *call, CUresult code, CUstream stream,
                          const CUgraph *graph);

/* False: a capture is open. True: none begins until graphs_capture_go_on. */
bool graphs_capture_hold_off(struct graphs *graphs);
void graphs_capture_go_on(struct graphs *graphs);

/* ---- nodes ----------------------------------------------------------------------------------- */

/* An allocation node was added to `graph`, or captured (graph NULL). */
void graphs_node(struct record_call *call, CUresult code, CUgraph graph, CUdeviceptr address,
                 uint64_t bytes, uint16_t device);
void graphs_alloc_node(struct record_call *call, CUresult code, CUgraph graph,
                       const CUDA_MEM_ALLOC_NODE_PARAMS *params);
void graphs_free_node(struct record_call *call, CUresult code, CUgraph graph, CUdeviceptr address);
/* cuGraphAddNode: a node of any type. */
void graphs_any_node(struct record_call *call, CUresult code, CUgraph graph,
                     const CUgraphNodeParams *params);

/* ---- graphs ---------------------------------------------------------------------------------- */

void graphs_instantiated(struct record_call *call, CUresult code, CUgraph graph,
                         const CUgraphExec *exec);
void graphs_launch_begin(struct record_call *call, CUgraphExec exec);
void graphs_launched(struct record_call *call, CUresult code, CUgraphExec exec);
void graphs_destroy_begin(struct record_call *call, CUgraph graph);
void graphs_destroyed(struct record_call *call, CUresult code, CUgraph graph);
void graphs_exec_destroy_begin(struct record_call *call, CUgraphExec exec);
void graphs_exec_destroyed(struct record_call *call, CUresult code, CUgraphExec exec);
void graphs_trim_begin(struct record_call *call, CUdevice device);
void graphs_trimmed(struct record_call *call, CUresult code, CUdevice device);

#endif
