/*
 * The report as JSON, schema "cuheap-report/1" (see cuheap-report(1)): bytes, seconds and counts;
 * what is not known is null. Called by cmd_report.c.
 */
#include "columns.h"
#include "reconcile.h"
#include "render.h"
#include "segment_map.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

/* Frames and stacks are written once and named by their index. */
struct frame_entry {
    UT_hash_handle hh;
    struct frame frame;
    size_t index;
};

struct stack_entry {
    UT_hash_handle hh;
    size_t index;
    size_t key_bytes;
    size_t frames[];
};

struct json_report {
    const struct report *report;
    struct frame_entry *frame_entries;
    struct stack_entry *stack_entries;
    json_t *frames;
    json_t *stacks;
};

/* ---- values ---------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text) {
    return text && *text ? json_string(text) : json_null();
}

/* jansson's integers are signed; a figure beyond that comes from a damaged trace. */
static json_t *figure(uint64_t value) {
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *figure_if(bool known, uint64_t value) {
    return known ? figure(value) : json_null();
}

static json_t *seconds(uint64_t ns) {
    return json_real((double)ns / 1e9);
}

static json_t *seconds_if(bool known, uint64_t ns) {
    return known ? seconds(ns) : json_null();
}

/* ---- frames and stacks ----------------------------------------------------------------------- */

static json_t *frame_json(const struct frame *frame) {
    json_t *json = json_object();
    json_object_set_new(json, "kind", json_string(frame->python ? "python" : "native"));
    json_object_set_new(json, "function", text_or_null(frame->function));
    json_object_set_new(json, "file", text_or_null(frame->file));
    json_object_set_new(json, "line", figure_if(frame->line, frame->line));
    json_object_set_new(json, "module", text_or_null(frame->module));
    json_object_set_new(json, "offset", figure_if(frame->offset, frame->offset));
    json_object_set_new(json, "inlined", json_boolean(frame->inlined));
    return json;
}

/* The offset tells frames apart only where nothing better is known. */
static struct frame identity(const struct frame *frame) {
    struct frame key;
    memset(&key, 0, sizeof key);
    key.function = frame->function;
    key.file = frame->file;
    key.line = frame->line;
    key.module = frame->module;
    key.offset = frame->function ? 0 : frame->offset;
    key.inlined = frame->inlined;
    key.python = frame->python;
    return key;
}

static size_t frame_index(struct json_report *json, const struct frame *frame) {
    struct frame key = identity(frame);
    struct frame_entry *entry;
    HASH_FIND(hh, json->frame_entries, &key, sizeof key, entry);
    if (entry)
        return entry->index;
    size_t index = json_array_size(json->frames);
    json_array_append_new(json->frames, frame_json(&key));
    entry = calloc(1, sizeof *entry);
    if (entry) {
        memcpy(&entry->frame, &key, sizeof key);
        entry->index = index;
        HASH_ADD(hh, json->frame_entries, frame, sizeof entry->frame, entry);
    }
    return index;
}

static json_t *stack_json(struct json_report *json, const struct backtrace *backtrace) {
    if (backtrace->count == 0)
        return json_null();
    size_t bytes = backtrace->count * sizeof(size_t);
    struct stack_entry *entry = calloc(1, sizeof *entry + bytes), *known;
    if (!entry)
        return json_null();
    for (unsigned i = 0; i < backtrace->count; i++)
        entry->frames[i] = frame_index(json, backtrace->frames[i]);
    HASH_FIND(hh, json->stack_entries, entry->frames, bytes, known);
    if (known) {
        free(entry);
        return figure(known->index);
    }
    json_t *list = json_array();
    for (unsigned i = 0; i < backtrace->count; i++)
        json_array_append_new(list, figure(entry->frames[i]));
    entry->index = json_array_size(json->stacks);
    json_array_append_new(json->stacks, list);
    HASH_ADD_KEYPTR(hh, json->stack_entries, entry->frames, bytes, entry);
    return figure(entry->index);
}

static void free_entries(struct json_report *json) {
    struct frame_entry *frame, *next_frame;
    HASH_ITER(hh, json->frame_entries, frame, next_frame) {
        HASH_DEL(json->frame_entries, frame);
        free(frame);
    }
    struct stack_entry *stack, *next_stack;
    HASH_ITER(hh, json->stack_entries, stack, next_stack) {
        HASH_DEL(json->stack_entries, stack);
        free(stack);
    }
}

/* ---- sites ----------------------------------------------------------------------------------- */

static json_t *blame_json(const struct frame *blame) {
    if (!blame)
        return json_null();
    json_t *json = json_object();
    json_object_set_new(json, "function", text_or_null(blame->function));
    json_object_set_new(json, "file", text_or_null(blame->file));
    json_object_set_new(json, "line", figure_if(blame->line, blame->line));
    json_object_set_new(json, "module", text_or_null(blame->module));
    return json;
}

static json_t *device_json(uint16_t ordinal) {
    return figure_if(ordinal < TRACE_DEVICES, ordinal);
}

static json_t *site_json(struct json_report *json, const struct view_row *row) {
    json_t *site = json_object();
    json_object_set_new(site, "id", json_string(row->id));
    json_object_set_new(site, "process", figure(row->process));
    json_object_set_new(site, "ledger", text_or_null(trace_ledger_name(row->ledger)));
    json_object_set_new(site, "kind", text_or_null(trace_kind_name(row->kind)));
    json_object_set_new(site, "device", device_json(row->ordinal));
    json_object_set_new(site, "class", json_string(growth_names[row->growth]));
    json_object_set_new(site, "released_at_end", json_boolean(view_is_released(row)));
    json_object_set_new(site, "cache_of",
                        view_is_cache(row) ? json_string("PyTorch")
                                           : text_or_null(row->pool ? row->pool->name : NULL));
    for (size_t i = 0; i < column_count; i++)
        if (column_table[i].use & IN_JSON)
            json_object_set_new(site, column_table[i].key,
                                figure(row->values[column_table[i].measure]));
    json_object_set_new(site, "call", text_or_null(row->backtrace->label));
    json_object_set_new(site, "blame", blame_json(backtrace_blame(row->backtrace)));
    json_object_set_new(site, "stack", stack_json(json, row->backtrace));
    json_object_set_new(site, "called_from",
                        row->caller ? stack_json(json, row->caller) : json_null());
    json_object_set_new(site, "called_from_varies", json_boolean(row->caller_varies));
    json_object_set_new(site, "via",
                        view_is_via_caller(row) ? json_string(COLUMN_VIA_CALLER) : json_null());
    return site;
}

static json_t *sites_json(struct json_report *json) {
    const struct view *view = json->report->view;
    json_t *list = json_array();
    for (size_t i = 0; i < view->site_count; i++)
        json_array_append_new(list, site_json(json, &view->sites[i]));
    return list;
}

/* ---- processes ------------------------------------------------------------------------------- */

static json_t *kind_json(const struct profile_kind *kind) {
    json_t *json = json_object();
    json_object_set_new(json, "live_bytes", figure(kind->live_bytes));
    json_object_set_new(json, "live_count", figure(kind->live_count));
    json_object_set_new(json, "peak_bytes", figure(kind->peak_bytes));
    json_object_set_new(json, "allocs", figure(kind->allocs));
    json_object_set_new(json, "frees", figure(kind->frees));
    return json;
}

/* Adds the kinds that a total has seen to `kinds`. */
static void add_kinds(json_t *kinds, const struct profile_total *total) {
    for (unsigned kind = 0; total && kind < TRACE_KIND_SLOTS; kind++) {
        const struct profile_kind *known = &total->kinds[kind];
        if (trace_kind_name(kind) && (known->allocs || known->peak_bytes || known->live_count))
            json_object_set_new(kinds, trace_kind_name(kind), kind_json(known));
    }
}

static json_t *total_json(const struct profile_total *total) {
    json_t *json = json_object();
    bool used = total && total->peak_bytes;
    json_object_set_new(json, "live_bytes", figure(total ? total->live_bytes : 0));
    json_object_set_new(json, "end_of_work_bytes", figure(total ? total->end_of_work_bytes : 0));
    json_object_set_new(json, "peak_bytes", figure(total ? total->peak_bytes : 0));
    json_object_set_new(json, "peak_time_s", seconds_if(used, used ? total->peak_ns : 0));
    return json;
}

static json_t *ledger_json(const struct profile *profile, enum trace_ledger ledger,
                           unsigned device) {
    static const enum trace_group groups[] = {TRACE_GROUP_DEVICE, TRACE_GROUP_MANAGED,
                                              TRACE_GROUP_IMPORTED};
    json_t *json = json_object(), *kinds = json_object();
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        add_kinds(kinds, profile_total(profile, ledger, groups[i], device));
    json_object_set_new(json, "kinds", kinds);
    json_object_set_new(json, "total",
                        total_json(profile_total(profile, ledger, TRACE_GROUP_DEVICE, device)));
    return json;
}

static json_t *reconciliation_json(const struct reconciliation *sum) {
    static const char *const keys[RECONCILE_LIMIT] = {
#define X(name, key, sign, words) key,
        RECONCILIATION(X)
#undef X
    };
    json_t *json = json_object();
    json_object_set_new(json, "at", json_string("end_of_work"));
    for (int line = 0; line < RECONCILE_LIMIT; line++)
        json_object_set_new(json, keys[line], figure_if(sum->known[line], sum->bytes[line]));
    return json;
}

/* ---- fragmentation --------------------------------------------------------------------------- */

static json_t *pools_json(const struct trace *trace, unsigned device) {
    size_t count = trace_record_count(trace, TRACE_SECTION_POOLS);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct trace_pool *pool = trace_record(trace, TRACE_SECTION_POOLS, i);
        if (!pool || pool->device != device || pool->destroyed_ns)
            continue;
        struct pool_slack slack = fragmentation_pool(pool);
        json_t *json = json_object();
        json_object_set_new(json, "default", json_boolean(pool->flags & TRACE_POOL_DEFAULT));
        json_object_set_new(json, "threshold_bytes",
                            figure_if(pool->flags & TRACE_POOL_THRESHOLD_SET, pool->threshold));
        json_object_set_new(json, "used_bytes", figure(pool->used_bytes));
        json_object_set_new(json, "used_high_bytes", figure(pool->used_high_bytes));
        json_object_set_new(json, "reserved_bytes", figure_if(slack.known, pool->reserved_bytes));
        json_object_set_new(json, "slack_bytes", figure_if(slack.known, slack.slack_bytes));
        json_object_set_new(json, "sampled_s", seconds_if(slack.known, pool->sampled_ns));
        json_array_append_new(list, json);
    }
    return list;
}

