/*
 * One allocate-and-free pair, instruction by instruction: after each one that changed the trace, a
 * copy of it must read as the books before the call or after it, never as anything else, and never
 * fail to open. Three states: warm; the first event of the process; while the live table grows.
 *
 * The trace is seen through a mapping of the same file. Where an instruction may store into it is
 * told by step_decode.h; every so often, and after each system call, all of it is compared. Calls
 * out of libcuheap.so and the C library are run through: nothing else has the trace's address.
 */
#include "step_decode.h"

#include "../e2e/programs/pair.h"
#include "harness.h"
#include "profile.h"

#include <criterion/criterion.h>

#ifndef __x86_64__

Test(step, every_instruction_of_a_pair) {
    cr_skip_test("single-stepping is written for x86-64");
}

#else

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAP_BYTES     (256ull << 20)
#define WINDOW        8192u /* compared on each side of a store */
#define COMPARE_EVERY 1024u
#define CACHE_SIZE    65536u
#define BOOK_SITES    2

/* ---- the books ---- */

struct book_site {
    uint64_t live_bytes, live_count, allocs, frees, own_peak, at_peak, end_of_work;
};

struct books {
    uint64_t live_bytes, live_count, allocs, frees, peak, end_of_work;
    struct book_site sites[BOOK_SITES]; /* of the blocks, of the pair; by their allocations' size */
};

static void add_site(struct books *books, const struct profile_site *site) {
    if (site->allocs == 0)
        return;
    bool pair =
        site->alloc_bytes % BLOCK_BYTES == 0 && site->alloc_bytes / site->allocs > BLOCK_BYTES;
    struct book_site *to = &books->sites[pair];
    to->live_bytes += site->live_bytes;
    to->live_count += site->live_count;
    to->allocs += site->allocs;
    to->frees += site->frees;
    to->own_peak += site->own_peak_bytes;
    to->at_peak += site->at_peak_bytes;
    to->end_of_work += site->end_of_work_bytes;
}

/* False, with why, if the trace cannot be read. All zero: nothing recorded. */
static bool read_books(const void *bytes, size_t size, struct books *books, char *why) {
    struct trace_error error = {0};
    memset(books, 0, sizeof *books);
    struct trace *trace = trace_open_bytes(bytes, size, "the stepped trace", &error);
    if (!trace) {
        strcpy(why, error.text);
        return false;
    }
    struct profile *profile = profile_build(trace);
    const struct profile_total *total =
        profile_total(profile, TRACE_LEDGER_DRIVER, TRACE_GROUP_DEVICE, 0);
    if (total) {
        books->live_bytes = total->live_bytes;
        books->live_count = total->live_count;
        books->allocs = total->allocs;
        books->frees = total->frees;
        books->peak = total->peak_bytes;
        books->end_of_work = total->end_of_work_bytes;
    }
    for (size_t i = 0; i < profile->site_count; i++)
        add_site(books, &profile->sites[i]);
    profile_free(profile);
    trace_close(trace);
    return true;
}

/* Before the pair, between its two calls, after it: as `blocks` and the pairs done before tell. */
static void expect(struct books out[3], uint64_t blocks, uint64_t warm) {
    uint64_t base = blocks * BLOCK_BYTES, warm_bytes = warm ? PAIR_WARM_BYTES : 0;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t taken = i > 0, live = i == 1, held = live ? PAIR_BYTES : 0;
        uint64_t peak = i ? PAIR_BYTES : warm_bytes;
        out[i] = (struct books){
            .live_bytes = base + held,
            .live_count = blocks + live,
            .allocs = blocks + warm + taken,
            .frees = warm + (i == 2),
            .peak = base + peak,
            .end_of_work = base + peak,
            .sites = {{base, blocks, blocks, 0, base, base, base},
                      {held, live, warm + taken, warm + (i == 2), peak, peak, peak}},
        };
    }
}

static void describe(const char *name, const struct books *b) {
    fprintf(stderr, "%-9s live %lu in %lu, %lu allocs, %lu frees, peak %lu, end of work %lu\n",
            name, b->live_bytes, b->live_count, b->allocs, b->frees, b->peak, b->end_of_work);
    for (int i = 0; i < BOOK_SITES; i++)
        fprintf(stderr,
                "   site %d live %lu in %lu, %lu allocs, %lu frees, own %lu, at peak %lu, "
                "end of work %lu\n",
                i, b->sites[i].live_bytes, b->sites[i].live_count, b->sites[i].allocs,
                b->sites[i].frees, b->sites[i].own_peak, b->sites[i].at_peak,
                b->sites[i].end_of_work);
}

