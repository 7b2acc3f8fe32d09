#include "resolve.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

#include "atomic.h"
#include "doors.h"
#include "elf_symbols.h"
#include "modules.h"

#define EXPORT     __attribute__((visibility("default")))
#define IMAGES_MAX 4

const char *const resolve_names[ROW_COUNT] = {
#define HOOK(symbol, params) [ROW_##symbol] = #symbol,
#define DOOR(symbol, params) [ROW_##symbol] = #symbol,
#include "cuda_api.def"
};

#define HOOK(symbol, params) extern CUresult symbol params;
#define DOOR(symbol, params) EXPORT CUresult symbol params;
#include "cuda_api.def"

static void *const wrappers[ROW_COUNT] = {
#define HOOK(symbol, params) [ROW_##symbol] = (void *)symbol,
#define DOOR(symbol, params) [ROW_##symbol] = (void *)symbol,
#include "cuda_api.def"
};

void *resolve_known[ROW_COUNT];
struct driver_calls driver;
void (*resolve_before)(enum resolve_reason reason);
uint64_t resolve_unhooked, resolve_second_driver;

/* A mapped libcuda and where its functions are. */
struct image {
    uintptr_t start, end; /* start 0: none */
    void *address[ROW_COUNT];
};

static struct image images[IMAGES_MAX];
static uint32_t image_count;
static uint32_t learning;

/* The next definitions after ours; the stubs jump through the first two. */
void *resolve_next_dlsym, *resolve_next_dlvsym;
static int (*next_dlclose)(void *handle);

static void before(enum resolve_reason reason) {
    if (resolve_before)
        resolve_before(reason);
}

/* ---- what stands behind us ------------------------------------------------------------------- */

struct search {
    const char *name;
    const struct object *caller; /* only what it was linked against, or itself */
    bool passed_us;
    void *found;
};

static bool is_us(const struct object *object) {
    return (uintptr_t)&resolve_init >= object->start && (uintptr_t)&resolve_init < object->end;
}

static bool look_behind_us(const struct object *object, void *argument) {
    struct search *search = argument;
    if (is_us(object))
        search->passed_us = true;
    else if (search->passed_us)
        search->found = object_symbol(object, search->name);
    return search->found != NULL;
}

/* Meets the object that begins at search->found before it meets us. */
static bool is_before_us(const struct object *object, void *argument) {
    struct search *search = argument;
    search->passed_us |= is_us(object);
    return !search->passed_us && object->start == (uintptr_t)search->found;
}

static void *next_definition(const char *name) {
    struct search search = {.name = name};
    objects_each(look_behind_us, &search);
    return search.found;
}

static bool look_in_needed(const struct object *object, void *argument) {
    struct search *search = argument;
    if (!is_us(object) &&
        (object->start == search->caller->start || object_needs(search->caller, object)))
        search->found = object_symbol(object, search->name);
    return search->found != NULL;
}

void *resolve_behind_us(const char *name, const struct object *caller, const char *family) {
    struct search search = {.name = name, .caller = caller};
    struct object holder;
    before(RESOLVE_OTHER);
    void *first = next_definition(name);
    if (!first || !objects_find((uintptr_t)first, &holder) || !object_named(&holder, family))
        return first;
    return objects_each(look_in_needed, &search) ? search.found : first;
}

void resolve_init(void) {
    /* Each is the same whoever finds it: two threads may do this at once. */
    if (!load_acquire(&resolve_next_dlsym))
        store_release(&resolve_next_dlsym, next_definition("dlsym"));
    if (!load_acquire(&resolve_next_dlvsym))
        store_release(&resolve_next_dlvsym, next_definition("dlvsym"));
    if (!load_acquire(&next_dlclose))
        store_release(&next_dlclose, (int (*)(void *))next_definition("dlclose"));
}

static dlsym_like *real_dlsym(void) {
    if (!load_acquire(&resolve_next_dlsym))
        resolve_init();
    return (dlsym_like *)load_acquire(&resolve_next_dlsym);
}

void *resolve_real_dlsym(void *handle, const char *name) {
    return real_dlsym()(handle, name);
}

