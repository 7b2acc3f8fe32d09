#include "unwind.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <libunwind.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "atomic.h"
#include "elf_symbols.h"

#define COLD_STACK 16384 /* bytes that making a rule may use of the thread's stack */
#define PAGE       4096u

#if defined(__x86_64__)
#define UNWIND_PREFIX  "_Ux86_64_"
#define UNWIND_LIBRARY "libunwind-x86_64.so.8"
#define REG_FP         UNW_X86_64_RBP
#define REG_SP         UNW_X86_64_RSP
#define REG_PC         UNW_X86_64_RIP
#define REG_LR         (-1)
#elif defined(__aarch64__)
#define UNWIND_PREFIX  "_Uaarch64_"
#define UNWIND_LIBRARY "libunwind-aarch64.so.8"
#define REG_FP         UNW_AARCH64_X29
#define REG_SP         UNW_AARCH64_SP
#define REG_PC         UNW_AARCH64_PC
#define REG_LR         UNW_AARCH64_X30
#else
#error "no frame rules for this architecture"
#endif

/* The version that every supported C library has: linking here would else ask for 2.34's. */
#if defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#else
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
#endif

/* ---- rules ----------------------------------------------------------------------------------- */

enum rule_kind {
    RULE_FROM_SP = 1, /* frame begins (CFA) at sp + cfa */
    RULE_FROM_FP,     /* ... at fp + cfa */
    RULE_FROM_FP_MEM, /* ... at the word at fp + cfa: a realigned stack */
    RULE_SIGNAL,      /* the kernel's signal frame: registers are in it */
    RULE_END,         /* outermost frame */
    RULE_NONE,        /* no unwind information */
};

struct rule {
    uint32_t kind;
    int32_t cfa;
    int32_t pc; /* offset from the CFA of the return address; PC_IN_LR: in the link register */
    int32_t fp; /* likewise of the saved frame pointer; FP_KEPT: not saved */
};

#define PC_IN_LR INT32_MIN
#define FP_KEPT  INT32_MIN

/*
 * The cache: sets of entries; an entry is read between two looks at its key. The key holds the low
 * bits of the number of dlclose calls, so that rules of unloaded code are never found again.
 */
#define CACHE_SETS 8192
#define CACHE_WAYS 4
#define KEY_BUSY   1ull

struct cached {
    uint64_t key;
    uint64_t rule[2];
};

static struct cached (*cache)[CACHE_WAYS]; /* NULL: no unwinder */

static uint64_t key_of(uintptr_t pc) {
    return (uint64_t)pc | (uint64_t)(load_relaxed(&modules_unloads) & 0xffff) << 48;
}

/* Generated code lies in no object: that holds only until another object is loaded. */
static uint64_t key_of_generated(const struct modules *modules, uintptr_t pc) {
    return key_of(pc) ^ ((uint64_t)load_relaxed(&modules->count) << 50 | 2ull << 62);
}

static struct cached *set_of(uint64_t key) {
    return cache[(key * 0x9e3779b97f4a7c15ull) >> (64 - 13)];
}
_Static_assert(CACHE_SETS == 1 << 13, "set_of takes as many bits");

static bool cache_find(uint64_t key, struct rule *rule) {
    struct cached *entry = set_of(key);
    for (int way = 0; way < CACHE_WAYS; way++, entry++) {
        if (load_acquire(&entry->key) != key) /* pairs with the release in cache_add */
            continue;
        /* Acquire, so that the second look at the key comes after these. */
        uint64_t words[2] = {load_acquire(&entry->rule[0]), load_acquire(&entry->rule[1])};
        if (load_relaxed(&entry->key) != key)
            return false;
        memcpy(rule, words, sizeof *rule);
        return true;
    }
    return false;
}

static void cache_add(uint64_t key, const struct rule *rule) {
    struct cached *set = set_of(key), *entry = &set[(key >> 4) % CACHE_WAYS];
    for (int way = 0; way < CACHE_WAYS; way++)
        if (!load_relaxed(&set[way].key)) {
            entry = &set[way];
            break;
        }
    uint64_t seen = load_relaxed(&entry->key), words[2];
    /* Somebody else is at it: the rule is simply made again next time. */
    if (seen == KEY_BUSY || !cas_acq_rel(&entry->key, &seen, KEY_BUSY))
        return;
    memcpy(words, rule, sizeof words);
    store_release(&entry->rule[0], words[0]);
    store_release(&entry->rule[1], words[1]);
    store_release(&entry->key, key); /* pairs with cache_find */
}

