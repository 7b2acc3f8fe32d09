#include "limits.h"

#include <errno.h>
#include <string.h>

#include "config.h"
#include "record.h"

#define CERTAIN (1ull << 32) /* a chance of 1 */

struct limits_settings limits_settings;
bool limits_active;

/* What this thread's call set aside, and whether it was refused. */
struct request {
    uint64_t bytes;
    uint16_t device;
    bool refused;
};
static __thread __attribute__((tls_model("initial-exec"))) struct request request;

/* ---- settings -------------------------------------------------------------------------------- */

void limits_reset(void) {
    limits_settings = (struct limits_settings){0};
    limits_active = false;
}

static void take_effect(const struct limits_settings *settings) {
    limits_settings = *settings;
    limits_active = true;
}

/* The next part of a list, up to a comma; *text moves behind it. False: none, or too long. */
static bool next_part(const char **text, char *part, size_t bytes) {
    size_t length = strcspn(*text, ",");
    if (!length || length >= bytes)
        return false;
    memcpy(part, *text, length);
    part[length] = 0;
    *text += length;
    if (**text == ',' && !*++*text)
        return false;
    return true;
}

static bool read_device(const char *part, struct limits_settings *settings) {
    uint64_t device = 0, last = TRACE_DEVICES - 1, bytes;
    const char *at = part;
    if (config_number(&at, 10, &device) && *at == ':') {
        part = at + 1;
        last = device;
    } else {
        device = 0;
    }
    if (last >= TRACE_DEVICES || !config_size(part, &bytes) || !bytes)
        return false;
    for (; device <= last; device++)
        settings->capacity[device] = bytes;
    return true;
}

bool limits_read_capacity(const char *text) {
    struct limits_settings settings = limits_settings;
    char part[32];
    if (strlen(text) >= sizeof settings.capacity_text)
        return false;
    strcpy(settings.capacity_text, text);
    do {
        if (!next_part(&text, part, sizeof part) || !read_device(part, &settings))
            return false;
    } while (*text);
    take_effect(&settings);
    return true;
}

/* A number that ends the text or stands before a comma, and is not 0. */
static bool read_one(const char **text, uint64_t *number) {
    if (!config_number(text, 10, number) || !*number)
        return false;
    if (**text == ',')
        return *++*text != 0;
    return !**text;
}

static bool read_list(const char *text, struct limits_settings *settings) {
    settings->choice = LIMITS_LIST;
    for (settings->count = 0; *text; settings->count++)
        if (settings->count == LIMITS_NUMBERS ||
            !read_one(&text, &settings->numbers[settings->count]))
            return false;
    return settings->count > 0;
}

static bool read_every(const char *text, struct limits_settings *settings) {
    settings->choice = LIMITS_EVERY;
    settings->count = 1;
    return read_one(&text, settings->numbers) && !*text;
}

/* "0.01", up to 1, as parts of 2^32: not strtod, which goes by the locale. */
static bool read_probability(const char **text, uint64_t *chance) {
    uint64_t whole = 0, parts = 0, scale = 1;
    if (!config_number(text, 10, &whole) || whole > 1)
        return false;
    if (**text == '.')
        for (++*text; **text >= '0' && **text <= '9'; ++*text) {
            if (scale >= 1000000000)
                continue;
            parts = parts * 10 + (uint64_t)(**text - '0');
            scale *= 10;
        }
    *chance = whole * CERTAIN + parts * CERTAIN / scale;
    return *chance > 0 && *chance <= CERTAIN;
}

static bool read_chance(const char *text, struct limits_settings *settings) {
    static const char seed[] = "seed=";
    settings->choice = LIMITS_CHANCE;
    settings->seed = 0;
    if (!read_probability(&text, &settings->chance))
        return false;
    if (!*text)
        return true;
    if (*text++ != ',')
        return false;
    if (!strncmp(text, seed, sizeof seed - 1))
        text += sizeof seed - 1;
    return config_number(&text, 10, &settings->seed) && !*text;
}

bool limits_read_choice(const char *text) {
    static const struct {
        const char *prefix;
        bool (*read)(const char *text, struct limits_settings *settings);
    } forms[] = {{"every:", read_every}, {"p:", read_chance}, {"", read_list}};
    struct limits_settings settings = limits_settings;
    size_t i = 0;
    if (strlen(text) >= sizeof settings.choice_text)
        return false;
    strcpy(settings.choice_text, text);
    while (strncmp(text, forms[i].prefix, strlen(forms[i].prefix)) != 0)
        i++;
    if (!forms[i].read(text + strlen(forms[i].prefix), &settings))
        return false;
    take_effect(&settings);
    return true;
}

