/*
 * Streams, events and stream capture. Work is done at once, so waiting only gives pools their
 * chance to release. Bodies of entry points: called with the driver's lock held, from any thread.
 *
 * Sources: CUDA driver API reference, "Stream Management", "Event Management"; which calls a
 * capture forbids to which thread: cuThreadExchangeStreamCaptureMode. The real driver invalidates
 * the capture then, and so does this one under SIMGPU_CAPTURE=invalidate; otherwise a forbidden
 * call aborts the process, so that a test sees the damage where it is done.
 */
#include <time.h>

#include "driver.h"

#define STREAM_NON_BLOCKING 1u

struct CUstream_st {
    struct CUctx_st *context;
    unsigned int flags;
    struct CUstream_st *next;
};

struct CUevent_st {
    struct CUctx_st *context;
    bool recorded;
    struct timespec time;
    struct CUevent_st *next;
};

/* A capture that is going on. */
struct capture {
    CUstream stream;
    const void *thread; /* that began it; told by the address of its thread-local mode */
    CUstreamCaptureMode mode;
    bool spoilt; /* by a call that it forbids */
    struct CUgraph_st *graph;
    struct capture *next;
};

static struct CUstream_st *streams;
static struct CUevent_st *events;
static struct capture *captures;
static __thread CUstreamCaptureMode thread_mode;

static bool is_default(CUstream stream) {
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

bool stream_known(CUstream stream) {
    if (is_default(stream))
        return true;
    for (const struct CUstream_st *s = streams; s; s = s->next)
        if (s == stream)
            return true;
    return false;
}

static CUresult stream_check(CUstream stream, struct CUctx_st **context) {
    CUresult code = current_context(context);

    if (code)
        return code;
    if (!stream_known(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_default(stream))
        *context = stream->context;
    return CUDA_SUCCESS;
}

CUresult sim_stream_create(CUstream *stream, unsigned int flags) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    if (code)
        return code;
    if (!stream || flags > STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = store_take(sizeof **stream);
    **stream = (struct CUstream_st){.context = context, .flags = flags, .next = streams};
    streams = *stream;
    return CUDA_SUCCESS;
}

CUresult sim_stream_create_with_priority(CUstream *stream, unsigned int flags, int priority) {
    (void)priority;
    return sim_stream_create(stream, flags);
}

static struct capture **find_capture(CUstream stream) {
    struct capture **link = &captures;

    while (*link && ((*link)->stream != stream ||
                     (stream == CU_STREAM_PER_THREAD && (*link)->thread != &thread_mode)))
        link = &(*link)->next;
    return link;
}

static void capture_end(struct capture **link) {
    struct capture *capture = *link;

    *link = capture->next;
    store_give(capture, sizeof *capture);
}

CUresult sim_stream_destroy(CUstream stream) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (code)
        return code;
    if (is_default(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    struct capture **capture = find_capture(stream);
    if (*capture)
        capture_end(capture);
    struct CUstream_st **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    store_give(stream, sizeof *stream);
    return CUDA_SUCCESS;
}

CUresult sim_stream_get_ctx(CUstream stream, CUcontext *context) {
    return stream_check(stream, context);
}

CUresult sim_stream_synchronize(CUstream stream) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (!code)
        pools_synchronize(context->device);
    return code;
}

CUresult sim_stream_query(CUstream stream) {
    struct CUctx_st *context;

    return stream_check(stream, &context);
}

/* ---- events ---- */

static CUresult event_check(const struct CUevent_st *event) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    for (const struct CUevent_st *e = events; e; e = e->next)
        if (e == event)
            return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_event_create(CUevent *event, unsigned int flags) {
    struct CUctx_st *context;
    CUresult code = current_context(&context);

    (void)flags;
    if (code)
        return code;
    *event = store_take(sizeof **event);
    **event = (struct CUevent_st){.context = context, .next = events};
    events = *event;
    return CUDA_SUCCESS;
}

CUresult sim_event_destroy(CUevent event) {
    CUresult code = event_check(event);

    if (code)
        return code;
    struct CUevent_st **link = &events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    store_give(event, sizeof *event);
    return CUDA_SUCCESS;
}

CUresult sim_event_record(CUevent event, CUstream stream) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (!code)
        code = event_check(event);
    if (code)
        return code;
    event->recorded = true;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return CUDA_SUCCESS;
}

CUresult sim_event_query(CUevent event) {
    return event_check(event);
}

CUresult sim_event_synchronize(CUevent event) {
    CUresult code = event_check(event);

    if (!code)
        pools_synchronize(event->context->device);
    return code;
}

CUresult sim_event_elapsed_time(float *ms, CUevent start, CUevent end) {
    if (event_check(start) || event_check(end) || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    *ms = (float)(end->time.tv_sec - start->time.tv_sec) * 1e3f +
          (float)(end->time.tv_nsec - start->time.tv_nsec) / 1e6f;
    return CUDA_SUCCESS;
}

CUresult sim_stream_wait_event(CUstream stream, CUevent event, unsigned int flags) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    (void)flags;
    return code ? code : event_check(event);
}

/* ---- capture ---- */

struct CUgraph_st *stream_capture(CUstream stream) {
    const struct capture *capture = *find_capture(stream);

    return capture ? capture->graph : NULL;
}

static bool forbids(const struct capture *capture) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (capture->thread == &thread_mode)
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

bool capture_forbids(const char *what) {
    bool forbidden = false;

    for (struct capture *c = captures; c; c = c->next)
        if (forbids(c)) {
            if (!settings.spoil_capture)
                driver_abort("%s while a stream capture forbids it", what);
            c->spoilt = forbidden = true;
        }
    return forbidden;
}

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode, CUgraph into) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (code)
        return code;
    if (!stream || stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (*find_capture(stream))
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = store_take(sizeof *capture);
    *capture = (struct capture){.stream = stream,
                                .thread = &thread_mode,
                                .mode = mode,
                                .graph = into ? into : graph_new(),
                                .next = captures};
    captures = capture;
    return CUDA_SUCCESS;
}