/* ---- libunwind ------------------------------------------------------------------------------- */

static struct {
    unw_addr_space_t (*create_addr_space)(unw_accessors_t *, int);
    int (*init_remote)(unw_cursor_t *, unw_addr_space_t, void *);
    int (*step)(unw_cursor_t *);
    int (*get_reg)(unw_cursor_t *, int, unw_word_t *);
    int (*set_caching_policy)(unw_addr_space_t, unw_caching_policy_t);
    int (*search_unwind_table)(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *,
                               int, void *);
} unw;

static const struct {
    const char *name;
    void *pointer;
} unw_symbols[] = {
    {UNWIND_PREFIX "create_addr_space", &unw.create_addr_space},
    {UNWIND_PREFIX "init_remote", &unw.init_remote},
    {UNWIND_PREFIX "step", &unw.step},
    {UNWIND_PREFIX "get_reg", &unw.get_reg},
    {UNWIND_PREFIX "set_caching_policy", &unw.set_caching_policy},
    {UNWIND_PREFIX "dwarf_search_unwind_table", &unw.search_unwind_table},
};

static unw_addr_space_t space;
static uint32_t loading; /* 0, 1 while and after unwind_load */
static enum trace_unwinder kind;
static uint32_t learners; /* threads inside libunwind */
static bool may_learn = true;

/*
 * The made-up frame. A register holds its own base; the word at an address is the address plus
 * LOADED. Bases lie where no memory is, 2^40 apart, so that every value tells how it came about.
 */
#define BASE_OF(reg) (((uint64_t)(reg) + 1) << 50)
#define LOADED       (1ull << 60)
#define FAR          (1ll << 30) /* offsets beyond this are none */

struct learning {
    const struct module *module;
    uintptr_t pc;
    uintptr_t page; /* last page found readable */
    bool no_info;   /* libunwind would guess then; we guess better, on the real stack */
};

static int put_nothing(unw_addr_space_t as, unw_proc_info_t *info, void *argument) {
    (void)as, (void)info, (void)argument;
    return 0;
}

static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *info, void *argument) {
    put_nothing(as, info, argument);
}

/* The binary search table of .eh_frame_hdr as linkers write it; another encoding is none. */
static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *info, int need,
                          void *argument) {
    struct learning *learning = argument;
    const uint8_t *header = learning->module->eh_frame_hdr;
    learning->no_info = true;
    if (!header || !memory_readable((uintptr_t)header) || header[0] != 1 || header[1] != 0x1b ||
        header[2] != 0x03 || header[3] != 0x3b)
        return -UNW_ENOINFO;
    uint32_t entries;
    memcpy(&entries, header + 8, sizeof entries);
    unw_dyn_info_t table = {
        .start_ip = learning->module->start,
        .end_ip = learning->module->end,
        .format = UNW_INFO_FORMAT_REMOTE_TABLE,
        .u.rti.segbase = (unw_word_t)header,
        .u.rti.table_len = entries * 8 / sizeof(unw_word_t),
        .u.rti.table_data = (unw_word_t)header + 12,
    };
    int rc = unw.search_unwind_table(as, ip, &table, info, need, argument);
    learning->no_info = rc < 0;
    return rc;
}

static int no_dynamic_info(unw_addr_space_t as, unw_word_t *address, void *argument) {
    (void)as, (void)address, (void)argument;
    return -UNW_ENOINFO;
}

static int access_mem(unw_addr_space_t as, unw_word_t address, unw_word_t *value, int write,
                      void *argument) {
    struct learning *learning = argument;
    (void)as;
    if (write)
        return -UNW_EINVAL;
    if (address >= BASE_OF(0) - (uint64_t)FAR) {
        *value = address + LOADED;
        return 0;
    }
    if (address % sizeof *value || address < learning->module->start ||
        address >= learning->module->end)
        return -UNW_EINVAL;
    if (address / PAGE != learning->page) {
        if (!memory_readable(address))
            return -UNW_EINVAL;
        learning->page = address / PAGE;
    }
    *value = *(const unw_word_t *)address;
    return 0;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t reg, unw_word_t *value, int write,
                      void *argument) {
    const struct learning *learning = argument;
    (void)as;
    if (write)
        return -UNW_EREADONLYREG;
    *value = reg == REG_PC ? learning->pc : BASE_OF(reg);
    return 0;
}

