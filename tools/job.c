/*
 * Finds and loads the traces that belong together. See job.h; one thread.
 */
#include "job.h"

#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Traces that were opened and may become processes of the job. */
struct found {
    struct trace **traces;
    size_t count;
};

static bool out_of_memory(struct trace_error *error) {
    error->code = TRACE_ERROR_SYSTEM;
    snprintf(error->text, sizeof error->text, "out of memory");
    return false;
}

static bool keep(struct found *found, struct trace *trace) {
    if ((found->count & (found->count - 1)) == 0) {
        size_t room = found->count ? 2 * found->count : 1;
        struct trace **grown = realloc(found->traces, room * sizeof *grown);
        if (!grown)
            return false;
        found->traces = grown;
    }
    found->traces[found->count++] = trace;
    return true;
}

static void drop(struct found *found) {
    for (size_t i = 0; i < found->count; i++)
        trace_close(found->traces[i]);
    free(found->traces);
}

/* ---- folders --------------------------------------------------------------------------------- */

bool job_is_trace_name(const char *name) {
    size_t length = strlen(name);
    while (length > 0 && name[length - 1] >= '0' && name[length - 1] <= '9')
        length--;
    if (name[length] && length > 0 && name[length - 1] == '.')
        length--; /* the number that a taken name was given */
    else if (name[length])
        return false;
    static const char ending[] = ".trace";
    size_t bytes = sizeof ending - 1;
    return length > bytes && memcmp(name + length - bytes, ending, bytes) == 0;
}

static bool same_job(const struct trace *a, const struct trace *b) {
    const struct trace_header *left = trace_get_header(a), *right = trace_get_header(b);
    if (strcmp(left->job, right->job) != 0 || strcmp(left->host, right->host) != 0)
        return false;
    /* Without a job text each process stands alone. */
    return left->job[0] || a == b;
}

static bool newer(const struct trace *a, const struct trace *b) {
    return trace_get_header(a)->start_realtime_ns > trace_get_header(b)->start_realtime_ns;
}

static bool scan_folder(struct found *all, const char *folder, const char *command, FILE *warnings,
                        size_t *unreadable, struct trace_error *error) {
    DIR *directory = opendir(folder);
    if (!directory) {
        char clean[256];
        error->code = TRACE_ERROR_SYSTEM;
        snprintf(error->text, sizeof error->text, "%s: cannot be opened: %s",
                 text_clean(clean, sizeof clean, folder), strerror(errno));
        return false;
    }
    bool ok = true;
    for (struct dirent *entry; ok && (entry = readdir(directory));) {
        char path[4096];
        struct trace_error problem;
        if (!job_is_trace_name(entry->d_name) ||
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path)
            continue;
        struct trace *trace = trace_open(path, &problem);
        if (trace && !keep(all, trace)) {
            trace_close(trace);
            ok = out_of_memory(error);
        } else if (!trace) {
            (*unreadable)++;
            *error = problem;
            if (warnings)
                fprintf(warnings, "cuheap %s: left out: %s\n", command, problem.text);
        }
    }
    closedir(directory);
    return ok;
}

/* Moves the newest job of the folder from `all` to `chosen`. */
static bool choose_newest(struct found *all, struct found *chosen) {
    struct trace *newest = all->traces[0];
    for (size_t i = 1; i < all->count; i++)
        if (newer(all->traces[i], newest))
            newest = all->traces[i];
    bool ok = true;
    for (size_t i = 0; i < all->count; i++)
        if (same_job(all->traces[i], newest) && all->traces[i] != newest) {
            ok &= keep(chosen, all->traces[i]);
            all->traces[i] = ok ? NULL : all->traces[i];
        }
    for (size_t i = 0; i < all->count; i++)
        if (all->traces[i] == newest) {
            ok &= keep(chosen, newest);
            all->traces[i] = ok ? NULL : newest;
        }
    return ok;
}

