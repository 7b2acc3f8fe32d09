#include "modules.h"

#include <elf.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "cancel.h"
#include "elf_symbols.h"

/* A scan of 500 objects takes about 100 us, unless its thread loses the processor. Whoever gives up
   waiting has a stack cut short, once: so wait long enough. */
#define SCAN_PAUSES 1000
#define SCAN_NAPS   2000 /* of 50 us */

uint32_t modules_unloads;

bool modules_init(struct modules *m, struct trace_writer *trace) {
    m->trace = trace;
    m->list = trace_private(MODULES_MAX * sizeof *m->list);
    m->unloads_seen = load_acquire(&modules_unloads);
    return m->list;
}

const struct module *modules_find(const struct modules *m, uintptr_t pc) {
    /* Pairs with the release in add. Newest first: an address belongs to what came last. */
    for (uint32_t i = load_acquire(&m->count); i-- > 0;) {
        const struct module *module = &m->list[i];
        if (pc >= module->start && pc < module->end && !load_relaxed(&module->unloaded))
            return module;
    }
    return NULL;
}

/* ---- one object ------------------------------------------------------------------------------ */

/* The build-id in the object's notes; its length, or 0. */
static uint32_t find_build_id(const struct object *object, const uint8_t **id) {
    for (unsigned i = 0; i < object->phdr_count; i++) {
        const ElfW(Phdr) *segment = &object->phdr[i];
        const uint8_t *note = (const uint8_t *)(object->bias + segment->p_vaddr);
        const uint8_t *end = note + segment->p_memsz;
        if (segment->p_type != PT_NOTE)
            continue;
        while (note + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *head = (const ElfW(Nhdr) *)note;
            const uint8_t *name = note + sizeof *head;
            *id = name + ((head->n_namesz + 3u) & ~3u);
            note = *id + ((head->n_descsz + 3u) & ~3u);
            if (note <= end && head->n_type == NT_GNU_BUILD_ID && head->n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0)
                return head->n_descsz;
        }
    }
    return 0;
}

static uint64_t add_hash(uint64_t hash, const void *data, size_t bytes) {
    for (const uint8_t *c = data; bytes--; c++)
        hash = (hash ^ *c) * 0x100000001b3ull;
    return hash;
}

static uint64_t identity_of(const struct object *object) {
    const uint8_t *id = NULL;
    uint32_t bytes = find_build_id(object, &id);
    uint64_t hash = add_hash(0xcbf29ce484222325ull, object->path, strlen(object->path));
    return add_hash(hash, id, bytes);
}

static const uint8_t *unwind_table(const struct object *object) {
    for (unsigned i = 0; i < object->phdr_count; i++)
        if (object->phdr[i].p_type == PT_GNU_EH_FRAME)
            return (const uint8_t *)(object->bias + object->phdr[i].p_vaddr);
    return NULL;
}

/* The path as a reader elsewhere can use it: absolute. */
static const char *absolute_path(struct modules *m, const struct object *object) {
    const char *path = object->path;
    ssize_t bytes = 0;
    if (!*path)
        bytes = readlink("/proc/self/exe", m->path, sizeof m->path - 1);
    if (*path == '/' || (*path && !strchr(path, '/')))
        return path;
    if (*path && getcwd(m->path, sizeof m->path)) {
        bytes = (ssize_t)strlen(m->path);
        size_t more = strnlen(path, sizeof m->path - 2 - (size_t)bytes);
        m->path[bytes++] = '/';
        memcpy(m->path + bytes, path, more);
        bytes += (ssize_t)more;
    }
    m->path[bytes > 0 ? bytes : 0] = 0;
    return m->path;
}

static uint32_t flags_of(const struct object *object) {
    static const struct {
        const char *prefix;
        uint32_t flag;
    } known[] = {
        {"linux-vdso", TRACE_MODULE_VDSO},
        {"libcuheap", TRACE_MODULE_CUHEAP},
        {"libcuda.so", TRACE_MODULE_DRIVER},
    };
    uint32_t flags = *object->path ? 0 : TRACE_MODULE_EXECUTABLE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (object_named(object, known[i].prefix))
            flags |= known[i].flag;
    if (object_symbol(object, "PyGILState_GetThisThreadState"))
        flags |= TRACE_MODULE_PYTHON;
    return flags;
}

static struct trace_module *add_record(struct modules *m, const struct object *object,
                                       uint32_t generation, uint64_t ns) {
    struct trace_module *record =
        trace_append(m->trace, TRACE_SECTION_MODULES, sizeof *record, sizeof *record);
    if (!record) {
        trace_lose(m->trace, TRACE_LOSS_MODULES_FULL, 1);
        return NULL;
    }
    record->path = trace_add_string(m->trace, absolute_path(m, object));
    record->bias = object->bias;
    record->start = object->start;
    record->end = object->end;
    record->loaded_generation = generation;
    record->loaded_ns = ns;
    record->flags = flags_of(object);
    const uint8_t *id;
    uint32_t bytes = find_build_id(object, &id);
    record->build_id_bytes = bytes < sizeof record->build_id ? bytes : sizeof record->build_id;
    memcpy(record->build_id, id, record->build_id_bytes);
    store_release(&record->state, 1u); /* pairs with the reader */
    return record;
}