static int access_fpreg(unw_addr_space_t as, unw_regnum_t reg, unw_fpreg_t *value, int write,
                        void *argument) {
    (void)as, (void)reg, (void)value, (void)write, (void)argument;
    return -UNW_EBADREG;
}

static int resume(unw_addr_space_t as, unw_cursor_t *cursor, void *argument) {
    (void)as, (void)cursor, (void)argument;
    return -UNW_EINVAL;
}

static int get_proc_name(unw_addr_space_t as, unw_word_t address, char *buffer, size_t bytes,
                         unw_word_t *offset, void *argument) {
    (void)as, (void)address, (void)buffer, (void)bytes, (void)offset, (void)argument;
    return -UNW_ENOINFO;
}

static unw_accessors_t accessors = {
    .find_proc_info = find_proc_info,
    .put_unwind_info = put_unwind_info,
    .get_dyn_info_list_addr = no_dynamic_info,
    .access_mem = access_mem,
    .access_reg = access_reg,
    .access_fpreg = access_fpreg,
    .resume = resume,
    .get_proc_name = get_proc_name,
};

/* Is `value` within reach of `base`? Then *offset is the distance. */
static bool near(uint64_t value, uint64_t base, int32_t *offset) {
    int64_t distance = (int64_t)(value - base);
    *offset = (int32_t)distance;
    return distance > -FAR && distance < FAR;
}

/* Reads off the registers after the step where they came from. */
static bool read_rule(unw_cursor_t *cursor, struct rule *rule) {
    unw_word_t pc, cfa, fp;
    if (unw.get_reg(cursor, UNW_REG_IP, &pc) < 0 || unw.get_reg(cursor, UNW_REG_SP, &cfa) < 0)
        return false;
    if (near(cfa, BASE_OF(REG_SP), &rule->cfa))
        rule->kind = RULE_FROM_SP;
    else if (near(cfa, BASE_OF(REG_FP), &rule->cfa))
        rule->kind = RULE_FROM_FP;
    else if (near(cfa, BASE_OF(REG_FP) + LOADED, &rule->cfa))
        rule->kind = RULE_FROM_FP_MEM;
    else
        return false;
    if (REG_LR >= 0 && pc == BASE_OF(REG_LR))
        rule->pc = PC_IN_LR;
    else if (!near(pc, cfa + LOADED, &rule->pc))
        return false;
    if (unw.get_reg(cursor, REG_FP, &fp) < 0 || fp == BASE_OF(REG_FP) ||
        !near(fp, cfa + LOADED, &rule->fp)) {
        /* Saved relative to the frame pointer in a realigned frame: that offset is the other's. */
        int32_t from_fp;
        if (rule->kind == RULE_FROM_FP_MEM && near(fp, BASE_OF(REG_FP) + LOADED, &from_fp) &&
            from_fp == 0)
            rule->fp = FP_KEPT + 1;
        else
            rule->fp = FP_KEPT;
    }
    return true;
}
#define FP_AT_FP (FP_KEPT + 1) /* the word that the frame pointer points to */

static struct rule ask_libunwind(const struct module *module, uintptr_t pc) {
    struct rule rule = {.kind = RULE_NONE};
    struct learning learning = {.module = module, .pc = pc - 1};
    unw_cursor_t cursor;
    add_acq_rel(&learners,
                1); /* pairs with unwind_forked: a child that finds it raised stays away */
    if (unw.init_remote(&cursor, space, &learning) == 0) {
        int rc = unw.step(&cursor);
        unw_word_t next = 0;
        if (learning.no_info)
            rule.kind = RULE_NONE;
        else if (rc == 0 || (rc > 0 && unw.get_reg(&cursor, UNW_REG_IP, &next) == 0 && !next))
            rule.kind = RULE_END;
        else if (rc < 0 || !read_rule(&cursor, &rule))
            rule.kind = RULE_NONE;
    }
    add_acq_rel(&learners, (uint32_t)-1);
    return rule;
}

