/*
 * cuheap info: what a trace is, what is in it, what it lost, whether it is whole.
 *
 * One tree is made and either printed as JSON or walked and printed as text, so that both always
 * tell the same.
 */
#include "command.h"
#include "job.h"
#include "symbols.h"
#include "text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    bool json;
    bool debuginfod;
};

#define AT(field) offsetof(struct settings, field)
static const struct option_row rows[] = {
    {"json", 0, OPTION_FLAG, AT(json), NULL, NULL, "print JSON, schema cuheap-info/1"},
    {"debuginfod", 0, OPTION_FLAG, AT(debuginfod), NULL, NULL,
     "fetch missing debug information from the servers in DEBUGINFOD_URLS"},
};

const struct option_table info_options = {
    .command = "info",
    .arguments = "TRACE",
    .summary = "Tell what a trace holds, what it lost, and whether it is whole.",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* ---- values ---------------------------------------------------------------------------------- */

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static void set_text(json_t *object, const char *key, const char *text) {
    char clean[4096];
    text_clean(clean, sizeof clean, text);
    set(object, key, *clean ? json_string(clean) : json_null());
}

static void set_number(json_t *object, const char *key, uint64_t number) {
    set(object, key, json_integer(number > INT64_MAX ? INT64_MAX : (json_int_t)number));
}

static void set_number_if(json_t *object, const char *key, bool known, uint64_t number) {
    if (known)
        set_number(object, key, number);
    else
        set(object, key, json_null());
}

static void set_seconds(json_t *object, const char *key, uint64_t ns) {
    set(object, key, json_real((double)ns / 1e9));
}

/* ---- parts ----------------------------------------------------------------------------------- */

static json_t *file_part(const struct job_process *process) {
    const struct trace_header *header = process->header;
    char version[16];
    json_t *json = json_object();
    snprintf(version, sizeof version, "%u.%u", header->major, header->minor);
    set_text(json, "path", trace_path(process->trace));
    set_number(json, "bytes", trace_bytes(process->trace));
    set_number(json, "limit_bytes", header->max_bytes);
    set_text(json, "format", version);
    set_text(json, "writer", header->writer);
    set_text(json, "machine", header->machine == 62 ? "x86-64" : "aarch64");
    /* What is cut off or contradicts itself has been refused when it was opened. */
    bool whole = process->profile->orphan_slots == 0;
    set(json, "whole", json_boolean(whole));
    set_number(json, "in_flight", process->profile->busy_slots);
    set_number(json, "live_blocks_without_site", process->profile->orphan_slots);
    set_number(json, "unknown_regions", trace_unknown_regions(process->trace));
    return json;
}

static const char *state_meaning(enum process_state state) {
    static const char *const meanings[] = {
        [PROCESS_RUNNING] = "the process is there and writes this trace",
        [PROCESS_EXITED] = "ended by exit() or by returning from main()",
        [PROCESS_KILLED] = "ended by a signal or by _exit(): the trace was not sealed",
        [PROCESS_EXEC] = "the process is there, but has become another program",
        [PROCESS_UNSEALED] = "not sealed, and of another host, boot or pid namespace: "
                             "what became of it cannot be told here",
    };
    return meanings[state];
}

static json_t *process_part(const struct job_process *process) {
    const struct trace_header *header = process->header;
    json_t *json = json_object();
    set_text(json, "name", header->name);
    set_text(json, "executable", header->executable);
    set_number(json, "pid", header->pid);
    set_number(json, "ppid", header->parent_pid);
    set_text(json, "hostname", header->host);
    set_number_if(json, "rank", header->rank != UINT32_MAX, header->rank);
    set_number_if(json, "world", header->world != 0, header->world);
    set_text(json, "state", process_state_name(process->state));
    set_text(json, "state_meaning", state_meaning(process->state));
    set_number_if(json, "exit_code", process->exit_code >= 0, (uint32_t)process->exit_code);
    set_seconds(json, "start", header->start_realtime_ns);
    set_seconds(json, "duration_s", process->duration_ns);
    set_seconds(json, "end_of_work_s", process->profile->end_of_work_ns);
    set_text(json, "boot_id", header->boot_id);
    set_text(json, "job", header->job);
    set_text(json, "job_source", header->job_source);
    return json;
}

static json_t *features_part(uint64_t features) {
    static const struct {
        uint64_t bit;
        const char *name;
    } known[] = {
        {TRACE_FEATURE_NATIVE_STACKS, "native_stacks"},
        {TRACE_FEATURE_PYTHON_STACKS, "python_stacks"},
        {TRACE_FEATURE_TENSORS, "tensors"},
        {TRACE_FEATURE_HISTORY, "history"},
        {TRACE_FEATURE_FORK_CHILD, "fork_child"},
        {TRACE_FEATURE_WEAK, "weak"},
        {TRACE_FEATURE_FULL_STACKS, "full_stacks"},
    };
    json_t *json = json_array();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (features & known[i].bit)
            json_array_append_new(json, json_string(known[i].name));
    return json;
}

static int compare_refs(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

enum site_stack { SITE_NATIVE, SITE_PYTHON, SITE_CALLER };

static uint32_t stack_ref(const struct profile_site *site, enum site_stack which) {
    return which == SITE_NATIVE   ? site->native_stack
           : which == SITE_PYTHON ? site->python_stack
                                  : site->called_from;
}

/* How many different stacks the sites name. */
static size_t count_stacks(const struct profile *profile, enum site_stack which) {
    uint32_t *refs = calloc(profile->site_count + 1, sizeof *refs);
    size_t count = 0, different = 0;
    for (size_t i = 0; refs && i < profile->site_count; i++) {
        uint32_t ref = stack_ref(&profile->sites[i], which);
        if (ref)
            refs[count++] = ref;
    }
    if (count)
        qsort(refs, count, sizeof *refs, compare_refs);
    for (size_t i = 0; i < count; i++)
        different += i == 0 || refs[i] != refs[i - 1];
    free(refs);
    return different;
}

static json_t *stacks_part(const struct job_process *process) {
    static const char *const unwinders[] = {"none", "libunwind", "backtrace"};
    const struct trace_header *header = process->header;
    json_t *json = json_object();
    set_text(json, "unwinder", header->unwinder < 3 ? unwinders[header->unwinder] : "unknown");
    set_number(json, "native_depth", header->depth_native);
    set_number(json, "python_depth", header->depth_python);
    set_number(json, "module_scans", header->module_generation);
    set_number(json, "native_stacks", count_stacks(process->profile, SITE_NATIVE));
    set_number(json, "python_stacks", count_stacks(process->profile, SITE_PYTHON));
    set_number(json, "waiting_stacks", count_stacks(process->profile, SITE_CALLER));
    set_number(json, "python_places",
               trace_record_count(process->trace, TRACE_SECTION_PYTHON_PLACES));
    return json;
}

static json_t *devices_part(const struct trace_header *header) {
    json_t *list = json_array();
    char uuid[UUID_BYTES];
    for (unsigned i = 0; i < TRACE_DEVICES; i++) {
        const struct trace_device *device = &header->devices[i];
        if (!device->state)
            continue;
        json_t *json = json_object();
        set_number(json, "index", i);
        set_text(json, "name", device->known & TRACE_DEVICE_NAME ? device->name : NULL);
        set_text(json, "uuid",
                 device->known & TRACE_DEVICE_UUID ? job_uuid(device->uuid, uuid) : NULL);
        set_number_if(json, "total_bytes", device->known & TRACE_DEVICE_TOTAL, device->total_bytes);
        json_array_append_new(list, json);
    }
    return list;
}

static json_t *sections_part(const struct trace *trace) {
    json_t *list = json_array();
    for (unsigned section = 1; section < TRACE_SECTION_LIMIT; section++) {
        struct trace_section_size size = trace_section_size(trace, section);
        json_t *json = json_object();
        set_text(json, "section", trace_section_name(section));
        set_number(json, "regions", size.regions);
        set_number(json, "bytes", size.bytes);
        set_number(json, "claimed", size.claimed);
        set_number_if(json, "records", size.records || !size.claimed, size.records);
        json_array_append_new(list, json);
    }
    return list;
}

/* Names and meanings of what the header counts, in the order of its arrays. */
struct count_name {
    const char *key;
    const char *meaning;
};

static const struct count_name counter_names[TRACE_COUNTER_COUNT] = {
#define X(name, key, meaning) {key, meaning},
    TRACE_COUNTERS(X)
#undef X
};

static const struct count_name loss_names[TRACE_LOSS_COUNT] = {
#define X(name, key, meaning) {key, meaning},
    TRACE_LOSSES(X)
#undef X
};

static json_t *counts_part(const struct count_name *names, size_t count, const uint64_t *values) {
    json_t *json = json_object();
    for (size_t i = 0; i < count; i++)
        set_number(json, names[i].key, values[i]);
    return json;
}

static json_t *module_json(struct symbols *symbols, const struct trace *trace,
                           const struct trace_module *module) {
    static const char *const levels[] = {"none", "functions", "lines"};
    struct symbols_state state = symbols_of_module(symbols, trace, module);
    char id[2 * sizeof module->build_id + 1] = "";
    for (size_t i = 0; i < module->build_id_bytes && i < sizeof module->build_id; i++)
        snprintf(id + 2 * i, 3, "%02x", module->build_id[i]);
    json_t *json = json_object();
    set_text(json, "symbols", levels[state.level]);
    set_text(json, "path", trace_string(trace, module->path));
    set_text(json, "reason", state.reason);
    set_text(json, "build_id", id);
    set(json, "unloaded", json_boolean(module->unloaded_generation != 0));
    return json;
}

static json_t *modules_part(struct symbols *symbols, const struct trace *trace) {
    json_t *list = json_array();
    size_t count = trace_record_count(trace, TRACE_SECTION_MODULES);
    for (size_t i = 0; i < count; i++) {
        const struct trace_module *module = trace_record(trace, TRACE_SECTION_MODULES, i);
        if (module)
            json_array_append_new(list, module_json(symbols, trace, module));
    }
    return list;
}

static json_t *environment_part(const struct trace_header *header) {
    json_t *list = json_array();
    const char *at = header->environment, *end = at + sizeof header->environment;
    for (; at < end && *at; at += strlen(at) + 1) {
        char clean[4096];
        json_array_append_new(list, json_string(text_clean(clean, sizeof clean, at)));
    }
    return list;
}

static json_t *notes_part(const struct trace *trace) {
    json_t *list = json_array();
    size_t count = trace_record_count(trace, TRACE_SECTION_NOTES);
    for (size_t i = 0; i < count; i++) {
        const struct trace_note *note = trace_record(trace, TRACE_SECTION_NOTES, i);
        const char *text = note ? trace_string(trace, note->text) : NULL;
        char clean[4096];
        if (text)
            json_array_append_new(list, json_string(text_clean(clean, sizeof clean, text)));
    }
    return list;
}

static json_t *marks_part(const struct trace *trace) {
    json_t *list = json_array();
    size_t count = trace_record_count(trace, TRACE_SECTION_MARKS);
    for (size_t i = 0; i < count; i++) {
        const struct trace_mark *mark = trace_record(trace, TRACE_SECTION_MARKS, i);
        if (!mark)
            continue;
        json_t *json = json_object();
        set_seconds(json, "time_s", mark->ns);
        set_text(json, "name", trace_string(trace, mark->name));
        set_number(json, "thread", mark->thread);
        json_array_append_new(list, json);
    }
    return list;
}

static json_t *info_tree(const struct job_process *process, struct symbols *symbols) {
    const struct trace_header *header = process->header;
    json_t *root = json_object();
    set_text(root, "schema", "cuheap-info/1");
    set(root, "file", file_part(process));
    set(root, "process", process_part(process));
    set_number_if(root, "driver_version", header->driver_version != 0, header->driver_version);
    set(root, "stacks", stacks_part(process));
    set(root, "features", features_part(header->features));
    set(root, "devices", devices_part(header));
    set(root, "sections", sections_part(process->trace));
    set(root, "counters", counts_part(counter_names, TRACE_COUNTER_COUNT, header->counters));
    set(root, "losses", counts_part(loss_names, TRACE_LOSS_COUNT, header->losses));
    set(root, "modules", modules_part(symbols, process->trace));
    set(root, "environment", environment_part(header));
    set(root, "marks", marks_part(process->trace));
    set(root, "notes", notes_part(process->trace));
    return root;
}

/* ---- the tree as text ------------------------------------------------------------------------ */

static const char *scalar(const json_t *value, char out[64]) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_string_value(value);
    case JSON_INTEGER:
        snprintf(out, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return out;
    case JSON_REAL:
        snprintf(out, 64, "%.6f", json_real_value(value));
        return out;
    case JSON_TRUE:
        return "yes";
    case JSON_FALSE:
        return "no";
    default:
        return "-";
    }
}

static void print_label(const char *key) {
    for (const char *c = key; *c; c++)
        putchar(*c == '_' ? ' ' : *c);
    for (size_t i = strlen(key); i < 25; i++)
        putchar(' ');
}

/* The width of a table's column: that of its longest cell. */
static int width_of(const json_t *list, const char *key) {
    size_t widest = strlen(key), i;
    json_t *row;
    json_array_foreach((json_t *)(uintptr_t)list, i, row) {
        char number[64];
        size_t columns = text_columns(scalar(json_object_get(row, key), number));
        widest = columns > widest ? columns : widest;
    }
    return (int)widest;
}

static void print_line(const json_t *list, json_t *row, json_t *first) {
    const char *key;
    json_t *value;
    json_object_foreach(first, key, value) {
        char number[64];
        const char *cell = row ? scalar(json_object_get(row, key), number) : key;
        int pad = width_of(list, key) - (int)text_columns(cell);
        bool figures = json_is_number(value);
        printf("  %*s%s%*s", figures ? pad : 0, "", cell, figures ? 0 : pad, "");
    }
    putchar('\n');
}

static void print_list(json_t *list) {
    json_t *first = json_array_get(list, 0), *row;
    size_t i;
    if (!first)
        printf("  none\n");
    if (json_is_object(first))
        print_line(list, NULL, first);
    json_array_foreach(list, i, row) {
        if (json_is_object(row))
            print_line(list, row, first);
        else
            printf("  %s\n", json_string_value(row));
    }
}

/* Only what happened, with what it means. */
static void print_counts(json_t *part, const struct count_name *names, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        json_int_t value = json_integer_value(json_object_get(part, names[i].key));
        if (value)
            printf("  %-20s %10" JSON_INTEGER_FORMAT "  %s\n", names[i].key, value,
                   names[i].meaning);
        any |= value != 0;
    }
    if (!any)
        printf("  none\n");
}