static json_t *virtual_json(const struct fragmentation *moment) {
    if (!moment->virtual_known)
        return json_null();
    json_t *json = json_object();
    json_object_set_new(json, "reserved_bytes", figure(moment->reserved_bytes));
    json_object_set_new(json, "mapped_bytes", figure(moment->mapped_bytes));
    json_object_set_new(json, "held_unmapped_bytes", figure(moment->held_unmapped_bytes));
    json_object_set_new(json, "held_unmapped", figure(moment->held_unmapped));
    return json;
}

static json_t *moment_json(const struct job_process *process, const struct fragmentation *moment) {
    json_t *json = json_object();
    bool holes = moment->holes_known;
    json_object_set_new(json, "at", json_string(fragmentation_moments[moment->at]));
    json_object_set_new(json, "time_s", seconds(moment->ns));
    json_object_set_new(json, "rounding_waste_bytes",
                        figure_if(moment->rounding_known, moment->rounding_waste_bytes));
    json_object_set_new(json, "cached_bytes",
                        moment->cached_known ? json_integer(moment->cached_bytes) : json_null());
    json_object_set_new(json, "holes_bytes", figure_if(holes, moment->holes_bytes));
    json_object_set_new(json, "holes", figure_if(holes, moment->holes));
    json_object_set_new(json, "largest_hole_bytes", figure_if(holes, moment->largest_hole_bytes));
    json_object_set_new(json, "external_ratio",
                        holes ? json_real(moment->external_ratio) : json_null());
    json_object_set_new(json, "request_bytes",
                        figure_if(moment->request_bytes, moment->request_bytes));
    json_object_set_new(json, "unusable_ratio",
                        holes && moment->request_bytes ? json_real(moment->unusable_ratio)
                                                       : json_null());
    json_object_set_new(json, "pools", pools_json(process->trace, moment->device));
    json_object_set_new(json, "virtual", virtual_json(moment));
    return json;
}