/* ---- the stepped process ---- */

struct range {
    uint64_t from, to;
};

struct stepper {
    struct run *run;
    char path[128]; /* of the trace; empty until it is there */
    const uint8_t *file;
    uint8_t *copy;
    size_t size, seen;                  /* of the file; as far as the copy goes */
    struct range traces[8], inside[16]; /* its mappings; code that is stepped */
    unsigned trace_count, inside_count;
    struct step_operand *cache;
    struct books expected[3];
    unsigned at;            /* index of the books that hold now */
    uint64_t steps, checks; /* instructions stepped, changes checked */
    uint64_t pc;            /* of the latest instruction, for messages */
};

static void fail_at(const struct stepper *s, const char *what, const struct books *found) {
    fprintf(stderr, "step %lu, pc %#lx: %s\n", s->steps, s->pc, what);
    char command[64], line[512];
    snprintf(command, sizeof command, "/proc/%d/maps", s->run->pid);
    FILE *maps = fopen(command, "re");
    while (maps && fgets(line, sizeof line, maps)) {
        uint64_t from, to, offset;
        if (sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3 && s->pc >= from &&
            s->pc < to)
            fprintf(stderr, "file offset %#lx of %s", s->pc - from + offset, strchr(line, '/'));
    }
    if (maps)
        fclose(maps);
    if (found) {
        describe("found", found);
        describe("before", &s->expected[s->at]);
        if (s->at < 2)
            describe("or after", &s->expected[s->at + 1]);
    }
    kill(s->run->pid, SIGKILL);
    cr_assert(false, "%s", what);
}

/* The books of the copy must be those that held, or the next ones. */
static void check_books(struct stepper *s) {
    struct books found;
    char why[700];
    s->checks++;
    if (!read_books(s->copy, s->size, &found, why))
        fail_at(s, why, NULL);
    if (!memcmp(&found, &s->expected[s->at], sizeof found))
        return;
    if (s->at == 2 || memcmp(&found, &s->expected[s->at + 1], sizeof found))
        fail_at(s, "books that are neither those before nor those after", &found);
    s->at++;
}

static void open_file(struct stepper *s) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.trace", s->run->dir);
    if (!s->path[0] && glob(pattern, 0, NULL, &found) == 0) {
        snprintf(s->path, sizeof s->path, "%s", found.gl_pathv[0]);
        globfree(&found);
        int fd = open(s->path, O_RDONLY | O_CLOEXEC);
        s->file = mmap(NULL, MAP_BYTES, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        cr_assert(s->file != MAP_FAILED);
    }
}

/* All of the file against the copy. True if they differed; the copy then follows. */
static bool compare_all(struct stepper *s) {
    struct stat st;
    open_file(s);
    if (!s->path[0] || stat(s->path, &st) || st.st_size == 0)
        return false;
    s->size = (size_t)st.st_size;
    bool grown = s->size != s->seen;
    if (!grown && !memcmp(s->file, s->copy, s->size))
        return false;
    memcpy(s->copy, s->file, s->size);
    s->seen = s->size;
    return true;
}

static bool compare_near(struct stepper *s, uint64_t offset) {
    size_t from = offset > WINDOW ? offset - WINDOW : 0;
    size_t to = offset + WINDOW < s->size ? offset + WINDOW : s->size;
    if (from >= to || !memcmp(s->file + from, s->copy + from, to - from))
        return false;
    memcpy(s->copy + from, s->file + from, to - from);
    return true;
}

static void add_range(struct range *ranges, unsigned *count, unsigned limit, struct range r) {
    if (*count < limit)
        ranges[(*count)++] = r;
}

/* After each system call: mappings may have come. */
static void read_maps(struct stepper *s) {
    char path[64], line[512], access[8];
    uint64_t from, to;
    snprintf(path, sizeof path, "/proc/%d/maps", s->run->pid);
    FILE *maps = fopen(path, "re");
    s->trace_count = s->inside_count = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3)
            continue;
        if (strstr(line, ".trace"))
            add_range(s->traces, &s->trace_count, 8, (struct range){from, to});
        else if (access[2] == 'x' && (strstr(line, "/libcuheap.so") || strstr(line, "/libc.so")))
            add_range(s->inside, &s->inside_count, 16, (struct range){from, to});
    }
    if (maps)
        fclose(maps);
}