/* ---- drivers --------------------------------------------------------------------------------- */

static void learn_own_calls(const struct object *object) {
    static const char *const names[] = {
#define OWN(symbol, params, when) #symbol,
#include "cuda_api.def"
    };
    void **calls = (void **)&driver;
    _Static_assert(sizeof driver == sizeof names, "one pointer for each of our own calls");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        store_release(&calls[i], object_symbol(object, names[i]));
}

/* A libcuda not met before. One thread learns at a time; another one's answer is then not ready and
   its look-up is repeated by resolve_find_driver. */
static bool learn(const struct object *object, void *any) {
    if (is_us(object) || !object_named(object, "libcuda.so") || !object_symbol(object, "cuInit"))
        return false;
    *(bool *)any = true;
    struct image *place = NULL;
    uint32_t count = image_count;
    for (uint32_t i = 0; i < count; i++) {
        if (images[i].start == object->start)
            return false;
        if (!images[i].start && !place)
            place = &images[i]; /* of a driver that was unloaded */
    }
    if (!place && count == IMAGES_MAX)
        return false;
    if (!place)
        place = &images[count];
    for (int row = 0; row < ROW_COUNT; row++)
        place->address[row] = object_symbol(object, resolve_names[row]);
    if (!driver.cuCtxGetDevice)
        learn_own_calls(object);
    place->end = object->end;
    store_release(&place->start, object->start);
    if (place == &images[count])
        store_release(&image_count, count + 1); /* pairs with the acquires below */
    return false;
}

bool resolve_find_driver(void) {
    bool any = false;
    uint32_t idle = 0;
    while (!cas_acq_rel(&learning, &idle, 1u)) {
        /* A walk over the loaded objects; the thread that does it waits for nobody. */
        idle = 0;
        cpu_pause();
    }
    objects_each(learn, &any);
    store_release(&learning, 0u);
    return any;
}

void resolve_forked(void) {
    store_release(&learning, 0u);
}

static const struct image *image_of(uintptr_t address) {
    uint32_t count = load_acquire(&image_count);
    for (uint32_t i = 0; i < count; i++)
        if (images[i].start && address >= images[i].start && address < images[i].end)
            return &images[i];
    return NULL;
}

