#include "lifecycle.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include "cancel.h"
#include "config.h"
#include "diag.h"
#include "elf_symbols.h"
#include "identity.h"
#include "record.h"
#include "resolve.h"
#include "unwind.h"

#define START_YIELDS 2000 /* how long an event waits for another thread's start of the trace */
#define SUFFIXES     100  /* names tried: the plain one, then .1 to .99 */

struct process {
    uint32_t born;  /* 0 in a forked child until it notices */
    uint32_t state; /* enum lifecycle_state */
    uint32_t pid;   /* looked at only where memory is not wiped on fork */
    uint64_t lost_starting;
    struct recorder recorder;
};

static struct process *process;
static bool wipes = true;     /* the kernel knows MADV_WIPEONFORK */
static bool forked;           /* this process was forked without exec */
static bool exit_watched;     /* at_exit will be called */
static bool filtered;         /* CUHEAP_OFF, CUHEAP_EXE or CUHEAP_RANKS say no */
static char load_folder[512]; /* working directory at load */

/* ---- loading
 * ----------------------------------------------------------------------------------------- */

static bool wanted(void) {
    char program[128];
    if (config.off)
        return false;
    identity_program(program, sizeof program);
    if (*config.exe && fnmatch(config.exe, program, 0) != 0)
        return false;
    uint32_t rank = *config.ranks ? identity_rank() : UINT32_MAX;
    return rank == UINT32_MAX || config_in_list(config.ranks, rank);
}

/* CUHEAP_CHILDREN=0: programs that this one starts do not inherit the library. */
static void leave_preload(void) {
    const char *list = secure_getenv("LD_PRELOAD");
    char rest[4096];
    size_t used = 0;
    if (!list || strlen(list) >= sizeof rest)
        return;
    for (size_t bytes; *list; list += bytes + (list[bytes] != 0)) {
        bytes = strcspn(list, ": ");
        if (!bytes || memmem(list, bytes, "libcuheap.so", 12))
            continue;
        if (used)
            rest[used++] = ':';
        memcpy(rest + used, list, bytes);
        used += bytes;
    }
    rest[used] = 0;
    if (used)
        setenv("LD_PRELOAD", rest, 1);
    else
        unsetenv("LD_PRELOAD");
}

/* Loading takes the loader's lock, which in a forked child may be held for ever by a thread that is
   gone: there only when the program's own look-up has just shown that it is not. */
static void prepare_unwinder(enum resolve_reason reason) {
    if (!filtered && config.stacks & CONFIG_STACKS_NATIVE &&
        (reason == RESOLVE_IN_LOADER || (reason == RESOLVE_CALL && !forked)))
        unwind_load(resolve_real_dlsym);
}

static void notice_fork(struct process *mine);
static struct process *current_process(void);

static void before_look_up(enum resolve_reason reason) {
    struct process *mine = current_process();
    if (mine && !load_acquire(&mine->born))
        notice_fork(mine);
    prepare_unwinder(reason);
}

static void load(void) {
    size_t bytes = (sizeof(struct process) + 4095) & ~(size_t)4095;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    wipes = madvise(memory, bytes, MADV_WIPEONFORK) == 0;
    config_read();
    filtered = !wanted();
    if (!getcwd(load_folder, sizeof load_folder))
        *load_folder = 0;
    if (!config.children)
        leave_preload();
    struct process *mine = memory;
    mine->born = 1;
    mine->pid = wipes ? 0 : (uint32_t)getpid();
    mine->state = filtered ? LIFECYCLE_OFF : LIFECYCLE_NEW;
    resolve_before = before_look_up;
    store_release(&process, mine); /* pairs with lifecycle_recorder */
}

static void at_exit(int exit_code, void *argument);