static bool in_ranges(const struct range *ranges, unsigned count, uint64_t address) {
    for (unsigned i = 0; i < count; i++)
        if (address >= ranges[i].from && address < ranges[i].to)
            return true;
    return false;
}

static const struct step_operand *decode_at(struct stepper *s, uint64_t pc) {
    struct step_operand *o = &s->cache[(pc ^ pc >> 16) % CACHE_SIZE];
    if (o->pc == pc)
        return o;
    long words[2];
    for (int i = 0; i < 2; i++)
        words[i] = ptrace(PTRACE_PEEKTEXT, s->run->pid, (void *)(pc + 8u * (unsigned)i), NULL);
    *o = step_decode(pc, (const uint8_t *)words);
    return o;
}

/* Runs on by one instruction or to the next stop; the signal that stopped it. */
static int resume(struct stepper *s, int request, int signal) {
    int status;
    if (ptrace(request, s->run->pid, NULL, (void *)(intptr_t)signal))
        cr_assert(false, "ptrace: %s", strerror(errno));
    while (waitpid(s->run->pid, &status, 0) < 0)
        cr_assert(errno == EINTR);
    cr_assert(WIFSTOPPED(status), "the stepped program ended with status %#x", status);
    return WSTOPSIG(status);
}

/* Out of the code that is stepped, by a call: a breakpoint where it will return. */
static int run_through_call(struct stepper *s, struct user_regs_struct *regs) {
    pid_t pid = s->run->pid;
    uint64_t back = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, (void *)regs->rsp, NULL);
    uint64_t stack = regs->rsp;
    long old = ptrace(PTRACE_PEEKTEXT, pid, (void *)back, NULL);
    long trap = (old & ~0xffl) | 0xcc;
    for (;;) {
        ptrace(PTRACE_POKETEXT, pid, (void *)back, (void *)trap);
        int signal = resume(s, PTRACE_CONT, 0);
        ptrace(PTRACE_POKETEXT, pid, (void *)back, (void *)old);
        ptrace(PTRACE_GETREGS, pid, NULL, regs);
        if (signal != SIGTRAP || regs->rip != back + 1)
            return signal;
        regs->rip = back;
        ptrace(PTRACE_SETREGS, pid, NULL, regs);
        if (regs->rsp > stack)
            return SIGTRAP;
        resume(s, PTRACE_SINGLESTEP, 0); /* met by a deeper call of the same function */
    }
}

static bool is_inside(const struct stepper *s, uint64_t pc) {
    return in_ranges(s->inside, s->inside_count, pc);
}

static void after_instruction(struct stepper *s, bool syscall, uint64_t address) {
    if (syscall) {
        read_maps(s);
        if (compare_all(s))
            check_books(s);
        return;
    }
    if (in_ranges(s->traces, s->trace_count, address)) {
        if (compare_near(s, address - s->traces[0].from))
            check_books(s);
    } else if (s->steps % COMPARE_EVERY == 0 && compare_all(s)) {
        fail_at(s, "a store into the trace was overlooked: step_decode.c does not know it", NULL);
    }
}

/* Steps to the program's next raise(SIGSTOP). */
static void step_to_stop(struct stepper *s) {
    struct user_regs_struct regs;
    pid_t pid = s->run->pid;
    ptrace(PTRACE_GETREGS, pid, NULL, &regs);
    for (;;) {
        s->pc = regs.rip;
        const struct step_operand *operand = decode_at(s, regs.rip);
        uint64_t address = step_address(operand, &regs);
        bool syscall = operand->is_syscall, call = operand->is_call;
        bool was_inside = is_inside(s, regs.rip);
        s->steps++;
        int signal = resume(s, PTRACE_SINGLESTEP, 0);
        if (signal == SIGSTOP)
            break;
        cr_assert_eq(signal, SIGTRAP, "the stepped program got signal %d", signal);
        ptrace(PTRACE_GETREGS, pid, NULL, &regs);
        after_instruction(s, syscall, address);
        if (was_inside && call && !is_inside(s, regs.rip)) {
            signal = run_through_call(s, &regs);
            if (signal == SIGSTOP)
                break;
            cr_assert_eq(signal, SIGTRAP, "the stepped program got signal %d", signal);
            if (compare_all(s))
                check_books(s);
            read_maps(s);
        }
    }
    if (compare_all(s))
        check_books(s);
}