static json_t *fragmentation_json(const struct job_process *process, const struct space *space) {
    json_t *list = json_array();
    for (size_t i = 0; space && i < space->moments.count; i++)
        json_array_append_new(list, moment_json(process, &space->moments.list[i]));
    return list;
}

/* ---- segments -------------------------------------------------------------------------------- */

static json_t *id_of_site(const struct report *report, const struct job_process *process,
                          uint32_t site) {
    size_t index = (size_t)(process - report->job->processes);
    const struct view_row *row = site == SITE_NONE ? NULL : view_row_of(report->view, index, site);
    return row ? json_string(row->id) : json_null();
}

static json_t *segment_json(const struct report *report, const struct job_process *process,
                            const struct arena *segment) {
    json_t *json = json_object(), *blocks = json_array();
    json_object_set_new(json, "address", figure(segment->address));
    json_object_set_new(json, "bytes", figure(segment->bytes));
    json_object_set_new(json, "used_bytes", figure(segment->used_bytes));
    json_object_set_new(json, "site", id_of_site(report, process, segment->site));
    for (size_t i = 0; i < segment->parts.count; i++) {
        const struct block *block = &segment->parts.list[i];
        json_t *one = json_object();
        json_object_set_new(one, "address", figure(block->address));
        json_object_set_new(one, "bytes", figure(block->bytes));
        json_object_set_new(one, "site", id_of_site(report, process, block->site));
        json_array_append_new(blocks, one);
    }
    json_object_set_new(json, "blocks", blocks);
    return json;
}