/* ---- the real stack -------------------------------------------------------------------------- */

/* Pages of this thread's stack that were found readable, [from, to); and where room for cold work
   was found, from a frame at room_top down to room. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
    uintptr_t from, to, room, room_top;
} seen;

static bool stack_word(uintptr_t address, uintptr_t *value) {
    if (address % sizeof *value)
        return false;
    if (address < seen.from || address >= seen.to) {
        uintptr_t page = address & ~(uintptr_t)(PAGE - 1);
        if (!memory_readable(address))
            return false;
        if (page != seen.to)
            seen.from = page;
        seen.to = page + PAGE;
    }
    *value = *(const uintptr_t *)address;
    return true;
}

/* Are there COLD_STACK bytes below? Asks page by page: a guard page may be just one. */
static bool has_room(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (here <= seen.room_top && here - COLD_STACK >= seen.room)
        return true;
    for (uintptr_t below = PAGE; below <= COLD_STACK; below += PAGE)
        if (!memory_readable(here - below))
            return false;
    seen.room = here - COLD_STACK;
    seen.room_top = here;
    return true;
}

#if defined(__x86_64__)
static const uint8_t sigreturn_code[] = {0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05};
#else
static const uint8_t sigreturn_code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4};
#endif

/* The trampoline that a signal handler returns to: its return address points at this code. */
static bool is_sigreturn(uintptr_t pc) {
    return memory_readable(pc) && memory_readable(pc + sizeof sigreturn_code - 1) &&
           !memcmp((const void *)pc, sigreturn_code, sizeof sigreturn_code);
}

static bool leave_signal(struct registers *r) {
    uintptr_t pc = 0, sp = 0, fp = 0;
#if defined(__x86_64__)
    uintptr_t saved = r->sp + offsetof(ucontext_t, uc_mcontext.gregs);
    bool done = stack_word(saved + 8 * REG_RIP, &pc) && stack_word(saved + 8 * REG_RSP, &sp) &&
                stack_word(saved + 8 * REG_RBP, &fp);
#else
    uintptr_t saved = r->sp + 128 + offsetof(ucontext_t, uc_mcontext);
    bool done = stack_word(saved + offsetof(mcontext_t, pc), &pc) &&
                stack_word(saved + offsetof(mcontext_t, sp), &sp) &&
                stack_word(saved + offsetof(mcontext_t, regs[29]), &fp);
#endif
    /* The interrupted instruction, as if it were a call: the rest looks at the byte before. */
    *r = (struct registers){.pc = pc + 1, .sp = sp, .fp = fp};
    return done && pc;
}

/* Without the signature that the processor may keep in a return address. */
static uintptr_t plain_pc(uintptr_t pc) {
#if defined(__aarch64__)
    pc &= (1ull << 48) - 1;
#endif
    return pc;
}

static bool apply(const struct rule *rule, struct registers *r) {
    uintptr_t cfa = (rule->kind == RULE_FROM_SP ? r->sp : r->fp) + (intptr_t)rule->cfa;
    uintptr_t pc, fp = r->fp;
    if (rule->kind == RULE_FROM_FP_MEM && !stack_word(cfa, &cfa))
        return false;
    /* Stacks grow down: a caller's frame lies above. Anything else would loop. */
    if (cfa <= r->sp || rule->pc == PC_IN_LR || !stack_word(cfa + (intptr_t)rule->pc, &pc))
        return false;
    if (rule->fp == FP_AT_FP ? !stack_word(r->fp, &fp)
                             : rule->fp != FP_KEPT && !stack_word(cfa + (intptr_t)rule->fp, &fp))
        return false;
    *r = (struct registers){.pc = plain_pc(pc), .sp = cfa, .fp = fp};
    return true;
}

/* Code without unwind information (a JIT's): follow the frame pointer if it leads to known code. */
static bool guess(const struct modules *modules, struct registers *r) {
    uintptr_t pc, fp;
    if (r->fp <= r->sp || r->fp - r->sp > 1u << 20 || !stack_word(r->fp, &fp) ||
        !stack_word(r->fp + sizeof fp, &pc) || !modules_find(modules, plain_pc(pc)))
        return false;
    *r = (struct registers){.pc = plain_pc(pc), .sp = r->fp + 2 * sizeof fp, .fp = fp};
    return true;
}

