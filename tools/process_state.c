/*
 * What became of a traced process: read from its trace and, where it ran here, from /proc.
 *
 * Called by job.c; one thread. A pid alone proves nothing: it may have been given to another
 * process since, so its start time is compared, and whether it still maps the trace.
 */
#include "process_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *process_state_name(enum process_state state) {
    static const char *const names[] = {
        [PROCESS_RUNNING] = "running", [PROCESS_EXITED] = "exited",     [PROCESS_KILLED] = "killed",
        [PROCESS_EXEC] = "exec",       [PROCESS_UNSEALED] = "unsealed",
    };
    return names[state];
}

/* The file's text without a final newline; false where it cannot be read. */
static bool read_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

static bool ran_here(const struct trace_header *header) {
    char host[sizeof header->host], boot[64];
    struct stat namespace;
    if (gethostname(host, sizeof host) != 0)
        return false;
    host[sizeof host - 1] = '\0';
    if (strcmp(host, header->host) != 0)
        return false;
    if (!read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        strcmp(boot, header->boot_id) != 0)
        return false;
    return header->pid_namespace != 0 && stat("/proc/self/ns/pid", &namespace) == 0 &&
           (uint64_t) namespace.st_ino == header->pid_namespace;
}

/* Whether the very process is still there; a zombie has ended. The command in parentheses may hold
   blanks and parentheses itself, so fields are counted from the last one. */
static bool is_alive(const struct trace_header *header) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", header->pid);
    if (!read_line(path, line, sizeof line))
        return false;
    const char *at = strrchr(line, ')');
    if (!at || at[1] != ' ' || strchr("ZXx", at[2]))
        return false;
    for (unsigned field = 2; field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (!at)
            return false;
    }
    return strtoull(at, NULL, 10) == header->pid_start_ticks;
}

/* Where the map cannot be read (another user's process) the trace's own word is believed. */
static bool maps_trace(const struct trace_header *header) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/maps", header->pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    char *line = NULL;
    size_t room = 0;
    bool found = false, any = false;
    while (!found && getline(&line, &room, file) > 0) {
        uint64_t inode;
        any = true;
        found =
            sscanf(line, "%*s %*s %*s %*s %" SCNu64, &inode) == 1 && inode == header->file_inode;
    }
    free(line);
    fclose(file);
    return found || !any;
}

enum process_state process_state_of(const struct trace_header *header) {
    if (header->state == TRACE_STATE_SEALED)
        return PROCESS_EXITED;
    if (!ran_here(header))
        return PROCESS_UNSEALED;
    if (!is_alive(header))
        return PROCESS_KILLED;
    /* Without a shared mapping there is none to look for. */
    if (header->features & TRACE_FEATURE_WEAK)
        return PROCESS_RUNNING;
    return maps_trace(header) ? PROCESS_RUNNING : PROCESS_EXEC;
}