/* Other libraries' constructors may call us before ours has run. */
__attribute__((constructor)) static void constructor(void) {
    int saved = errno;
    resolve_init();
    if (!process)
        load();
    /* Now: later, in a forked child, its lock may be held for ever. Being the first, it is called
       last, after the destructors of all libraries. */
    exit_watched = on_exit(at_exit, NULL) == 0;
    /* A program linked with libcuda asks no dlsym: now is the time when the loader is ours. */
    if (process && resolve_find_driver())
        prepare_unwinder(RESOLVE_IN_LOADER);
    errno = saved;
}

/* ---- the end
 * -------------------------------------------------------------------------------------------- */

static void seal(int exit_code) {
    struct recorder *recorder = lifecycle_recorder();
    if (!recorder)
        return;
    struct trace_writer *trace = &recorder->trace;
    trace_lose(trace, TRACE_LOSS_STARTING, exchange_relaxed(&process->lost_starting, 0));
    trace_lose(trace, TRACE_LOSS_UNHOOKED, exchange_relaxed(&resolve_unhooked, 0));
    trace_lose(trace, TRACE_LOSS_SECOND_DRIVER, exchange_relaxed(&resolve_second_driver, 0));
    trace_seal(trace, trace_now(trace), exit_code);
}

static void at_exit(int exit_code, void *argument) {
    (void)argument;
    seal(exit_code);
}

__attribute__((destructor)) static void destructor(void) {
    if (!exit_watched)
        seal(-1);
}

/* ---- where the trace goes
 * ---------------------------------------------------------------------------------- */

/* File systems where a mapped file is slow, unsafe or away when the network is. */
static bool is_remote(const char *folder) {
    static const uint32_t magics[] = {
        0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x65735546,
        0x00c36400, 0x0bd00bd0, 0x47504653, 0x5346414f, 0x01021997,
    }; /* NFS, SMB, CIFS, SMB2, FUSE, Ceph, Lustre, GPFS, AFS, 9p */
    struct statfs fs;
    if (statfs(folder, &fs) < 0)
        return true;
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if ((uint32_t)fs.f_type == magics[i])
            return true;
    return false;
}

struct path {
    char *text;
    size_t used, size;
};

static void add(struct path *path, const char *text) {
    size_t bytes = strlen(text);
    if (bytes > path->size - 1 - path->used)
        bytes = path->size - 1 - path->used;
    memcpy(path->text + path->used, text, bytes);
    path->used += bytes;
    path->text[path->used] = 0;
}

static void add_number(struct path *path, uint64_t number) {
    char digits[24];
    add(path, diag_decimal(number, digits));
}

/* A name becomes part of a file name: no slash, no control character. */
static void add_name(struct path *path, const char *name) {
    for (; *name; name++) {
        char c[2] = {(unsigned char)*name <= ' ' || *name == '/' || *name == 127 ? '_' : *name, 0};
        add(path, c);
    }
}

static void add_default_name(struct path *path, const struct trace_header *who) {
    add(path, "cuheap.");
    add_name(path, who->name);
    add(path, ".");
    add_name(path, who->host);
    add(path, ".");
    add_number(path, who->pid);
    add(path, ".trace");
}

/* CUHEAP_OUT: %e name, %h host, %p pid, %r rank or "-", %t start, %%. */
static void add_pattern(struct path *path, const char *pattern, const struct trace_header *who) {
    for (; *pattern; pattern++) {
        char plain[2] = {*pattern, 0};
        if (*pattern != '%' || !pattern[1]) {
            add(path, plain);
            continue;
        }
        switch (*++pattern) {
        case 'e':
            add_name(path, who->name);
            break;
        case 'h':
            add_name(path, who->host);
            break;
        case 'p':
            add_number(path, who->pid);
            break;
        case 'r':
            if (who->rank == UINT32_MAX)
                add(path, "-");
            else
                add_number(path, who->rank);
            break;
        case 't':
            add_number(path, who->start_realtime_ns / 1000000000u);
            break;
        case '%':
            add(path, "%");
            break;
        default:
            add(path, plain);
            plain[0] = *pattern;
            add(path, plain);
        }
    }
}

