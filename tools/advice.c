/*
 * What can be done about a finding: one table from finding and condition to remedy and source. A
 * row is given only where the finding's own numbers and stacks carry its condition. See
 * finding_rules.h; no state.
 */
#include "finding_rules.h"
#include "text.h"

#include <string.h>

/* ---- conditions ------------------------------------------------------------------------------ */

static const struct job_process *process_of(const struct inquiry *inquiry,
                                            const struct finding *finding) {
    return &inquiry->view->job->processes[finding->process];
}

/* In the stacks of its first so many sites. */
static bool has_word_in(const struct finding *finding, size_t sites, const char *const *words) {
    for (size_t s = 0; s < finding->site_count && s < sites; s++)
        for (unsigned i = 0; i < finding->stacks[s]->count; i++) {
            const struct frame *frame = finding->stacks[s]->frames[i];
            for (const char *const *word = words; *word; word++)
                if ((frame->function && strstr(frame->function, *word)) ||
                    (frame->file && strstr(frame->file, *word)) ||
                    (frame->module && strstr(frame->module, *word)))
                    return true;
        }
    return false;
}

static bool has_word(const struct finding *finding, const char *const *words) {
    return has_word_in(finding, FINDING_SITES, words);
}

static double number(const struct finding *finding, const char *key) {
    for (size_t i = 0; i < finding->evidence_count; i++)
        if (strcmp(finding->evidence[i].key, key) == 0)
            return finding->evidence[i].value;
    return 0;
}

static bool has_tensors(const struct inquiry *inquiry, const struct finding *finding) {
    return process_of(inquiry, finding)->header->features & TRACE_FEATURE_TENSORS;
}

static bool is_expandable(const struct inquiry *inquiry, const struct finding *finding) {
    return framework_expandable_segments(process_of(inquiry, finding)->trace);
}

static bool is_torch(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"torch", "libc10", NULL};
    return has_tensors(inquiry, finding) || has_word(finding, words);
}

static bool is_python_leak(const struct inquiry *inquiry, const struct finding *finding) {
    bool python = false;
    for (size_t s = 0; s < finding->site_count; s++)
        for (unsigned i = 0; i < finding->stacks[s]->count; i++)
            python |= finding->stacks[s]->frames[i]->python;
    return python && has_tensors(inquiry, finding);
}

static bool is_native_leak(const struct inquiry *inquiry, const struct finding *finding) {
    return !is_python_leak(inquiry, finding);
}

static bool never_freed(const struct inquiry *inquiry, const struct finding *finding) {
    return is_native_leak(inquiry, finding) && number(finding, "frees") == 0;
}

static bool in_pytorch_cache(const struct inquiry *inquiry, const struct finding *finding) {
    return has_tensors(inquiry, finding) && !is_expandable(inquiry, finding);
}

static bool in_pool(const struct inquiry *inquiry, const struct finding *finding) {
    const struct trace *trace = process_of(inquiry, finding)->trace;
    size_t count = trace_record_count(trace, TRACE_SECTION_POOLS);
    for (size_t i = 0; i < count; i++) {
        const struct trace_pool *pool = trace_record(trace, TRACE_SECTION_POOLS, i);
        if (pool && fragmentation_pool(pool).slack_bytes)
            return true;
    }
    return false;
}

static bool keeps_threshold(const struct inquiry *inquiry, const struct finding *finding) {
    (void)inquiry;
    return number(finding, "threshold_bytes") >= number(finding, "reserved_bytes");
}

static bool no_threshold(const struct inquiry *inquiry, const struct finding *finding) {
    return !keeps_threshold(inquiry, finding) || number(finding, "threshold_bytes") == 0;
}

/* Of an out of memory the first site asked, and the second held most. */
static bool in_training(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"backward", "Backward", "activation", "attention",
                                        "forward",  "autograd", NULL};
    (void)inquiry;
    return has_word_in(finding, 2, words);
}

static bool in_attention(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"attention", "Attention", "attn", "sdpa", NULL};
    (void)inquiry;
    return has_word_in(finding, 2, words);
}

static bool in_optimizer(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"optim/", "Adam", "adam", "optimizer", NULL};
    (void)inquiry;
    return has_word_in(finding, 2, words);
}

static bool in_loading(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"load", "serialization", "checkpoint", "from_pretrained",
                                        NULL};
    (void)inquiry;
    return has_word_in(finding, 1, words);
}

static bool in_convolution(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"cudnn", "conv", NULL};
    (void)inquiry;
    return has_word(finding, words);
}

static bool has_storm(const struct inquiry *inquiry, const struct finding *finding) {
    for (size_t i = 0; i < inquiry->findings->count; i++)
        if (inquiry->findings->list[i].id == FINDING_ALLOC_STORM &&
            inquiry->findings->list[i].process == finding->process)
            return true;
    return false;
}