static bool find_newest(struct found *chosen, const char *folder, const char *command,
                        FILE *warnings, struct trace_error *error) {
    struct found all = {0};
    size_t unreadable = 0;
    bool ok = scan_folder(&all, folder, command, warnings, &unreadable, error);
    if (ok && all.count == 0) {
        char clean[256];
        text_clean(clean, sizeof clean, strcmp(folder, ".") == 0 ? "this directory" : folder);
        error->code = TRACE_ERROR_SYSTEM;
        if (unreadable)
            snprintf(error->text, sizeof error->text,
                     "no readable trace in %s: all %zu were left out", clean, unreadable);
        else
            snprintf(error->text, sizeof error->text,
                     "no trace (*.trace) in %s; name one, or make one with "
                     "\"cuheap run -- PROGRAM\": a program that makes no CUDA allocation leaves "
                     "none, nor does one that is static, setuid or linked against musl",
                     clean);
        ok = false;
    }
    if (ok && !choose_newest(&all, chosen))
        ok = out_of_memory(error);
    drop(&all);
    return ok;
}

/* ---- processes and devices ------------------------------------------------------------------- */

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t duration_of(const struct job_process *process) {
    const struct trace_header *header = process->header;
    if (process->state == PROCESS_EXITED && header->sealed_ns)
        return header->sealed_ns;
    uint64_t now = monotonic_ns();
    if (process->state == PROCESS_RUNNING && now > header->start_monotonic_ns)
        return now - header->start_monotonic_ns;
    return process->profile->last_ns;
}

static bool fill_process(struct job_process *process, struct trace *trace) {
    process->header = trace_get_header(trace);
    process->profile = profile_build(trace);
    if (!process->profile)
        return false;
    process->trace = trace;
    process->state = process_state_of(process->header);
    process->exit_code = process->state == PROCESS_EXITED ? process->header->exit_code : -1;
    process->duration_ns = duration_of(process);
    text_clean(process->name, sizeof process->name, process->header->name);
    text_clean(process->host, sizeof process->host, process->header->host);
    memset(process->devices, 0xff, sizeof process->devices);
    return true;
}

static int compare_processes(const void *left, const void *right) {
    const struct trace_header *a = trace_get_header(*(struct trace *const *)left);
    const struct trace_header *b = trace_get_header(*(struct trace *const *)right);
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->start_realtime_ns != b->start_realtime_ns)
        return a->start_realtime_ns < b->start_realtime_ns ? -1 : 1;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static void fill_device(struct job_device *device, const struct job_process *process,
                        uint16_t ordinal) {
    *device = (struct job_device){.ordinal = ordinal};
    snprintf(device->host, sizeof device->host, "%s", process->host);
    if (ordinal >= TRACE_DEVICES)
        return;
    const struct trace_device *known = &process->header->devices[ordinal];
    if (known->state == 0)
        return;
    device->uuid_known = known->known & TRACE_DEVICE_UUID;
    device->total_known = known->known & TRACE_DEVICE_TOTAL;
    device->total_bytes = known->total_bytes;
    memcpy(device->uuid, known->uuid, sizeof device->uuid);
    if (known->known & TRACE_DEVICE_NAME)
        text_clean(device->name, sizeof device->name, known->name);
}

static bool same_device(const struct job_device *a, const struct job_device *b) {
    if (a->uuid_known && b->uuid_known)
        return memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
    return a->uuid_known == b->uuid_known && a->ordinal == b->ordinal &&
           strcmp(a->host, b->host) == 0;
}

static bool add_device(struct job *job, struct job_process *process, uint16_t ordinal) {
    struct job_device device;
    size_t at = 0;
    fill_device(&device, process, ordinal);
    while (at < job->device_count && !same_device(&job->devices[at], &device))
        at++;
    if (at == job->device_count) {
        struct job_device *grown = realloc(job->devices, (at + 1) * sizeof *grown);
        if (!grown)
            return false;
        job->devices = grown;
        job->devices[at] = device;
        job->device_count++;
    }
    if (ordinal < TRACE_DEVICES)
        process->devices[ordinal] = (uint32_t)at;
    return true;
}

/* A device belongs to a process that named it or has memory on it. */
static bool add_devices(struct job *job, struct job_process *process) {
    const struct profile *profile = process->profile;
    for (uint16_t ordinal = 0; ordinal < TRACE_DEVICES; ordinal++) {
        bool used = process->header->devices[ordinal].state != 0;
        for (size_t i = 0; i < profile->total_count && !used; i++)
            used = profile->totals[i].device == ordinal;
        if (used && !add_device(job, process, ordinal))
            return false;
    }
    for (size_t i = 0; i < profile->total_count; i++) {
        uint16_t device = profile->totals[i].device;
        if (device >= TRACE_DEVICES && device != TRACE_DEVICE_HOST &&
            !add_device(job, process, TRACE_DEVICE_UNKNOWN))
            return false;
    }
    return true;
}