static bool is_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void place_by_pattern(struct path *path, const struct trace_header *who) {
    if (*config.out != '/') {
        add(path, load_folder);
        add(path, "/");
    }
    add_pattern(path, config.out, who);
    if (path->text[path->used - 1] == '/' || is_folder(path->text)) {
        if (path->text[path->used - 1] != '/')
            add(path, "/");
        add_default_name(path, who);
    }
}

static bool place_in_load_folder(struct path *path, const struct trace_header *who) {
    if (!*load_folder || access(load_folder, W_OK) < 0 || is_remote(load_folder))
        return false;
    add(path, load_folder);
    add(path, "/");
    add_default_name(path, who);
    return true;
}

/* A folder of this user's own, refused if somebody else could have put it there. */
static bool place_in_private_folder(struct path *path, const struct trace_header *who) {
    struct statx folder;
    const char *parent = secure_getenv("SLURM_TMPDIR");
    if (!parent || !*parent)
        parent = secure_getenv("TMPDIR");
    if (!parent || *parent != '/')
        return false;
    add(path, parent);
    add(path, "/cuheap-");
    add_number(path, geteuid());
    if (mkdir(path->text, 0700) < 0 && errno != EEXIST)
        return false;
    if (statx(AT_FDCWD, path->text, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &folder) < 0 ||
        !S_ISDIR(folder.stx_mode) || folder.stx_uid != geteuid() || folder.stx_mode & 077)
        return false;
    add(path, "/");
    add_default_name(path, who);
    return true;
}

/* Creates the file under the first free name; 0 or errno. */
static int create_at(struct recorder *recorder, struct path *path, struct trace_header *header) {
    size_t plain = path->used;
    int rc = EEXIST;
    /* A symbolic link in the way (ELOOP where it could be followed) counts as taken. */
    for (uint64_t i = 0; i < SUFFIXES && (rc == EEXIST || rc == ELOOP); i++) {
        path->used = plain;
        path->text[plain] = 0;
        if (i) {
            add(path, ".");
            add_number(path, i);
        }
        rc = trace_create(&recorder->trace, path->text, config.mode, config.max_size, header);
    }
    return rc;
}

static bool create(struct recorder *recorder, char *buffer, size_t size,
                   struct trace_header *header) {
    struct path path = {buffer, 0, size};
    int rc;
    if (*config.out) {
        place_by_pattern(&path, header);
        rc = create_at(recorder, &path, header);
    } else {
        rc = place_in_load_folder(&path, header) ? create_at(recorder, &path, header) : EACCES;
        if (rc) {
            path.used = 0;
            if (place_in_private_folder(&path, header))
                rc = create_at(recorder, &path, header);
        }
    }
    if (rc) {
        char digits[24];
        diag_say("no trace: cannot create ", path.used ? path.text : load_folder, " (errno ",
                 diag_decimal((uint64_t)rc, digits), "); set CUHEAP_OUT to a writable place",
                 (char *)NULL);
    }
    return rc == 0;
}

/* ---- the start
 * ---------------------------------------------------------------------------------------------- */

static void add_notes(struct trace_writer *trace) {
    if (*config.unknown) {
        char text[CONFIG_TEXT + 64] = "settings not understood: ";
        strncat(text, config.unknown, CONFIG_TEXT);
        trace_note(trace, TRACE_NOTE_WARNING, 0, text);
    }
    if (limits_active) {
        char text[2 * LIMITS_TEXT + 128];
        limits_note(text, sizeof text);
        trace_note(trace, TRACE_NOTE_WARNING, 0, text);
    }
    if (forked)
        trace_note(trace, TRACE_NOTE_INFO, 0,
                   "this process was forked without exec: code that its parent had not met may be "
                   "missing from native stacks");
    if (config.stacks & CONFIG_STACKS_NATIVE && unwind_kind() == TRACE_UNWINDER_BACKTRACE)
        trace_note(
            trace, TRACE_NOTE_WARNING, 0,
            "libunwind was not found: native stacks come from the C library, which is slower; "
            "install libunwind8");
}

