/*
 * Which traces make up a job, what became of a process, which devices are one.
 */
#include "job.h"
#include "run_traces.h"
#include "tools_trace_builder.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static struct trace_builder *builder;
static char *kept[32]; /* paths of a test, freed at its end */
static unsigned kept_count;

static void set_up(void) {
    strcpy(folder, "/tmp/cuheap-job-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    builder = builder_new();
}

static void tear_down(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
    builder_free(builder);
    while (kept_count)
        free(kept[--kept_count]);
}

TestSuite(job, .init = set_up, .fini = tear_down);

static char *path_in(const char *name) {
    char *path = NULL;
    cr_assert_gt(asprintf(&path, "%s/%s", folder, name), 0);
    cr_assert_lt(kept_count, sizeof kept / sizeof *kept);
    return kept[kept_count++] = path;
}

/* Writes the builder's trace as a process of a job. */
static char *write_process(const char *name, const char *job, const char *host, uint32_t pid,
                           uint64_t start_s) {
    struct trace_header *header = builder->header;
    snprintf(header->job, sizeof header->job, "%s", job);
    snprintf(header->host, sizeof header->host, "%s", host);
    header->pid = pid;
    header->start_realtime_ns = start_s * 1000000000u;
    char *path = path_in(name);
    builder_write(builder, path);
    return path;
}

static void load(struct job *job, char *path) {
    struct trace_error error = {0};
    cr_assert(job_load(job, "report", &path, 1, NULL, &error), "%s", error.text);
}

Test(job, a_folder_gives_its_newest_job_of_one_host) {
    write_process("cuheap.a.h.1.trace", "old", "h", 1, 1000);
    write_process("cuheap.b.h.2.trace", "new", "h", 2, 1500);
    write_process("cuheap.b.h.3.trace.2", "new", "h", 3, 2000);
    write_process("cuheap.c.g.4.trace", "new", "g", 4, 1900);
    write_process("not a trace", "new", "h", 5, 3000);
    struct job job;
    load(&job, folder);
    cr_assert_eq(job.process_count, 2u);
    cr_expect_str_eq(job.name, "new");
    cr_expect_eq(job.processes[0].header->pid, 2u);
    cr_expect_eq(job.processes[1].header->pid, 3u);
    job_close(&job);
}

Test(job, processes_without_a_job_stand_alone) {
    write_process("a.trace", "", "h", 1, 1000);
    write_process("b.trace", "", "h", 2, 1001);
    struct job job;
    load(&job, folder);
    cr_assert_eq(job.process_count, 1u);
    cr_expect_eq(job.processes[0].header->pid, 2u);
    job_close(&job);
}

Test(job, what_cannot_be_read_in_a_folder_is_left_out_with_a_word) {
    char *text = NULL;
    size_t size;
    write_process("good.trace", "j", "h", 1, 1000);
    FILE *broken = fopen(path_in("broken.trace"), "we");
    fputs("no trace at all", broken);
    fclose(broken);
    FILE *warnings = open_memstream(&text, &size);
    struct job job;
    struct trace_error error = {0};
    char *path = folder;
    cr_assert(job_load(&job, "report", &path, 1, warnings, &error));
    fclose(warnings);
    cr_expect_eq(job.process_count, 1u);
    cr_expect(strstr(text, "cuheap report: left out: "), "%s", text);
    cr_expect(strstr(text, "broken.trace: not a cuheap trace"), "%s", text);
    cr_expect_eq(strchr(text, '\n'), text + strlen(text) - 1, "one line");
    free(text);
    job_close(&job);
    /* Named by itself it is an error. */
    path = path_in("broken.trace");
    cr_expect_not(job_load(&job, "report", &path, 1, NULL, &error));
    cr_expect_eq(error.code, TRACE_ERROR_FOREIGN);
}

Test(job, a_folder_without_traces_says_what_to_do) {
    struct job job;
    struct trace_error error = {0};
    char *path = folder;
    cr_assert_not(job_load(&job, "report", &path, 1, NULL, &error));
    cr_expect(strstr(error.text, "no trace (*.trace) in /tmp/cuheap-job-"), "%s", error.text);
    cr_expect(strstr(error.text, "cuheap run"), "%s", error.text);
}

Test(job, knows_trace_names) {
    cr_expect(job_is_trace_name("cuheap.python.host.12.trace"));
    cr_expect(job_is_trace_name("cuheap.python.host.12.trace.99"));
    cr_expect_not(job_is_trace_name(".trace"));
    cr_expect_not(job_is_trace_name("x.trace."));
    cr_expect_not(job_is_trace_name("x.trace.gz"));
    cr_expect_not(job_is_trace_name("x.trace2"));
    cr_expect_not(job_is_trace_name("12"));
    cr_expect_not(job_is_trace_name(""));
}

Test(job, devices_with_one_uuid_are_one) {
    struct trace_total *total = builder_total(builder, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    struct trace_site *site = builder_site(builder, TRACE_LEDGER_DRIVER, TRACE_KIND_DEVICE, 0, 0);
    builder_alloc(builder, site, total, 64);
    builder_device(builder, 0, 0xaa, "GPU A", 1 << 30);
    char *first = write_process("1.trace", "j", "h", 1, 1000);
    builder_device(builder, 0, 0xbb, "GPU B", 1 << 30);
    char *second = write_process("2.trace", "j", "h", 2, 1001);
    char *third = write_process("3.trace", "j", "h", 3, 1002);
    char *paths[] = {first, second, third};
    struct job job;
    struct trace_error error = {0};
    cr_assert(job_load(&job, "report", paths, 3, NULL, &error));
    cr_assert_eq(job.device_count, 2u);
    cr_expect_eq(job.processes[0].devices[0], 0u);
    cr_expect_eq(job.processes[1].devices[0], 1u);
    cr_expect_eq(job.processes[2].devices[0], 1u);
    /* Both are device 0 of their process: the number alone would not tell them apart. */
    cr_expect_str_eq(job.devices[0].label, "GPU-aa111111");
    cr_expect_str_eq(job.devices[1].label, "GPU-bb111111");
    char uuid[UUID_BYTES];
    cr_expect_str_eq(job_uuid(job.devices[0].uuid, uuid),
                     "GPU-aa111111-1111-1111-1111-111111111111");
    job_close(&job);
    load(&job, first);
    cr_expect_str_eq(job.devices[0].label, "0");
    job_close(&job);
}

/* ---- what became of a process ---------------------------------------------------------------- */

/* Fills in who a process of this machine is. */
static void claim_to_be(struct trace_header *header, pid_t pid) {
    char path[64], line[1024];
    struct stat namespace;
    gethostname(header->host, sizeof header->host - 1);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    cr_assert_not_null(fgets(header->boot_id, sizeof header->boot_id, file));
    fclose(file);
    header->boot_id[strcspn(header->boot_id, "\n")] = '\0';
    cr_assert_eq(stat("/proc/self/ns/pid", &namespace), 0);
    header->pid_namespace = namespace.st_ino;
    header->pid = (uint32_t)pid;
    header->state = TRACE_STATE_RUNNING;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    cr_assert_not_null(fgets(line, sizeof line, file));
    fclose(file);
    char *at = strrchr(line, ')') + 1;
    for (int field = 3; field < 22; field++)
        at = strchr(at + 1, ' ');
    header->pid_start_ticks = strtoull(at, NULL, 10);
}

Test(job, tells_running_exec_killed_and_reused_pids_apart) {
    struct trace_header *header = builder->header;
    claim_to_be(header, getpid());
    char *path = path_in("self.trace");
    builder_write(builder, path);
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    header->file_inode = status.st_ino;
    cr_expect_eq(process_state_of(header), PROCESS_EXEC, "this process does not map it");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, 65536, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    cr_assert_neq(map, MAP_FAILED);
    cr_expect_eq(process_state_of(header), PROCESS_RUNNING);
    munmap(map, 65536);
    header->features |= TRACE_FEATURE_WEAK;
    cr_expect_eq(process_state_of(header), PROCESS_RUNNING, "without a mapping none is sought");
    header->pid_start_ticks++;
    cr_expect_eq(process_state_of(header), PROCESS_KILLED, "the pid is another process's");
    header->pid_start_ticks--;
    header->boot_id[0] ^= 1;
    cr_expect_eq(process_state_of(header), PROCESS_UNSEALED);
    header->boot_id[0] ^= 1;
    header->pid_namespace++;
    cr_expect_eq(process_state_of(header), PROCESS_UNSEALED);
    header->state = TRACE_STATE_SEALED;
    cr_expect_eq(process_state_of(header), PROCESS_EXITED);
}

Test(job, a_zombie_has_been_killed) {
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 1);
    }
    claim_to_be(builder->header, pid);
    kill(pid, SIGKILL);
    siginfo_t info;
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    cr_expect_eq(process_state_of(builder->header), PROCESS_KILLED);
    waitpid(pid, NULL, 0);
    cr_expect_eq(process_state_of(builder->header), PROCESS_KILLED);
}