static json_t *segments_json(const struct report *report, const struct job_process *process,
                             const struct space *space) {
    struct segment_map map;
    if (!segment_map_build(process->profile, space->ordinal, process->duration_ns, &map))
        return json_null();
    json_t *json = json_object(), *list = json_array();
    for (size_t i = 0; i < map.count; i++)
        json_array_append_new(list, segment_json(report, process, &map.segments[i]));
    json_object_set_new(json, "at", json_string(fragmentation_moments[map.at]));
    json_object_set_new(json, "list", list);
    segment_map_free(&map);
    return json;
}

static json_t *process_device_json(const struct report *report, const struct job_process *process,
                                   unsigned ordinal) {
    const struct profile *profile = process->profile;
    uint32_t index = job_device_of(report->job, process, (uint16_t)ordinal);
    const struct job_device *device = index == DEVICE_NONE ? NULL : &report->job->devices[index];
    char uuid[UUID_BYTES] = "";
    if (device && device->uuid_known)
        job_uuid(device->uuid, uuid);
    bool tensors = profile_total(profile, TRACE_LEDGER_TENSOR, TRACE_GROUP_DEVICE, ordinal);
    json_t *json = json_object();
    json_object_set_new(json, "index", device_json((uint16_t)ordinal));
    json_object_set_new(json, "name", text_or_null(device ? device->name : NULL));
    json_object_set_new(json, "uuid", text_or_null(uuid));
    json_object_set_new(json, "total_bytes",
                        figure_if(device && device->total_known, device ? device->total_bytes : 0));
    json_object_set_new(json, "driver", ledger_json(profile, TRACE_LEDGER_DRIVER, ordinal));
    json_object_set_new(json, "tensor",
                        tensors ? ledger_json(profile, TRACE_LEDGER_TENSOR, ordinal) : json_null());
    struct reconciliation sum = reconcile(profile, ordinal);
    const struct space *space =
        findings_space(report->findings, (size_t)(process - report->job->processes), ordinal);
    json_object_set_new(json, "reconciliation", reconciliation_json(&sum));
    json_object_set_new(json, "untracked_bytes",
                        figure_if(sum.known[RECONCILE_UNTRACKED], sum.bytes[RECONCILE_UNTRACKED]));
    json_object_set_new(json, "reuse_rate",
                        sum.reuse_known ? json_real(sum.reuse_rate) : json_null());
    json_object_set_new(json, "reuse_rate_last_third",
                        space && space->late_reuse_known ? json_real(space->late_reuse_rate)
                                                         : json_null());
    json_object_set_new(json, "fragmentation", fragmentation_json(process, space));
    json_object_set_new(json, "segments",
                        report->parts & PART_FRAGMENTATION && space
                            ? segments_json(report, process, space)
                            : json_null());
    return json;
}

static json_t *process_devices_json(const struct report *report,
                                    const struct job_process *process) {
    json_t *list = json_array();
    for (unsigned ordinal = 0; ordinal < TRACE_DEVICES; ordinal++)
        if (process->devices[ordinal] != DEVICE_NONE)
            json_array_append_new(list, process_device_json(report, process, ordinal));
    for (size_t i = 0; i < process->profile->total_count; i++)
        if (process->profile->totals[i].device == TRACE_DEVICE_UNKNOWN) {
            json_array_append_new(list, process_device_json(report, process, TRACE_DEVICE_UNKNOWN));
            break;
        }
    return list;
}