static void describe(struct trace_header *header) {
    identity_fill(header);
    header->depth_native = config.depth;
    header->depth_python = PYTHON_DEPTH_MAX;
    if (config.stacks & CONFIG_STACKS_NATIVE) {
        header->features |= TRACE_FEATURE_NATIVE_STACKS;
        header->unwinder = unwind_kind();
    }
    if (config.stacks & CONFIG_STACKS_FULL)
        header->features |= TRACE_FEATURE_FULL_STACKS;
    if (forked)
        header->features |= TRACE_FEATURE_FORK_CHILD;
}

static bool begin(struct recorder *recorder) {
    /* Nothing big on the stack: the first event may come from a thread with a small one. */
    const size_t path_bytes = 4096, bytes = TRACE_HEADER_BYTES + path_bytes;
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return false;
    prepare_unwinder(RESOLVE_CALL);
    describe(block);
    bool done = create(recorder, (char *)block + TRACE_HEADER_BYTES, path_bytes, block) &&
                record_init(recorder, config.stacks, config.depth);
    munmap(block, bytes);
    if (!done)
        return false;
    add_notes(&recorder->trace);
    return true;
}

/* The first thing that a forked child does here: its memory has been emptied. */
static void notice_fork(struct process *mine) {
    uint32_t unborn = 0;
    if (!cas_acq_rel(&mine->born, &unborn, 1u))
        return;
    forked = true;
    objects_avoid_lock();
    unwind_forked();
    resolve_forked();
    mine->pid = wipes ? 0 : (uint32_t)getpid();
    if (filtered || !config.children)
        store_release(&mine->state, (uint32_t)LIFECYCLE_OFF);
}

/* Where the kernel does not empty the memory of a forked child, the process id tells. */
static struct process *current_process(void) {
    struct process *mine = load_acquire(&process);
    if (mine && __builtin_expect(!wipes, 0) && mine->pid != (uint32_t)getpid())
        memset(mine, 0, sizeof *mine);
    return mine;
}

struct recorder *lifecycle_recorder(void) {
    struct process *mine = current_process();
    /* Pairs with the release in start. */
    return mine && load_acquire(&mine->state) == LIFECYCLE_ON ? &mine->recorder : NULL;
}

/* One thread starts; others wait for it a bounded while and otherwise lose their event. */
static struct recorder *start(struct process *mine) {
    uint32_t idle = LIFECYCLE_NEW;
    if (!load_acquire(&mine->born))
        notice_fork(mine);
    int cancel = hold_cancel();
    if (cas_acq_rel(&mine->state, &idle, (uint32_t)LIFECYCLE_STARTING)) {
        bool begun = begin(&mine->recorder);
        store_release(&mine->state, (uint32_t)(begun ? LIFECYCLE_ON : LIFECYCLE_OFF));
    }
    for (int i = 0; i < START_YIELDS && load_acquire(&mine->state) == LIFECYCLE_STARTING; i++) {
        struct timespec moment = {0, 50000};
        nanosleep(&moment, NULL);
    }
    release_cancel(cancel);
    if (load_acquire(&mine->state) == LIFECYCLE_STARTING)
        add_relaxed(&mine->lost_starting, 1);
    return lifecycle_recorder();
}

struct recorder *lifecycle_start(void) {
    struct process *mine = current_process();
    if (__builtin_expect(!mine, 0)) {
        resolve_init();
        load();
        mine = load_acquire(&process);
    }
    if (!mine)
        return NULL;
    uint32_t state = load_acquire(&mine->state); /* pairs with the release in start */
    if (__builtin_expect(state == LIFECYCLE_ON, 1))
        return &mine->recorder;
    return state == LIFECYCLE_OFF ? NULL : start(mine);
}
