#include "elf_symbols.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool avoid_lock;

bool memory_readable(uintptr_t address) {
    /* The kernel copies the new mask in before it looks at the (impossible) first argument. */
    return address && (syscall(SYS_rt_sigprocmask, -1, address & ~(uintptr_t)7, NULL, 8) == 0 ||
                       errno != EFAULT);
}

void objects_avoid_lock(void) {
    avoid_lock = true;
}

/* ---- walking --------------------------------------------------------------------------------- */

static void measure(struct object *object) {
    object->start = UINTPTR_MAX;
    object->end = 0;
    for (unsigned i = 0; i < object->phdr_count; i++) {
        const ElfW(Phdr) *segment = &object->phdr[i];
        if (segment->p_type != PT_LOAD)
            continue;
        uintptr_t start = object->bias + segment->p_vaddr;
        if (start < object->start)
            object->start = start;
        if (start + segment->p_memsz > object->end)
            object->end = start + segment->p_memsz;
    }
}

struct visitor {
    bool (*visit)(const struct object *, void *);
    void *argument;
};

static int visit_locked(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const struct visitor *visitor = data;
    struct object object = {
        .bias = info->dlpi_addr,
        .path = info->dlpi_name ? info->dlpi_name : "",
        .phdr = info->dlpi_phdr,
        .phdr_count = info->dlpi_phnum,
    };
    measure(&object);
    return object.end && visitor->visit(&object, visitor->argument);
}