/* ---- traces of a run ------------------------------------------------------------------------- */

static size_t find_run(const char *out, const char *run, struct job *job) {
    struct run_traces traces;
    struct trace_error error = {0};
    cr_assert(run_traces_find(&traces, out));
    cr_assert(job_load_run(job, traces.paths, traces.count, run, &error), "%s", error.text);
    run_traces_free(&traces);
    return job->process_count;
}

Test(job, finds_the_traces_of_a_run_by_folder_and_pattern) {
    struct job job;
    char *pattern = path_in("%e-100%%.%p.trace");
    write_process("cuheap.x.h.1.trace", "run-1", "h", 1, 1000);
    write_process("cuheap.x.h.1.trace.1", "run-1", "h", 1, 1001);
    write_process("cuheap.x.h.2.trace", "run-2", "h", 2, 1001);
    write_process("x-100%.7.trace", "run-1", "h", 7, 1002);
    write_process("x-1000.8.trace", "run-1", "h", 8, 1002);
    cr_expect_eq(find_run(folder, "run-1", &job), 4u);
    job_close(&job);
    cr_expect_eq(find_run(folder, "run-2", &job), 1u);
    job_close(&job);
    cr_expect_eq(find_run(folder, "run-3", &job), 0u);
    job_close(&job);
    cr_assert_eq(find_run(pattern, "run-1", &job), 1u);
    cr_expect_eq(job.processes[0].header->pid, 7u);
    job_close(&job);
    cr_assert_eq(chdir(folder), 0);
    cr_expect_eq(find_run(NULL, "run-1", &job), 4u);
    cr_expect_eq(strncmp(trace_path(job.processes[0].trace), "cuheap.x", 8), 0,
                 "as the user would name it");
    job_close(&job);
}