static json_t *host_memory_json(const struct profile *profile) {
    json_t *json = json_object(), *kinds = json_object();
    add_kinds(kinds,
              profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_HOST, TRACE_DEVICE_HOST));
    add_kinds(kinds, profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_REGISTERED,
                                   TRACE_DEVICE_HOST));
    json_object_set_new(json, "kinds", kinds);
    return json;
}

static json_t *holders_json(const struct failure *failure) {
    json_t *list = json_array();
    for (size_t i = 0; i < failure->holder_count; i++) {
        json_t *holder = json_object();
        json_object_set_new(holder, "site", json_string(failure->holders[i].row->id));
        json_object_set_new(holder, "bytes", figure(failure->holders[i].bytes));
        json_array_append_new(list, holder);
    }
    return list;
}

static json_t *failure_json(struct json_report *json, const struct trace *trace,
                            const struct failure *failure) {
    char call[256], id[SITE_ID_BYTES];
    const struct trace_failure *record = failure->record;
    text_clean(call, sizeof call, trace_string(trace, record->call));
    backtrace_site_id(failure->backtrace, record->ledger, record->kind, false, id);
    json_t *entry = json_object();
    json_object_set_new(entry, "time_s", seconds(record->ns));
    json_object_set_new(entry, "last_time_s", seconds(failure->ns));
    json_object_set_new(entry, "call", text_or_null(call));
    json_object_set_new(entry, "code", json_integer(record->code));
    json_object_set_new(entry, "device", device_json(record->device));
    json_object_set_new(entry, "request_bytes", figure(failure->request_bytes));
    json_object_set_new(entry, "free_bytes", figure_if(failure->free_known, failure->free_bytes));
    json_object_set_new(entry, "slack_bytes",
                        figure_if(failure->slack_known, failure->slack_bytes));
    json_object_set_new(entry, "verdict",
                        failure->superseded ? json_null()
                                            : json_string(verdict_names[failure->verdict]));
    json_object_set_new(entry, "handled", json_boolean(failure->handled));
    json_object_set_new(entry, "pretended", json_boolean(failure->pretended));
    json_object_set_new(entry, "count", figure(failure->count));
    json_object_set_new(entry, "retry_s", seconds_if(record->retry_ns, record->retry_ns));
    json_object_set_new(entry, "freed_bytes", figure(record->freed_bytes));
    json_object_set_new(entry, "site", json_string(id));
    json_object_set_new(entry, "blame", blame_json(backtrace_blame(failure->backtrace)));
    json_object_set_new(entry, "stack", stack_json(json, failure->backtrace));
    json_object_set_new(entry, "held_at", text_or_null(failure->held_at));
    json_object_set_new(entry, "holders", holders_json(failure));
    return entry;
}

static json_t *failures_json(struct json_report *json, size_t process) {
    const struct failures *failures = &json->report->findings->failures;
    json_t *list = json_array();
    for (size_t i = 0; i < failures->count; i++)
        if (failures->list[i].process == process)
            json_array_append_new(list,
                                  failure_json(json, json->report->job->processes[process].trace,
                                               &failures->list[i]));
    return list;
}

static json_t *pretended_json(const struct trace *trace) {
    size_t count = trace_record_count(trace, TRACE_SECTION_NOTES);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const char *text = findings_pretended(trace, i);
        char clean[1024];
        if (text)
            json_array_append_new(list, json_string(text_clean(clean, sizeof clean, text)));
    }
    return list;
}

