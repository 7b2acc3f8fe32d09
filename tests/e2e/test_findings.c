/*
 * What the report finds: small programs, each after a fault that people have had, and healthy ones
 * beside them. A report must have the findings that a case lists, with severity, bytes and the
 * function to blame, and no other above a note; and say them in words.
 */
#include "harness.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY UINT64_MAX
#define MIB (1ull << 20)

struct expected {
    char id[24];
    char severity[8];
    uint64_t bytes;
    char function[32]; /* "": none is named */
};

/* All here, since other processes read it. */
struct findings_case {
    char program[24];
    char name[32];
    char env[2][48];
    struct expected findings[3];
    char words[128]; /* that the text has */
    bool several;    /* leaves several traces, of one job */
    int signal;
};

#define NOTHING                                                                                    \
    { "", "", 0, "" } /* healthy */
#define CASE(program, name, words, ...)                                                            \
    { program, name, {""}, {__VA_ARGS__}, words, false, 0 }
#define CASE_IN(program, name, env, words, ...)                                                    \
    { program, name, {env}, {__VA_ARGS__}, words, false, 0 }
#define JOB(program, name, env, words, ...)                                                        \
    { program, name, {env}, {__VA_ARGS__}, words, true, 0 }
#define KILLED(program, name, words, ...)                                                          \
    { program, name, {""}, {__VA_ARGS__}, words, false, SIGKILL }

/* clang-format off: a table */
static struct findings_case table[] = {
    CASE("sites", "leak_linear", "create_context_state (findings_sites.c:",
         {"leak.growing", "error", 256 * MIB, "create_context_state"}),
    CASE("sites", "leak_linear_healthy", "FINDINGS", NOTHING),
    CASE("sites", "leak_small", "in 64 blocks at end of work",
         {"leak.growing", "error", 128ull * 307200, "grab_images"},
         {"leak.growing", "error", 256, "new_counter"}),
    CASE("sites", "leak_larger_each_time", "keeps ever more memory of the device",
         {"leak.growing", "error", 64 * MIB + 256 * (63 * 64 / 2), "grow_cache"}),
    CASE("sites", "leak_one_in_ten", "575 of its 640 allocations were freed",
         {"leak.growing", "error", 65 * 65536, "make_batch"}),
    CASE("sites", "leak_from_60_percent", "", {"leak.growing", "", 51ull * 8192, "log_metrics"}),
    CASE("sites", "leak_managed", "managed memory",
         {"leak.growing", "error", 64 * MIB, "leak_managed_block"}),
    CASE("sites", "leak_host", "pinned host memory",
         {"leak.growing", "error", 6 * MIB, "stage_on_host"}),
    CASE("sites", "leak_pool", "memory of a pool",
         {"leak.growing", "error", 16 * MIB, "request_scratch"}),
    CASE("sites", "leak_by_concatenation", "", {"leak.growing", "error", ANY, "concatenate"}),
    CASE("sites", "retained_once", "no leak",
         {"leak.retained", "note", 0xE00000, "fill_static_cache"}),
    CASE("sites", "retained_workspace", "", {"leak.retained", "note", 8519680, "cublas_workspace"}),
    CASE("sites", "saturating", "it grew and then stayed",
         {"leak.saturating", "note", 2048 * MIB, "cache_plan"}),
    CASE("sites", "second_phase", "", NOTHING),
    CASE("sites", "replay_buffer", "", NOTHING),
    CASE("sites", "evaluation", "", NOTHING),
    CASE("sites", "few_steps", "", NOTHING),
    CASE("sites", "variable_lengths", "", NOTHING),
    CASE("sites", "doubled_at_load", "map_location",
         {"peak.spike", "note", ANY, "load_checkpoint"}),
    CASE("sites", "plateau", "", NOTHING),
    CASE("sites", "preallocated", "75 % of the device",
         {"pool.opaque", "note", 12288 * MIB, "preallocate"}),
    CASE("sites", "nccl", "NCCL holds",
         {"library.holds", "note", 688 * MIB / 12 * 12, "ncclCommInitRank"}),
    CASE("sites", "nccl_host", "of pinned host memory in 64 blocks",
         {"library.holds", "note", 64ull * 9641984, "ncclCommInitRank"}),
    CASE("sites", "host_rounded", "All 37 pinned host blocks",
         {"host.rounded", "note", ANY, "pin_buffers"}),
    CASE("sites", "host_odd", "", NOTHING),
    CASE("sites", "storm", "in a storm: 2000 times",
         {"alloc.storm", "note", 9 * MIB, "load_texture"}),
    CASE("sites", "rounding", "of it is unused",
         {"frag.rounding", "warning", 200 * (4 * MIB - 2 * MIB - 4096), ""}),
    CASE("sites", "rounding_healthy", "", NOTHING),

