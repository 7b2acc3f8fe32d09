/*
 * Filters, groups and sums for a report. See view.h; one thread.
 */
#include "view.h"

#include "code_owner.h"
#include "progress.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <uthash.h>

const char *const view_by_names[] = {"line", "function", "library", "stack", NULL};

/* ---- filter ---------------------------------------------------------------------------------- */

static bool device_passes(const struct job *job, uint32_t device, uint16_t ordinal,
                          const char *wanted) {
    if (!wanted)
        return true;
    if (device == DEVICE_NONE)
        return false;
    char *end;
    unsigned long number = strtoul(wanted, &end, 10);
    if (*wanted && !*end)
        return ordinal == number;
    const struct job_device *known = &job->devices[device];
    char uuid[UUID_BYTES];
    job_uuid(known->uuid, uuid);
    const char *from = strncasecmp(wanted, "GPU-", 4) == 0 ? uuid : uuid + 4;
    return known->uuid_known && strncasecmp(from, wanted, strlen(wanted)) == 0;
}

static bool text_matches(const regex_t *pattern, const char *text) {
    return text && regexec(pattern, text, 0, NULL, 0) == 0;
}

static bool stack_matches(const regex_t *pattern, const struct backtrace *backtrace) {
    for (unsigned i = 0; i < backtrace->count; i++) {
        const struct frame *frame = backtrace->frames[i];
        if (text_matches(pattern, frame->function) || text_matches(pattern, frame->file) ||
            text_matches(pattern, frame->module))
            return true;
    }
    return false;
}

static bool site_matches(const regex_t *pattern, const struct backtrace *backtrace,
                         const struct backtrace *caller) {
    return stack_matches(pattern, backtrace) || (caller && stack_matches(pattern, caller));
}

static bool site_passes(const struct view_filter *filter, const struct backtrace *backtrace,
                        const struct backtrace *caller) {
    return (!filter->focus || site_matches(filter->focus, backtrace, caller)) &&
           (!filter->ignore || !site_matches(filter->ignore, backtrace, caller));
}

/* ---- sums ------------------------------------------------------------------------------------ */