static bool make_rule(struct modules *modules, uintptr_t pc, struct rule *rule) {
    struct trace_writer *trace = modules->trace;
    if (!load_relaxed(&may_learn)) {
        trace_lose(trace, TRACE_LOSS_STACK_CHILD, 1);
        return false;
    }
    if (!has_room()) {
        trace_lose(trace, TRACE_LOSS_STACK_SMALL, 1);
        return false;
    }
    uint64_t key = key_of(pc);
    const struct module *module = modules_find(modules, pc - 1);
    if (!module && cache_find(key_of_generated(modules, pc), rule))
        return true;
    if (!module) {
        modules_scan(modules, trace_now(trace));
        module = modules_find(modules, pc - 1);
    }
    if (is_sigreturn(pc))
        *rule = (struct rule){.kind = RULE_SIGNAL};
    else if (module)
        *rule = ask_libunwind(module, pc);
    else
        *rule = (struct rule){.kind = RULE_NONE};
    cache_add(module ? key : key_of_generated(modules, pc), rule);
    return true;
}

static bool step(struct modules *modules, struct registers *r, bool *end) {
    struct rule rule;
    if (!cache_find(key_of(r->pc), &rule) && !make_rule(modules, r->pc, &rule))
        return false;
    switch (rule.kind) {
    case RULE_END:
        *end = true;
        return false;
    case RULE_SIGNAL:
        return leave_signal(r);
    case RULE_NONE:
        return guess(modules, r);
    default:
        return apply(&rule, r);
    }
}

static bool is_in(const struct code_range *range, uintptr_t pc) {
    return pc - 1 - range->start < range->end - range->start;
}

static unsigned walk_rules(struct modules *modules, struct registers r,
                           const struct code_range *stop, uint64_t *pcs, unsigned max,
                           uint32_t *flags) {
    unsigned depth = 0;
    bool end = false;
    /* Pages below are another call's leavings; what is above may have been unmapped since. */
    if (r.sp < seen.from || r.sp >= seen.to)
        seen.from = seen.to = 0;
    do {
        if (is_in(stop, r.pc)) {
            *flags |= TRACE_STACK_TO_PYTHON;
            return depth;
        }
        if (depth == max) {
            *flags |= TRACE_STACK_TRUNCATED;
            trace_lose(modules->trace, TRACE_LOSS_STACK_TRUNCATED, 1);
            return depth;
        }
        pcs[depth++] = r.pc;
    } while (step(modules, &r, &end) && r.pc > PAGE);
    if (!end) {
        *flags |= TRACE_STACK_INCOMPLETE;
        trace_lose(modules->trace, TRACE_LOSS_STACK_INCOMPLETE, 1);
    }
    return depth;
}

/* The C library's way: our own frames come first and are dropped. */
static unsigned walk_backtrace(struct modules *modules, const struct registers *from,
                               const struct code_range *stop, uint64_t *pcs, unsigned max,
                               uint32_t *flags) {
    void *frames[96];
    if (!has_room()) {
        trace_lose(modules->trace, TRACE_LOSS_STACK_SMALL, 1);
        return 0;
    }
    int count = backtrace(frames, 96), first = 0;
    while (first < count && (uintptr_t)frames[first] != from->pc)
        first++;
    unsigned depth = 0;
    for (int i = first; i < count && depth < max; i++) {
        if (is_in(stop, (uintptr_t)frames[i])) {
            *flags |= TRACE_STACK_TO_PYTHON;
            return depth;
        }
        pcs[depth++] = (uintptr_t)frames[i];
    }
    if (depth == max)
        *flags |= TRACE_STACK_TRUNCATED;
    return depth;
}

unsigned unwind_walk(struct modules *modules, const struct registers *from,
                     const struct code_range *stop, uint64_t *pcs, unsigned max, uint32_t *flags) {
    if (kind == TRACE_UNWINDER_LIBUNWIND)
        return walk_rules(modules, *from, stop, pcs, max, flags);
    if (kind == TRACE_UNWINDER_BACKTRACE && may_learn)
        return walk_backtrace(modules, from, stop, pcs, max, flags);
    return 0;
}