    {"space",
     "pool_fragmented",
     {"SIMGPU_MEMORY=84590723072", "SIMGPU_CONTEXT_MEMORY=64M"},
     {{"oom.fragmentation", "error", 132870728, "join_tables"},
      {"frag.pool_slack", "warning", 84490059776 - 53514136688, "fill_column"}},
     "(63.3 %)",
     false,
     0},
    CASE_IN("space", "pool_healthy", "SIMGPU_MEMORY=32G", "", NOTHING),
    CASE("space", "sleep_without_release", "in 32 handles",
         {"vmm.held_unmapped", "warning", 2048 * MIB, "create_weights"}),
    CASE("space", "sleep_healthy", "", NOTHING),
    CASE("space", "double_release", "Releasing physical memory failed 12 times",
         {"free.failed", "warning", 0, "release_twice"}),
    CASE("space", "map_failed", "no out of memory: cuMemMap",
         {"map.failed", "note", 64 * MIB, "map_where_something_is"}),
    CASE("space", "register_failed", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)",
         {"register.failed", "note", 4 * MIB, "pin_region"}),
    CASE("space", "free_failed", "failed 64 times with CUDA_ERROR_NOT_PERMITTED (800)",
         {"free.failed", "error", 64 * 8192, "free_in_callback"},
         {"leak.growing", "error", 64 * 8192, "stage_indices"}),
    CASE_IN("space", "free_after_end", "SIMGPU_UNLOAD_AT_EXIT=1", "came after the driver's end",
            {"free.failed", "note", 0, ""}),
    CASE("space", "graph_reserved", "cuDeviceGraphMemTrim",
         {"graph.reserved", "note", 96 * MIB, "add_node"}),
    CASE("space", "graph_healthy", "", NOTHING),
    JOB("space", "ipc_unclosed", "CUHEAP_RUN=ipc", "did not close 32 of them",
        {"ipc.unclosed", "warning", 0, "receive_batch"},
        {"ipc.unclosed", "warning", 64 * MIB, "share_batch"}),
    CASE("space", "context_second", "2 contexts", {"context.extra", "warning", 0, ""}),
    CASE("space", "context_one_after_the_other", "", NOTHING),
    JOB("space", "contexts_of_workers", "CUHEAP_RUN=workers", "24 processes",
        {"context.extra", "warning", 0, ""}),
    CASE("space", "modules_growing", "128 are there", {"modules.growing", "warning", 0, ""}),
    CASE("space", "modules_healthy", "", NOTHING),
    CASE("space", "modules_recompiled", "", NOTHING),

    CASE("tensors", "tensors_growing", "keeps ever more tensors",
         {"leak.growing", "error", 64 * 4096, "accumulate_loss"}),
    CASE("tensors", "tensors_healthy", "", NOTHING),
    CASE("tensors", "cache_growing", "while its tensors do not",
         {"cache.growing", "warning", ANY, "segment"}),
    CASE("tensors", "cache_high_water", "", NOTHING),
    CASE("tensors", "reuse_low", "Only 0.0 % of the tensors", {"cache.reuse", "warning", 0, ""}),
    KILLED("tensors", "holes", "80 holes between the tensors",
           {"frag.holes", "note", 40 * (20 * MIB - 512 * 1024), ""}),
    CASE("tensors", "limit", "without asking the driver",
         {"oom.limit", "error", 3ull << 30, "forward"}),

    CASE("failures", "capacity", "15.0 GiB, of 15.0 GiB in all",
         {"oom.capacity", "error", 2048 * MIB, "ask_for"}),
    CASE("failures", "probe", "Out of memory, handled",
         {"oom.capacity", "note", 16384 * MIB, "find_batch_size"}),
    CASE_IN("failures", "probe", "CUHEAP_LIMIT=8GiB", "PRETENDED, not the device's own",
            {"oom.capacity", "note", 16384 * MIB, "find_batch_size"}),
    CASE_IN("failures", "probe", "CUHEAP_FAIL=4",
            "enough; it was refused because that was asked for",
            {"oom.refused", "note", 8192 * MIB, "find_batch_size"}),
    CASE_IN("failures", "refused", "SIMGPU_FAIL=cuMemAlloc_v2:3=2", "Out of memory",
            {"oom.refused", "error", 1024 * MIB, "ask_for"}),
    CASE("failures", "flush_retry", "29 times",
         {"oom.flush_retry", "warning", ANY, "take_or_flush"}),
    CASE_IN("failures", "host", "SIMGPU_FAIL=cuMemHostAlloc:2=2", "not the device",
            {"oom.host", "", MIB, "host"}),
    CASE("failures", "segment_split", "Out of memory",
         {"oom.fragmentation", "error", 11643387904, "large_tensor"},
         {"frag.holes", "", 11643387904 - 240 * 17 * MIB, ""}),
    CASE("failures", "tensors_fill", "small_tensor (findings_failures.c",
         {"oom.capacity", "error", 1024 * MIB, "large_tensor"}),
};
/* clang-format on */
#define CASES (sizeof table / sizeof *table)