static void print_object(json_t *part) {
    const char *name;
    json_t *value;
    json_object_foreach(part, name, value) {
        char number[64];
        printf("  ");
        print_label(name);
        printf("%s\n", scalar(value, number));
    }
}

static void print_tree(json_t *root) {
    const char *key;
    json_t *part;
    json_object_foreach(root, key, part) {
        char number[64];
        if (strcmp(key, "schema") == 0)
            continue;
        if (!json_is_object(part) && !json_is_array(part)) {
            print_label(key);
            printf("  %s\n", scalar(part, number));
            continue;
        }
        printf("%s\n", key);
        if (strcmp(key, "counters") == 0)
            print_counts(part, counter_names, TRACE_COUNTER_COUNT);
        else if (strcmp(key, "losses") == 0)
            print_counts(part, loss_names, TRACE_LOSS_COUNT);
        else if (json_is_array(part))
            print_list(part);
        else
            print_object(part);
    }
}

static int print_info(const struct settings *settings, const struct job *job) {
    struct symbols *symbols = symbols_open(settings->debuginfod);
    if (!symbols)
        return command_error("info", "out of memory");
    json_t *root = info_tree(&job->processes[0], symbols);
    if (settings->json) {
        json_dumpf(root, stdout, JSON_INDENT(1));
        putchar('\n');
    } else
        print_tree(root);
    json_decref(root);
    symbols_close(symbols);
    return 0;
}

int cmd_info(int argc, char **argv) {
    struct settings settings = {0};
    struct job job;
    struct trace_error error = {0};
    int first;
    switch (options_parse(&info_options, &settings, argc, argv, &first)) {
    case OPTIONS_ERROR:
        return EXIT_ERROR;
    case OPTIONS_HELP:
        return 0;
    case OPTIONS_OK:
        break;
    }
    if (argc - first != 1)
        return command_error("info", "takes one trace; see \"cuheap help info\"");
    if (!job_load(&job, "info", argv + first, 1, stderr, &error))
        return command_error("info", "%s", error.text);
    int code = print_info(&settings, &job);
    job_close(&job);
    return code;
}
