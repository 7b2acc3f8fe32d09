#include "trace_writer.h"

#include "cancel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BYTES (1u << 20)  /* of the file */
#define STEP_BYTES  (1u << 20)  /* it grows by at least this ... */
#define STEP_MAX    (16u << 20) /* ... or as much as it has, up to this */
#define REGION_MAX  (8u << 20)  /* of a section that grows record by record */
#define GROW_NAPS   40000       /* of 50 us: how long another thread's growth is waited for */
#define PATIENCE    1000        /* requests that are not passed on after a refusal */
#define EINTR_MAX   100

/* How large a file this process may write; beyond it the kernel would send SIGXFSZ. */
static uint64_t size_limit(void) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                                   : UINT64_MAX;
}

/*
 * fallocate(2) itself: glibc's posix_fallocate falls back to writing each block, which crawls over
 * network disks. Where the file system has none, zeros are written once.
 */
static int allocate(int fd, uint64_t from, uint64_t to) {
    int rc = -1;
    for (int i = 0; i < EINTR_MAX && rc < 0; i++) {
        rc = fallocate(fd, 0, (off_t)from, (off_t)(to - from));
        if (rc < 0 && errno != EINTR)
            break;
    }
    if (rc == 0 || (errno != EOPNOTSUPP && errno != ENOSYS))
        return rc;
    static const char zeros[65536];
    while (from < to) {
        size_t bytes = to - from < sizeof zeros ? (size_t)(to - from) : sizeof zeros;
        ssize_t wrote = pwrite(fd, zeros, bytes, (off_t)from);
        if (wrote < 0 && errno != EINTR)
            return -1;
        from += wrote > 0 ? (uint64_t)wrote : 0;
    }
    return 0;
}

/* statx: fstat has no symbol that old and new C libraries share. */
static int identify(int fd, struct trace_writer *t) {
    struct statx file;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &file) < 0)
        return errno;
    t->device_major = file.stx_dev_major;
    t->device_minor = file.stx_dev_minor;
    t->inode = file.stx_ino;
    return 0;
}

/* One write for the whole block: the file is empty or a valid trace, never in between. */
static int write_header(int fd, const struct trace_header *header) {
    ssize_t wrote = pwrite(fd, header, TRACE_HEADER_BYTES, 0);
    if (wrote != (ssize_t)TRACE_HEADER_BYTES)
        return wrote < 0 ? errno : ENOSPC;
    return allocate(fd, TRACE_HEADER_BYTES, FIRST_BYTES) < 0 ? errno : 0;
}

static int map(struct trace_writer *t, int fd) {
    void *base = mmap(NULL, t->max_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return errno;
    /* A forked child must not write into its parent's books. */
    if (madvise(base, t->max_bytes, MADV_DONTFORK) < 0) {
        int rc = errno;
        munmap(base, t->max_bytes);
        return rc;
    }
    t->base = base;
    t->header = base;
    t->header->file_bytes = FIRST_BYTES;
    return 0;
}

static void lay_out(struct trace_writer *t, struct trace_header *header) {
    memcpy(header->magic, TRACE_MAGIC, sizeof header->magic);
    header->major = TRACE_MAJOR;
    header->minor = TRACE_MINOR;
    header->header_bytes = sizeof *header;
    header->byte_order = TRACE_BYTE_ORDER;
    header->directory_offset = TRACE_DIRECTORY_OFFSET;
    header->directory_capacity = TRACE_DIRECTORY_CAPACITY;
    header->state = TRACE_STATE_RUNNING;
    header->file_bytes = TRACE_HEADER_BYTES;
    header->max_bytes = t->max_bytes;
    header->exit_code = -1;
    header->file_inode = t->inode;
}

int trace_create(struct trace_writer *t, const char *path, uint32_t mode, uint64_t max_bytes,
                 struct trace_header *header) {
    size_t path_bytes = strlen(path) + 1;
    if (path_bytes > sizeof t->path)
        return ENAMETOOLONG;
    memcpy(t->path, path, path_bytes);
    t->max_bytes = max_bytes & ~(uint64_t)(TRACE_REGION_ALIGN - 1);
    if (size_limit() < FIRST_BYTES)
        return EFBIG;
    t->next = TRACE_HEADER_BYTES;
    t->allocated = FIRST_BYTES;
    t->start_ns = header->start_monotonic_ns;

    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return errno;
    /* fchmod: the umask must not take away what the user asked for. */
    int rc = fchmod(fd, mode) < 0 ? errno : identify(fd, t);
    if (!rc) {
        lay_out(t, header);
        rc = write_header(fd, header);
    }
    if (!rc)
        rc = map(t, fd);
    close(fd);
    if (rc)
        unlink(path);
    return rc;
}

void trace_seal(struct trace_writer *t, uint64_t ns, int exit_code) {
    if (load_relaxed(&t->header->state) == TRACE_STATE_SEALED)
        return;
    store_relaxed(&t->header->exit_code, exit_code);
    store_relaxed(&t->header->sealed_ns, ns);
    /* Pairs with the reader, which looks at state first. */
    store_release(&t->header->state, (uint32_t)TRACE_STATE_SEALED);
}

/* Opens the file by its name again, if that is still the file that we made. */
static int reopen(const struct trace_writer *t) {
    struct statx file;
    int fd = open(t->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &file) == 0 && file.stx_ino == t->inode &&
        file.stx_dev_major == t->device_major && file.stx_dev_minor == t->device_minor)
        return fd;
    close(fd);
    return -1;
}

