/*
 * The processes that are reported together, and the devices they share.
 *
 * A job is either the traces that the user named, or the newest run found in a folder: traces whose
 * headers have the same job text and host. Devices of several processes are one where their UUIDs
 * are equal. Called by the commands; one thread.
 */
#ifndef TOOLS_JOB_H
#define TOOLS_JOB_H

#include "process_state.h"
#include "profile.h"

#include <stdio.h>

#define DEVICE_NONE UINT32_MAX

struct job_process {
    struct trace *trace;
    struct profile *profile;
    const struct trace_header *header;
    enum process_state state;
    int32_t exit_code;    /* -1: not known */
    uint64_t duration_ns; /* to its end, to now if running, else to its last event */
    char name[256];       /* cleaned */
    char host[160];
    uint32_t devices[TRACE_DEVICES]; /* by ordinal: index in job.devices, or DEVICE_NONE */
};

struct job_device {
    uint16_t ordinal; /* in the first process that used it; TRACE_DEVICE_UNKNOWN */
    bool uuid_known;
    bool total_known;
    uint8_t uuid[16];
    uint64_t total_bytes;
    char name[200]; /* cleaned; "" not known */
    char host[160]; /* tells devices apart whose UUIDs are not known */
    char label[16]; /* "0"; "GPU-1a2b3c4d" where ordinals are ambiguous; "?" */
};

struct job {
    char name[300]; /* cleaned job text of the first process */
    struct job_process *processes;
    size_t process_count;
    struct job_device *devices;
    size_t device_count;
};

/*
 * Reads what `paths` name: traces, and of each folder its newest job; without paths the newest job
 * of the current directory. A trace in a folder that cannot be read is left out with a line on
 * `warnings`; one named by itself is an error. False: *error is filled, nothing to close.
 */
bool job_load(struct job *job, const char *command, char *const *paths, size_t path_count,
              FILE *warnings, struct trace_error *error);

/* The traces among `paths` (files only) whose header names this job; unreadable ones are left out.
   True with no process: none is of that job. */
bool job_load_run(struct job *job, char *const *paths, size_t path_count, const char *run,
                  struct trace_error *error);
void job_close(struct job *job);

/* The index in job.devices of a profile's device; DEVICE_NONE for host memory. */
uint32_t job_device_of(const struct job *job, const struct job_process *process, uint16_t device);

/* "GPU-xxxxxxxx-xxxx-..." */
#define UUID_BYTES 41
char *job_uuid(const uint8_t uuid[16], char text[UUID_BYTES]);

/* Whether a file of this name is one of ours: NAME.trace, NAME.trace.1 */
bool job_is_trace_name(const char *name);

#endif
