/*
 * PyTorch's real caching allocator, used as PyTorch uses it, by case. Each case ends with the
 * allocator's own counters and then at once, so that what is live in the trace is what was live
 * when they were read. Compiled against the headers of the libtorch that it runs with; test_torch.c
 * starts it and compares.
 */
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

/* Exported, but in no header. */
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr size_t MIB = 1 << 20;

CUDAAllocator &allocator() {
    return *c10::cuda::CUDACachingAllocator::get();
}

bool is_out_of_memory(size_t bytes) {
    try {
        allocator().raw_alloc(bytes);
    } catch (const c10::OutOfMemoryError &) {
        return true;
    }
    return false;
}

/* Both pools, blocks that are split and blocks that are not; then pieces of what was freed. */
void split() {
    static const size_t sizes[] = {1,         512,       513,        MIB - 1,  MIB,
                                   MIB + 1,   3 * MIB,   10 * MIB,   20 * MIB, 33 * MIB,
                                   100 * MIB, 1000 * 37, 5 * MIB - 3};
    std::vector<void *> blocks;
    for (int round = 0; round < 3; round++) {
        for (size_t bytes : sizes)
            blocks.push_back(allocator().raw_alloc(bytes));
        for (size_t i = 1; i < blocks.size(); i += 2) {
            allocator().raw_delete(blocks[i]);
            blocks[i] = allocator().raw_alloc(sizes[i % 13] / 2 + 1);
        }
    }
    allocator().raw_delete(blocks[4]);
}

/* One thread's work: tensors of all sizes on two devices, some kept. */
void churn_in_thread(unsigned seed) {
    std::vector<void *> kept(64, nullptr);
    for (int step = 0; step < 3000; step++) {
        seed = seed * 1103515245 + 12345;
        void *&slot = kept[seed >> 16 & 63];
        if (slot)
            allocator().raw_delete(slot);
        c10::cuda::set_device((c10::DeviceIndex)(seed >> 23 & 1));
        slot = allocator().raw_alloc((seed >> 8 & 0xfff) << (seed >> 25 & 7) | 1);
    }
}

void allocate_on_both() {
    for (c10::DeviceIndex device : {0, 1}) {
        c10::cuda::set_device(device);
        allocator().raw_alloc(1);
    }
}

void churn() {
    churn_in_thread(1);
    allocate_on_both();
}

void threads() {
    std::vector<std::thread> all;
    for (unsigned i = 0; i < 4; i++)
        all.emplace_back(churn_in_thread, i);
    for (std::thread &thread : all)
        thread.join();
    allocate_on_both();
}

/* The cache is full of pieces that are too small: it is given back and the request made again. */
void retry() {
    std::vector<void *> blocks;
    for (int i = 0; i < 10; i++)
        blocks.push_back(allocator().raw_alloc(64 * MIB));
    for (void *block : blocks)
        allocator().raw_delete(block);
    allocator().raw_alloc(700 * MIB);
}

void out_of_memory() {
    for (int i = 0; i < 3; i++)
        allocator().raw_alloc(256 * MIB);
    if (!is_out_of_memory(512 * MIB + 5))
        _exit(4);
    allocator().raw_alloc(1000);
}

/* Refused by PyTorch itself: the driver is not asked. */
void fraction() {
    allocator().raw_alloc(200 * MIB);
    allocator().setMemoryFraction(0.25, 0);
    if (!is_out_of_memory(100 * MIB))
        _exit(4);
}

/* Freed while another stream may still use it: reported at once, reusable after the event. */
void record_stream() {
    c10::DataPtr first = allocator().allocate(30 * MIB), second = allocator().allocate(40 * MIB);
    cudaStream_t side;
    if (cudaStreamCreate(&side))
        _exit(4);
    allocator().recordStream(second, c10::cuda::getStreamFromExternal(side, 0));
    second.clear();
    (void)first.release_context();
}

/* A graph's private pool; then its state is put back, as torch.compile's graph trees do. */
void graph_pool() {
    const c10::cuda::MempoolId_t pool{0, 1};
    allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    void *kept = allocator().raw_alloc(3 * MIB), *gone = allocator().raw_alloc(5 * MIB);
    allocator().endAllocateToPool(0, pool);
    auto state = allocator().getCheckpointState(0, pool);
    allocator().raw_delete(kept);
    allocator().raw_delete(gone);
    auto delta = allocator().setCheckpointPoolState(0, state);
    for (c10::DataPtr &restored : delta.dataptrs_allocd)
        (void)restored.release_context();
    allocator().raw_alloc(7 * MIB);
}

/* The cache is emptied at the end. */
void empty_cache() {
    void *small = allocator().raw_alloc(100), *large = allocator().raw_alloc(50 * MIB);
    allocator().raw_alloc(30 * MIB);
    allocator().raw_delete(small);
    allocator().raw_delete(large);
    allocator().emptyCache();
}

/* Where the hook is silent: with PyTorch's other backend, and without caching. */
void silent() {
    std::vector<void *> blocks;
    for (int i = 0; i < 10; i++)
        blocks.push_back(allocator().raw_alloc(MIB));
    for (int i = 0; i < 4; i++)
        allocator().raw_delete(blocks[i]);
}

/* A forked child traces anew: what it inherited was made before. */
void forked() {
    void *inherited[3];
    for (void *&block : inherited)
        block = allocator().raw_alloc(2 * MIB);
    pid_t child = fork();
    if (child == 0) {
        allocator().raw_alloc(9 * MIB);
        allocator().raw_delete(inherited[0]);
        allocator().raw_delete(inherited[1]);
        _exit(0);
    }
    int status;
    printf("child %d\n", child);
    if (waitpid(child, &status, 0) != child || status)
        _exit(4);
}

void print_stats(c10::DeviceIndex device) {
    const c10::CachingDeviceAllocator::DeviceStats stats = allocator().getDeviceStats(device);
    const auto &count = stats.allocation[0], &bytes = stats.allocated_bytes[0];
    printf("device %d allocs %" PRId64 " frees %" PRId64 " live %" PRId64 " count %" PRId64
           " peak %" PRId64 " reserved %" PRId64 " segments %" PRId64 " active %" PRId64
           " ooms %" PRId64 " retries %" PRId64 "\n",
           device, count.allocated, count.freed, bytes.current, count.current, bytes.peak,
           stats.reserved_bytes[0].current, stats.segment[0].current, stats.active_bytes[0].current,
           stats.num_ooms, stats.num_alloc_retries);
}

const struct {
    const char *name;
    void (*run)();
} cases[] = {
    {"split", split},
    {"churn", churn},
    {"threads", threads},
    {"retry", retry},
    {"out_of_memory", out_of_memory},
    {"fraction", fraction},
    {"record_stream", record_stream},
    {"graph_pool", graph_pool},
    {"empty_cache", empty_cache},
    {"silent", silent},
    {"forked", forked},
};

/* libtorch_cuda sets it in a whole PyTorch. */
bool has_primary_context(c10::DeviceIndex) {
    return true;
}

} // namespace

extern "C" int run_case(const char *name) {
    c10::cuda::_internal::setHasPrimaryContext(has_primary_context);
    c10::DeviceIndex devices = c10::cuda::device_count();
    allocator().init(devices);
    for (const auto &one : cases) {
        if (strcmp(one.name, name) != 0)
            continue;
        one.run();
        for (c10::DeviceIndex i = 0; i < devices && one.run != silent; i++)
            print_stats(i);
        fflush(stdout);
        _exit(0);
    }
    return 3;
}