static json_t *losses_json(const struct trace_header *header) {
    json_t *json = json_object();
#define X(name, key, meaning)                                                                      \
    json_object_set_new(json, key, figure(header->losses[TRACE_LOSS_##name]));
    TRACE_LOSSES(X)
#undef X
    return json;
}

static json_t *process_json(struct json_report *document, size_t index) {
    const struct report *report = document->report;
    const struct job_process *process = &report->job->processes[index];
    const struct trace_header *header = process->header;
    json_t *json = json_object();
    json_object_set_new(json, "index", figure(index));
    json_object_set_new(json, "pid", figure(header->pid));
    json_object_set_new(json, "ppid", figure(header->parent_pid));
    json_object_set_new(json, "name", text_or_null(process->name));
    json_object_set_new(json, "hostname", text_or_null(process->host));
    json_object_set_new(json, "rank", figure_if(header->rank != UINT32_MAX, header->rank));
    json_object_set_new(json, "state", json_string(process_state_name(process->state)));
    json_object_set_new(json, "exit_code",
                        process->exit_code >= 0 ? json_integer(process->exit_code) : json_null());
    json_object_set_new(json, "start",
                        seconds_if(header->start_realtime_ns, header->start_realtime_ns));
    json_object_set_new(json, "duration_s", seconds(process->duration_ns));
    json_object_set_new(
        json, "end_of_work_s",
        seconds_if(process->profile->end_of_work_ns, process->profile->end_of_work_ns));
    json_object_set_new(json, "devices", process_devices_json(report, process));
    json_object_set_new(json, "host_memory", host_memory_json(process->profile));
    json_object_set_new(json, "failures", failures_json(document, index));
    json_object_set_new(json, "pretended", pretended_json(process->trace));
    json_object_set_new(json, "losses", losses_json(header));
    return json;
}

/* ---- findings -------------------------------------------------------------------------------- */

static json_t *evidence_json(const struct finding *finding) {
    json_t *json = json_object();
    for (size_t i = 0; i < finding->evidence_count; i++) {
        const struct evidence *evidence = &finding->evidence[i];
        bool whole = evidence->unit == EVIDENCE_BYTES || evidence->unit == EVIDENCE_COUNT;
        json_object_set_new(
            json, evidence->key,
            whole ? figure(evidence->value < 9e18 ? (uint64_t)evidence->value : INT64_MAX)
                  : json_real(evidence->value));
    }
    return json;
}

static json_t *advice_json(const struct finding *finding) {
    json_t *list = json_array();
    for (size_t i = 0; i < finding->advice_count; i++) {
        json_t *advice = json_object();
        json_object_set_new(advice, "text", json_string(finding->advice[i]->text));
        json_object_set_new(advice, "source", json_string(finding->advice[i]->source));
        json_array_append_new(list, advice);
    }
    return list;
}

static json_t *finding_json(const struct report *report, const struct finding *finding) {
    json_t *json = json_object(), *sites = json_array();
    for (size_t i = 0; i < finding->site_count; i++)
        json_array_append_new(sites, json_string(finding->sites[i]));
    json_object_set_new(json, "id", json_string(finding_ids[finding->id]));
    json_object_set_new(json, "severity", json_string(severity_names[finding->severity]));
    json_object_set_new(json, "certainty", json_real(finding->certainty));
    json_object_set_new(json, "bytes", figure_if(finding->bytes, finding->bytes));
    json_object_set_new(json, "process", figure(finding->process));
    json_object_set_new(json, "device",
                        finding->device == DEVICE_NONE
                            ? json_null()
                            : device_json(report->job->devices[finding->device].ordinal));
    json_object_set_new(json, "text", json_string(finding->text));
    json_object_set_new(json, "advice", advice_json(finding));
    json_object_set_new(json, "sites", sites);
    json_object_set_new(
        json, "blame",
        blame_json(finding->site_count ? backtrace_blame(finding->stacks[0]) : NULL));
    json_object_set_new(json, "evidence", evidence_json(finding));
    return json;
}

static json_t *findings_json(const struct report *report) {
    json_t *list = json_array();
    for (size_t i = 0; i < report->findings->count; i++)
        json_array_append_new(list, finding_json(report, &report->findings->list[i]));
    return list;
}

bool render_json(const struct report *report, FILE *out) {
    struct json_report json = {.report = report, .frames = json_array(), .stacks = json_array()};
    json_t *root = json_object(), *processes = json_array();
    for (size_t i = 0; i < report->job->process_count; i++)
        json_array_append_new(processes, process_json(&json, i));
    json_t *sites = sites_json(&json);
    json_object_set_new(root, "schema", json_string("cuheap-report/1"));
    json_object_set_new(root, "job", text_or_null(report->job->name));
    json_object_set_new(root, "processes", processes);
    json_object_set_new(root, "frames", json.frames);
    json_object_set_new(root, "stacks", json.stacks);
    json_object_set_new(root, "sites", sites);
    json_object_set_new(root, "findings", findings_json(report));
    bool ok = json_dumpf(root, out, JSON_INDENT(1)) == 0;
    fputc('\n', out);
    json_decref(root);
    free_entries(&json);
    return ok;
}
