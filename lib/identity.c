#include "identity.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "diag.h"

#define ANCESTORS 32

/* ---- files and text, without stdio
 * ---------------------------------------------------------------- */

/* The file's first bytes, NUL-terminated; their number, or 0. */
static size_t read_file(const char *path, char *to, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, to, size - 1);
    close(fd);
    to[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Copies text; what does not fit is cut from the left, where it says least. */
static void copy_tail(char *to, size_t size, const char *text) {
    size_t bytes = strlen(text);
    if (bytes >= size)
        text += bytes - size + 1;
    memcpy(to, text, strlen(text) + 1);
}

static void proc_path(char path[64], uint32_t pid, const char *file) {
    char digits[24];
    strcpy(path, "/proc/");
    strcat(path, diag_decimal(pid, digits));
    strcat(path, file);
}

static uint64_t decimal(const char *text) {
    uint64_t number;
    return config_number(&text, 10, &number) ? number : 0;
}

struct process_stat {
    uint32_t parent;
    uint64_t start_ticks;
};

/* Fields 4 and 22 of /proc/PID/stat; the name before them may hold anything, blanks and ")" too. */
static bool read_stat(uint32_t pid, struct process_stat *stat) {
    char path[64], text[1024];
    proc_path(path, pid, "/stat");
    if (!read_file(path, text, sizeof text))
        return false;
    char *at = strrchr(text, ')');
    if (!at)
        return false;
    at += 2; /* field 3 */
    for (int field = 3; field < 22 && at; field++) {
        at = strchr(at, ' ');
        if (at && field == 3)
            stat->parent = (uint32_t)decimal(at + 1);
        at = at ? at + 1 : NULL;
    }
    if (at)
        stat->start_ticks = decimal(at);
    return at != NULL;
}

/* ---- names
 * ------------------------------------------------------------------------------------------ */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void identity_program(char *name, size_t bytes) {
    char path[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    copy_tail(name, bytes, base_name(path));
}

/* Options of the interpreter that take a value in the next argument. */
static bool takes_value(const char *option) {
    return !strcmp(option, "-W") || !strcmp(option, "-X") ||
           !strcmp(option, "--check-hash-based-pycs");
}

/* For an interpreter, the script or module that it was told to run. */
static const char *script_of(const char *arguments, size_t bytes) {
    const char *end = arguments + bytes;
    const char *at = arguments + strlen(arguments) + 1;
    for (; at < end; at += strlen(at) + 1) {
        const char *next = at + strlen(at) + 1;
        if (!strcmp(at, "-m"))
            return next < end ? next : NULL;
        if (!strcmp(at, "-c") || !strcmp(at, "-"))
            return NULL;
        if (takes_value(at))
            at = next;
        else if (*at != '-')
            return base_name(at);
        if (at >= end)
            break;
    }
    return NULL;
}

static void fill_name(struct trace_header *header) {
    char arguments[2048];
    size_t bytes = read_file("/proc/self/cmdline", arguments, sizeof arguments);
    char program[128];
    identity_program(program, sizeof program);
    const char *script = NULL;
    if (bytes && !strncmp(program, "python", 6))
        script = script_of(arguments, bytes);
    copy_tail(header->name, sizeof header->name, script ? script : program);
    size_t length = strlen(header->name);
    if (script && length > 3 && !strcmp(header->name + length - 3, ".py"))
        header->name[length - 3] = 0;
}

/* ---- job
 * ---------------------------------------------------------------------------------------------- */

static const char *const rank_names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "PMIX_RANK"};
static const char *const world_names[] = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE",
                                          "PMI_SIZE"};
static const char *const kept_names[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
};

static uint32_t first_number(const char *const *names, size_t count, uint32_t none) {
    for (size_t i = 0; i < count; i++) {
        const char *value = secure_getenv(names[i]);
        if (value && *value >= '0' && *value <= '9')
            return (uint32_t)decimal(value);
    }
    return none;
}

uint32_t identity_rank(void) {
    return first_number(rank_names, sizeof rank_names / sizeof *rank_names, UINT32_MAX);
}

static void set_job(struct trace_header *header, const char *source, const char *value) {
    copy_tail(header->job_source, sizeof header->job_source, source);
    size_t used = strlen(header->job);
    if (used + 1 < sizeof header->job)
        copy_tail(header->job + used, sizeof header->job - used, value);
}

