#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "limits.h"

#define PREFIX "CUHEAP_"

struct config config;
extern char **environ;

/* Adds to the comma-separated text of what was not understood; too long a text is cut. */
static void refuse(const char *name, const char *value) {
    size_t used = strlen(config.unknown);
    const char *parts[] = {used ? ", " : "", name, value ? "=" : "", value ? value : ""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const char *p = parts[i]; *p && used + 1 < sizeof config.unknown; p++)
            config.unknown[used++] = *p;
    config.unknown[used] = 0;
}

bool config_number(const char **text, unsigned base, uint64_t *number) {
    const char *at = *text;
    for (*number = 0; *at; at++) {
        unsigned letter = (unsigned)(*at | 32) - 'a';
        unsigned digit = *at >= '0' && *at <= '9' ? (unsigned)(*at - '0') : letter + 10;
        if (digit >= base || (digit > 9 && letter > 25))
            break;
        if (*number > (UINT64_MAX - digit) / base)
            return false;
        *number = *number * base + digit;
    }
    bool any = at > *text;
    *text = at;
    return any;
}

bool config_size(const char *text, uint64_t *bytes) {
    static const char units[] = "kmgt";
    if (!config_number(&text, 10, bytes))
        return false;
    const char *unit = *text ? strchr(units, *text | 32) : NULL;
    if (unit && *unit) {
        unsigned shift = 10 * (unsigned)(unit - units + 1);
        if (*bytes > UINT64_MAX >> shift)
            return false;
        *bytes <<= shift;
        text++;
        if (*text == 'i')
            text++;
    }
    if (*text == 'B' || *text == 'b')
        text++;
    return !*text;
}

bool config_in_list(const char *list, uint32_t rank) {
    for (;;) {
        uint64_t from, to;
        if (!config_number(&list, 10, &from))
            return false;
        to = from;
        if (*list == '-' && (list++, !config_number(&list, 10, &to)))
            return false;
        if (from <= rank && rank <= to)
            return true;
        if (*list++ != ',')
            return false;
    }
}

static bool set_text(char *to, size_t size, const char *value) {
    size_t bytes = strlen(value);
    if (bytes >= size)
        return false;
    memcpy(to, value, bytes + 1);
    return true;
}

static bool set_flag(bool *to, const char *value) {
    *to = value[0] == '1';
    return (value[0] == '0' || value[0] == '1') && !value[1];
}

static bool read_out(const char *value) {
    return set_text(config.out, sizeof config.out, value);
}

static bool read_run(const char *value) {
    return set_text(config.run, sizeof config.run, value);
}

static bool read_ranks(const char *value) {
    return set_text(config.ranks, sizeof config.ranks, value);
}

static bool read_exe(const char *value) {
    return set_text(config.exe, sizeof config.exe, value);
}

static bool read_stacks(const char *value) {
    static const struct {
        const char *word;
        uint32_t bits;
    } words[] = {
        {"none", CONFIG_STACKS_NONE},
        {"native", CONFIG_STACKS_NATIVE},
        {"python", CONFIG_STACKS_PYTHON},
        {"full", CONFIG_STACKS_FULL | CONFIG_STACKS_NATIVE | CONFIG_STACKS_PYTHON},
    };
    uint32_t stacks = 0;
    while (*value) {
        size_t bytes = strcspn(value, ","), i;
        for (i = 0; i < sizeof words / sizeof *words; i++)
            if (strlen(words[i].word) == bytes && !memcmp(words[i].word, value, bytes))
                break;
        if (i == sizeof words / sizeof *words)
            return false;
        stacks |= words[i].bits;
        value += bytes + (value[bytes] == ',');
    }
    config.stacks = stacks;
    return true;
}

static bool read_depth(const char *value) {
    uint64_t depth;
    if (!config_number(&value, 10, &depth) || *value || depth < 1 || depth > 64)
        return false;
    config.depth = (uint32_t)depth;
    return true;
}

static bool read_history(const char *value) {
    return config_size(value, &config.history);
}

static bool read_max_size(const char *value) {
    uint64_t bytes;
    if (!config_size(value, &bytes) || bytes < 1u << 20 || bytes > 1ull << 34)
        return false;
    config.max_size = bytes;
    return true;
}

static bool read_children(const char *value) {
    return set_flag(&config.children, value);
}

static bool read_cmdline(const char *value) {
    return set_flag(&config.cmdline, value);
}

static bool read_off(const char *value) {
    return set_flag(&config.off, value);
}

static bool read_mode(const char *value) {
    uint64_t mode;
    if (!config_number(&value, 8, &mode) || *value || mode > 0777 || (mode & 0600) != 0600)
        return false;
    config.mode = (uint32_t)mode;
    return true;
}

static const struct {
    const char *name;
    bool (*read)(const char *value); /* false: not understood, the default holds */
} variables[] = {
    {"OUT", read_out},
    {"RUN", read_run},
    {"STACKS", read_stacks},
    {"DEPTH", read_depth},
    {"HISTORY", read_history},
    {"MAX_SIZE", read_max_size},
    {"CHILDREN", read_children},
    {"RANKS", read_ranks},
    {"EXE", read_exe},
    {"MODE", read_mode},
    {"CMDLINE", read_cmdline},
    {"OFF", read_off},
    {"LIMIT", limits_read_capacity},
    {"FAIL", limits_read_choice},
};

#define VARIABLES (sizeof variables / sizeof *variables)

static void note_unknown_names(void) {
    for (char **entry = environ; entry && *entry; entry++) {
        if (strncmp(*entry, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        const char *name = *entry + sizeof PREFIX - 1;
        size_t bytes = strcspn(name, "="), i;
        for (i = 0; i < VARIABLES; i++)
            if (strlen(variables[i].name) == bytes && !memcmp(variables[i].name, name, bytes))
                break;
        char full[64];
        if (i == VARIABLES && bytes + sizeof PREFIX <= sizeof full) {
            memcpy(full, *entry, bytes + sizeof PREFIX - 1);
            full[bytes + sizeof PREFIX - 1] = 0;
            refuse(full, NULL);
        }
    }
}

void config_read(void) {
    config = (struct config){
        .stacks = CONFIG_STACKS_NATIVE | CONFIG_STACKS_PYTHON,
        .depth = 64,
        .history = 0,
        .max_size = 256ull << 20,
        .mode = 0600,
        .children = true,
    };
    limits_reset();
    for (size_t i = 0; i < VARIABLES; i++) {
        char name[32] = PREFIX;
        strcpy(name + sizeof PREFIX - 1, variables[i].name);
        const char *value = secure_getenv(name);
        if (value && !variables[i].read(value))
            refuse(name, value);
    }
    note_unknown_names();
}