/* ---- looking --------------------------------------------------------------------------------- */

static const char *text_of(json_t *finding, const char *key) {
    return json_string_value(json_object_get(finding, key));
}

static bool fits(json_t *finding, const struct expected *expected) {
    json_t *blame = json_object_get(finding, "blame");
    const char *function = json_string_value(json_object_get(blame, "function"));
    json_t *bytes = json_object_get(finding, "bytes");
    const char *id = text_of(finding, "id");
    if (strcmp(id, expected->id) != 0 ||
        (expected->severity[0] && strcmp(text_of(finding, "severity"), expected->severity) != 0))
        return false;
    if (expected->bytes != ANY && (uint64_t)json_integer_value(bytes) != expected->bytes)
        return false;
    return !expected->function[0] || (function && strcmp(function, expected->function) == 0);
}

static void findings_must_be(json_t *report, const struct findings_case *c, const char *text) {
    bool met[3] = {false};
    json_t *finding;
    size_t i;
    json_array_foreach(json_at(report, "findings"), i, finding) {
        bool listed = strcmp(text_of(finding, "severity"), "note") == 0;
        for (unsigned e = 0; e < 3 && c->findings[e].id[0]; e++)
            if (!met[e] && fits(finding, &c->findings[e])) {
                met[e] = listed = true;
                break;
            }
        cr_expect(listed, "%s: %s %s, not expected so: %s\n%s", c->name,
                  text_of(finding, "severity"), text_of(finding, "id"), text_of(finding, "text"),
                  text);
    }
    for (unsigned e = 0; e < 3 && c->findings[e].id[0]; e++)
        cr_expect(met[e], "%s: no %s %s of %s with %lu bytes\n%s", c->name, c->findings[e].severity,
                  c->findings[e].id, c->findings[e].function, (unsigned long)c->findings[e].bytes,
                  text);
}

ParameterizedTestParameters(findings, are_those_of_the_fault) {
    return cr_make_param_array(struct findings_case, table, CASES);
}