/* Does a process have this library mapped? */
static bool is_traced(uint32_t pid) {
    static const char wanted[] = "/libcuheap.so";
    char path[64], text[4096];
    size_t kept = 0;
    bool found = false;
    proc_path(path, pid, "/maps");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (ssize_t bytes; !found && (bytes = read(fd, text + kept, sizeof text - kept)) > 0;) {
        size_t have = kept + (size_t)bytes;
        found = memmem(text, have, wanted, sizeof wanted - 1) != NULL;
        /* The name may lie across two reads. */
        kept = have < sizeof wanted ? have : sizeof wanted;
        memmove(text, text + have - kept, kept);
    }
    close(fd);
    return found;
}

/* The topmost ancestor that is traced too, or ourselves. */
static void job_of_ancestor(struct trace_header *header) {
    uint32_t pid = header->pid, top = pid;
    struct process_stat stat = {0}, top_stat = {0};
    for (int i = 0; i < ANCESTORS && pid > 1 && read_stat(pid, &stat); i++) {
        if (pid == header->pid || is_traced(pid)) {
            top = pid;
            top_stat = stat;
        }
        pid = stat.parent;
    }
    char digits[24];
    set_job(header, "ancestor", diag_decimal(top, digits));
    set_job(header, "ancestor", "-");
    set_job(header, "ancestor", diag_decimal(top_stat.start_ticks, digits));
}

static void fill_job(struct trace_header *header) {
    static const char *const sources[] = {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID",
                                          "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"};
    if (*config.run) {
        set_job(header, "CUHEAP_RUN", config.run);
        return;
    }
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const char *value = secure_getenv(sources[i]);
        const char *step = i == 1 ? secure_getenv("SLURM_STEP_ID") : NULL;
        if (!value || !*value)
            continue;
        set_job(header, sources[i], value);
        if (step) {
            set_job(header, sources[i], ".");
            set_job(header, sources[i], step);
        }
        return;
    }
    job_of_ancestor(header);
}

static void fill_environment(struct trace_header *header) {
    size_t used = 0;
    for (size_t i = 0; i < sizeof kept_names / sizeof *kept_names; i++) {
        const char *value = secure_getenv(kept_names[i]);
        size_t name = strlen(kept_names[i]), bytes = value ? strlen(value) : 0;
        if (!value || used + name + bytes + 3 > sizeof header->environment)
            continue;
        memcpy(header->environment + used, kept_names[i], name);
        header->environment[used + name] = '=';
        memcpy(header->environment + used + name + 1, value, bytes);
        used += name + bytes + 2;
    }
}

/* ---- all of it
 * ------------------------------------------------------------------------------------------ */

static void fill_process(struct trace_header *header) {
    struct process_stat stat = {0}, parent = {0};
    struct statx namespace;
    header->pid = (uint32_t)getpid();
    header->parent_pid = (uint32_t)getppid();
    if (read_stat(header->pid, &stat))
        header->pid_start_ticks = stat.start_ticks;
    if (header->parent_pid && read_stat(header->parent_pid, &parent))
        header->parent_start_ticks = parent.start_ticks;
    if (statx(AT_FDCWD, "/proc/self/ns/pid", 0, STATX_INO, &namespace) == 0)
        header->pid_namespace = namespace.stx_ino;
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void identity_fill(struct trace_header *header) {
    struct utsname system;
    header->start_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    header->start_realtime_ns = clock_ns(CLOCK_REALTIME);
#if defined(__x86_64__)
    header->machine = 62;
#elif defined(__aarch64__)
    header->machine = 183;
#endif
    fill_process(header);
    header->rank = identity_rank();
    header->world = first_number(world_names, sizeof world_names / sizeof *world_names, 0);
    size_t bytes =
        read_file("/proc/sys/kernel/random/boot_id", header->boot_id, sizeof header->boot_id);
    if (bytes && header->boot_id[bytes - 1] == '\n')
        header->boot_id[bytes - 1] = 0;
    if (uname(&system) == 0)
        copy_tail(header->host, sizeof header->host, system.nodename);
    char path[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    copy_tail(header->executable, sizeof header->executable, path);
    fill_name(header);
    fill_job(header);
    fill_environment(header);
    copy_tail(header->writer, sizeof header->writer, CUHEAP_VERSION);
}
