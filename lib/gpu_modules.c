#include "gpu_modules.h"

#include <errno.h>

#include "atomic.h"
#include "record.h"

static void end(struct recorder *recorder, uint32_t ref) {
    struct trace_gpu_module *module = trace_at(&recorder->trace, ref);
    /* Pairs with the reader. */
    store_release(&module->unloaded_ns, trace_now(&recorder->trace));
    reuse_ended(&recorder->gpu_modules.ended, ref);
}

static enum handles_space space_of(enum trace_gpu_module_type type) {
    return type == TRACE_GPU_MODULE ? HANDLES_SPACE_MODULE : HANDLES_SPACE_LIBRARY;
}

void gpu_modules_loaded(struct record_call *call, CUresult code, enum trace_gpu_module_type type,
                        const void *handle) {
    struct recorder *recorder = call->recorder;
    int saved = errno;
    struct trace_gpu_module *module = NULL;
    if (code != CUDA_SUCCESS)
        failures_call(call, 0, code, 0);
    else
        module = reuse_record(&recorder->gpu_modules.ended, &recorder->trace,
                              TRACE_SECTION_GPU_MODULES, sizeof *module);
    if (module) {
        module->type = (uint16_t)type;
        module->device = record_device_if_known(recorder);
        module->handle = (uintptr_t) * (void *const *)handle;
        module->loaded_ns = trace_now(&recorder->trace);
        module->unloaded_ns = 0;
        module->context = contexts_current(recorder);
        struct stack_refs stack = record_stack(call, module->loaded_ns);
        module->native_stack = stack.native;
        module->python_stack = stack.python;
        store_release(&module->state, 1u); /* pairs with the reader */
        uint32_t old = handles_note(recorder, space_of(type), module->handle,
                                    trace_ref(&recorder->trace, module));
        if (old)
            end(recorder, old);
    }
    errno = saved;
}

void gpu_modules_unload_begin(struct record_call *call, enum trace_gpu_module_type type,
                              const void *handle) {
    call->mark =
        table_mark_freeing(&call->recorder->handles.counted, space_of(type), (uintptr_t)handle);
}

void gpu_modules_unload_end(struct record_call *call, CUresult code) {
    int saved = errno;
    if (call->mark.slot && code != CUDA_SUCCESS)
        table_unmark(&call->mark);
    else if (call->mark.slot && table_erase(&call->mark))
        end(call->recorder, call->mark.site);
    errno = saved;
}