/* In clone.S. */
long clone_call(int (*function)(void *), void *stack_top, long flags, void *argument);

/* ---- loading --------------------------------------------------------------------------------- */

/* Opens a library beside our own file; without success NULL. */
static void *open_beside(const char *name) {
    struct object self;
    char path[1024];
    if (!objects_find((uintptr_t)&unwind_load, &self))
        return NULL;
    const char *slash = strrchr(self.path, '/');
    size_t folder = slash ? (size_t)(slash - self.path) + 1 : 0, bytes = strlen(name) + 1;
    if (!folder || folder + bytes > sizeof path)
        return NULL;
    memcpy(path, self.path, folder);
    memcpy(path + folder, name, bytes);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* In the child, so that nothing it does to its descriptors is seen: takes all numbers below the
   highest, so that the pipe gets those. */
static void use_up_descriptors(void) {
    struct rlimit limit = {1024, 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    int last = limit.rlim_cur < 4096 ? (int)limit.rlim_cur - 3 : 4093;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && fd < last)
        fd = dup(fd);
}

static int initialise(void *in_child) {
    struct learning learning = {.pc = 0};
    unw_cursor_t cursor;
    if (in_child)
        use_up_descriptors();
    space = unw.create_addr_space(&accessors, 0);
    if (space) {
        unw.set_caching_policy(space, UNW_CACHE_NONE);
        unw.init_remote(&cursor, space, &learning); /* the first one initialises the library */
    }
    return 0;
}

/*
 * libunwind opens a pipe when it is initialised, for a way of asking about memory that we never
 * use. A program's descriptors must have the numbers that they would have without us. So this is
 * done in a child that shares the memory but has a table of descriptors of its own, while we stand
 * still as in a vfork; without an exit signal, nobody's SIGCHLD handler or wait sees it.
 * A program that uses libunwind itself shares its variables with us: it must find numbers there
 * that are not in use, upon which it makes a pipe of its own.
 */
static void initialise_elsewhere(void) {
    const size_t bytes = 256 << 10;
    char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long child = -1;
    if (stack != MAP_FAILED)
        child = clone_call(initialise, stack + bytes, CLONE_VM | CLONE_VFORK, stack);
    if (child > 0)
        while (waitpid((pid_t)child, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    else
        initialise(NULL); /* not allowed here: then with the pipe */
    if (stack != MAP_FAILED)
        munmap(stack, bytes);
}

/* RTLD_LOCAL: its _Unwind_ names must not take over the program's exceptions. */
static bool load_libunwind(dlsym_function *find) {
    /* What it needs itself may lie beside us too; the loader finds it then by its name. */
    open_beside("liblzma.so.5");
    open_beside("libunwind.so.8");
    void *library = open_beside(UNWIND_LIBRARY);
    if (!library)
        library = dlopen(UNWIND_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    for (size_t i = 0; i < sizeof unw_symbols / sizeof *unw_symbols; i++) {
        void *symbol = find(library, unw_symbols[i].name);
        if (!symbol)
            return false;
        memcpy(unw_symbols[i].pointer, &symbol, sizeof symbol);
    }
    void *memory = mmap(NULL, CACHE_SETS * sizeof *cache, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    initialise_elsewhere();
    if (!space)
        return false;
    cache = memory;
    return true;
}

void unwind_load(dlsym_function *find) {
    uint32_t never = 0;
    if (!cas_acq_rel(&loading, &never, 1u))
        return;
    if (load_libunwind(find)) {
        store_release(&kind, TRACE_UNWINDER_LIBUNWIND);
        return;
    }
    void *frame;
    backtrace(&frame, 1); /* loads libgcc_s now rather than in the middle of an event */
    store_release(&kind, TRACE_UNWINDER_BACKTRACE);
}

void unwind_forked(void) {
    /* Not loaded: the child may load it. Loaded: safe unless a thread that is gone was inside. */
    bool loaded = load_relaxed(&kind) != TRACE_UNWINDER_NONE;
    bool half_loaded = !loaded && load_relaxed(&loading);
    store_relaxed(&may_learn, !half_loaded && !load_relaxed(&learners) &&
                                  (!loaded || kind == TRACE_UNWINDER_LIBUNWIND));
}

enum trace_unwinder unwind_kind(void) {
    return load_acquire(&kind);
}