/* The debugger's list, from the program's own dynamic section. */
static const struct r_debug *debugger_list(void) {
    const ElfW(Phdr) *phdr = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    unsigned long count = getauxval(AT_PHNUM);
    uintptr_t bias = 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (unsigned long i = 0; i < count; i++)
        if (phdr[i].p_type == PT_PHDR)
            bias = (uintptr_t)phdr - phdr[i].p_vaddr;
    for (unsigned long i = 0; i < count; i++)
        if (phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(bias + phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG)
            return (const struct r_debug *)dynamic->d_un.d_ptr;
    return NULL;
}

/* The program headers of a mapped object; the program itself has them in the auxiliary vector. */
static bool headers_of(const struct link_map *map, bool program, struct object *object) {
    object->bias = map->l_addr;
    object->path = map->l_name && memory_readable((uintptr_t)map->l_name) ? map->l_name : "";
    if (program) {
        object->phdr = (const ElfW(Phdr) *)getauxval(AT_PHDR);
        object->phdr_count = (unsigned)getauxval(AT_PHNUM);
        return true;
    }
    const ElfW(Ehdr) *elf = (const ElfW(Ehdr) *)map->l_addr;
    if (!memory_readable(map->l_addr) || memcmp(elf->e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    object->phdr = (const ElfW(Phdr) *)(map->l_addr + elf->e_phoff);
    object->phdr_count = elf->e_phnum;
    return memory_readable((uintptr_t)object->phdr) &&
           memory_readable((uintptr_t)(object->phdr + object->phdr_count) - 8);
}

static bool walk_unlocked(const struct visitor *visitor) {
    const struct r_debug *list = debugger_list();
    if (!list || !memory_readable((uintptr_t)list))
        return false;
    const struct link_map *map = list->r_map;
    for (bool program = true; memory_readable((uintptr_t)map); map = map->l_next) {
        struct object object;
        bool usable = headers_of(map, program, &object);
        program = false;
        if (usable) {
            measure(&object);
            if (object.end && visitor->visit(&object, visitor->argument))
                return true;
        }
    }
    return false;
}

bool objects_each(bool (*visit)(const struct object *, void *), void *argument) {
    struct visitor visitor = {visit, argument};
    if (avoid_lock)
        return walk_unlocked(&visitor);
    return dl_iterate_phdr(visit_locked, &visitor) != 0;
}

static int count_changes(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    *(uint64_t *)data = (uint64_t)info->dlpi_adds + (uint64_t)info->dlpi_subs;
    return 1;
}

uint64_t objects_changes(void) {
    uint64_t changes = 0;
    if (!avoid_lock)
        dl_iterate_phdr(count_changes, &changes);
    return changes;
}

struct wanted {
    uintptr_t address;
    struct object *found;
};

static bool holds_address(const struct object *object, void *argument) {
    const struct wanted *wanted = argument;
    if (wanted->address < object->start || wanted->address >= object->end)
        return false;
    /* Ranges of two objects can interleave: only a segment counts. */
    for (unsigned i = 0; i < object->phdr_count; i++) {
        const ElfW(Phdr) *segment = &object->phdr[i];
        if (segment->p_type == PT_LOAD &&
            wanted->address - object->bias - segment->p_vaddr < segment->p_memsz) {
            *wanted->found = *object;
            return true;
        }
    }
    return false;
}

bool objects_find(uintptr_t address, struct object *found) {
    struct wanted wanted = {address, found};
    return objects_each(holds_address, &wanted);
}

/* ---- symbols --------------------------------------------------------------------------------- */

struct dynamic {
    const ElfW(Dyn) * entries;
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
    const uint16_t *versions;
    const char *soname;
};

/* glibc relocates these pointers in place for most objects, not for all: tell by the range. */
static const void *pointer(const struct object *object, ElfW(Addr) value) {
    return (const void *)(value >= object->start && value < object->end ? value
                                                                        : object->bias + value);
}

static bool read_dynamic(const struct object *object, struct dynamic *d) {
    const ElfW(Dyn) *entry = NULL;
    ElfW(Addr) soname = 0;
    memset(d, 0, sizeof *d);
    for (unsigned i = 0; i < object->phdr_count; i++)
        if (object->phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(object->bias + object->phdr[i].p_vaddr);
    d->entries = entry;
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            d->symbols = pointer(object, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            d->strings = pointer(object, entry->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            d->gnu_hash = pointer(object, entry->d_un.d_ptr);
            break;
        case DT_HASH:
            d->sysv_hash = pointer(object, entry->d_un.d_ptr);
            break;
        case DT_VERSYM:
            d->versions = pointer(object, entry->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = entry->d_un.d_val;
            break;
        }
    }
    if (d->strings && soname)
        d->soname = d->strings + soname;
    return d->symbols && d->strings;
}

static void *symbol_value(const struct object *object, const struct dynamic *d, uint32_t at,
                          const char *name) {
    const ElfW(Sym) *symbol = &d->symbols[at];
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if (symbol->st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_OBJECT) ||
        ELF64_ST_BIND(symbol->st_info) == STB_LOCAL || strcmp(d->strings + symbol->st_name, name))
        return NULL;
    if (d->versions && d->versions[at] & 0x8000) /* hidden: not the default version */
        return NULL;
    return (void *)(object->bias + symbol->st_value);
}

static void *find_gnu(const struct object *object, const struct dynamic *d, const char *name) {
    uint32_t buckets = d->gnu_hash[0], first = d->gnu_hash[1], bloom_words = d->gnu_hash[2];
    const uint32_t *bucket = d->gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    uint32_t at = buckets ? bucket[hash % buckets] : 0;
    if (at < first)
        return NULL;
    for (;; at++) {
        uint32_t entry = chain[at - first];
        void *value = (entry | 1) == (hash | 1) ? symbol_value(object, d, at, name) : NULL;
        if (value || entry & 1)
            return value;
    }
}

static void *find_sysv(const struct object *object, const struct dynamic *d, const char *name) {
    uint32_t buckets = d->sysv_hash[0];
    const uint32_t *bucket = d->sysv_hash + 2, *chain = bucket + buckets;
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        uint32_t high = hash & 0xf0000000u;
        hash ^= high >> 24;
        hash &= ~high;
    }
    for (uint32_t at = buckets ? bucket[hash % buckets] : 0; at; at = chain[at]) {
        void *value = symbol_value(object, d, at, name);
        if (value)
            return value;
    }
    return NULL;
}

void *object_symbol(const struct object *object, const char *name) {
    struct dynamic d;
    if (!read_dynamic(object, &d))
        return NULL;
    if (d.gnu_hash)
        return find_gnu(object, &d, name);
    return d.sysv_hash ? find_sysv(object, &d, name) : NULL;
}

bool object_named(const struct object *object, const char *prefix) {
    size_t bytes = strlen(prefix);
    const char *slash = strrchr(object->path, '/');
    if (!strncmp(slash ? slash + 1 : object->path, prefix, bytes))
        return true;
    struct dynamic d;
    return read_dynamic(object, &d) && d.soname && !strncmp(d.soname, prefix, bytes);
}

bool object_needs(const struct object *object, const struct object *other) {
    struct dynamic d, its;
    if (!read_dynamic(object, &d) || !read_dynamic(other, &its) || !its.soname)
        return false;
    for (const ElfW(Dyn) *entry = d.entries; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && !strcmp(d.strings + entry->d_un.d_val, its.soname))
            return true;
    return false;
}