/* Asks for space from `have` up to `end`, and for some more if that can be had; the new end, or 0.
 */
static uint64_t enlarge(struct trace_writer *t, uint64_t have, uint64_t end) {
    uint64_t step = have < STEP_BYTES ? STEP_BYTES : have > STEP_MAX ? STEP_MAX : have;
    uint64_t most = size_limit() < t->max_bytes ? size_limit() : t->max_bytes;
    uint64_t to = have + step > end ? have + step : end;
    if (to > most)
        to = most;
    int fd = end <= most ? reopen(t) : -1;
    if (fd < 0)
        return 0;
    if (allocate(fd, have, to) < 0)
        to = to > end && allocate(fd, have, end) == 0 ? end : 0;
    close(fd);
    return to;
}

/*
 * Makes the file reach `end`. One thread at a time, since where zeros have to be written they must
 * not fall upon what another one has published meanwhile; the others wait a bounded while. After a
 * refusal the file system is left alone for a while.
 */
static bool reach(struct trace_writer *t, uint64_t end) {
    uint32_t idle = 0;
    for (int nap = 0; !cas_acq_rel(&t->growing, &idle, 1u); nap++, idle = 0) {
        struct timespec moment = {0, 50000};
        if (nap == GROW_NAPS)
            return false;
        nanosleep(&moment, NULL);
    }
    uint64_t have = load_acquire(&t->allocated);
    if (end > have && load_relaxed(&t->patience)) {
        add_owned(&t->patience, (uint32_t)-1);
    } else if (end > have) {
        uint64_t to = enlarge(t, have, end);
        if (to) {
            raise_relaxed(&t->header->file_bytes, to);
            /* Pairs with the acquire in claim_room: what is before it may be touched. */
            store_release(&t->allocated, have = to);
        } else {
            trace_lose(t, TRACE_LOSS_SPACE_GROW_FAILED, 1);
            store_relaxed(&t->patience, PATIENCE);
        }
    }
    store_release(&t->growing, 0u);
    return end <= have;
}

/* Takes room for a region; 0: none. */
static uint64_t claim_room(struct trace_writer *t, uint64_t bytes) {
    uint64_t offset = load_relaxed(&t->next), end;
    do {
        if (bytes > t->max_bytes || offset > t->max_bytes - bytes ||
            load_relaxed(&t->header->directory_count) >= TRACE_DIRECTORY_CAPACITY) {
            if (!exchange_relaxed(&t->exhausted, 1u))
                trace_lose(t, TRACE_LOSS_SPACE_GROW_FAILED, 1);
            return 0;
        }
        end = offset + bytes;
    } while (!cas_acq_rel(&t->next, &offset, end));
    if (end <= load_acquire(&t->allocated) || reach(t, end))
        return offset;
    /* Given back, unless another thread has taken what follows. */
    cas_acq_rel(&t->next, &end, offset);
    return 0;
}

