/*
 * The trace file: every structure that libcuheap.so writes and cuheap reads.
 *
 * lib/ and tools/ share this header and nothing else. It has no functions with state and needs
 * nothing but <stdint.h>. All integers are little-endian and of fixed width; all times are ns on
 * CLOCK_MONOTONIC since trace_header.start_monotonic_ns, except where a name says otherwise; all
 * sizes are bytes. The byte layout is told in cuheap-trace(5) as well: change both.
 *
 * Layout of the file
 *
 *   offset 0       struct trace_header, then the region directory: one block of 64 KiB
 *   from 64 KiB    regions, each aligned to 64 KiB, each belonging to one section
 *
 * A section is the concatenation of its regions in the order of their ordinals. Regions are only
 * added, never moved and never given back, so a mapped trace can be read while it grows.
 *
 * References. A record is named by its "ref": its offset in the file divided by 8, as uint32_t (so
 * a trace can have 32 GiB). 0 is "none".
 *
 * The promise. The file is valid after every single instruction of the writer. A record exists once
 * its first word (its state) says so; that word is stored last, with release order. What is not
 * zero-filled and not published is in flight and is skipped. Three rules make the counters agree
 * with the live table at any instant; a reader must follow them:
 *
 *   1. The live table is the authority for what is live. A slot counts when its state is LIVE or
 *      FREEING; BUSY is in flight.
 *   2. An event changes the table first, then the counters of its site, then those of its total. So
 *      where the slots of a site hold more (fewer) blocks or bytes than its allocations minus its
 *      frees, the difference is added to its allocations (its frees).
 *   3. A total whose slots sum to more than its recorded peak is at its peak now: the peak is that
 *      sum, and each site's share in it is what its slots hold now.
 *
 * By rule 2, allocations of a total's sites that exceed its own count are in flight: the end of
 * work is then now, and each site's share in it is what its slots hold.
 *
 * Compatibility. Another major number refuses. A higher minor number only adds: sections, fields in
 * reserved space, enum values, feature bits; a reader skips what it does not know. Record sizes
 * stand in the directory, so that a longer record of a later minor version can still be walked.
 */
#ifndef CUHEAP_TRACE_FORMAT_H
#define CUHEAP_TRACE_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAGIC        "cuheap\r\n"
#define TRACE_MAJOR        1
#define TRACE_MINOR        0
#define TRACE_HEADER_BYTES 65536u /* header and directory, and the alignment of every region */
#define TRACE_REGION_ALIGN 65536u
#define TRACE_BYTE_ORDER   0x01020304u

#define TRACE_REF_SHIFT 3 /* ref = file offset >> TRACE_REF_SHIFT */