CUresult sim_begin_capture(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture(stream, mode, NULL);
}

CUresult sim_begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                    const CUgraphEdgeData *edges, size_t count,
                                    CUstreamCaptureMode mode) {
    (void)dependencies, (void)edges, (void)count;
    return graph ? begin_capture(stream, mode, graph) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_begin_capture_to_graph_ptsz(CUstream stream, CUgraph graph,
                                         const CUgraphNode *dependencies,
                                         const CUgraphEdgeData *edges, size_t count,
                                         CUstreamCaptureMode mode) {
    return sim_begin_capture_to_graph(stream ? stream : CU_STREAM_PER_THREAD, graph, dependencies,
                                      edges, count, mode);
}

CUresult sim_begin_capture_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return sim_begin_capture(stream ? stream : CU_STREAM_PER_THREAD, mode);
}

CUresult sim_begin_capture_v1(CUstream stream) {
    return sim_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_begin_capture_v1_ptsz(CUstream stream) {
    return sim_begin_capture_ptsz(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_end_capture(CUstream stream, CUgraph *graph) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (code)
        return code;
    struct capture **capture = find_capture(stream);
    if (!*capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if ((*capture)->mode != CU_STREAM_CAPTURE_MODE_RELAXED && (*capture)->thread != &thread_mode)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool spoilt = (*capture)->spoilt;
    struct CUgraph_st *captured = (*capture)->graph;
    capture_end(capture);
    *graph = spoilt ? NULL : captured;
    if (spoilt)
        graph_end(captured);
    return spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult sim_end_capture_ptsz(CUstream stream, CUgraph *graph) {
    return sim_end_capture(stream ? stream : CU_STREAM_PER_THREAD, graph);
}

/* The legacy stream waits for every blocking stream, so it cannot be asked beside one's capture. */
static bool implicitly_captured(const struct CUctx_st *context) {
    for (const struct capture *c = captures; c; c = c->next)
        if (!is_default(c->stream) && c->stream->context == context &&
            !(c->stream->flags & STREAM_NON_BLOCKING))
            return true;
    return false;
}

CUresult sim_is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    struct CUctx_st *context;
    CUresult code = stream_check(stream, &context);

    if (code)
        return code;
    if ((!stream || stream == CU_STREAM_LEGACY) && implicitly_captured(context))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const struct capture *capture = *find_capture(stream);
    if (!capture)
        *status = CU_STREAM_CAPTURE_STATUS_NONE;
    else
        *status = capture->spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult sim_is_capturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) {
    return sim_is_capturing(stream ? stream : CU_STREAM_PER_THREAD, status);
}

CUresult sim_exchange_capture_mode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode old = thread_mode;

    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
