/*
 * The comparison of books.h: reads the lines of ledger_print() and looks each of them up in the
 * report. Called by the tests of tests/e2e, in their one thread.
 */
#include "books.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 256

struct place {
    char function[64];
    int line;
    char kind[16];
    int device; /* -1: host memory */
    uint64_t live, count, allocs, frees;
    bool ordered; /* the rest is known */
    uint64_t peak, own, work, total_peak;
};

struct counts {
    uint64_t live, count, allocs, frees, peak, own, work;
    unsigned sites;
};

static struct place places[PLACES];
static unsigned place_count;

/* ---- what the program said ---- */

static void read_place(const char *line) {
    struct place *p = &places[place_count];
    int end = 0;
    int got = sscanf(line, "place %63s %d %15s %d live %lu count %lu allocs %lu frees %lu %n",
                     p->function, &p->line, p->kind, &p->device, &p->live, &p->count, &p->allocs,
                     &p->frees, &end);
    cr_assert(got == 8 && place_count < PLACES, "not understood: %s", line);
    p->ordered = sscanf(line + end, "peak %lu own %lu work %lu total %lu", &p->peak, &p->own,
                        &p->work, &p->total_peak) == 4;
    place_count++;
}

static void read_places(const char *out) {
    place_count = 0;
    for (const char *line = out; *line; line = strchrnul(line, '\n'), line += *line != 0)
        if (!strncmp(line, "place ", 6))
            read_place(line);
    cr_assert(place_count > 0, "the program booked nothing:\n%s", out);
}

/* ---- what the report says ---- */

static uint64_t number(json_t *site, const char *key) {
    json_t *value = json_object_get(site, key);
    cr_assert(json_is_integer(value), "a site has no number %s", key);
    return (uint64_t)json_integer_value(value);
}

static int device_of(json_t *site) {
    json_t *device = json_object_get(site, "device");
    return json_is_integer(device) ? (int)json_integer_value(device) : -1;
}

/* A function that the program gave the name of a C++ method is reported by that. */
static const char *reported_name(const char *function) {
    return strcmp(function, "model_load") ? function : "model::Encoder::load(unsigned long)";
}

static bool site_is_at(json_t *site, const struct place *p, const char *file) {
    json_t *blame = json_object_get(site, "blame");
    const char *function = json_string_value(json_object_get(blame, "function"));
    const char *path = json_string_value(json_object_get(blame, "file"));
    const char *kind = json_string_value(json_object_get(site, "kind"));
    if (!function || !path || !kind)
        return false;
    size_t tail = strlen(path) > strlen(file) ? strlen(path) - strlen(file) : 0;
    return !strcmp(function, reported_name(p->function)) && !strcmp(kind, p->kind) &&
           !strcmp(path + tail, file) &&
           json_integer_value(json_object_get(blame, "line")) == p->line &&
           device_of(site) == p->device;
}

/* Several stacks can lead to one line: the sites of a place are added up. */
static struct counts sum_sites(json_t *report, const struct place *p, const char *file) {
    struct counts sum = {0};
    json_t *site;
    size_t i;
    json_array_foreach(json_at(report, "sites"), i, site) {
        if (!site_is_at(site, p, file))
            continue;
        sum.live += number(site, "live_bytes");
        sum.count += number(site, "live_count");
        sum.allocs += number(site, "allocs");
        sum.frees += number(site, "frees");
        sum.peak += number(site, "at_peak_bytes");
        sum.own += number(site, "own_peak_bytes");
        sum.work += number(site, "end_of_work_bytes");
        sum.sites++;
    }
    return sum;
}

#define SAME(p, what, said, found)                                                                 \
    cr_assert(said == found, "%s:%d, %s on device %d: %s: the program says %lu, the report %lu",   \
              (p)->function, (p)->line, (p)->kind, (p)->device, what, (unsigned long)(said),       \
              (unsigned long)(found))

static unsigned compare_places(json_t *report, const char *file) {
    unsigned sites = 0;
    for (unsigned i = 0; i < place_count; i++) {
        const struct place *p = &places[i];
        struct counts found = sum_sites(report, p, file);
        cr_assert(found.sites > 0, "no site at %s:%d, %s on device %d", p->function, p->line,
                  p->kind, p->device);
        SAME(p, "live bytes", p->live, found.live);
        SAME(p, "live blocks", p->count, found.count);
        SAME(p, "allocations", p->allocs, found.allocs);
        SAME(p, "frees", p->frees, found.frees);
        if (p->ordered) {
            SAME(p, "share in the peak", p->peak, found.peak);
            SAME(p, "live at end of work", p->work, found.work);
        }
        if (p->ordered && found.sites == 1)
            SAME(p, "own peak", p->own, found.own);
        sites += found.sites;
    }
    return sites;
}