void limits_note(char *text, size_t bytes) {
    const char *capacity = limits_settings.capacity_text, *choice = limits_settings.choice_text;
    const char *parts[] = {
        "pretended: ",
        *capacity ? "CUHEAP_LIMIT=" : "",
        capacity,
        *capacity && *choice ? " and " : "",
        *choice ? "CUHEAP_FAIL=" : "",
        choice,
        "; allocations were refused that the GPU might have had room for",
    };
    *text = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        strncat(text, parts[i], bytes - strlen(text) - 1);
}

/* ---- which allocations fail ------------------------------------------------------------------ */

/* The same for a number in every run, whatever thread asks. */
static uint64_t random_of(uint64_t seed, uint64_t number) {
    uint64_t x = seed * 0xd1342543de82ef95ull + number * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) >> 32;
}

bool limits_chosen(uint64_t number) {
    const struct limits_settings *settings = &limits_settings;
    switch (settings->choice) {
    case LIMITS_LIST:
        for (uint32_t i = 0; i < settings->count; i++)
            if (settings->numbers[i] == number)
                return true;
        return false;
    case LIMITS_EVERY:
        return number % settings->numbers[0] == 0;
    case LIMITS_CHANCE:
        return random_of(settings->seed, number) < settings->chance;
    default:
        return false;
    }
}

/* ---- around a call --------------------------------------------------------------------------- */

static bool is_counted(enum trace_kind kind) {
    return sites_group(kind) == TRACE_GROUP_DEVICE;
}

static bool can_fail(enum trace_kind kind) {
    return is_counted(kind) || kind == TRACE_KIND_MANAGED || kind == TRACE_KIND_HOST;
}

static uint64_t capacity_of(uint16_t device) {
    return device < TRACE_DEVICES ? limits_settings.capacity[device] : 0;
}

static bool set_aside(struct limits *limits, uint16_t device, uint64_t bytes) {
    uint64_t capacity = capacity_of(device);
    if (!capacity)
        return true;
    uint64_t taken = load_relaxed(&limits->taken[device]);
    do {
        if (bytes > capacity || taken > capacity - bytes)
            return false;
    } while (!cas_acq_rel(&limits->taken[device], &taken, taken + bytes));
    request.bytes = bytes;
    request.device = device;
    return true;
}

static void put_back(struct limits *limits) {
    if (request.bytes)
        add_relaxed(&limits->taken[request.device], -request.bytes);
    request.bytes = 0;
}

bool limits_decide(struct record_call *call, enum trace_kind kind, uint16_t device,
                   uint64_t bytes) {
    struct limits *limits = &call->recorder->limits;
    int saved = errno;
    put_back(limits); /* of a call whose block found no room in the table */
    request.refused = can_fail(kind) && limits_chosen(add_relaxed(&limits->asked, 1) + 1);
    if (!request.refused && is_counted(kind)) {
        if (device == RECORD_DEVICE_CURRENT)
            device = record_device_if_known(call->recorder);
        request.refused = !set_aside(limits, device, bytes);
    }
    errno = saved;
    return request.refused;
}

bool limits_failed(struct recorder *recorder) {
    bool ours = request.refused;
    put_back(&recorder->limits);
    request.refused = false;
    return ours;
}

static bool is_limited(const struct trace_site *site) {
    return site->ledger == TRACE_LEDGER_DRIVER && is_counted(site->kind) &&
           capacity_of(site->device);
}

/* One addition for the block and for what was set aside for it: no moment at which both count. */
void limits_took(struct recorder *recorder, const struct trace_site *site, uint64_t bytes) {
    if (!is_limited(site))
        return;
    uint64_t aside = request.device == site->device ? request.bytes : 0;
    add_relaxed(&recorder->limits.taken[site->device], bytes - aside);
    if (aside)
        request.bytes = 0;
}

void limits_gave(struct recorder *recorder, const struct trace_site *site, uint64_t bytes) {
    if (is_limited(site))
        add_relaxed(&recorder->limits.taken[site->device], -bytes);
}

/* ---- answers --------------------------------------------------------------------------------- */

void limits_show(struct recorder *recorder, uint16_t device, size_t *free_bytes, size_t *total) {
    uint64_t capacity = capacity_of(device);
    uint64_t taken = capacity ? load_relaxed(&recorder->limits.taken[device]) : 0;
    uint64_t left = taken < capacity ? capacity - taken : 0;
    if (capacity && free_bytes && *free_bytes > left)
        *free_bytes = left;
    limits_show_total(CUDA_SUCCESS, device, total);
}

void limits_show_total(CUresult code, CUdevice device, size_t *total) {
    uint64_t capacity = device >= 0 ? capacity_of((uint16_t)device) : 0;
    if (code == CUDA_SUCCESS && capacity && total && *total > capacity)
        *total = capacity;
}
