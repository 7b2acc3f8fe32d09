// LINK: @O@/simgpu/libcuda.so.1
/*
 * Physical memory: handles, mappings, reservations, imports, multicast; after each step the books
 * are the driver's. Two devices.
 */
#include "cuda_sim.h"
#include "ledger.h"
#include "trace_books.h"

#define PAGE ((size_t)2 << 20)

static CUmemAllocationProp on(CUmemLocationType type, int id) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {type, id},
    };
}

static const struct trace_range *range_at(CUdeviceptr address, unsigned type) {
    const struct trace_range *range, *found = NULL;
    for (unsigned i = 0; (range = books_record(TRACE_SECTION_RANGES, i)); i++)
        if (range->address == address && range->type == type && !range->removed_ns)
            found = range;
    return found;
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address;
    MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

/* No context yet: the location says the device, and host memory enters no device's total. */
static void without_context(void) {
    CUmemAllocationProp second = on(CU_MEM_LOCATION_TYPE_DEVICE, 1);
    CUmemAllocationProp host = on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    CUmemGenericAllocationHandle a, b;
    STEP(cuMemCreate(&a, 3 * PAGE, &second, 0));
    STEP(cuMemCreate(&b, PAGE, &host, 0));
    STEP(cuMemRelease(b));
    STEP(cuMemRelease(a));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemRelease(a));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&a, 17, &second, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&a, PAGE, NULL, 0));
}

/* The usual idiom: the handle is released right after the mapping. */
static void released_while_mapped(void) {
    CUmemAllocationProp first = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle, again;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    CUdeviceptr va = reserve(8 * PAGE);
    STEP(cuMemCreate(&handle, PAGE, &first, 0));
    STEP(cuMemMap(va, PAGE, 0, handle, 0));
    STEP(cuMemMap(va + PAGE, PAGE, 0, handle, 0)); /* mapped twice, there once */
    STEP(cuMemSetAccess(va, 2 * PAGE, &access, 1));
    STEP(cuMemRelease(handle));
    TRACED(range_at(va, TRACE_RANGE_RESERVATION)->bytes, 8 * PAGE);
    TRACED(range_at(va, TRACE_RANGE_MAPPING)->handle, handle);
    TRACED(range_at(va + PAGE, TRACE_RANGE_MAPPING)->device, 0);
    /* retained by address, released twice, as NCCL does */
    STEP(cuMemRetainAllocationHandle(&again, (void *)(va + 5)));
    STEP(cuMemRelease(again));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va, PAGE / 2));
    STEP(cuMemUnmap(va, 2 * PAGE)); /* one call, two mappings: now it is gone */
    TRACED(range_at(va, TRACE_RANGE_MAPPING) == NULL, 1);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, PAGE, 0, handle, 0));
    /* the value of the handle comes again for other memory; the address stays */
    STEP(cuMemCreate(&again, 2 * PAGE, &first, 0));
    printf("the handle %s\n", again == handle ? "came again" : "is another");
    STEP(cuMemMap(va, 2 * PAGE, 0, again, 0));
    STEP(cuMemUnmap(va, 2 * PAGE));
    STEP(cuMemRelease(again));
    STEP(cuMemAddressFree(va, 8 * PAGE));
    TRACED(range_at(va, TRACE_RANGE_RESERVATION) == NULL, 1);
}

static void nccl(void) {
    CUmemAllocationProp first = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle, retained;
    CUdeviceptr va = reserve(PAGE);
    STEP(cuMemCreate(&handle, PAGE, &first, 0));
    STEP(cuMemMap(va, PAGE, 0, handle, 0));
    STEP(cuMemRetainAllocationHandle(&retained, (void *)va));
    STEP(cuMemRelease(retained));
    STEP(cuMemUnmap(va, PAGE));
    STEP(cuMemRelease(handle));
    STEP(cuMemAddressFree(va, PAGE));
}

static void shared(void) {
    CUmemAllocationProp first = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmulticastObjectProp many = {.numDevices = 2, .size = PAGE};
    CUmemGenericAllocationHandle own, other, multicast;
    CUdeviceptr va = reserve(2 * PAGE);
    int descriptor = 0;
    STEP(cuMemCreate(&own, PAGE, &first, 0));
    STEP(cuMemExportToShareableHandle(&descriptor, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      0));
    STEP(cuMemImportFromShareableHandle(&other, &descriptor,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    STEP(cuMulticastCreate(&multicast, &many));
    STEP(cuMemMap(va, PAGE, 0, other, 0));
    STEP(cuMemMap(va + PAGE, PAGE, 0, multicast, 0));
    STEP(cuMemRelease(other));
    STEP(cuMemRelease(multicast));
    STEP(cuMemUnmap(va + PAGE, PAGE));
    STEP(cuMemUnmap(va, PAGE));
    STEP(cuMemRelease(own));
    STEP(cuMemAddressFree(va, 2 * PAGE));
}

/* Far more mappings than the trace keeps records of. */
static void mapped_for_days(void) {
    CUmemAllocationProp first = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr va = reserve(PAGE);
    unsigned records = 0;
    for (int i = 0; i < 20000; i++) {
        MUST(cuMemCreate(&handle, PAGE, &first, 0));
        MUST(cuMemMap(va, PAGE, 0, handle, 0));
        MUST(cuMemRelease(handle));
        MUST(cuMemUnmap(va, PAGE));
    }
    BOOKS();
    while (books_record(TRACE_SECTION_RANGES, records))
        records++;
    TRACED(records < 5000, 1);
    STEP(cuMemAddressFree(va, PAGE));
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    without_context();
    MUST(cuCtxCreate_v2(&context, 0, 0));
    released_while_mapped();
    nccl();
    shared();
    mapped_for_days();
    TRACED(books_loss(TRACE_LOSS_UNKNOWN_FREES), 1);
    TRACED(books_loss(TRACE_LOSS_FAILED_FREES), 2);
    TRACED(books_loss(TRACE_LOSS_LOST_FREES), 0);
    TRACED(books_loss(TRACE_LOSS_RECORDS_FULL), 0);
    return 0;
}