ParameterizedTest(struct findings_case *c, findings, are_those_of_the_fault) {
    char program[160];
    snprintf(program, sizeof program, PROGRAM("findings_%s"), c->program);
    struct launch launch = {
        .program = program, .args = {c->name}, .preload_front = PROGRAM("clock.so")};
    for (unsigned i = 0; i < 2 && c->env[i][0]; i++)
        launch.env[i] = c->env[i];
    struct run *run = run_program(&launch);
    cr_assert(run->code == 0 || run->signal == c->signal, "%s: %s", c->name, run->err);
    setenv("COLUMNS", "1000", 1); /* no text is broken into lines */
    const char *path = c->several ? run->dir : run_trace(run);
    struct run *text = cuheap_run((const char *const[]){"report", path, NULL});
    cr_assert_eq(text->code, 0, "%s", text->err);
    json_t *report = cuheap_json("report", path);
    findings_must_be(report, c, text->out);
    cr_expect(strstr(text->out, c->words), "%s: not in the text: %s\n%s", c->name, c->words,
              text->out);
    json_decref(report);
    run_free(text);
    run_free(run);
}

/* ---- the examples ---------------------------------------------------------------------------- */

#define EXAMPLE(name) CUHEAP_BUILD "/examples/" name

static json_t *report_of_example(const char *program, const char *argument, int code,
                                 struct run **run) {
    *run = run_program(&(struct launch){.program = program, .args = {argument}});
    cr_assert_eq((*run)->code, code, "%s\n%s", (*run)->out, (*run)->err);
    return cuheap_json("report", run_trace(*run));
}

static json_t *find(json_t *report, const char *id) {
    json_t *finding;
    size_t i;
    json_array_foreach(json_at(report, "findings"), i,
                       finding) if (strcmp(text_of(finding, "id"), id) == 0) return finding;
    return NULL;
}

static json_t *out_of_memory(json_t *report, const char *id) {
    json_t *finding = find(report, id);
    cr_assert(finding, "no %s", id);
    cr_expect_str_eq(text_of(finding, "severity"), "error");
    return finding;
}

static void must_be_healthy(json_t *report) {
    json_t *finding;
    size_t i;
    json_array_foreach(json_at(report, "findings"), i, finding)
        cr_expect_str_eq(text_of(finding, "severity"), "note", "%s", text_of(finding, "text"));
}

Test(findings, a_training_that_runs_out_of_memory_every_hundred_steps) {
    struct run *run;
    json_t *report = report_of_example(EXAMPLE("gpt2"), NULL, 1, &run);
    json_t *finding = out_of_memory(report, "oom.capacity");
    cr_expect_str_eq(json_text(finding, "blame.function"), "attention_qkv");
    cr_expect_eq(json_number(finding, "evidence.count"), 3);
    cr_expect_eq(json_number(finding, "evidence.request_bytes"), 900000000);
    cr_expect(strstr(text_of(finding, "text"), "attention_qkv (gpt2.c:"), "%s",
              text_of(finding, "text"));
    cr_expect(strstr(text_of(finding, "text"), " 6.7 GiB"), "7.2 GB: %s", text_of(finding, "text"));
    json_decref(report);
    run_free(run);
    report = report_of_example(EXAMPLE("gpt2"), "mended", 0, &run);
    must_be_healthy(report);
    json_decref(report);
    run_free(run);
}

Test(findings, a_render_service_that_fails_after_five_scenes) {
    struct run *run;
    json_t *report = report_of_example(EXAMPLE("render"), NULL, 1, &run);
    json_t *finding = out_of_memory(report, "oom.fragmentation");
    cr_expect_str_eq(json_text(finding, "blame.function"), "composite");
    json_t *slack = find(report, "frag.pool_slack"), *storm = find(report, "alloc.storm");
    cr_assert(slack && storm);
    cr_expect_str_eq(json_text(slack, "blame.function"), "load_texture");
    cr_expect_float_eq(json_real_value(json_at(slack, "evidence.slack_ratio")), 0.68, 0.005);
    cr_expect_str_eq(json_text(storm, "blame.function"), "load_texture");
    json_decref(report);
    run_free(run);
    report = report_of_example(EXAMPLE("render"), "mended", 0, &run);
    must_be_healthy(report);
    json_decref(report);
    run_free(run);
}
