// LINK: @O@/simgpu/libcuda.so.1
/*
 * Memory of graphs: nodes added and captured, launched, freed inside, by another graph and by the
 * program; and that nothing is asked of the driver under capture but whether it is one (the
 * simulated driver would abort). After each step the books are the driver's.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

static CUDA_MEM_ALLOC_NODE_PARAMS alloc_params(size_t bytes, int device) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = bytes};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
    return params;
}

/* Live at each launch, not before; freed by the program. */
static void left_by_the_graph(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = alloc_params(5 << 20, 1);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    STEP(cuGraphCreate(&graph, 0));
    STEP(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    STEP(cuGraphInstantiateWithFlags(&exec, graph, 0));
    STEP(cuGraphLaunch(exec, NULL));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
    STEP(cuMemFree_v2(params.dptr));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(params.dptr));
    STEP(cuGraphDestroy(graph));
    STEP(cuGraphLaunch_ptsz(exec, NULL));
    STEP(cuMemFreeAsync(params.dptr, NULL));
    STEP(cuGraphLaunch(exec, NULL));
    STEP(cuGraphExecDestroy(exec)); /* does not free what is live */
    STEP(cuMemFree_v2(params.dptr));
}

static void freed_by_launch(void) {
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH};
    CUgraph graph, freer;
    CUgraphNode node;
    CUgraphExec exec, freeing;
    any.alloc = alloc_params(3000, 0);
    STEP(cuGraphCreate(&graph, 0));
    STEP(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any));
    STEP(cuGraphInstantiateWithParams(&exec, graph, &how));
    for (int i = 0; i < 3; i++)
        STEP(cuGraphLaunch(exec, NULL));
    STEP(cuGraphCreate(&freer, 0));
    STEP(cuGraphAddMemFreeNode(&node, freer, NULL, 0, any.alloc.dptr));
    STEP(cuGraphInstantiate_v2(&freeing, freer, NULL, NULL, 0));
    STEP(cuGraphLaunch(freeing, NULL));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(freeing, NULL));
    STEP(cuGraphLaunch(exec, NULL));
    STEP(cuGraphLaunch(freeing, NULL));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphExecDestroy(freeing));
    STEP(cuGraphDestroy(graph));
    STEP(cuGraphDestroy(freer));
}

/* The driver keeps the memory for the next launch, until a trim or the end. */
static void freed_inside(void) {
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUgraphNodeParams end = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    any.alloc = alloc_params(1 << 20, 0);
    STEP(cuGraphCreate(&graph, 0));
    STEP(cuGraphAddNode(&node, graph, NULL, 0, &any));
    end.free.dptr = any.alloc.dptr;
    STEP(cuGraphAddNode(&node, graph, &node, 1, &end));
    STEP(cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    for (int i = 0; i < 1000; i++)
        MUST(cuGraphLaunch(exec, NULL));
    BOOKS();
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(any.alloc.dptr));
    STEP(cuDeviceGraphMemTrim(1));
    STEP(cuDeviceGraphMemTrim(0));
    STEP(cuGraphLaunch(exec, NULL));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphDestroy(graph));
}

static void captured(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr kept, inside, pool;
    uint64_t asked = simgpu_calls("cuStreamIsCapturing");
    MUST(cuStreamCreate(&stream, 1));
    STEP(cuMemAllocAsync(&pool, 700, stream));
    STEP(cuMemFreeAsync(pool, stream));
    printf("asked before any capture: %lu\n", simgpu_calls("cuStreamIsCapturing") - asked);
    STEP(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    STEP(cuMemAllocAsync(&kept, 12345, stream));
    STEP(cuMemAllocAsync(&inside, 54321, stream));
    STEP(cuMemFreeAsync(inside, stream));
    STEP(cuStreamEndCapture(stream, &graph));
    STEP(cuGraphInstantiateWithFlags(&exec, graph, 0));
    STEP(cuGraphLaunch(exec, stream));
    STEP(cuMemFreeAsync(kept, stream));
    STEP(cuGraphLaunch(exec, stream));
    STEP(cuMemFree_v2(kept));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphDestroy(graph));
    STEP(cuMemAllocAsync(&pool, 700, stream));
    STEP(cuMemFree_v2(pool));
    MUST(cuStreamDestroy_v2(stream));
}

/* One thread, two captures at once; the second into a graph that is there. */
static void captured_side_by_side(void) {
    CUstream a, b;
    CUgraph first, second, same;
    CUgraphExec exec;
    CUdeviceptr pointer[2];
    MUST(cuStreamCreate(&a, 1));
    MUST(cuStreamCreate(&b, 1));
    STEP(cuGraphCreate(&second, 0));
    STEP(cuStreamBeginCapture_ptsz(a));
    STEP(cuStreamBeginCaptureToGraph(b, second, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    STEP(cuMemAllocAsync_ptsz(&pointer[0], 100, a));
    STEP(cuMemAllocAsync(&pointer[1], 200, b));
    STEP(cuStreamEndCapture(b, &same));
    STEP(cuStreamEndCapture_ptsz(a, &first));
    STEP(cuGraphInstantiateWithFlags(&exec, first, 0));
    STEP(cuGraphLaunch(exec, NULL));
    STEP(cuMemFree_v2(pointer[0]));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphInstantiateWithFlags(&exec, second, 0));
    STEP(cuGraphLaunch(exec, NULL));
    STEP(cuMemFree_v2(pointer[1]));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphDestroy(first));
    STEP(cuGraphDestroy(second));
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    captured();
    captured_side_by_side();
    left_by_the_graph();
    freed_by_launch();
    freed_inside();
    TRACED(books_loss(TRACE_LOSS_UNKNOWN_FREES), 1);
    TRACED(books_loss(TRACE_LOSS_FAILED_FREES), 2);
    TRACED(books_loss(TRACE_LOSS_LOST_FREES), 0);
    return 0;
}
