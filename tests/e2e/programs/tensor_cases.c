// LINK: @O@/simgpu/libcuda.so.1
/*
 * Reports of PyTorch's allocators that are not a plain pair of allocation and free, by case.
 * Arguments: the stand-in for libc10_cuda.so, the case, a second stand-in. Prints how many reports
 * reached the originals.
 */
#include "c10.h"
#include "cuda_sim.h"

#include <string.h>
#include <sys/mman.h>

static struct c10 c10;
static const char *second_path;

/* Freed, never allocated: made before tracing, or received from another process. */
static void frees_alone(void) {
    for (int i = 1; i <= 3; i++)
        c10.report(2, (void *)(uintptr_t)(i * 4096), -4096, CUDA(0));
}

/* A pool's state is put back: what was freed is reported as allocated again, at its place. One
   free is missing, as of a reset that nobody reports. */
static void restored(void) {
    char *at = c10.segment(20 * MIB);
    for (int round = 0; round < 2; round++) {
        c10.report(2, at, 3 * MIB, CUDA(0));
        c10.report(2, at + 3 * MIB, 5 * MIB, CUDA(0));
        c10.report(2, at, -(int64_t)(3 * MIB), CUDA(0));
        c10.report(2, at + 3 * MIB, -(int64_t)(5 * MIB), CUDA(0));
    }
    c10.report(2, at, 3 * MIB, CUDA(0));
    c10.report(2, at, 7 * MIB, CUDA(0));
}

/* The allocator's own Block is what 1.8 reports: a place in host memory. */
static void blocks(void) {
    static char block[2][64];
    c10.segment(20 * MIB);
    c10.report(0, block[0], 3 * MIB, CUDA(0));
    c10.report(0, block[1], 5 * MIB, CUDA(0));
    c10.report(0, block[0], -(int64_t)(3 * MIB), CUDA(0));
}

/* In memory that no driver call was seen for, beside a block that is somebody else's. */
static void unseen(void) {
    c10.segment(1 * MIB);
    c10.report(2, (void *)0x7f0000000000, 4 * MIB, CUDA(0));
}

/* As expandable segments: addresses reserved once, memory mapped behind what is there already, and
   tensors that reach over the seams. One more handle is mapped by another library. */
static CUmemGenericAllocationHandle map_more(CUdeviceptr at, size_t bytes) {
    CUmemAllocationProp where = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle = 0;
    if (cuMemCreate(&handle, bytes, &where, 0) || cuMemMap(at, bytes, 0, handle, 0))
        exit(5);
    return handle;
}

static void expandable(void) {
    CUdeviceptr at = 0, other = 0;
    free(c10.segment(0)); /* makes the runtime's context */
    if (cuMemAddressReserve(&at, 1024 * MIB, 0, 0, 0) ||
        cuMemAddressReserve(&other, 2 * MIB, 0, 0, 0))
        exit(5);
    for (int chunk = 0; chunk < 3; chunk++)
        map_more(at + (CUdeviceptr)chunk * 20 * MIB, 20 * MIB);
    c10.report(2, (void *)at, 55 * MIB, CUDA(0));
    map_more(at + 60 * MIB, 20 * MIB);
    c10.report(2, (void *)(at + 55 * MIB), 20 * MIB, CUDA(0));
    map_more(other, 2 * MIB);
    c10.report(2, (void *)(at + 75 * MIB), 1 * MIB, CUDA(0));
    c10.report(2, (void *)at, -(int64_t)(55 * MIB), CUDA(0));
}

static void devices(void) {
    static const uint64_t others[] = {CPU, XPU, OTHER_DEVICE};
    char place[8];
    for (int i = 0; i < 3; i++)
        c10.report(2, place, 1000 + i, others[i]);
    c10.report_oom(2, 5555, CPU);
    c10.report(2, place, 512, CUDA(0));
    c10.report(2, place + 1, 1024, CUDA(1));
    c10.report(2, place + 2, 2048, CUDA(255));
}

static void out_of_memory(void) {
    for (int form = 0; form < 3; form++)
        c10.report_oom(form, 1000 + form, CUDA(form));
}

/* Two copies of PyTorch; the first is unloaded and comes back. Each calls its own libc10. */
static void copies(const char *first_path) {
    struct c10 second = c10_load(second_path);
    for (int i = 1; i <= 5; i++) {
        c10.report(2, (void *)(uintptr_t)(i * 4096), 512, CUDA(0));
        if (i > 3)
            second.report(2, (void *)(uintptr_t)(i * 8192), 512, CUDA(0));
    }
    c10.report_oom(2, 512, CUDA(0));
    printf("first %d %d, second %d %d\n", *c10.memory_reports, *c10.oom_reports,
           *second.memory_reports, *second.oom_reports);
    /* Its libc10 cannot come back at the same place, while its caller does. */
    void *place = (void *)((uintptr_t)c10.memory_reports & ~(uintptr_t)4095);
    dlclose(c10.handle);
    if (mmap(place, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
        place)
        exit(4);
    second.report(2, (void *)4096, -512, CUDA(0));
    c10 = c10_load(first_path);
    c10.report(2, (void *)8192, -512, CUDA(0));
    second.report_oom(2, 512, CUDA(0));
    printf("first %d %d, second %d %d\n", *c10.memory_reports, *c10.oom_reports,
           *second.memory_reports, *second.oom_reports);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"frees_alone", frees_alone}, {"restored", restored}, {"blocks", blocks},
    {"unseen", unseen},           {"devices", devices},   {"out_of_memory", out_of_memory},
    {"expandable", expandable},
};

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    c10 = c10_load(argv[1]);
    second_path = argv[3];
    if (second_path)
        copies(argv[1]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[2], cases[i].name))
            cases[i].run();
    printf("originals: %d %d\n", *c10.memory_reports, *c10.oom_reports);
    return 0;
}