static struct view_sum *find_sum(struct view *view, const struct profile_total *total,
                                 uint32_t device) {
    for (size_t i = 0; i < view->sum_count; i++) {
        struct view_sum *sum = &view->sums[i];
        if (sum->ledger == total->ledger && sum->group == total->group && sum->device == device)
            return sum;
    }
    struct view_sum *grown = realloc(view->sums, (view->sum_count + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    view->sums = grown;
    struct view_sum *sum = &grown[view->sum_count++];
    *sum = (struct view_sum){.ledger = total->ledger, .group = total->group, .device = device};
    return sum;
}

static void add_total(struct view_sum *sum, const struct profile_total *total) {
    sum->processes++;
    bool alone = sum->processes == 1;
    sum->live_bytes += total->live_bytes;
    sum->live_count += total->live_count;
    sum->end_of_work_bytes += total->end_of_work_bytes;
    sum->end_of_work_count += total->end_of_work_count;
    sum->peak_bytes += total->peak_bytes;
    sum->residue_bytes += total->residue_bytes;
    sum->peak_ns = alone ? total->peak_ns : 0;
    sum->below_90_ns = alone ? total->below_90_ns : 0;
    sum->last_alloc_ns = alone ? total->last_alloc_ns : 0;
    for (unsigned kind = 0; kind < TRACE_KIND_SLOTS; kind++) {
        sum->kinds[kind].live_bytes += total->kinds[kind].live_bytes;
        sum->kinds[kind].live_count += total->kinds[kind].live_count;
        sum->kinds[kind].peak_bytes += total->kinds[kind].peak_bytes;
        sum->kinds[kind].allocs += total->kinds[kind].allocs;
        sum->kinds[kind].frees += total->kinds[kind].frees;
    }
}

static int compare_sums(const void *left, const void *right) {
    const struct view_sum *a = left, *b = right;
    if (a->ledger != b->ledger) /* what people think in comes first: the tensors */
        return a->ledger > b->ledger ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return 0;
}

static bool collect_sums(struct view *view, const struct view_filter *filter) {
    const struct job *job = view->job;
    for (size_t p = 0; p < job->process_count; p++) {
        const struct profile *profile = job->processes[p].profile;
        for (size_t i = 0; i < profile->total_count; i++) {
            const struct profile_total *total = &profile->totals[i];
            uint32_t device = job_device_of(job, &job->processes[p], total->device);
            if ((filter->ledger && total->ledger != filter->ledger) ||
                !device_passes(job, device, total->device, filter->device))
                continue;
            struct view_sum *sum = find_sum(view, total, device);
            if (!sum)
                return false;
            add_total(sum, total);
        }
    }
    if (view->sum_count)
        qsort(view->sums, view->sum_count, sizeof *view->sums, compare_sums);
    return true;
}

/* ---- sites ----------------------------------------------------------------------------------- */

bool view_is_cache(const struct view_row *row) {
    return row->segments || row->cache[MEASURE_END_OF_WORK_COUNT] || row->cache[MEASURE_LIVE_COUNT];
}

bool view_is_released(const struct view_row *row) {
    return row->values[MEASURE_LIVE_BYTES] < row->values[MEASURE_END_OF_WORK_BYTES] / 10.0;
}

bool view_is_via_caller(const struct view_row *row) {
    const struct frame *blame = backtrace_blame(row->backtrace);
    return row->caller && backtrace_blame(row->caller) && !row->backtrace->own &&
           !(blame && blame->python);
}

const struct frame *view_line(const struct view_row *row) {
    return backtrace_blame(view_is_via_caller(row) ? row->caller : row->backtrace);
}

static bool can_be_pool(const struct profile_site *site) {
    enum trace_group group = trace_kind_group(site->kind);
    return site->ledger == TRACE_LEDGER_DRIVER &&
           (group == TRACE_GROUP_DEVICE || group == TRACE_GROUP_MANAGED);
}

/* Of a cache that grows nothing is said: what grows may lie inside it, or nothing may. What lies in
   a pool is not seen at all. */
static void fill_growth(struct view_row *row, const struct job_process *owner,
                        const struct profile_site *site) {
    const struct profile_total *total = &owner->profile->totals[site->total];
    struct growth growth = growth_of_site(site->record, growth_work_end(total, owner->duration_ns));
    row->growth = (uint8_t)(row->pool ? GROWTH_CANNOT_TELL : growth.class);
    if (growth.class != GROWTH_GROWING || !growth.span_ns || view_is_cache(row) || row->pool)
        return;
    uint64_t steps = growth_steps(owner->trace, growth.from_ns, growth.span_ns);
    row->values[MEASURE_GROWING_BYTES] = site->end_of_work_bytes;
    row->values[MEASURE_GROWING_COUNT] = site->end_of_work_count;
    row->values[MEASURE_GROWING_A_MINUTE] =
        (uint64_t)((double)growth.gain_bytes * 60e9 / (double)growth.span_ns);
    row->values[MEASURE_GROWING_A_STEP] = steps ? growth.gain_bytes / steps : 0;
}

static void fill_row(struct view *view, struct view_row *row, size_t process,
                     const struct profile_site *site, const struct backtrace *backtrace,
                     const struct backtrace *caller) {
    const struct job_process *owner = &view->job->processes[process];
    *row = (struct view_row){
        .process = process,
        .processes = 1,
        .stacks = 1,
        .ledger = site->ledger,
        .kind = site->kind,
        .other = site->flags & TRACE_SITE_OTHER,
        .segments = site->flags & TRACE_SITE_SEGMENT,
        .pool = can_be_pool(site) ? framework_pool_of(owner->trace, backtrace) : NULL,
        .ordinal = site->device,
        .device = job_device_of(view->job, owner, site->device),
        .book = site,
        .owner = process,
        .backtrace = backtrace,
        .caller = caller,
        .caller_varies = site->flags & TRACE_SITE_VARIES,
        .values = {[MEASURE_AT_PEAK_BYTES] = site->at_peak_bytes,
                   [MEASURE_END_OF_WORK_BYTES] = site->end_of_work_bytes,
                   [MEASURE_END_OF_WORK_COUNT] = site->end_of_work_count,
                   [MEASURE_LIVE_BYTES] = site->live_bytes,
                   [MEASURE_LIVE_COUNT] = site->live_count,
                   [MEASURE_OWN_PEAK_BYTES] = site->own_peak_bytes,
                   [MEASURE_ALLOCS] = site->allocs,
                   [MEASURE_FREES] = site->frees},
        .cache = {[MEASURE_END_OF_WORK_BYTES] = site->cache_end_of_work_bytes,
                  [MEASURE_END_OF_WORK_COUNT] = site->cache_end_of_work_count,
                  [MEASURE_LIVE_BYTES] = site->cache_bytes,
                  [MEASURE_LIVE_COUNT] = site->cache_count},
    };
    backtrace_site_id(backtrace, site->ledger, site->kind, row->other, row->id);
    fill_growth(row, owner, site);
    const struct profile_total *total = &owner->profile->totals[site->total];
    row->total = (uint32_t)(find_sum(view, total, row->device) - view->sums);
}

static bool collect_sites(struct view *view, struct backtraces *backtraces,
                          const struct view_filter *filter) {
    const struct job *job = view->job;
    size_t room = 0;
    for (size_t p = 0; p < job->process_count; p++)
        room += job->processes[p].profile->site_count;
    view->sites = calloc(room + 1, sizeof *view->sites);
    if (!view->sites)
        return false;
    struct progress progress = progress_begin("reading symbols", room);
    for (size_t p = 0; p < job->process_count; p++) {
        const struct job_process *process = &job->processes[p];
        for (size_t i = 0; i < process->profile->site_count; i++) {
            const struct profile_site *site = &process->profile->sites[i];
            uint32_t device = job_device_of(job, process, site->device);
            progress_step(&progress);
            if ((filter->ledger && site->ledger != filter->ledger) ||
                !device_passes(job, device, site->device, filter->device))
                continue;
            const struct backtrace *backtrace =
                backtraces_find(backtraces, process->trace, site->native_stack, site->python_stack);
            const struct backtrace *caller =
                site->called_from
                    ? backtraces_find(backtraces, process->trace, 0, site->called_from)
                    : NULL;
            if (site_passes(filter, backtrace, caller))
                fill_row(view, &view->sites[view->site_count++], p, site, backtrace, caller);
        }
    }
    progress_end(&progress);
    return true;
}

bool view_shows_device(const struct view *view, const struct job_process *process,
                       uint16_t ordinal) {
    return device_passes(view->job, job_device_of(view->job, process, ordinal), ordinal,
                         view->wanted);
}

const struct view_row *view_row_of(const struct view *view, size_t process, size_t site) {
    const struct profile_site *book = &view->job->processes[process].profile->sites[site];
    size_t low = 0, high = view->site_count;
    while (low < high) { /* rows stand in the order of processes, then of their sites */
        size_t middle = low + (high - low) / 2;
        const struct view_row *row = &view->sites[middle];
        if (row->owner == process && row->book == book)
            return row;
        if (row->owner < process || (row->owner == process && row->book < book))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool view_build(struct view *view, const struct job *job, struct backtraces *backtraces,
                const struct view_filter *filter) {
    *view = (struct view){.job = job,
                          .sites_filtered = filter->focus || filter->ignore,
                          .ledger = filter->ledger,
                          .wanted = filter->device};
    if (collect_sums(view, filter) && collect_sites(view, backtraces, filter))
        return true;
    view_free(view);
    return false;
}

void view_free(struct view *view) {
    free(view->sites);
    free(view->sums);
    *view = (struct view){0};
}

/* ---- grouping -------------------------------------------------------------------------------- */

/* Texts of frames are the same pointer where they are the same text. */
struct group_key {
    uint64_t stack;
    uint64_t process;
    const char *function;
    const char *file;
    const char *module;
    uint64_t place; /* line, or offset of a frame without a name */
    uint32_t device;
    uint8_t ledger;
    uint8_t kind;
    uint8_t other;
    uint8_t via_caller;
};

struct group {
    UT_hash_handle hh;
    struct group_key key;
    struct view_row row;
    uint64_t largest;
    size_t last_process;
};

/* A line of Python is one, whatever function, lambda or comprehension it is part of. */
static void key_by_line(struct group_key *key, const struct view_row *site) {
    const struct frame *line = view_line(site);
    key->via_caller = view_is_via_caller(site);
    key->file = line->file;
    key->place = line->line;
    if (!line->python || !line->line)
        key->function = line->function;
    if (!line->python) {
        key->module = line->module;
        key->place = line->function ? line->line : line->offset;
    }
}

static struct group_key key_of(const struct view_row *site, const struct view_grouping *grouping) {
    const struct frame *blame = backtrace_blame(site->backtrace);
    struct group_key key = {.device = site->device,
                            .ledger = site->ledger,
                            .kind = site->kind,
                            .other = site->other,
                            .process = grouping->per_process ? site->process : 0};
    char library[CODE_LIBRARY_BYTES];
    if (grouping->by == BY_STACK)
        key.stack = site->backtrace->hash;
    else if (grouping->by == BY_LINE && view_line(site))
        key_by_line(&key, site);
    if (!blame || grouping->by == BY_LINE)
        return key;
    key.module = blame->module;
    if (grouping->by == BY_LIBRARY && blame->python)
        key.place = text_hash(TEXT_HASH_START, code_library(blame, library, sizeof library));
    if (grouping->by == BY_FUNCTION) {
        key.function = blame->function;
        key.file = blame->python ? blame->file : NULL;
        key.place = blame->function ? 0 : blame->offset;
    }
    return key;
}

/* The line that a row says it was called from. */
static bool same_caller(const struct view_row *left, const struct view_row *right) {
    const struct frame *a = left->caller ? backtrace_blame(left->caller) : NULL;
    const struct frame *b = right->caller ? backtrace_blame(right->caller) : NULL;
    return a && b ? a->file == b->file && a->line == b->line : a == b;
}

static bool same_name(const struct view_row *left, const struct view_row *right) {
    const struct frame *a = backtrace_blame(left->backtrace);
    const struct frame *b = backtrace_blame(right->backtrace);
    return a && b ? a->function == b->function : a == b;
}

static void join(struct group *group, const struct view_row *site, enum measure sort) {
    struct view_row *row = &group->row;
    row->stacks++;
    row->processes += site->process != group->last_process;
    group->last_process = site->process;
    row->blames_vary |= !same_name(row, site);
    row->caller_varies |= site->caller_varies || !same_caller(row, site);
    if (site->values[sort] > group->largest) {
        group->largest = site->values[sort];
        row->owner = site->owner;
        row->book = site->book;
        row->growth = site->growth;
        row->backtrace = site->backtrace;
        row->caller = site->caller;
        memcpy(row->id, site->id, sizeof row->id);
    }
    row->segments |= site->segments;
    for (unsigned i = 0; i < MEASURE_LIMIT; i++) {
        row->values[i] += site->values[i];
        row->cache[i] += site->cache[i];
    }
}

static bool add_site(struct group **groups, const struct view_row *site,
                     const struct view_grouping *grouping) {
    struct group_key key = key_of(site, grouping);
    struct group *group;
    HASH_FIND(hh, *groups, &key, sizeof key, group);
    if (group) {
        join(group, site, grouping->sort);
        return true;
    }
    group = calloc(1, sizeof *group);
    if (!group)
        return false;
    group->key = key;
    group->row = *site;
    group->largest = site->values[grouping->sort];
    group->last_process = site->process;
    HASH_ADD(hh, *groups, key, sizeof group->key, group);
    return true;
}

/* qsort has no argument of its own: the value to sort by is put into each row's pair. */
struct sorted {
    uint64_t value;
    struct view_row row;
};

static int compare_rows(const void *left, const void *right) {
    const struct sorted *a = left, *b = right;
    if (a->value != b->value)
        return a->value > b->value ? -1 : 1;
    if (a->row.process != b->row.process)
        return a->row.process < b->row.process ? -1 : 1;
    int order = strcmp(a->row.id, b->row.id);
    if (order == 0)
        order = a->row.device < b->row.device ? -1 : a->row.device > b->row.device;
    uint64_t left_stack = a->row.backtrace->hash, right_stack = b->row.backtrace->hash;
    if (order == 0)
        order = left_stack < right_stack ? -1 : left_stack > right_stack;
    return order;
}

/* Moves the groups into a sorted array of rows. */
static bool take_rows(struct group *groups, const struct view_grouping *grouping,
                      struct view_rows *rows) {
    size_t count = 0, room = HASH_COUNT(groups);
    struct sorted *sorted = calloc(room + 1, sizeof *sorted);
    rows->rows = calloc(room + 1, sizeof *rows->rows);
    bool ok = sorted && rows->rows;
    for (struct group *group = groups; ok && group; group = group->hh.next) {
        uint64_t value = group->row.values[grouping->sort];
        if (value == 0 && !grouping->all)
            continue;
        sorted[count++] = (struct sorted){value, group->row};
        for (unsigned i = 0; i < MEASURE_LIMIT; i++)
            rows->sums[i] += group->row.values[i];
    }
    if (ok)
        qsort(sorted, count, sizeof *sorted, compare_rows);
    for (size_t i = 0; ok && i < count; i++)
        rows->rows[i] = sorted[i].row;
    rows->count = ok ? count : 0;
    free(sorted);
    return ok;
}

/* The site without what is PyTorch's cache, which is added to `cache`. */
static const struct view_row *take_cache(const struct view_row *site, struct view_row *rest,
                                         uint64_t cache[MEASURE_LIMIT]) {
    *rest = *site;
    rest->segments = false;
    for (unsigned i = 0; i < MEASURE_LIMIT; i++) {
        rest->values[i] -= site->cache[i];
        rest->cache[i] = 0;
        cache[i] += site->cache[i];
    }
    return rest;
}

bool view_group(const struct view *view, const struct view_grouping *grouping,
                struct view_rows *rows) {
    struct group *groups = NULL, *group, *next;
    bool ok = true;
    *rows = (struct view_rows){0};
    for (size_t i = 0; ok && i < view->site_count; i++) {
        const struct view_row *site = &view->sites[i];
        struct view_row rest;
        if (grouping->ledger && site->ledger != grouping->ledger)
            continue;
        if (grouping->sum && &view->sums[site->total] != grouping->sum)
            continue;
        if (grouping->without_cache)
            site = take_cache(site, &rest, rows->cache);
        ok = add_site(&groups, site, grouping);
    }
    ok = ok && take_rows(groups, grouping, rows);
    HASH_ITER(hh, groups, group, next) {
        HASH_DEL(groups, group);
        free(group);
    }
    if (!ok)
        view_rows_free(rows);
    return ok;
}

void view_rows_free(struct view_rows *rows) {
    free(rows->rows);
    *rows = (struct view_rows){0};
}
