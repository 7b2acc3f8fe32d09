/*
 * Names made harmless, sizes and times made readable. See text.h; no state, any thread.
 */
#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The longest visible form of one character: \u{10ffff}, or four times \xNN. */
#define ESCAPE_MAX 17

/* Decodes one UTF-8 character; its length, 0 where the bytes are none (RFC 3629). */
static unsigned decode(const unsigned char *at, uint32_t *code) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned length = at[0] < 0x80             ? 1
                      : (at[0] & 0xe0) == 0xc0 ? 2
                      : (at[0] & 0xf0) == 0xe0 ? 3
                      : (at[0] & 0xf8) == 0xf0 ? 4
                                               : 0;
    if (length <= 1) {
        *code = at[0];
        return length;
    }
    uint32_t value = at[0] & (0x7fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3fu);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *code = value;
    return length;
}

/* Line and paragraph separators, directional marks and overrides, zero-width characters. */
static bool misleads(uint32_t code) {
    return (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2060 && code <= 0x206f) || code == 0x061c || code == 0xfeff ||
           (code >= 0xe0000 && code <= 0xe007f);
}

/* The visible form of the character at `at`; how many bytes of the input it stands for. */
static unsigned visible(const unsigned char *at, char form[ESCAPE_MAX + 1]) {
    uint32_t code = 0;
    unsigned length = decode(at, &code);
    if (length == 0 || code < 0x20 || code == 0x7f) {
        snprintf(form, ESCAPE_MAX + 1, "\\x%02x", at[0]);
        return 1;
    }
    if (code >= 0x80 && code < 0xa0)
        snprintf(form, ESCAPE_MAX + 1, "\\x%02" PRIx32, code);
    else if (misleads(code))
        snprintf(form, ESCAPE_MAX + 1, "\\u{%04" PRIx32 "}", code);
    else {
        memcpy(form, at, length);
        form[length] = '\0';
    }
    return length;
}

char *text_clean(char *out, size_t size, const char *name) {
    size_t used = 0;
    const unsigned char *at = (const unsigned char *)(name ? name : "");
    while (*at) {
        char form[ESCAPE_MAX + 1];
        unsigned taken = visible(at, form);
        size_t bytes = strlen(form);
        if (used + bytes >= size)
            break;
        memcpy(out + used, form, bytes);
        used += bytes;
        at += taken;
    }
    out[used] = '\0';
    return out;
}

size_t text_clean_bytes(const char *name) {
    size_t used = 1;
    const unsigned char *at = (const unsigned char *)name;
    while (*at) {
        char form[ESCAPE_MAX + 1];
        at += visible(at, form);
        used += strlen(form);
    }
    return used;
}

static bool is_continuation(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

size_t text_columns(const char *text) {
    size_t columns = 0;
    for (; *text; text++)
        columns += !is_continuation(*text);
    return columns;
}

char *text_keep_end(char *out, size_t size, const char *text, size_t columns) {
    size_t all = text_columns(text);
    if (all <= columns) {
        snprintf(out, size, "%s", text);
        return out;
    }
    size_t drop = columns > 3 ? all - (columns - 3) : all;
    for (; drop > 0; drop--) {
        text++;
        while (is_continuation(*text))
            text++;
    }
    snprintf(out, size, "%.*s%s", (int)(columns < 3 ? columns : 3), "...", text);
    return out;
}

char *text_keep_start(char *out, size_t size, const char *text, size_t columns) {
    if (text_columns(text) <= columns) {
        snprintf(out, size, "%s", text);
        return out;
    }
    const char *end = text;
    for (size_t keep = columns > 3 ? columns - 3 : 0; keep > 0; keep--) {
        end++;
        while (is_continuation(*end))
            end++;
    }
    snprintf(out, size, "%.*s%.*s", (int)(end - text), text, (int)(columns < 3 ? columns : 3),
             "...");
    return out;
}

char *text_bytes(char out[TEXT_BYTES], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    /* 1023.95 would print as 1024.0 */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(out, TEXT_BYTES, "%" PRIu64 " B", bytes);
    else
        snprintf(out, TEXT_BYTES, "%.1f %s", value, units[unit]);
    return out;
}

char *text_exact_bytes(char out[TEXT_BYTES], uint64_t bytes) {
    char readable[TEXT_BYTES];
    text_bytes(readable, bytes);
    snprintf(out, TEXT_BYTES, "%.16s (%" PRIu64 " bytes)", readable, bytes);
    return out;
}

char *text_duration(char out[TEXT_BYTES], uint64_t ns) {
    uint64_t seconds = ns / 1000000000u;
    if (seconds == 0)
        snprintf(out, TEXT_BYTES, "%u.%03u ms", (unsigned)(ns / 1000000u),
                 (unsigned)(ns % 1000000u / 1000u));
    else if (seconds < 60)
        snprintf(out, TEXT_BYTES, "%" PRIu64 ".%03u s", seconds,
                 (unsigned)(ns % 1000000000u / 1000000u));
    else if (seconds < 3600)
        snprintf(out, TEXT_BYTES, "%" PRIu64 " min %02u s", seconds / 60, (unsigned)(seconds % 60));
    else
        snprintf(out, TEXT_BYTES, "%" PRIu64 " h %02u min", seconds / 3600,
                 (unsigned)(seconds / 60 % 60));
    return out;
}

int text_parse_bytes(const char *text, uint64_t *bytes) {
    static const char units[] = "kmgt";
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return 0;
    if (at == text)
        return 0;
    const char *unit = *at ? strchr(units, *at | 0x20) : NULL;
    if (unit) {
        unsigned shift = 10u * (unsigned)(unit - units + 1);
        if (value > UINT64_MAX >> shift)
            return 0;
        value <<= shift;
        at++;
        if (*at == 'i')
            at++;
    }
    if (*at == 'B' || *at == 'b')
        at++;
    *bytes = value;
    return *at == '\0';
}

uint64_t text_hash(uint64_t hash, const char *text) {
    const unsigned char *at = (const unsigned char *)(text ? text : "");
    do {
        hash ^= *at;
        hash *= 0x100000001b3u;
    } while (*at++);
    return hash;
}

const char *text_basename(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}