#define TRACE_SIZE_CHECK(type, bytes) static_assert(sizeof(type) == (bytes), #type " has changed")
#define TRACE_FIELD_CHECK(type, field, at)                                                         \
    static_assert(offsetof(type, field) == (at), #type "." #field " has moved")

/* ---- sections -------------------------------------------------------------------------------- */

/* number, name, what one record is. Numbers are never reused. */
#define TRACE_SECTIONS(X)                                                                          \
    X(1, MODULES, "modules")          /* struct trace_module */                                    \
    X(2, STRINGS, "strings")          /* struct trace_string, variable length */                   \
    X(3, NATIVE_STACKS, "native")     /* struct trace_native_stack, variable length */             \
    X(4, PYTHON_STACKS, "python")     /* struct trace_python_stack, variable length */             \
    X(5, PYTHON_PLACES, "places")     /* struct trace_python_place */                              \
    X(6, SITES, "sites")              /* struct trace_site */                                      \
    X(7, LIVE_TABLE, "live")          /* struct trace_slot; one region is one hash table */        \
    X(8, TOTALS, "totals")            /* struct trace_total */                                     \
    X(9, CONTEXTS, "contexts")        /* struct trace_context */                                   \
    X(10, POOLS, "pools")             /* struct trace_pool */                                      \
    X(11, RANGES, "ranges")           /* struct trace_range: reservations and mappings */          \
    X(12, MARKS, "marks")             /* struct trace_mark */                                      \
    X(13, FAILURES, "failures")       /* struct trace_failure */                                   \
    X(14, FAILURE_COPIES, "copies")   /* struct trace_copy and its slots, variable length */       \
    X(15, HISTORY, "history")         /* struct trace_event, one ring */                           \
    X(16, NOTES, "notes")             /* struct trace_note */                                      \
    X(17, GPU_MODULES, "gpu-modules") /* struct trace_gpu_module: code loaded on the GPU */

enum trace_section {
#define X(number, name, text) TRACE_SECTION_##name = number,
    TRACE_SECTIONS(X)
#undef X
        TRACE_SECTION_LIMIT
};

/*
 * One region. `section` is stored last: 0 is an entry not yet (or never) published. `claimed`
 * counts the bytes handed out from the region's start; it may exceed `bytes` when writers raced for
 * the last ones: read min(claimed, bytes). In LIVE_TABLE all of the region is slots; in HISTORY
 * `claimed` counts events ever written, the ring holding the latest bytes / record_bytes of them.
 */
struct trace_region {
    uint32_t section;
    uint32_t ordinal; /* position within its section, from 0 */
    uint64_t offset;
    uint64_t bytes;
    uint64_t claimed;
    uint32_t record_bytes; /* 0: variable length, 8-byte aligned */
    uint32_t reserved;
};
TRACE_SIZE_CHECK(struct trace_region, 40);
TRACE_FIELD_CHECK(struct trace_region, claimed, 24);

#define TRACE_DIRECTORY_OFFSET   32768u
#define TRACE_DIRECTORY_CAPACITY 800u
static_assert(TRACE_DIRECTORY_OFFSET + TRACE_DIRECTORY_CAPACITY * sizeof(struct trace_region) <=
                  TRACE_HEADER_BYTES,
              "the directory fits the header block");

/* ---- what memory is -------------------------------------------------------------------------- */

enum trace_ledger {
    TRACE_LEDGER_DRIVER = 1, /* taken from the CUDA driver */
    TRACE_LEDGER_TENSOR = 2, /* handed out by the framework inside that */
};

/*
 * number, name, JSON name, group. The group is the total that a kind counts in: DEVICE, MANAGED and
 * IMPORTED once a device, HOST and REGISTERED once a process. Only DEVICE enters a device's total.
 */
#define TRACE_KINDS(X)                                                                             \
    X(1, DEVICE, "device", DEVICE)             /* cuMemAlloc, cuMemAllocPitch */                   \
    X(2, POOL, "pool", DEVICE)                 /* stream-ordered: cuMemAllocAsync */               \
    X(3, VMM, "vmm", DEVICE)                   /* cuMemCreate */                                   \
    X(4, GRAPH, "graph", DEVICE)               /* reserved by graph allocation nodes */            \
    X(5, ARRAY, "array", DEVICE)               /* arrays and mipmapped arrays */                   \
    X(6, MANAGED, "managed", MANAGED)          /* cuMemAllocManaged */                             \
    X(7, HOST, "host", HOST)                   /* pinned: cuMemHostAlloc, cuMemAllocHost */        \
    X(8, REGISTERED, "registered", REGISTERED) /* cuMemHostRegister */                             \
    X(9, IMPORTED, "imported", IMPORTED)       /* another process's or API's: no bytes of ours */  \
    X(10, TENSOR, "tensor", DEVICE)            /* ledger tensor only */

enum trace_kind {
#define X(number, name, text, group) TRACE_KIND_##name = number,
    TRACE_KINDS(X)
#undef X
        TRACE_KIND_LIMIT
};
#define TRACE_KIND_SLOTS 16 /* room for kinds in struct trace_total */
static_assert(TRACE_KIND_LIMIT <= TRACE_KIND_SLOTS, "struct trace_total has room for each kind");

enum trace_group {
    TRACE_GROUP_DEVICE = 1,
    TRACE_GROUP_MANAGED,
    TRACE_GROUP_IMPORTED,
    TRACE_GROUP_HOST,
    TRACE_GROUP_REGISTERED,
    TRACE_GROUP_LIMIT
};

#define TRACE_DEVICE_HOST    0xfffeu /* host and registered memory */
#define TRACE_DEVICE_UNKNOWN 0xffffu /* no context was current and the call named no device */

/* Key spaces: addresses and handles of different spaces never meet. */
enum trace_space {
    TRACE_SPACE_POINTER = 1, /* device and managed addresses */
    TRACE_SPACE_HOST,        /* pinned host addresses */
    TRACE_SPACE_REGISTERED,
    TRACE_SPACE_VMM, /* CUmemGenericAllocationHandle */
    TRACE_SPACE_ARRAY,
    TRACE_SPACE_MIPMAP,
    TRACE_SPACE_EXTERNAL, /* CUexternalMemory */
    TRACE_SPACE_TENSOR,
    TRACE_SPACE_IPC, /* address from cuIpcOpenMemHandle, the context's number in the top 16 bits */
    TRACE_SPACE_LIMIT
};
#define TRACE_IPC_CONTEXT_SHIFT 48
static_assert(TRACE_SPACE_LIMIT <= 32, "a slot's state has five bits for the space");

/* ---- header ---------------------------------------------------------------------------------- */

enum trace_state {
    TRACE_STATE_RUNNING = 1, /* or ended without sealing: by a signal, _exit, exec */
    TRACE_STATE_SEALED = 2,  /* ended by exit() or return from main(); late frees may follow */
};

enum trace_feature {
    TRACE_FEATURE_NATIVE_STACKS = 1u << 0,
    TRACE_FEATURE_PYTHON_STACKS = 1u << 1,
    TRACE_FEATURE_TENSORS = 1u << 2, /* the framework's allocator reports to us */
    TRACE_FEATURE_HISTORY = 1u << 3,
    TRACE_FEATURE_FORK_CHILD = 1u << 4,  /* forked without exec: new code is not unwound */
    TRACE_FEATURE_WEAK = 1u << 5,        /* no shared mapping: what SIGKILL leaves is older */
    TRACE_FEATURE_FULL_STACKS = 1u << 6, /* the interpreter's own frames are kept */
};

enum trace_unwinder {
    TRACE_UNWINDER_NONE = 0,
    TRACE_UNWINDER_LIBUNWIND = 1,
    TRACE_UNWINDER_BACKTRACE = 2, /* the C library's backtrace() */
};

/*
 * What was lost or could not be known: name, JSON key, meaning. The index is the position; new ones
 * go to the end. All are counts unless the name says bytes.
 */
#define TRACE_LOSSES(X)                                                                            \
    X(TABLE_FULL, "table_full", "allocations not recorded: the live table could not grow")         \
    X(TABLE_FULL_BYTES, "table_full_bytes", "their bytes")                                         \
    X(SITES_FULL, "sites_full", "events booked to an (other) site: no room for a new site")        \
    X(STACKS_FULL, "stacks_full", "events whose stack was left out: no room for a new stack")      \
    X(STRINGS_FULL, "strings_full", "texts left out: no room")                                     \
    X(MODULES_FULL, "modules_full", "loaded objects left out: no room")                            \
    X(RECORDS_FULL, "records_full", "contexts, pools, ranges, marks or failures left out")         \
    X(STARTING, "starting", "events that came while another thread was starting the trace")        \
    X(LOST_FREES, "lost_frees", "allocations at an address still booked as live: a free unseen")   \
    X(UNKNOWN_FREES, "unknown_frees", "frees of what was never seen allocated")                    \
    X(FAILED_FREES, "failed_frees", "frees that the driver refused")                               \
    X(STACK_TRUNCATED, "stack_truncated", "stacks deeper than the depth limit")                    \
    X(STACK_INCOMPLETE, "stack_incomplete", "stacks cut short: code without unwind information")   \
    X(STACK_SMALL, "stack_small",                                                                  \
      "stacks left out or cut short: too little room on the thread's own stack")                   \
    X(STACK_CHILD, "stack_child", "frames not unwound because the process was forked")             \
    X(COUNTERS_DELAYED, "counters_delayed",                                                        \
      "updates of a site that met another one's: its share "                                       \
      "in the peak may be off by the events in flight")                                            \
    X(BUCKETS_SKIPPED, "buckets_skipped", "events missing from the timeline (not from the books)") \
    X(SPACE_GROW_FAILED, "space_grow_failed", "times the file could not grow")                     \
    X(UNHOOKED, "unhooked", "look-ups of a tracked name answered with a function not watched")     \
    X(SECOND_DRIVER, "second_driver", "look-ups that led into a second libcuda")                   \
    X(DEVICE_UNKNOWN, "device_unknown", "allocations whose device could not be told")              \
    X(CLOCK_BACKWARDS, "clock_backwards", "events whose time was before the last one's")           \
    X(PYTHON_REFUSED, "python_refused", "Python stacks not read: interpreter not supported")       \
    X(RATE_LIMITED, "rate_limited", "failures not recorded one by one")

enum trace_loss {
#define X(name, key, meaning) TRACE_LOSS_##name,
    TRACE_LOSSES(X)
#undef X
        TRACE_LOSS_COUNT
};
#define TRACE_LOSS_SLOTS 64
static_assert(TRACE_LOSS_COUNT <= TRACE_LOSS_SLOTS, "the header has room for each loss");

/* Counters of what happened and is no loss: name, JSON key, meaning. */
#define TRACE_COUNTERS(X)                                                                          \
    X(NESTED_CALLS, "nested_calls", "hooked calls made inside another hooked call: the driver's")  \
    X(IMPLICIT_FREES, "implicit_frees", "blocks freed by the end of their context")                \
    X(IMPLICIT_FREE_BYTES, "implicit_free_bytes", "their bytes")                                   \
    X(FAILED_ALLOCS, "failed_allocs", "allocation calls that the driver refused")                  \
    X(FLUSH_RETRIES, "flush_retries", "failed, freed, tried again and got it")                     \
    X(FLUSH_RETRY_BYTES, "flush_retry_bytes", "bytes freed for those")                             \
    X(FLUSH_RETRY_NS, "flush_retry_ns", "time between failure and success, ns")                    \
    X(HISTORY_EVENTS, "history_events", "events ever written to the history")                      \
    X(STALE_GUARDS, "stale_guards", "hooked calls left by longjmp or an exception")                \
    X(COPIES_LEFT_OUT, "copies_left_out",                                                          \
      "failures for lack of memory without a copy of the live table: too large, or too soon "      \
      "after the last")

enum trace_counter {
#define X(name, key, meaning) TRACE_COUNTER_##name,
    TRACE_COUNTERS(X)
#undef X
        TRACE_COUNTER_COUNT
};
#define TRACE_COUNTER_SLOTS 64
static_assert(TRACE_COUNTER_COUNT <= TRACE_COUNTER_SLOTS, "the header has room for each counter");

#define TRACE_DEVICES      64
#define TRACE_DEVICE_TOTAL 1u /* trace_device.known: total_bytes is known */
#define TRACE_DEVICE_UUID  2u
#define TRACE_DEVICE_NAME  4u

struct trace_device {
    uint32_t state; /* 0: never used by this process; 1: published */
    uint32_t known; /* TRACE_DEVICE_ bits */
    uint8_t uuid[16];
    uint64_t total_bytes;
    char name[72]; /* NUL-terminated */
    /* Free memory as the driver last told it, to the program or after an out of memory. */
    uint64_t free_bytes;
    uint64_t free_live_bytes; /* what the driver ledger's device total held then */
    uint64_t free_ns;         /* 0: never told, or just being written; stored last */
};
TRACE_FIELD_CHECK(struct trace_device, free_bytes, 104);
TRACE_SIZE_CHECK(struct trace_device, 128);

struct trace_header {
    uint8_t magic[8]; /* TRACE_MAGIC without its NUL */
    uint16_t major;
    uint16_t minor;
    uint32_t header_bytes;     /* sizeof(struct trace_header) of the writer */
    uint32_t byte_order;       /* TRACE_BYTE_ORDER */
    uint32_t machine;          /* ELF e_machine: 62 x86-64, 183 aarch64 */
    uint32_t directory_offset; /* struct trace_region[directory_capacity] */
    uint32_t directory_capacity;
    uint32_t directory_count; /* entries claimed; min with the capacity; unpublished ones are 0 */
    uint32_t state;           /* enum trace_state */
    uint64_t features;        /* enum trace_feature */
    uint64_t file_bytes;      /* space allocated so far */
    uint64_t max_bytes;       /* the limit, CUHEAP_MAX_SIZE */

    uint64_t start_monotonic_ns;
    uint64_t start_realtime_ns; /* since 1970, UTC, at the same moment */
    uint64_t sealed_ns;         /* 0 while running */
    int32_t exit_code;          /* when sealed by exit(); -1: not known */
    uint32_t unwinder;          /* enum trace_unwinder */

    uint32_t pid;
    uint32_t parent_pid;
    uint64_t pid_start_ticks;    /* /proc/PID/stat field 22: tells a reused pid */
    uint64_t parent_start_ticks; /* 0: not known */
    uint64_t pid_namespace;      /* inode of /proc/self/ns/pid; 0: not known */
    uint32_t rank;               /* of a distributed job; 0xffffffff: none */
    uint32_t world;              /* ranks in the job; 0: not known */
    uint64_t file_inode;         /* of this very file, to find it in /proc/PID/maps */
    uint32_t driver_version;     /* as cuDriverGetVersion: 13000 is 13.0; 0: not known */
    uint32_t depth_native;       /* limits in force */
    uint32_t depth_python;
    uint32_t module_generation; /* of the latest scan of loaded objects */

    char boot_id[40]; /* /proc/sys/kernel/random/boot_id, NUL-terminated */
    char host[72];
    char name[128];         /* script, else program: what the user would call it */
    char executable[256];   /* path of /proc/self/exe; NUL-terminated, cut from the left */
    char job[128];          /* same text: same job */
    char job_source[32];    /* which variable the job came from */
    char writer[32];        /* version of libcuheap */
    char environment[2048]; /* NAME=value, each NUL-terminated, empty one ends: a fixed list */

    uint64_t losses[TRACE_LOSS_SLOTS];
    uint64_t counters[TRACE_COUNTER_SLOTS];
    struct trace_device devices[TRACE_DEVICES]; /* by the driver's ordinal in this process */
};
TRACE_FIELD_CHECK(struct trace_header, state, 36);
TRACE_FIELD_CHECK(struct trace_header, features, 40);
TRACE_FIELD_CHECK(struct trace_header, start_monotonic_ns, 64);
TRACE_FIELD_CHECK(struct trace_header, pid, 96);
TRACE_FIELD_CHECK(struct trace_header, boot_id, 160);
TRACE_FIELD_CHECK(struct trace_header, environment, 848);
TRACE_FIELD_CHECK(struct trace_header, losses, 2896);
TRACE_SIZE_CHECK(struct trace_header, 2896 + 512 + 512 + 8192);
static_assert(sizeof(struct trace_header) <= TRACE_DIRECTORY_OFFSET, "header before directory");

/* ---- texts, code ----------------------------------------------------------------------------- */

struct trace_string {
    uint32_t bytes; /* without the NUL; stored last; an empty string is never recorded */
    char text[4];   /* bytes + 1, then padding to 8 */
};
TRACE_SIZE_CHECK(struct trace_string, 8);

enum trace_module_flag {
    TRACE_MODULE_EXECUTABLE = 1u << 0, /* the program itself */
    TRACE_MODULE_VDSO = 1u << 1,
    TRACE_MODULE_CUHEAP = 1u << 2, /* libcuheap.so */
    TRACE_MODULE_DRIVER = 1u << 3, /* libcuda */
    TRACE_MODULE_PYTHON = 1u << 4, /* holds the interpreter */
};

/* A loaded object, for as long as it stayed loaded. */
struct trace_module {
    uint32_t state; /* 1: published */
    uint32_t path;  /* string ref; 0: not known */
    uint64_t bias;  /* address in memory minus address in the file (ELF load bias) */
    uint64_t start; /* lowest and one past the highest address of its load segments */
    uint64_t end;
    uint32_t loaded_generation;   /* of the scan that first saw it */
    uint32_t unloaded_generation; /* of the scan that missed it; 0: still there */
    uint64_t loaded_ns;
    uint64_t unloaded_ns;
    uint32_t flags; /* enum trace_module_flag */
    uint32_t build_id_bytes;
    uint8_t build_id[32]; /* NT_GNU_BUILD_ID */
    uint64_t reserved[2];
};
TRACE_SIZE_CHECK(struct trace_module, 112);

enum trace_stack_flag {
    TRACE_STACK_VALID = 1u << 0,      /* stored last */
    TRACE_STACK_TRUNCATED = 1u << 1,  /* deeper than the limit: the outer frames are missing */
    TRACE_STACK_INCOMPLETE = 1u << 2, /* unwinding stopped early */
    TRACE_STACK_TO_PYTHON = 1u << 3,  /* ends where the interpreter's module begins */
};

/* Innermost frame first. A frame is in the module whose range holds pc - 1 at this generation. */
struct trace_native_stack {
    uint32_t flags;
    uint32_t depth;
    uint64_t hash;
    uint32_t generation; /* module generation at its first capture */
    uint32_t remap;      /* changes when code at one of its addresses was unloaded before */
    uint64_t pcs[1];     /* return addresses */
};
TRACE_SIZE_CHECK(struct trace_native_stack, 32);

struct trace_python_stack {
    uint32_t flags;
    uint32_t depth;
    uint64_t hash;
    uint32_t places[2]; /* refs of struct trace_python_place, innermost first, padding to 8 */
};
TRACE_SIZE_CHECK(struct trace_python_stack, 24);

enum trace_place_flag {
    TRACE_PLACE_ENTRY = 1u << 0, /* the interpreter was entered from native code for this frame */
};

struct trace_python_place {
    uint32_t state; /* 1: published */
    uint32_t file;  /* string refs, UTF-8 */
    uint32_t function;
    uint32_t qualified; /* 0 before Python 3.11 */
    uint32_t line;      /* 0: not known */
    uint32_t first_line;
    uint32_t flags; /* enum trace_place_flag */
    uint32_t reserved;
};
TRACE_SIZE_CHECK(struct trace_python_place, 32);

/* ---- windows --------------------------------------------------------------------------------- */

/*
 * A stretch of time, seen by one site or total. Windows have a common clock: at time t the width is
 * 2^shift ns with the smallest shift >= TRACE_WINDOW_SHIFT_MIN for which t >> shift is below the
 * number of windows; window i covers [i << shift, (i + 1) << shift). The owner brings its windows
 * up to date only when it changes next: windows after `current` held the last value throughout; if
 * its shift is smaller than the reader's own time asks for, pairs of windows are to be merged.
 */
struct trace_window {
    uint64_t min_bytes; /* least and most live bytes in the window */
    uint64_t max_bytes;
    uint64_t last_bytes; /* at its end */
    uint32_t allocs;
    uint32_t frees;
};
TRACE_SIZE_CHECK(struct trace_window, 32);

#define TRACE_WINDOW_SHIFT_MIN 20 /* about 1 ms */
#define TRACE_SITE_WINDOWS     32
#define TRACE_TOTAL_WINDOWS    256

/* ---- sites and totals ------------------------------------------------------------------------ */

#define TRACE_SITE_UNUSED 0u
#define TRACE_SITE_USED   1u
#define TRACE_SITE_OTHER                                                                           \
    1u                        /* flag: takes the events that found no room for a site of their own \
                               */
#define TRACE_SITE_SEGMENT 2u /* flag: its blocks have held tensors: a framework's cache */
#define TRACE_SITE_VARIES  4u /* flag: called_from was another stack at another time */

#define TRACE_SIZE_CLASSES 48

/* One place in the program: what it allocated, as one ledger, kind and device. */
struct trace_site {
    uint32_t state; /* TRACE_SITE_USED once published */
    uint8_t ledger;
    uint8_t kind;
    uint16_t device;
    uint32_t native_stack; /* refs; 0: none */
    uint32_t python_stack;
    uint32_t flags;
    uint32_t version; /* odd: the fields from first_ns on are being changed */
    uint64_t hash;
    uint64_t first_ns;
    uint64_t last_ns;
    uint64_t allocs;
    uint64_t alloc_bytes;
    uint64_t frees;
    uint64_t free_bytes;
    uint64_t own_peak_bytes;
    /* Share in its total's peak: at_peak_bytes if peak_epoch equals trace_total.peak_bytes (it has
       changed since that peak), else alloc_bytes - free_bytes. */
    uint64_t peak_epoch;
    uint64_t at_peak_bytes;
    /* Live at the end of work: at_work_bytes if work_epoch equals trace_total.allocs (it was freed
       from since the last allocation in its total), else alloc_bytes - free_bytes. */
    uint64_t work_epoch;
    uint64_t at_work_bytes;
    uint64_t at_work_count;
    /* Changes by writers who found `version` odd, not yet moved to the fields above: add them. */
    uint64_t late_allocs;
    uint64_t late_alloc_bytes;
    uint64_t late_frees;
    uint64_t late_free_bytes;
    uint32_t window_shift;
    uint32_t window_current;
    /* Python stack of the thread that waited for this one's work, when last looked at; 0: none. */
    uint32_t called_from;
    uint32_t reserved;
    uint32_t sizes[TRACE_SIZE_CLASSES]; /* allocations of 2^i to 2^(i+1) - 1 bytes */
    struct trace_window windows[TRACE_SITE_WINDOWS];
};
TRACE_FIELD_CHECK(struct trace_site, first_ns, 32);
TRACE_FIELD_CHECK(struct trace_site, late_allocs, 128);
TRACE_FIELD_CHECK(struct trace_site, sizes, 176);
TRACE_FIELD_CHECK(struct trace_site, windows, 368);
TRACE_SIZE_CHECK(struct trace_site, 368 + 1024);

/* One sum: a ledger's group (see TRACE_KINDS), on a device. */
struct trace_total {
    uint32_t state; /* 1: published */
    uint8_t ledger;
    uint8_t group; /* enum trace_group */
    uint16_t device;
    uint64_t live_bytes;
    uint64_t peak_bytes;
    uint64_t peak_ns;     /* when that peak was reached */
    uint64_t below_90_ns; /* when live first fell under 90 % of it; 0: not since */
    uint64_t allocs;
    uint64_t frees;
    uint64_t first_ns;
    uint64_t last_alloc_ns; /* the end of work so far */
    uint64_t last_ns;
    uint64_t kind_live_bytes[TRACE_KIND_SLOTS]; /* by enum trace_kind */
    uint64_t kind_peak_bytes[TRACE_KIND_SLOTS];
    uint32_t version; /* odd: the windows are being changed */
    uint32_t window_shift;
    uint32_t window_current;
    uint32_t reserved0;
    uint64_t late_allocs; /* not yet in the windows */
    uint64_t late_frees;
    uint64_t reserved[3];
    struct trace_window windows[TRACE_TOTAL_WINDOWS];
};
TRACE_FIELD_CHECK(struct trace_total, kind_live_bytes, 80);
TRACE_FIELD_CHECK(struct trace_total, version, 336);
TRACE_FIELD_CHECK(struct trace_total, windows, 392);
TRACE_SIZE_CHECK(struct trace_total, 392 + 8192);

/* ---- the live table -------------------------------------------------------------------------- */

enum trace_slot_state {
    TRACE_SLOT_EMPTY = 0,
    TRACE_SLOT_BUSY = 1, /* being written: in flight */
    TRACE_SLOT_LIVE = 2,
    TRACE_SLOT_FREEING = 3, /* the driver is being asked to free it: still live */
};

/*
 * trace_slot.word, low bits first: state 3, space 5 (enum trace_space), flags 8, generation 16 (of
 * this slot: grows with each use), context 16 (index in CONTEXTS, from 1; 0 none), pool 16
 * (likewise in POOLS).
 */
#define TRACE_SLOT_STATE(word)      ((unsigned)((word)&7u))
#define TRACE_SLOT_SPACE(word)      ((unsigned)((word) >> 3 & 31u))
#define TRACE_SLOT_FLAGS(word)      ((unsigned)((word) >> 8 & 255u))
#define TRACE_SLOT_GENERATION(word) ((unsigned)((word) >> 16 & 65535u))
#define TRACE_SLOT_CONTEXT(word)    ((unsigned)((word) >> 32 & 65535u))
#define TRACE_SLOT_POOL(word)       ((unsigned)((word) >> 48 & 65535u))

#define TRACE_SLOT_SEGMENT  1u /* flag: has held a tensor */
#define TRACE_SLOT_EXPORTED 2u /* flag: shared with another process */

/*
 * One live block. A table is one region of bytes / 32 slots, a power of two; a key's place is among
 * TRACE_BUCKET_SLOTS slots from each of two bucket starts (lib/table.c has the hash: a reader that
 * sums needs none).
 */
struct trace_slot {
    uint64_t word;
    uint64_t address; /* or handle */
    uint64_t bytes;
    uint32_t site;    /* ref */
    uint32_t time_ms; /* of the allocation */
};
TRACE_SIZE_CHECK(struct trace_slot, 32);

/* ---- contexts, pools, ranges, marks, failures, history, notes ---------------------------------
 */

enum trace_context_flag {
    TRACE_CONTEXT_PRIMARY = 1u << 0,
};

struct trace_context {
    uint32_t state; /* 1: published */
    uint16_t device;
    uint16_t flags; /* enum trace_context_flag */
    uint64_t handle;
    uint64_t created_ns;
    uint64_t destroyed_ns; /* 0: not seen */
    uint32_t native_stack; /* of the call that made it */
    uint32_t python_stack;
    uint32_t uses;   /* retains or creations seen */
    uint32_t number; /* by which slots name it, from 1 */
    uint64_t reserved;
};
TRACE_SIZE_CHECK(struct trace_context, 56);

enum trace_pool_flag {
    TRACE_POOL_DEFAULT = 1u << 0,
    TRACE_POOL_THRESHOLD_SET = 1u << 1,
    TRACE_POOL_IMPORTED = 1u << 2, /* another process's */
};

struct trace_pool {
    uint32_t state;
    uint16_t device;
    uint16_t flags; /* enum trace_pool_flag */
    uint64_t handle;
    uint64_t threshold; /* release threshold, bytes */
    uint64_t used_bytes;
    uint64_t used_high_bytes;
    uint64_t reserved_bytes; /* as last sampled */
    uint64_t sampled_ns;     /* 0: never */
    uint64_t created_ns;
    uint64_t destroyed_ns;
    uint32_t native_stack;
    uint32_t python_stack;
    uint32_t number; /* by which slots name it, from 1; a destroyed pool's may come again */
    uint32_t reserved0;
    uint64_t reserved;
};
TRACE_SIZE_CHECK(struct trace_pool, 96);

enum trace_range_type {
    TRACE_RANGE_RESERVATION = 1, /* cuMemAddressReserve */
    TRACE_RANGE_MAPPING = 2,     /* cuMemMap */
};

/* The record of one that was removed may be written anew for a later one. */
struct trace_range {
    uint32_t state;
    uint16_t type; /* enum trace_range_type */
    uint16_t device;
    uint64_t address;
    uint64_t bytes;
    uint64_t handle; /* a mapping's */
    uint64_t offset; /* in the handle */
    uint64_t created_ns;
    uint64_t removed_ns; /* 0: still there */
    uint32_t native_stack;
    uint32_t python_stack;
};
TRACE_SIZE_CHECK(struct trace_range, 64);

enum trace_gpu_module_type {
    TRACE_GPU_MODULE = 1,  /* cuModuleLoad and its like */
    TRACE_GPU_LIBRARY = 2, /* cuLibraryLoadData, cuLibraryLoadFromFile */
};

/* Code and variables loaded on the GPU: memory that passes no allocation call. The record of one
   that was unloaded may be written anew for a later one. */
struct trace_gpu_module {
    uint32_t state; /* 1: published */
    uint16_t type;  /* enum trace_gpu_module_type */
    uint16_t device;
    uint64_t handle;
    uint64_t loaded_ns;
    uint64_t unloaded_ns; /* 0: still there */
    uint32_t native_stack;
    uint32_t python_stack;
    uint16_t context; /* number; 0: not known */
    uint16_t reserved0[3];
    uint64_t reserved[2];
};
TRACE_SIZE_CHECK(struct trace_gpu_module, 64);

struct trace_mark {
    uint32_t state;
    uint32_t name; /* string ref */
    uint64_t ns;
    uint32_t thread; /* kernel thread id */
    uint32_t reserved;
};
TRACE_SIZE_CHECK(struct trace_mark, 24);

enum trace_failure_flag {
    TRACE_FAILURE_HANDLED = 1u << 0,    /* the program went on allocating */
    TRACE_FAILURE_FREE_KNOWN = 1u << 1, /* free_bytes and total_bytes hold */
    TRACE_FAILURE_FRAMEWORK = 1u << 2,  /* the framework's own report, no driver call */
    TRACE_FAILURE_PRETENDED = 1u << 3,  /* asked for by CUHEAP_LIMIT or CUHEAP_FAIL */
};

/*
 * An allocation that was refused, or another call. Further ones of the same call, code, stack and
 * size class are counted here: then HANDLED, retry_ns and freed_bytes tell of the latest. Where
 * many kinds failed, the records of some of the latest are written anew for later ones.
 */
struct trace_failure {
    uint32_t state;
    uint32_t flags; /* enum trace_failure_flag */
    uint64_t ns;
    uint32_t call; /* string ref: the driver function */
    int32_t code;  /* CUresult */
    uint8_t ledger;
    uint8_t kind;
    uint16_t device;
    uint32_t native_stack;
    uint32_t python_stack;
    uint32_t copy; /* ref of its latest struct trace_copy; 0: none, or no longer */
    uint64_t request_bytes;
    uint64_t free_bytes;
    uint64_t total_bytes;
    uint64_t retry_ns;    /* when the same size succeeded; 0: not seen */
    uint64_t freed_bytes; /* between the failure and that */
    uint64_t repeats;     /* further failures like this one */
    uint64_t last_ns;     /* of the latest of them, as the next two; the first's own if none */
    uint64_t last_request_bytes;
    uint64_t last_free_bytes;
};
TRACE_SIZE_CHECK(struct trace_failure, 112);

/* The live table as it was at a failure: its LIVE and FREEING slots. A region holds one copy, and
   may be written anew for that of a later failure. */
struct trace_copy {
    uint32_t state;   /* stored last */
    uint32_t failure; /* ref of its struct trace_failure */
    uint64_t ns;
    uint64_t count;
    struct trace_slot slots[1];
};
TRACE_SIZE_CHECK(struct trace_copy, 56);

enum trace_event_op {
    TRACE_EVENT_ALLOC = 1,
    TRACE_EVENT_FREE = 2,
};

struct trace_event {
    uint64_t ns; /* 0: not yet written; stored last */
    uint64_t address;
    uint64_t bytes;
    uint32_t site;
    uint8_t op; /* enum trace_event_op */
    uint8_t space;
    uint16_t device;
};
TRACE_SIZE_CHECK(struct trace_event, 32);

enum trace_note_level {
    TRACE_NOTE_INFO = 1,
    TRACE_NOTE_WARNING = 2,
};

struct trace_note {
    uint32_t state;
    uint32_t level; /* enum trace_note_level */
    uint64_t ns;
    uint32_t text; /* string ref */
    uint32_t reserved;
};
TRACE_SIZE_CHECK(struct trace_note, 24);

#endif