/* ---- scanning -------------------------------------------------------------------------------- */

struct scan {
    struct modules *modules;
    uint32_t generation;
    uint64_t ns;
};

/* The same object at the same place, loaded now or before; the code there is the same. */
static struct module *known(const struct modules *m, const struct object *object,
                            uint64_t identity) {
    for (uint32_t i = m->count; i-- > 0;) {
        struct module *module = &m->list[i];
        if (module->start < object->end && object->start < module->end)
            return module->start == object->start && module->end == object->end &&
                           module->identity == identity
                       ? module
                       : NULL; /* something else has been there since */
    }
    return NULL;
}

/* Other code comes to where there has been code: stacks of equal addresses are not equal any more.
 */
static void add_remap(struct modules *m, const struct object *object) {
    uint32_t i = 0;
    while (i < m->remap_count &&
           (m->remaps[i].start != object->start || m->remaps[i].end != object->end))
        i++;
    if (i == MODULES_REMAPS_MAX)
        return; /* stacks are taken for an earlier one's only if equal to the byte */
    m->remaps[i].start = object->start;
    m->remaps[i].end = object->end;
    add_relaxed(&m->remaps[i].times, 1);
    if (i == m->remap_count)
        store_release(&m->remap_count, i + 1); /* pairs with modules_remap */
}

static bool was_used(const struct modules *m, const struct object *object) {
    for (uint32_t i = 0; i < m->count; i++)
        if (m->list[i].start < object->end && object->start < m->list[i].end)
            return true;
    return false;
}

static struct module *add_module(struct scan *scan, const struct object *object,
                                 uint64_t identity) {
    struct modules *m = scan->modules;
    if (m->count == MODULES_MAX) {
        trace_lose(m->trace, TRACE_LOSS_MODULES_FULL, 1);
        return NULL;
    }
    struct module *module = &m->list[m->count];
    if (was_used(m, object))
        add_remap(m, object);
    module->start = object->start;
    module->end = object->end;
    module->bias = object->bias;
    module->identity = identity;
    module->eh_frame_hdr = unwind_table(object);
    module->record = add_record(m, object, scan->generation, scan->ns);
    store_release(&m->count, m->count + 1); /* pairs with the acquire in modules_find */
    return module;
}

static void revive(struct module *module) {
    if (module->record) {
        store_relaxed(&module->record->unloaded_ns, 0);
        store_release(&module->record->unloaded_generation, 0u);
    }
    store_relaxed(&module->unloaded, 0u);
}

static bool visit(const struct object *object, void *argument) {
    struct scan *scan = argument;
    uint64_t identity = identity_of(object);
    struct module *module = known(scan->modules, object, identity);
    if (module && module->unloaded)
        revive(module);
    if (!module)
        module = add_module(scan, object, identity);
    if (module)
        module->seen = scan->modules->stamp;
    return false;
}

static void retire_missing(struct scan *scan) {
    struct modules *m = scan->modules;
    for (uint32_t i = 0; i < m->count; i++) {
        struct module *module = &m->list[i];
        if (module->unloaded || module->seen == m->stamp)
            continue;
        store_relaxed(&module->unloaded, 1u);
        if (module->record) {
            store_relaxed(&module->record->unloaded_ns, scan->ns);
            store_release(&module->record->unloaded_generation, scan->generation);
        }
    }
}

static bool begin_scan(struct modules *m) {
    uint32_t idle = 0;
    for (int wait = 0; !cas_acq_rel(&m->scanning, &idle, 1u); wait++, idle = 0) {
        struct timespec nap = {0, 50000};
        if (wait == SCAN_PAUSES + SCAN_NAPS)
            return false;
        if (wait < SCAN_PAUSES)
            cpu_pause();
        else
            nanosleep(&nap, NULL);
    }
    return true;
}

static void scan(struct modules *m, uint64_t ns) {
    uint32_t unloads = load_acquire(&modules_unloads);
    uint64_t changes = objects_changes();
    if (!changes || changes != m->changes_seen) {
        m->stamp++;
        struct scan now = {m, m->trace->header->module_generation + 1, ns};
        objects_each(visit, &now);
        retire_missing(&now);
        store_release(&m->trace->header->module_generation, now.generation);
        m->changes_seen = changes;
    }
    store_release(&m->unloads_seen, unloads);
}

void modules_scan(struct modules *m, uint64_t ns) {
    int cancel = hold_cancel();
    if (begin_scan(m)) {
        scan(m, ns);
        store_release(&m->scanning, 0u);
    }
    release_cancel(cancel);
}

uint32_t modules_remap(const struct modules *m, const uint64_t *pcs, unsigned depth) {
    uint32_t count = load_acquire(&m->remap_count), remap = 0;
    for (uint32_t i = 0; i < count; i++)
        for (unsigned frame = 0; frame < depth; frame++)
            if (pcs[frame] >= m->remaps[i].start && pcs[frame] < m->remaps[i].end)
                remap += (i + 1) * 65537 * load_relaxed(&m->remaps[i].times);
    return remap;
}
