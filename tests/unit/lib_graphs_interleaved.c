/*
 * Graphs made by hand and by capture, at once, under interleavings of our choosing: a capture takes
 * the nodes that are its own, all of them and no other's, and what is destroyed is gone. See
 * interleave.h.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define graphs_alloc_node         stepped_graphs_alloc_node
#define graphs_any_node           stepped_graphs_any_node
#define graphs_ask                stepped_graphs_ask
#define graphs_capture_begin      stepped_graphs_capture_begin
#define graphs_capture_begun      stepped_graphs_capture_begun
#define graphs_capture_ended      stepped_graphs_capture_ended
#define graphs_capture_go_on      stepped_graphs_capture_go_on
#define graphs_capture_hold_off   stepped_graphs_capture_hold_off
#define graphs_destroy_begin      stepped_graphs_destroy_begin
#define graphs_destroyed          stepped_graphs_destroyed
#define graphs_exec_destroy_begin stepped_graphs_exec_destroy_begin
#define graphs_exec_destroyed     stepped_graphs_exec_destroyed
#define graphs_free_node          stepped_graphs_free_node
#define graphs_init               stepped_graphs_init
#define graphs_instantiated       stepped_graphs_instantiated
#define graphs_launch_begin       stepped_graphs_launch_begin
#define graphs_launched           stepped_graphs_launched
#define graphs_node               stepped_graphs_node
#define graphs_trim_begin         stepped_graphs_trim_begin
#define graphs_trimmed            stepped_graphs_trimmed

#include "record.h"

#include "config.h"
#include "interleave.h"

/* Stops before each step on a node; the fibers are the threads. */
#undef load_relaxed
#undef load_acquire
#undef store_relaxed
#undef store_release
#undef add_relaxed
#undef add_acq_rel
#undef cas_acq_rel
#define load_relaxed(p)     (stop(), __atomic_load_n((p), __ATOMIC_RELAXED))
#define load_acquire(p)     (stop(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define store_relaxed(p, v) (stop(), __atomic_store_n((p), (v), __ATOMIC_RELAXED))
#define store_release(p, v) (stop(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define add_relaxed(p, v)   (stop(), __atomic_fetch_add((p), (v), __ATOMIC_RELAXED))
#define add_acq_rel(p, v)   (stop(), __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL))
#define cas_acq_rel(p, expected, desired)                                                          \
    (stop(), __atomic_compare_exchange_n((p), (expected), (desired), false, __ATOMIC_ACQ_REL,      \
                                         __ATOMIC_ACQUIRE))
#define record_thread() ((const void *)&fibers[running])
#include "../../lib/graphs.c"

#define ROUNDS 100
#define NODES  3

static char path[64];
static struct recorder *recorder;
static uint64_t left, handles, addresses;

static void *new_handle(void) {
    return (void *)(uintptr_t)(handles += 16);
}

static unsigned add_nodes(struct record_call *call, CUgraph graph) {
    unsigned nodes = 1 + (unsigned)(next_random() % NODES);
    for (unsigned n = 0; n < nodes; n++)
        stepped_graphs_node(call, CUDA_SUCCESS, graph, addresses += 512, 512, 0);
    return nodes;
}

/* A stream joins each capture, as by an event of its own, and takes some of the nodes. */
static CUgraph capture(struct record_call *call, unsigned *nodes) {
    CUstream stream = new_handle(), joined = new_handle();
    CUgraph graph = new_handle();
    stepped_graphs_capture_begin(call);
    stepped_graphs_capture_begun(call, CUDA_SUCCESS, stream);
    call->key = (uintptr_t)stream;
    *nodes = add_nodes(call, NULL);
    call->key = (uintptr_t)joined;
    *nodes += add_nodes(call, NULL);
    stepped_graphs_capture_ended(call, CUDA_SUCCESS, stream, &graph);
    return graph;
}

static unsigned nodes_of(uint64_t graph, uint64_t exec) {
    unsigned count = 0;
    for (uint32_t i = 0; i < recorder->graphs.limit; i++) {
        const struct graph_node *node = &recorder->graphs.nodes[i];
        count += node->state == NODE_USED && (!graph || node->graph == graph) &&
                 (!exec || node->exec == exec);
    }
    return count;
}

/* Returns how many nodes the graph and its executable graph have too many or too few. */
static int make_and_destroy(struct record_call *call, bool by_hand) {
    unsigned nodes;
    CUgraph graph = by_hand ? new_handle() : capture(call, &nodes);
    CUgraphExec exec = new_handle();
    if (by_hand)
        nodes = add_nodes(call, graph);
    int wrong = (int)nodes_of((uintptr_t)graph, 0) - (int)nodes;
    stepped_graphs_instantiated(call, CUDA_SUCCESS, graph, &exec);
    wrong = wrong ? wrong : (int)nodes_of(0, (uintptr_t)exec) - (int)nodes;
    stepped_graphs_exec_destroy_begin(call, exec);
    stepped_graphs_exec_destroyed(call, CUDA_SUCCESS, exec);
    stepped_graphs_destroy_begin(call, graph);
    stepped_graphs_destroyed(call, CUDA_SUCCESS, graph);
    return wrong;
}

static int wrong_nodes;

static void body(void) {
    struct record_call call = {.recorder = recorder};
    int me = running;
    while (left && !wrong_nodes) {
        left--;
        int wrong = make_and_destroy(&call, next_random() & 1);
        wrong_nodes = wrong_nodes ? wrong_nodes : wrong;
    }
    finished[me] = true;
}

static void begin(void) {
    void *header = calloc(1, TRACE_HEADER_BYTES);
    recorder = calloc(1, sizeof *recorder);
    snprintf(path, sizeof path, "/tmp/cuheap-graphs-%d.trace", getpid());
    cr_assert_eq(trace_create(&recorder->trace, path, 0600, 4 << 20, header), 0);
    cr_assert(record_init(recorder, CONFIG_STACKS_NONE, 64));
    free(header);
    unlink(path);
    wrong_nodes = 0;
}

Test(graphs_interleaved, a_capture_takes_its_own_nodes_and_no_others) {
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        seed = round;
        begin();
        left = OPERATIONS / 500 / ROUNDS;
        run_all(body);
        cr_assert_eq(wrong_nodes, 0, "round %lu: %d nodes", round, wrong_nodes);
        cr_assert_eq(nodes_of(0, 0), 0, "round %lu: what is destroyed is gone", round);
        cr_assert_eq(recorder->graphs.captures, 0);
        cr_assert_eq(recorder->graphs.in_execs, 0);
        munmap(recorder->trace.base, recorder->trace.max_bytes);
        munmap(recorder->graphs.nodes, GRAPHS_NODES * sizeof(struct graph_node));
        free(recorder);
    }
}