struct trace_region *trace_add_region(struct trace_writer *t, enum trace_section section,
                                      uint64_t bytes, uint32_t record_bytes) {
    int saved = errno;
    bytes = (bytes + TRACE_REGION_ALIGN - 1) & ~(uint64_t)(TRACE_REGION_ALIGN - 1);
    int cancel = hold_cancel();
    uint64_t offset = claim_room(t, bytes);
    uint32_t entry =
        offset ? add_relaxed(&t->header->directory_count, 1) : TRACE_DIRECTORY_CAPACITY;
    release_cancel(cancel);
    errno = saved;
    if (entry >= TRACE_DIRECTORY_CAPACITY)
        return NULL;
    struct trace_region *region = (struct trace_region *)(t->base + TRACE_DIRECTORY_OFFSET) + entry;
    region->ordinal = add_relaxed(&t->ordinals[section], 1);
    region->offset = offset;
    region->bytes = bytes;
    region->record_bytes = record_bytes;
    /* Publishes the entry. Pairs with the reader's look at section. */
    store_release(&region->section, (uint32_t)section);
    return region;
}

/* The next region of a section that grows: twice the last one. */
static struct trace_region *grow_section(struct trace_writer *t, enum trace_section section,
                                         struct trace_region *last, uint32_t bytes,
                                         uint32_t record_bytes) {
    uint64_t want = last ? last->bytes * 2 : TRACE_REGION_ALIGN;
    if (want > REGION_MAX)
        want = REGION_MAX;
    if (want < bytes)
        want = bytes;
    struct trace_region *region = trace_add_region(t, section, want, record_bytes);
    if (!region)
        return NULL;
    /* Two threads may both have made one; the loser's stays empty. Pairs with trace_append. */
    if (!cas_acq_rel(&t->current[section], &last, region))
        return last;
    return region;
}

void *trace_append(struct trace_writer *t, enum trace_section section, uint32_t bytes,
                   uint32_t record_bytes) {
    bytes = (bytes + 7u) & ~7u;
    struct trace_region *region = load_acquire(&t->current[section]);
    for (;;) {
        if (region) {
            uint64_t at = load_relaxed(&region->claimed);
            if (at + bytes <= region->bytes)
                at = add_relaxed(&region->claimed, bytes);
            if (at + bytes <= region->bytes)
                return t->base + region->offset + at;
        }
        region = grow_section(t, section, region, bytes, record_bytes);
        if (!region)
            return NULL;
    }
}

void *trace_private(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    /* A forked child begins its own; advice that fails only costs it the address space. */
    madvise(memory, bytes, MADV_DONTFORK);
    return memory;
}

uint32_t trace_add_string(struct trace_writer *t, const char *text) {
    size_t bytes = strnlen(text, 65535);
    if (!bytes)
        return 0;
    struct trace_string *string = trace_append(
        t, TRACE_SECTION_STRINGS, (uint32_t)(offsetof(struct trace_string, text) + bytes + 1), 0);
    if (!string) {
        trace_lose(t, TRACE_LOSS_STRINGS_FULL, 1);
        return 0;
    }
    memcpy(string->text, text, bytes);
    /* Pairs with the reader: a length is there when the text is. */
    store_release(&string->bytes, (uint32_t)bytes);
    return trace_ref(t, string);
}

void trace_note(struct trace_writer *t, enum trace_note_level level, uint64_t ns,
                const char *text) {
    struct trace_note *note = trace_append(t, TRACE_SECTION_NOTES, sizeof *note, sizeof *note);
    if (!note) {
        trace_lose(t, TRACE_LOSS_RECORDS_FULL, 1);
        return;
    }
    note->level = level;
    note->ns = ns;
    note->text = trace_add_string(t, text);
    store_release(&note->state, 1u);
}