/* After a dlclose: a driver that is gone must never be called again. */
static void forget_unloaded(void) {
    uint32_t count = load_acquire(&image_count);
    for (uint32_t i = 0; i < count; i++) {
        struct object object;
        struct image *image = &images[i];
        if (!image->start || (objects_find(image->start, &object) && object.start == image->start))
            continue;
        for (int row = 0; row < ROW_COUNT; row++) {
            void *known = load_acquire(&resolve_known[row]);
            if ((uintptr_t)known >= image->start && (uintptr_t)known < image->end)
                cas_acq_rel(&resolve_known[row], &known, NULL);
        }
        if ((uintptr_t)driver.cuCtxGetDevice >= image->start &&
            (uintptr_t)driver.cuCtxGetDevice < image->end)
            memset(&driver, 0, sizeof driver);
        store_release(&image->start, (uintptr_t)0);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static int row_named(const char *name) {
    for (int row = 0; row < ROW_COUNT; row++)
        if (!strcmp(resolve_names[row], name))
            return row;
    return -1;
}

static int row_at(const struct image *image, const void *address) {
    for (int row = 0; row < ROW_COUNT; row++)
        if (image->address[row] == address)
            return row;
    return -1;
}

/* The wrapper goes on to one function only: the first that was handed out for its row. */
static void *hook(int row, void *address) {
    void *known = NULL;
    if (cas_acq_rel(&resolve_known[row], &known, address) || known == address)
        return wrappers[row];
    const struct image *ours = image_of((uintptr_t)known), *its = image_of((uintptr_t)address);
    if (!ours && its)
        return wrappers[row]; /* another interposer stands between: it calls the driver */
    add_relaxed(&resolve_second_driver, 1);
    return address;
}

/* The driver's own libraries look up and call their own functions. */
static bool called_by_driver(const void *caller) {
    struct object object;
    return objects_find((uintptr_t)caller, &object) &&
           (object_named(&object, "libcuda.so") || object_named(&object, "libnvidia-"));
}

/* What to hand out for `address`, which the real look-up of `name` found. */
static void *substitute(void *address, const char *name, const void *caller) {
    const struct image *image = image_of((uintptr_t)address);
    if (!image) {
        resolve_find_driver();
        image = image_of((uintptr_t)address);
    }
    int row = image ? row_at(image, address) : row_named(name);
    if (row < 0 || called_by_driver(caller))
        return address;
    if (!image) {
        struct object object;
        if (!objects_find((uintptr_t)address, &object) || is_us(&object))
            return address;
    }
    return hook(row, address);
}

static bool driver_has(int row) {
    resolve_find_driver();
    uint32_t count = load_acquire(&image_count);
    for (uint32_t i = 0; i < count; i++)
        if (images[i].start && images[i].address[row])
            return true;
    return false;
}

static void *real_look_up(const struct question *q, void *handle) {
    return q->version ? q->real_dlvsym(handle, q->name, q->version)
                      : q->real_dlsym(handle, q->name);
}

/* The real search, made by us, finds what stands behind us and nothing in the caller's own scope:
   a driver may be there, beside an extension that is linked with it. */
static struct answer answer_global(const struct question *q) {
    void *found = real_look_up(q, RTLD_NEXT);
    struct link_map *map = NULL;
    Dl_info info;
    if (!found && driver_has(row_named(q->name)) &&
        dladdr1(q->caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map)
        found = real_look_up(q, map); /* such a map is what dlopen returns */
    if (found)
        return (struct answer){substitute(found, q->name, q->caller), NULL};
    return (struct answer){NULL, q->real};
}

struct between {
    uintptr_t caller; /* start of the object that asks */
    const char *name;
    bool passed_caller, passed_us, found;
};

/* Walks from the caller to us. */
static bool look_between(const struct object *object, void *argument) {
    struct between *between = argument;
    if (is_us(object))
        return between->passed_us = true;
    between->found |= between->passed_caller && object_symbol(object, between->name);
    between->passed_caller |= object->start == between->caller;
    return false;
}

/* Who stands before us calls us next, and we what comes behind; if nothing does, we are not there.
   Another's function in between, and all that stand behind us, are none of our business. */
static struct answer answer_next(const struct question *q) {
    struct object object;
    if (!objects_find((uintptr_t)q->caller, &object))
        return (struct answer){NULL, q->real};
    struct between between = {.caller = object.start, .name = q->name};
    objects_each(look_between, &between);
    if (!between.passed_us || !between.passed_caller || between.found)
        return (struct answer){NULL, q->real};
    void *found = real_look_up(q, RTLD_NEXT);
    if (!found)
        return (struct answer){NULL, q->real};
    return (struct answer){substitute(found, q->name, q->caller), NULL};
}

static struct answer answer(const struct question *q) {
    if (row_named(q->name) < 0)
        return (struct answer){NULL, q->real};
    before(RESOLVE_IN_LOADER);
    if (q->handle == RTLD_DEFAULT)
        return answer_global(q);
    if (q->handle == RTLD_NEXT)
        return answer_next(q);
    void *found = real_look_up(q, q->handle);
    return (struct answer){found ? substitute(found, q->name, q->caller) : NULL, NULL};
}

/* Who stands before us in the search order finds us next, as by any other name: our own names have
   no version, so that the real dlvsym would pass us over. */
static void *next_for_interposer(const void *caller, const char *name) {
    static const struct {
        const char *name;
        void *pointer;
    } ours[] = {{"dlsym", (void *)dlsym}, {"dlvsym", (void *)dlvsym}, {"dlclose", (void *)dlclose}};
    struct object object;
    struct search before_us = {.name = name};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(name, ours[i].name) && objects_find((uintptr_t)caller, &object)) {
            before_us.found = (void *)object.start;
            return objects_each(is_before_us, &before_us) ? ours[i].pointer : NULL;
        }
    return NULL;
}

struct answer resolve_dlsym(void *handle, const char *name, const void *caller) {
    int saved = errno;
    struct question q = {handle, name, NULL, caller, NULL, real_dlsym(), NULL};
    q.real = (void *)q.real_dlsym;
    struct answer found = answer(&q);
    errno = saved;
    return found;
}

struct answer resolve_dlvsym(void *handle, const char *name, const char *version,
                             const void *caller) {
    int saved = errno;
    if (!load_acquire(&resolve_next_dlvsym))
        resolve_init();
    struct question q = {handle, name, version, caller, NULL, NULL, resolve_next_dlvsym};
    q.real = (void *)q.real_dlvsym;
    if (*name == 'd') {
        before(RESOLVE_OTHER);
        void *ours = handle == RTLD_NEXT ? next_for_interposer(caller, name) : NULL;
        errno = saved;
        return (struct answer){ours, ours ? NULL : q.real};
    }
    struct answer found = answer(&q);
    errno = saved;
    return found;
}

void *resolve_search(enum row row) {
    before(RESOLVE_CALL);
    void *found = next_definition(resolve_names[row]), *known = NULL;
    bool any = resolve_find_driver();
    for (uint32_t i = 0; any && !found && i < load_acquire(&image_count); i++)
        found = images[i].start ? images[i].address[row] : NULL;
    if (!found || cas_acq_rel(&resolve_known[row], &known, found))
        return found;
    return known;
}

/* ---- doors that are not the loader's
 * -------------------------------------------------------------- */

/* cuGetProcAddress is asked for names without a version: could one of our rows have been meant? */
static bool is_base_of_row(const char *base) {
    size_t bytes = strlen(base);
    for (int row = 0; row < ROW_COUNT; row++)
        if (!strncmp(resolve_names[row], base, bytes) &&
            (!resolve_names[row][bytes] || resolve_names[row][bytes] == '_'))
            return bytes > 0;
    return false;
}

static void *substitute_by_address(void *address, const char *symbol, const void *caller) {
    int saved = errno;
    before(RESOLVE_CALL);
    if (!image_of((uintptr_t)address))
        resolve_find_driver();
    const struct image *image = image_of((uintptr_t)address);
    int row = image ? row_at(image, address) : -1;
    if (row < 0) {
        if (!image && symbol && is_base_of_row(symbol))
            add_relaxed(&resolve_unhooked, 1);
    } else if (!called_by_driver(caller)) {
        address = hook(row, address);
    }
    errno = saved;
    return address;
}

/* As for the wrappers in interpose.c. */
#define DOOR(symbol, params) __asm__(".symver " #symbol ", " #symbol "@CUHEAP, hidden");
#include "cuda_api.def"

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    __typeof__(cuGetProcAddress) *real = resolve_real(ROW_cuGetProcAddress);
    if (!real)
        return CUDA_ERROR_STUB_LIBRARY;
    CUresult rc = real(symbol, pfn, version, flags);
    if (rc == CUDA_SUCCESS && pfn && *pfn)
        *pfn = substitute_by_address(*pfn, symbol, __builtin_return_address(0));
    return rc;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status) {
    __typeof__(cuGetProcAddress_v2) *real = resolve_real(ROW_cuGetProcAddress_v2);
    if (!real)
        return CUDA_ERROR_STUB_LIBRARY;
    CUresult rc = real(symbol, pfn, version, flags, status);
    if (rc == CUDA_SUCCESS && pfn && *pfn)
        *pfn = substitute_by_address(*pfn, symbol, __builtin_return_address(0));
    return rc;
}

/*
 * Stacks must not be read with rules of code that is gone, nor a driver be called that is. The
 * count goes up before, for captures during the call, and after. The real dlclose does not look at
 * who called it, so this need not be a jump.
 */
EXPORT int dlclose(void *handle) {
    if (!load_acquire(&next_dlclose))
        resolve_init();
    int before_errno = errno;
    add_acq_rel(&modules_unloads, 1);
    before(RESOLVE_OTHER);
    errno = before_errno;
    int rc = next_dlclose(handle), saved = errno;
    add_acq_rel(&modules_unloads, 1);
    if (load_acquire(&image_count))
        forget_unloaded();
    errno = saved;
    return rc;
}