static void run_to_stop(struct stepper *s) {
    int signal = 0;
    do
        signal = resume(s, PTRACE_CONT, signal == SIGTRAP ? 0 : signal);
    while (signal != SIGSTOP);
}

/* ---- the three states ---- */

static void start(struct stepper *s, const char *const args[]) {
    /* A step is two switches between the processes: on one processor they are three times faster.
     */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);

    struct launch launch = {.program = PROGRAM("pair"), .traced = true};
    for (int i = 0; args[i]; i++)
        launch.args[i] = args[i];
    memset(s, 0, sizeof *s);
    s->run = run_start(&launch);
    s->copy = calloc(1, MAP_BYTES);
    s->cache = calloc(CACHE_SIZE, sizeof *s->cache);
    int status;
    cr_assert_eq(waitpid(s->run->pid, &status, 0), s->run->pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == RUN_UNTRACEABLE)
        cr_skip_test("ptrace is refused here");
    cr_assert(WIFSTOPPED(status), "status %#x", status);
}

static void finish(struct stepper *s) {
    kill(s->run->pid, SIGKILL);
    run_wait(s->run, 10);
    run_free(s->run);
    if (s->file)
        munmap((void *)s->file, MAP_BYTES);
    free(s->copy);
    free(s->cache);
}

static unsigned tables_of(struct stepper *s) {
    struct trace_error error = {0};
    compare_all(s);
    struct trace *trace = trace_open_bytes(s->copy, s->size, "the stepped trace", &error);
    cr_assert(trace, "%s", error.text);
    unsigned regions = trace_section_size(trace, TRACE_SECTION_LIVE_TABLE).regions;
    trace_close(trace);
    return regions;
}

/* From the first stop of the pair to the last. */
static void step_pair(struct stepper *s, uint64_t blocks, uint64_t warm) {
    expect(s->expected, blocks, warm);
    read_maps(s);
    if (compare_all(s))
        check_books(s);
    cr_assert_eq(s->at, 0);
    step_to_stop(s);
    cr_assert_eq(s->at, 1, "the allocation is in no books");
    step_to_stop(s);
    cr_assert_eq(s->at, 2, "the free is in no books");
    cr_assert_gt(s->checks, 4);
    fprintf(stderr, "%lu instructions stepped, %lu changes of the trace read\n", s->steps,
            s->checks);
}

Test(step, every_instruction_of_a_warm_pair) {
    struct stepper s;
    start(&s, (const char *const[]){"warm", NULL});
    run_to_stop(&s);
    step_pair(&s, 3, PAIR_WARM);
    finish(&s);
}

Test(step, every_instruction_of_the_first_event) {
    struct stepper s;
    start(&s, (const char *const[]){"first", NULL});
    run_to_stop(&s);
    cr_assert(!compare_all(&s), "there is a trace before the first event");
    step_pair(&s, 0, 0);
    finish(&s);
}

/* The block that makes the first further table. */
static unsigned find_growth(void) {
    struct stepper s;
    unsigned block = 0;
    start(&s, (const char *const[]){"grow", "1000000", "stops", NULL});
    run_to_stop(&s);
    for (unsigned before = tables_of(&s); tables_of(&s) == before; block++)
        run_to_stop(&s);
    finish(&s);
    return block + 1;
}

/* Addresses are the same in each run, but the pair's block is not of the size of the others: try
   until its own allocation is the one that finds no room. */
Test(step, every_instruction_while_the_table_grows) {
    unsigned block = find_growth();
    for (unsigned more = 0; more < 16; more++) {
        char count[16];
        struct stepper s;
        snprintf(count, sizeof count, "%u", block - 1 + more);
        start(&s, (const char *const[]){"grow", count, NULL});
        run_to_stop(&s);
        unsigned before = tables_of(&s);
        s.seen = 0;
        step_pair(&s, block - 1 + more, 0);
        bool grown = tables_of(&s) > before;
        finish(&s);
        if (grown)
            return;
    }
    cr_assert(false, "the table did not grow in a stepped pair after %u blocks", block);
}

#endif