static bool has_leak(const struct inquiry *inquiry, const struct finding *finding) {
    for (size_t i = 0; i < inquiry->findings->count; i++)
        if (inquiry->findings->list[i].id == FINDING_LEAK_GROWING &&
            inquiry->findings->list[i].process == finding->process)
            return true;
    return false;
}

static bool in_several_processes(const struct inquiry *inquiry, const struct finding *finding) {
    (void)inquiry;
    return number(finding, "processes") > 0;
}

static bool in_one_process(const struct inquiry *inquiry, const struct finding *finding) {
    return !in_several_processes(inquiry, finding);
}

static bool in_callback(const struct inquiry *inquiry, const struct finding *finding) {
    (void)inquiry;
    return number(finding, "code") == 800;
}

static bool in_nccl(const struct inquiry *inquiry, const struct finding *finding) {
    static const char *const words[] = {"libnccl", NULL};
    (void)inquiry;
    return has_word(finding, words);
}

static bool not_pretended(const struct inquiry *inquiry, const struct finding *finding) {
    (void)inquiry;
    return number(finding, "pretended") == 0;
}

static bool always(const struct inquiry *inquiry, const struct finding *finding) {
    (void)inquiry;
    (void)finding;
    return true;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef bool advice_condition(const struct inquiry *inquiry, const struct finding *finding);

#define TORCH_NOTES "PyTorch, CUDA semantics: Memory management"
#define TORCH_CONF  "PyTorch, CUDA semantics: Optimizing memory usage with PYTORCH_ALLOC_CONF"
#define TORCH_FAQ   "PyTorch, Frequently Asked Questions: My model reports out of memory"
#define POOLS_GUIDE "CUDA C++ Programming Guide: Stream Ordered Memory Allocator"
#define GRAPH_GUIDE "CUDA C++ Programming Guide: Graph Memory Nodes"
#define DRIVER_API  "CUDA Driver API: "

static const struct row {
    enum finding_id id;
    advice_condition *condition;
    struct advice advice;
} rows[] = {
    {FINDING_LEAK_GROWING,
     is_python_leak,
     {"look for what keeps the tensors: a list or dict that only grows, a loss that is added up "
      "with its graph (keep loss.item() or loss.detach()), results kept outside torch.no_grad()",
      TORCH_FAQ}},
    {FINDING_LEAK_GROWING,
     never_freed,
     {"nothing that this line takes is ever given back: free it where its user ends",
      DRIVER_API "Memory Management"}},
    {FINDING_CACHE_GROWING,
     in_pytorch_cache,
     {"PYTORCH_ALLOC_CONF=expandable_segments:True, which lets segments grow instead of adding "
      "others",
      TORCH_CONF}},
    {FINDING_CACHE_GROWING,
     has_tensors,
     {"pad or bucket inputs, so that few different sizes are asked for", TORCH_CONF}},
    {FINDING_CACHE_REUSE,
     in_pytorch_cache,
     {"look for torch.cuda.empty_cache() in the loop, and for sizes that never come again",
      TORCH_NOTES}},
    {FINDING_OOM_CAPACITY, has_leak, {"first mend what grows: it is told above", TORCH_FAQ}},
    {FINDING_OOM_CAPACITY,
     in_attention,
     {"fused attention (torch.nn.functional.scaled_dot_product_attention), which does not keep "
      "the matrix of scores",
      "PyTorch, torch.nn.functional.scaled_dot_product_attention"}},
    {FINDING_OOM_CAPACITY,
     in_training,
     {"a smaller batch with gradient accumulation, mixed precision, or gradient checkpointing: "
      "activations made the need",
      "PyTorch, torch.utils.checkpoint"}},
    {FINDING_OOM_CAPACITY,
     in_optimizer,
     {"an optimizer with smaller or sharded states: its states hold memory all the time",
      "PyTorch, torch.distributed.optim: ZeroRedundancyOptimizer"}},
    {FINDING_OOM_CAPACITY,
     in_loading,
     {"load to the host (map_location=\"cpu\") and copy into the model: two copies were on the "
      "device",
      "PyTorch, torch.load"}},
    {FINDING_OOM_FRAGMENTATION,
     in_pytorch_cache,
     {"PYTORCH_ALLOC_CONF=expandable_segments:True; where it is not supported, max_split_size_mb "
      "below the size of the large blocks",
      TORCH_CONF}},
    {FINDING_OOM_FRAGMENTATION,
     in_pool,
     {"trim the pool before large requests (cuMemPoolTrimTo, cudaMemPoolTrimTo), or take large "
      "blocks from a pool of their own",
      POOLS_GUIDE}},
    {FINDING_OOM_FRAGMENTATION,
     has_storm,
     {"take the blocks of 1 to 16 MiB from a few size classes that are allocated once, and load "
      "neighbouring resources together",
      POOLS_GUIDE}},
    {FINDING_OOM_REFUSED,
     not_pretended,
     {"compare the free memory with the limits of the container, the vGPU or the MIG instance",
      DRIVER_API "Memory Management"}},
    {FINDING_OOM_LIMIT,
     always,
     {"raise or take away the process's fraction", "PyTorch, "
                                                   "torch.cuda.set_per_process_memory_fraction"}},
    {FINDING_OOM_FLUSH_RETRY,
     in_pytorch_cache,
     {"PYTORCH_ALLOC_CONF=expandable_segments:True, or a slightly smaller batch: the cache is "
      "emptied to make room, which synchronises the device",
      TORCH_CONF}},
    {FINDING_OOM_HOST,
     always,
     {"fewer pinned buffers (pin_memory, prefetching), or a higher limit on locked memory "
      "(ulimit -l)",
      DRIVER_API "cuMemHostAlloc"}},
    {FINDING_FREE_FAILED,
     in_callback,
     {"a host function of a stream may not call CUDA: free after it, from another thread",
      DRIVER_API "cuLaunchHostFunc"}},
    {FINDING_PEAK_SPIKE,
     in_loading,
     {"load to the host (map_location=\"cpu\"), or with mmap=True, and copy into the model",
      "PyTorch, torch.load"}},
    {FINDING_PEAK_SPIKE,
     in_convolution,
     {"torch.backends.cudnn.benchmark = False keeps cuDNN from trying workspaces this large",
      "PyTorch, torch.backends.cudnn"}},
    {FINDING_FRAG_ROUNDING,
     always,
     {"take small and odd sizes together: one block divided by the program costs one rounding",
      DRIVER_API "cuMemGetAllocationGranularity"}},
    {FINDING_FRAG_POOL_SLACK,
     keeps_threshold,
     {"a lower release threshold: this one lets the pool keep all that it ever reserved",
      POOLS_GUIDE}},
    {FINDING_FRAG_POOL_SLACK,
     no_threshold,
     {"trim the pool when a phase ends (cuMemPoolTrimTo, cudaMemPoolTrimTo)", POOLS_GUIDE}},
    {FINDING_FRAG_HOLES,
     in_pytorch_cache,
     {"PYTORCH_ALLOC_CONF=expandable_segments:True, or max_split_size_mb", TORCH_CONF}},
    {FINDING_ALLOC_STORM,
     always,
     {"allocate once and hand out from there: a pool with a release threshold, or a few size "
      "classes",
      POOLS_GUIDE}},
    {FINDING_IPC_UNCLOSED,
     is_torch,
     {"let consumers drop the tensors they received, and call torch.cuda.ipc_collect() in the "
      "producer",
      "PyTorch, Multiprocessing best practices: Reuse buffers passed through a Queue"}},
    {FINDING_IPC_UNCLOSED,
     is_native_leak,
     {"close each handle that was opened (cuIpcCloseMemHandle) before its owner frees the block",
      DRIVER_API "cuIpcOpenMemHandle"}},
    {FINDING_VMM_HELD_UNMAPPED,
     always,
     {"release the handles (cuMemRelease): unmapping alone gives nothing back",
      DRIVER_API "Virtual Memory Management"}},
    {FINDING_GRAPH_RESERVED,
     always,
     {"cuDeviceGraphMemTrim after the graph's last launch", GRAPH_GUIDE}},
    {FINDING_CONTEXT_EXTRA,
     in_several_processes,
     {"set the device before the first CUDA call (torch.cuda.set_device, CUDA_VISIBLE_DEVICES), "
      "load with map_location, and keep CUDA out of DataLoader workers",
      "PyTorch, Multiprocessing best practices"}},
    {FINDING_CONTEXT_EXTRA,
     in_one_process,
     {"share the primary context (cuDevicePrimaryCtxRetain) instead of making others",
      DRIVER_API "Primary Context Management"}},
    {FINDING_MODULES_GROWING,
     always,
     {"keep what was compiled, by its source, and unload what is not used again "
      "(cuModuleUnload, cuLibraryUnload)",
      DRIVER_API "Module Management"}},
    {FINDING_HOST_ROUNDED,
     is_torch,
     {"PYTORCH_ALLOC_CONF=pinned_use_cuda_host_register:True, or buffers just below a power of two",
      TORCH_CONF}},
    {FINDING_LIBRARY_HOLDS,
     in_nccl,
     {"fewer communicators, or smaller buffers (NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS)",
      "NCCL, Environment Variables"}},
};

void advice_attach(const struct inquiry *inquiry, struct finding *finding) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].id == finding->id && finding->advice_count < FINDING_ADVICE &&
            rows[i].condition(inquiry, finding))
            finding->advice[finding->advice_count++] = &rows[i].advice;
}