/* ---- totals ---- */

static json_t *kind_of(json_t *report, const struct place *p) {
    json_t *process = json_at(report, "processes.0"), *device, *kinds = NULL;
    size_t i;
    if (p->device < 0)
        return json_object_get(json_at(process, "host_memory.kinds"), p->kind);
    json_array_foreach(json_at(process, "devices"), i, device) {
        if (json_integer_value(json_object_get(device, "index")) == p->device)
            kinds = json_at(device, "driver.kinds");
    }
    return json_object_get(kinds, p->kind);
}

static void compare_kinds(json_t *report) {
    for (unsigned i = 0; i < place_count; i++) {
        const struct place *p = &places[i];
        struct counts said = {0};
        for (unsigned k = 0; k < place_count; k++) {
            if (strcmp(places[k].kind, p->kind) || places[k].device != p->device)
                continue;
            said.live += places[k].live;
            said.count += places[k].count;
            said.allocs += places[k].allocs;
            said.frees += places[k].frees;
        }
        json_t *kind = kind_of(report, p);
        cr_assert(kind, "the report knows no %s memory of device %d", p->kind, p->device);
        SAME(p, "live bytes of the kind", said.live, number(kind, "live_bytes"));
        SAME(p, "live blocks of the kind", said.count, number(kind, "live_count"));
        SAME(p, "allocations of the kind", said.allocs, number(kind, "allocs"));
        SAME(p, "frees of the kind", said.frees, number(kind, "frees"));
    }
}

static bool in_device_total(const struct place *p) {
    return !strcmp(p->kind, "device") || !strcmp(p->kind, "pool");
}

static void compare_device_totals(json_t *report) {
    json_t *device;
    size_t n;
    json_array_foreach(json_at(report, "processes.0.devices"), n, device) {
        struct counts said = {0};
        const struct place *any = NULL;
        for (unsigned i = 0; i < place_count; i++) {
            const struct place *p = &places[i];
            if (!in_device_total(p) || p->device != (int)json_number(device, "index"))
                continue;
            any = p;
            said.live += p->live;
            said.work += p->work;
        }
        if (!any)
            continue;
        SAME(any, "live bytes in total", said.live, json_number(device, "driver.total.live_bytes"));
        if (!any->ordered)
            continue;
        SAME(any, "peak in total", any->total_peak, json_number(device, "driver.total.peak_bytes"));
        SAME(any, "end of work in total", said.work,
             json_number(device, "driver.total.end_of_work_bytes"));
    }
}

/* ---- losses ---- */

/* Threads that meet at one counter: no byte of the books is lost by that. */
static bool may_happen(const char *loss, bool parallel) {
    return parallel && (!strcmp(loss, "counters_delayed") || !strcmp(loss, "buckets_skipped"));
}

static void compare_losses(json_t *report, const char *out) {
    const char *key;
    json_t *value;
    bool parallel = strstr(out, "parallel\n") != NULL;
    json_object_foreach(json_at(report, "processes.0.losses"), key, value) {
        char named[96];
        unsigned long said = 0;
        snprintf(named, sizeof named, "loss %s ", key);
        const char *line = strstr(out, named);
        if (line)
            said = strtoul(line + strlen(named), NULL, 10);
        cr_assert((json_int_t)said == json_integer_value(value) || may_happen(key, parallel),
                  "loss %s: expected %lu, the report says %lld", key, said,
                  (long long)json_integer_value(value));
    }
    for (const char *line = out; (line = strstr(line, "loss ")); line += 5) {
        char name[64];
        unsigned long said;
        if (sscanf(line, "loss %63s %lu", name, &said) == 2)
            cr_assert(report_loss(report, name) == said, "loss %s: expected %lu, found %lu", name,
                      said, (unsigned long)report_loss(report, name));
    }
}

void books_must_match(const struct run *run, json_t *report, const char *source_file) {
    read_places(run->out);
    unsigned sites = compare_places(report, source_file);
    size_t known = json_array_size(json_at(report, "sites"));
    cr_assert(sites == known, "%zu sites in the report, %u of them where the program allocated",
              known, sites);
    compare_kinds(report);
    compare_device_totals(report);
    compare_losses(report, run->out);
}
