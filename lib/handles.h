/*
 * What lives as long as somebody refers to it: physical memory by its handles and mappings
 * (cuMemCreate, cuMemMap), another process's memory by how often it was opened
 * (cuIpcOpenMemHandle). Also where it is mapped, and what addresses are reserved: the RANGES of the
 * trace.
 *
 * interpose calls this around the driver's functions; any thread, no locks. A reference is given
 * back before the driver is asked, so that whoever gives the last one marks the block as being
 * freed; if the driver refuses, it is taken again.
 *
 * On an H200 (driver 580.159) a handle keeps its value while its memory is mapped, retained again
 * or not, and no other memory gets that value meanwhile.
 */
#ifndef CUHEAP_HANDLES_H
#define CUHEAP_HANDLES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "limits.h"
#include "reuse.h"
#include "table.h"
#include "trace_writer.h"

struct record_call;
struct recorder;

/* Key spaces of the private table, beside those of handles. */
enum handles_space {
    HANDLES_SPACE_MAPPING = TRACE_SPACE_LIMIT,
    HANDLES_SPACE_RESERVATION,
    HANDLES_SPACE_MODULE,
    HANDLES_SPACE_LIBRARY,
};

struct handles {
    /* Private. By handle: a count of references and mappings. By address, and of modules by handle:
       an entry's site is the ref of its record. */
    struct table counted;
    struct reuse ranges;
};

bool handles_init(struct handles *handles);

/* Notes which record of the trace stands for a handle. The ref of an older one; 0: none. */
uint32_t handles_note(struct recorder *recorder, enum handles_space space, uint64_t handle,
                      uint32_t ref);

/* ---- physical memory ------------------------------------------------------------------------- */

/* Before the driver is asked: is it to fail? */
bool handles_decide(struct record_call *call, uint64_t bytes,
                    const CUmemAllocationProp *properties);

static inline bool handles_refuse(struct record_call *call, uint64_t bytes,
                                  const CUmemAllocationProp *properties) {
    return __builtin_expect(limits_active, 0) && handles_decide(call, bytes, properties);
}

void handles_created(struct record_call *call, CUresult code,
                     const CUmemGenericAllocationHandle *handle, uint64_t bytes,
                     const CUmemAllocationProp *properties);
void handles_imported(struct record_call *call, CUresult code,
                      const CUmemGenericAllocationHandle *handle);
/* cuMulticastCreate: a handle that is mapped and released, and owns no memory. */
void handles_multicast(struct record_call *call, CUresult code,
                       const CUmemGenericAllocationHandle *handle);
void handles_retained(struct record_call *call, CUresult code,
                      const CUmemGenericAllocationHandle *handle);
void handles_release_begin(struct record_call *call, CUmemGenericAllocationHandle handle);
void handles_release_end(struct record_call *call, CUresult code,
                         CUmemGenericAllocationHandle handle);

/* ---- addresses ------------------------------------------------------------------------------- */

void handles_mapped(struct record_call *call, CUresult code, CUdeviceptr address, uint64_t bytes,
                    uint64_t offset, CUmemGenericAllocationHandle handle);
/* What is mapped there, from `address` on, is a segment of the framework. */
void handles_segment(struct recorder *recorder, uint64_t address, uint64_t bytes);
void handles_unmap_begin(struct record_call *call, CUdeviceptr address, uint64_t bytes);
void handles_unmap_end(struct record_call *call, CUresult code, CUdeviceptr address,
                       uint64_t bytes);
void handles_access_set(struct record_call *call, CUresult code, uint64_t bytes);
void handles_reserved(struct record_call *call, CUresult code, const CUdeviceptr *address,
                      uint64_t bytes);
void handles_unreserve_begin(struct record_call *call, CUdeviceptr address);
void handles_unreserve_end(struct record_call *call, CUresult code, CUdeviceptr address);

/* ---- memory of other processes --------------------------------------------------------------- */

void handles_opened(struct record_call *call, CUresult code, const CUdeviceptr *address);
void handles_close_begin(struct record_call *call, CUdeviceptr address);
void handles_close_end(struct record_call *call, CUresult code, CUdeviceptr address);

/* What the ending context (call->ending) had opened is closed. */
void handles_context_ended(struct record_call *call);

#endif