uint32_t job_device_of(const struct job *job, const struct job_process *process, uint16_t device) {
    if (device < TRACE_DEVICES)
        return process->devices[device];
    if (device == TRACE_DEVICE_HOST)
        return DEVICE_NONE;
    for (size_t i = 0; i < job->device_count; i++)
        if (job->devices[i].ordinal == TRACE_DEVICE_UNKNOWN &&
            strcmp(job->devices[i].host, process->host) == 0)
            return (uint32_t)i;
    return DEVICE_NONE;
}

char *job_uuid(const uint8_t uuid[16], char text[UUID_BYTES]) {
    char *at = text + sprintf(text, "GPU-");
    for (unsigned i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return text;
}

static void label_devices(struct job *job) {
    bool ambiguous = false;
    for (size_t i = 0; i < job->device_count; i++)
        for (size_t j = 0; j < i; j++)
            ambiguous |= job->devices[i].ordinal == job->devices[j].ordinal;
    for (size_t i = 0; i < job->device_count; i++) {
        struct job_device *device = &job->devices[i];
        char uuid[UUID_BYTES];
        if (device->ordinal == TRACE_DEVICE_UNKNOWN)
            snprintf(device->label, sizeof device->label, "?");
        else if (ambiguous && device->uuid_known)
            snprintf(device->label, sizeof device->label, "%.12s", job_uuid(device->uuid, uuid));
        else
            snprintf(device->label, sizeof device->label, "%u", device->ordinal);
    }
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Takes the traces over, whether it succeeds or not. */
static bool make_job(struct job *job, struct found *found, struct trace_error *error) {
    *job = (struct job){0};
    job->processes = calloc(found->count + 1, sizeof *job->processes);
    bool ok = job->processes != NULL;
    if (ok && found->count)
        qsort(found->traces, found->count, sizeof *found->traces, compare_processes);
    for (size_t i = 0; ok && i < found->count; i++) {
        struct job_process *process = &job->processes[i];
        ok = fill_process(process, found->traces[i]);
        if (!ok)
            break;
        found->traces[i] = NULL;
        job->process_count++;
        ok = add_devices(job, process);
    }
    drop(found);
    if (!ok) {
        job_close(job);
        return out_of_memory(error);
    }
    if (job->process_count)
        text_clean(job->name, sizeof job->name, job->processes[0].header->job);
    label_devices(job);
    return true;
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

bool job_load(struct job *job, const char *command, char *const *paths, size_t path_count,
              FILE *warnings, struct trace_error *error) {
    struct found found = {0};
    bool ok = true;
    if (path_count == 0)
        ok = find_newest(&found, ".", command, warnings, error);
    for (size_t i = 0; ok && i < path_count; i++) {
        if (is_folder(paths[i])) {
            ok = find_newest(&found, paths[i], command, warnings, error);
            continue;
        }
        struct trace *trace = trace_open(paths[i], error);
        ok = trace != NULL;
        if (ok && !keep(&found, trace)) {
            trace_close(trace);
            ok = out_of_memory(error);
        }
    }
    if (ok)
        return make_job(job, &found, error);
    drop(&found);
    return false;
}

bool job_load_run(struct job *job, char *const *paths, size_t path_count, const char *run,
                  struct trace_error *error) {
    struct found found = {0};
    for (size_t i = 0; i < path_count; i++) {
        struct trace *trace = trace_open(paths[i], NULL);
        if (trace && strcmp(trace_get_header(trace)->job, run) == 0 && keep(&found, trace))
            continue;
        trace_close(trace);
    }
    return make_job(job, &found, error);
}

void job_close(struct job *job) {
    for (size_t i = 0; i < job->process_count; i++) {
        profile_free(job->processes[i].profile);
        trace_close(job->processes[i].trace);
    }
    free(job->processes);
    free(job->devices);
    *job = (struct job){0};
}
