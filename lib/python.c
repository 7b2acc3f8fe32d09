#include "python.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "atomic.h"
#include "elf_symbols.h"

#define TRIAL              64   /* captures that copy before the first that reads */
#define TEXT_MAX           4096 /* characters kept of a name */
#define TABLE_MAX          (16u << 20)
#define VISITS_MAX         (4 * PYTHON_DEPTH_MAX) /* frames of the interpreter's own among them */
#define THREADS_MAX        128                    /* looked at for the one that waits */
#define STRING_BITS        16
#define PLACE_BITS         17
#define STACK_BITS         18
#define OFFSET_NONE        0x3fffffffu /* not begun, or out of the code: its first line is shown */
#define OFFSET_IS_LINE     0x40000000u /* the frame itself keeps the line */
#define THREAD_NEXT        8 /* PyThreadState begins with prev, next, interp in every version */
#define THREAD_INTERPRETER 16
#define OWNER_NATIVE                                                                               \
    3 /* from 3.12: this and beyond are frames of the interpreter, not of Python                   \
       */

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* ---- reading --------------------------------------------------------------------------------- */

/*
 * How memory is read: the thread's own directly, once the trial is over; else copied, so that no
 * address can fault. Another thread's memory may be unmapped at any moment: copied by the kernel or
 * not at all.
 */
enum access { ACCESS_DIRECT, ACCESS_TRIAL, ACCESS_OTHER };

struct reader {
    const struct python_layout *layout;
    const struct python_names *names;
    enum access access;
};

static bool copy(const struct reader *r, void *to, uintptr_t from, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)from, bytes};
    /* Asked each time: a forked child that kept its parent's number would read the parent. */
    ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (got == (ssize_t)bytes)
        return true;
    /* Forbidden in many containers. Our own pages stay as they are while we look. */
    if (r->access != ACCESS_TRIAL || got >= 0 || (errno != EPERM && errno != ENOSYS))
        return false;
    for (uintptr_t at = from; at < from + bytes; at = (at | 4095) + 1)
        if (!memory_readable(at))
            return false;
    memcpy(to, (const void *)from, bytes);
    return true;
}

/*
 * `bytes` at an address, in place or in `buffer`; NULL: not to be had. `direct` is a constant where
 * it matters: r->access == ACCESS_DIRECT, told apart so that the compiler makes a hot path of it.
 */
static ALWAYS_INLINE const void *view_as(const struct reader *r, bool direct, uintptr_t address,
                                         void *buffer, size_t bytes) {
    /* No user's memory lies below 64 KiB or from 2^56 on. */
    if ((address - 65536) >> 56)
        return NULL;
    if (direct)
        return (const void *)address;
    return copy(r, buffer, address, bytes) ? buffer : NULL;
}

static ALWAYS_INLINE const void *view_object(const struct reader *r, bool direct, uintptr_t address,
                                             void *buffer, size_t bytes) {
    return address % sizeof(void *) ? NULL : view_as(r, direct, address, buffer, bytes);
}

static const void *view(const struct reader *r, uintptr_t address, void *buffer, size_t bytes) {
    return view_as(r, r->access == ACCESS_DIRECT, address, buffer, bytes);
}

static inline uintptr_t word_at(const void *object, uint16_t offset) {
    uintptr_t word;
    memcpy(&word, (const char *)object + offset, sizeof word);
    return word;
}

static inline int32_t int_at(const void *object, uint16_t offset) {
    int32_t number;
    memcpy(&number, (const char *)object + offset, sizeof number);
    return number;
}

static inline uint8_t byte_at(const void *object, uint16_t offset) {
    return ((const uint8_t *)object)[offset];
}

static bool read_word(const struct reader *r, uintptr_t address, uintptr_t *word) {
    uintptr_t buffer;
    const void *seen = view_object(r, r->access == ACCESS_DIRECT, address, &buffer, sizeof buffer);
    *word = seen ? word_at(seen, 0) : 0;
    return seen != NULL;
}

/* Bytes in order, in pieces. */
struct stream {
    const struct reader *reader;
    uintptr_t next, end;
    const uint8_t *piece;
    size_t left;
    uint8_t buffer[256];
};

static struct stream *open_stream(struct stream *s, const struct reader *r, uintptr_t address,
                                  size_t bytes) {
    s->reader = r;
    s->next = address;
    s->end = address + bytes;
    s->left = 0;
    return s;
}

/* The next byte; -1: the end, or not to be had. */
static int next_byte(struct stream *s) {
    if (!s->left) {
        size_t bytes = s->end - s->next;
        if (bytes > sizeof s->buffer && s->reader->access != ACCESS_DIRECT)
            bytes = sizeof s->buffer;
        s->piece = bytes ? view(s->reader, s->next, s->buffer, bytes) : NULL;
        if (!s->piece)
            return -1;
        s->next += bytes;
        s->left = bytes;
    }
    s->left--;
    return *s->piece++;
}

/* ---- objects --------------------------------------------------------------------------------- */

struct text {
    uintptr_t data;
    uint32_t length; /* characters */
    uint32_t width;  /* bytes of each: 1 (Latin-1), 2, 4 */
};

static bool find_text(const struct reader *r, uintptr_t address, struct text *text) {
    const struct python_layout *l = r->layout;
    uint64_t buffer[8];
    const void *object = view_object(r, r->access == ACCESS_DIRECT, address, buffer,
                                     l->text_state + sizeof(uint32_t));
    if (!object || word_at(object, l->type) != (uintptr_t)r->names->text_type)
        return false;
    uint32_t state = (uint32_t)int_at(object, l->text_state);
    uintptr_t length = word_at(object, l->text_length);
    text->width = state >> l->kind_bit & 7;
    if (!(state >> l->compact_bit & 1) || length > TABLE_MAX ||
        (text->width != 1 && text->width != 2 && text->width != 4))
        return false;
    text->length = length < TEXT_MAX ? (uint32_t)length : TEXT_MAX;
    text->data = address + (state >> l->ascii_bit & 1 ? l->ascii_data : l->other_data);
    return true;
}

#define CONTENT_WORDS 8

/* Multipliers, odd, one for each word, so that differences of two words do not cancel out. */
static const uint64_t factors[CONTENT_WORDS] = {
    0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93,
    0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 0xa0761d6478bd642f, 0xe7037ed1a0b428db,
};

/*
 * A sum of what `bytes` bytes hold: all words up to 64 bytes, and the last one; what is shorter
 * than a word is taken together with the end of the header before it.
 */
static ALWAYS_INLINE uint64_t sum_content(const struct reader *r, bool direct, uintptr_t address,
                                          size_t bytes) {
    uint64_t buffer[CONTENT_WORDS], sum = bytes;
    const size_t count = bytes / 8 < CONTENT_WORDS ? bytes / 8 : CONTENT_WORDS;
    const char *words = view_as(r, direct, address, buffer, 8 * count);
    if (!words)
        return sum;
    size_t i = 0;
    for (; i + 2 <= count; i += 2)
        sum +=
            word_at(words + 8 * i, 0) * factors[i] + word_at(words + 8 * i + 8, 0) * factors[i + 1];
    if (i < count)
        sum += word_at(words + 8 * i, 0) * factors[i];
    words = view_as(r, direct, address + bytes - 8, buffer, 8);
    return words ? sum ^ word_at(words, 0) * 0x8ebc6af09c88c6e3 : sum;
}

/*
 * A code object that is gone leaves its address to another one, and so may its texts: names and
 * line tables are told apart by what is in them, as far as a few loads show it. Of the name, which
 * is interned, that is the hash that it keeps; of the file's name the end. What this cannot tell
 * apart is shown with the line of the code that was there before.
 */
static ALWAYS_INLINE uint64_t identity_by_content(const struct reader *r, bool direct,
                                                  const void *code) {
    const struct python_layout *l = r->layout;
    const uintptr_t table = word_at(code, l->line_table), file = word_at(code, l->file);
    const uintptr_t name = word_at(code, l->name);
    uint64_t buffer[8], sum = table * factors[0] + file * factors[1] + name * factors[2];
    const void *object = view_object(r, direct, name, buffer, l->text_hash + sizeof(uint64_t));
    if (object)
        sum += word_at(object, l->text_hash) * factors[3];
    object = view_object(r, direct, table, buffer, l->size + sizeof(uint64_t));
    if (object && word_at(object, l->size) <= TABLE_MAX)
        sum ^= sum_content(r, direct, table + l->bytes_data, word_at(object, l->size));
    object = view_object(r, direct, file, buffer, l->text_state + sizeof(uint32_t));
    if (object && word_at(object, l->text_length) <= TABLE_MAX) {
        const uint32_t state = (uint32_t)int_at(object, l->text_state);
        const size_t bytes = word_at(object, l->text_length) * (state >> l->kind_bit & 7);
        const uint16_t data = state >> l->ascii_bit & 1 ? l->ascii_data : l->other_data;
        /* What is shorter is taken together with the end of the header before it. */
        const char *end = view_as(r, direct, file + data + bytes - 16, buffer, 16);
        if (end)
            sum += word_at(end, 0) * factors[4] + word_at(end, 8) * factors[5] + bytes;
    }
    return sum;
}

static ALWAYS_INLINE uint64_t identity_of(const struct reader *r, bool direct, const void *code) {
    const uint16_t version = r->layout->code_version;
    if (version != PYTHON_NO_FIELD && int_at(code, version))
        return (uint32_t)int_at(code, version);
    return identity_by_content(r, direct, code);
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* What tells one place in the code from another, and from one that was at its address before. */
struct place_key {
    uintptr_t code;
    uint64_t identity; /* of the code object */
    uint32_t first_line;
    uint32_t offset;
    uint64_t is_entry;
};

enum frame_kind { FRAME_BAD, FRAME_PYTHON, FRAME_NATIVE };

#define FRAME_BYTES 112
#define CODE_BYTES  240

/* What is read of each; no more, since another mapping may begin right behind the object. */
static inline size_t frame_bytes(const struct python_layout *l) {
    return l->line == PYTHON_NO_FIELD ? 80 : l->line + sizeof(int32_t);
}

static inline size_t code_bytes(const struct python_layout *l) {
    return sizeof(void *) + (l->bytecodes == PYTHON_NO_FIELD ? l->line_table : l->bytecodes);
}

/* Where in the code the frame is, in bytes. */
static ALWAYS_INLINE uint32_t offset_in(const struct reader *r, const void *frame, const void *code,
                                        uintptr_t code_address) {
    const struct python_layout *l = r->layout;
    if (l->bytecode == PYTHON_NO_FIELD) {
        bool keeps_line = l->trace != PYTHON_NO_FIELD ? word_at(frame, l->trace) != 0
                                                      : int_at(frame, l->line) != 0;
        if (keeps_line)
            return OFFSET_IS_LINE | ((uint32_t)int_at(frame, l->line) & OFFSET_NONE);
        int32_t last = int_at(frame, l->instruction);
        if (last < 0)
            return OFFSET_NONE;
        return (uint32_t)last * (l->lines == PYTHON_LINES_RANGES ? 2 : 1);
    }
    uintptr_t start = code_address + l->bytecode, copies;
    if (l->bytecodes != PYTHON_NO_FIELD && int_at(frame, l->bytecode_index) > 0) {
        /* An array: its size, then the copies. */
        copies = word_at(code, l->bytecodes);
        if (!copies ||
            !read_word(r, copies + 8 * (1 + (unsigned)int_at(frame, l->bytecode_index)), &start))
            return OFFSET_NONE;
    }
    uintptr_t offset = word_at(frame, l->instruction) - start;
    return offset <= 2 * word_at(code, l->size) && offset < OFFSET_NONE ? (uint32_t)offset
                                                                        : OFFSET_NONE;
}

/* From 3.12 on, a frame of the interpreter's own lies before one that native code has entered. */
static ALWAYS_INLINE bool is_native(const struct reader *r, const void *frame) {
    return r->layout->version >= 0x030c && byte_at(frame, r->layout->owner) >= OWNER_NATIVE;
}

static ALWAYS_INLINE bool is_entry(const struct reader *r, bool direct, const void *frame,
                                   uintptr_t previous) {
    const struct python_layout *l = r->layout;
    uint64_t buffer[FRAME_BYTES / 8];
    if (l->version >= 0x030c) {
        const void *outer = view_object(r, direct, previous, buffer, frame_bytes(l));
        return outer && is_native(r, outer);
    }
    return l->version == 0x030b ? byte_at(frame, l->is_entry) : true;
}

static ALWAYS_INLINE enum frame_kind look_at(const struct reader *r, bool direct, uintptr_t address,
                                             struct place_key *key, uintptr_t *previous) {
    const struct python_layout *l = r->layout;
    uint64_t frame_buffer[FRAME_BYTES / 8], code_buffer[CODE_BYTES / 8];
    const void *frame = view_object(r, direct, address, frame_buffer, frame_bytes(l));
    if (!frame)
        return FRAME_BAD;
    *previous = word_at(frame, l->previous);
    if (is_native(r, frame))
        return FRAME_NATIVE;
    /* From 3.14 on the low bits are a tag; before, they are zero. */
    uintptr_t code_address = word_at(frame, l->code) & ~(uintptr_t)3;
    const void *code = view_object(r, direct, code_address, code_buffer, code_bytes(l));
    if (!code || word_at(code, l->type) != (uintptr_t)r->names->code_type)
        return FRAME_BAD;
    key->code = code_address;
    key->identity = identity_of(r, direct, code);
    key->first_line = (uint32_t)int_at(code, l->first_line);
    key->offset = offset_in(r, frame, code, code_address);
    key->is_entry = is_entry(r, direct, frame, *previous);
    return FRAME_PYTHON;
}

/* ---- texts as UTF-8 ----------------------------------------------------------------------------
 */

/* A text's characters as UTF-8, one at a time. Lone surrogates (file names that are no UTF-8) and
   NUL become U+FFFD. */
struct utf8 {
    struct stream stream;
    uint32_t width;
    uint32_t left;
};

static struct utf8 *open_utf8(struct utf8 *u, const struct reader *r, const struct text *text) {
    open_stream(&u->stream, r, text->data, (size_t)text->length * text->width);
    u->width = text->width;
    u->left = text->length;
    return u;
}

/* The bytes of the next character in out; their number, 0 at the end. */
static unsigned next_utf8(struct utf8 *u, uint8_t out[4]) {
    uint32_t c = 0;
    if (!u->left--)
        return 0;
    for (uint32_t i = 0; i < u->width; i++) {
        int byte = next_byte(&u->stream);
        if (byte < 0)
            return 0;
        c |= (uint32_t)byte << 8 * i;
    }
    if (!c || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        c = 0xfffd;
    unsigned more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(first[more] | c >> 6 * more);
    for (unsigned i = 1; i <= more; i++)
        out[i] = (uint8_t)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return more + 1;
}

struct text_key {
    const struct reader *reader;
    const struct text *text;
    uint32_t bytes; /* as UTF-8 */
    uint64_t hash;
};

static struct text_key measure_text(const struct reader *r, const struct text *text) {
    struct text_key key = {r, text, 0, 0xcbf29ce484222325ull};
    struct utf8 u;
    uint8_t bytes[4];
    open_utf8(&u, r, text);
    for (unsigned count; (count = next_utf8(&u, bytes)); key.bytes += count)
        for (unsigned i = 0; i < count; i++)
            key.hash = (key.hash ^ bytes[i]) * 0x100000001b3ull;
    key.hash ^= key.hash >> 29;
    return key;
}

static bool same_text(const void *owner, uint32_t ref, const void *wanted) {
    const struct trace_string *string = trace_at(owner, ref);
    const struct text_key *key = wanted;
    struct utf8 u;
    uint8_t bytes[4];
    uint32_t at = 0;
    if (string->bytes != key->bytes)
        return false;
    open_utf8(&u, key->reader, key->text);
    for (unsigned count; (count = next_utf8(&u, bytes)); at += count)
        if (memcmp(string->text + at, bytes, count) != 0)
            return false;
    return true;
}

static uint32_t add_text(struct python *python, const struct text_key *key) {
    struct trace_writer *trace = python->trace;
    struct trace_string *string = NULL;
    if (index_has_room(&python->strings))
        string = trace_append(trace, TRACE_SECTION_STRINGS,
                              (uint32_t)offsetof(struct trace_string, text) + key->bytes + 1, 0);
    if (!string) {
        trace_lose(trace, TRACE_LOSS_STRINGS_FULL, 1);
        return 0;
    }
    struct utf8 u;
    uint8_t bytes[4];
    uint32_t at = 0;
    open_utf8(&u, key->reader, key->text);
    for (unsigned count; at < key->bytes && (count = next_utf8(&u, bytes)); at += count)
        memcpy(string->text + at, bytes, count);
    store_release(&string->bytes, key->bytes); /* pairs with the reader */
    return index_add(&python->strings, key->hash, trace_ref(trace, string), same_text, trace, key);
}

/* The ref of the text of a str object; 0: empty, or no room. False: it is none. */
static bool keep_text(struct python *python, const struct reader *r, uintptr_t address,
                      uint32_t *ref) {
    struct text text;
    *ref = 0;
    if (!find_text(r, address, &text))
        return false;
    struct text_key key = measure_text(r, &text);
    if (!key.bytes)
        return true;
    *ref = index_find(&python->strings, key.hash, same_text, python->trace, &key);
    if (!*ref)
        *ref = add_text(python, &key);
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Each reads the table up to the instruction at `offset`; the line, 0: none, -1: not readable. */

static int64_t line_of_lnotab(struct stream *s, int64_t line, uint32_t offset) {
    for (uint32_t address = 0;;) {
        int delta = next_byte(s), lines = next_byte(s);
        if (delta < 0 || lines < 0)
            return line;
        address += (uint32_t)delta;
        if (address > offset)
            return line;
        line += (int8_t)lines;
    }
}

static int64_t line_of_ranges(struct stream *s, int64_t line, uint32_t offset) {
    for (uint32_t end = 0;;) {
        int bytes = next_byte(s), lines = next_byte(s);
        if (bytes < 0 || lines < 0)
            return 0;
        end += (uint32_t)bytes;
        bool none = (int8_t)lines == -128;
        if (!none)
            line += (int8_t)lines;
        if (end > offset)
            return none ? 0 : line;
    }
}

/* A number in groups of six bits, least first; *next gets the byte after it. */
static int64_t signed_number(struct stream *s, int *next) {
    uint64_t number = 0;
    int byte = next_byte(s);
    for (unsigned shift = 0; byte >= 0 && !(byte & 0x80) && shift < 42; shift += 6) {
        number |= (uint64_t)(byte & 0x3f) << shift;
        if (!(byte & 0x40))
            break;
        byte = next_byte(s);
    }
    *next = next_byte(s);
    return number & 1 ? -(int64_t)(number >> 1) : (int64_t)(number >> 1);
}

static int64_t line_of_locations(struct stream *s, int64_t line, uint32_t offset) {
    uint32_t end = 0;
    for (int byte = next_byte(s); byte >= 0;) {
        int code = byte >> 3 & 15, units = (byte & 7) + 1;
        int next = next_byte(s);
        if (code >= 10 && code <= 12)
            line += code - 10;
        if (code == 13 || code == 14) {
            s->piece--; /* the number begins with the byte just taken */
            s->left++;
            line += signed_number(s, &next);
        }
        end += 2 * (uint32_t)units;
        if (end > offset)
            return code == 15 ? 0 : line;
        while (next >= 0 && !(next & 0x80))
            next = next_byte(s);
        byte = next;
    }
    return 0;
}

static int64_t line_of(const struct reader *r, const struct place_key *key) {
    const struct python_layout *l = r->layout;
    uint64_t buffer[6];
    struct stream s;
    if (key->offset & OFFSET_IS_LINE)
        return key->offset & OFFSET_NONE;
    if (key->offset == OFFSET_NONE)
        return key->first_line;
    uintptr_t table;
    if (!read_word(r, key->code + l->line_table, &table))
        return -1;
    const void *object =
        view_object(r, r->access == ACCESS_DIRECT, table, buffer, l->size + sizeof(void *));
    if (!object || word_at(object, l->type) != (uintptr_t)r->names->bytes_type ||
        word_at(object, l->size) > TABLE_MAX)
        return -1;
    open_stream(&s, r, table + l->bytes_data, word_at(object, l->size));
    if (l->lines == PYTHON_LINES_LNOTAB)
        return line_of_lnotab(&s, key->first_line, key->offset);
    if (l->lines == PYTHON_LINES_RANGES)
        return line_of_ranges(&s, key->first_line, key->offset);
    return line_of_locations(&s, key->first_line, key->offset);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* One way of a set, a cache line of its own; read between two looks at its tag. */
struct python_place {
    uint64_t tag; /* hash of the key; PLACE_BUSY: being written; 0: empty */
    uint64_t code, identity, where;
    uint64_t ref;
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct python_place) == 64, "one way is one cache line");

#define PLACE_BUSY 1ull
#define PLACE_SETS 4096
#define PLACE_WAYS 4

static inline uint64_t where_of(const struct place_key *key) {
    return (uint64_t)key->first_line << 32 | key->is_entry << 31 | key->offset;
}

static inline uint64_t tag_of(const struct place_key *key) {
    uint64_t hash = (key->code ^ key->identity << 20 ^ where_of(key) * 0x9e3779b97f4a7c15ull) *
                    0xbf58476d1ce4e5b9ull;
    return (hash ^ hash >> 29) | 2;
}

static inline struct python_place *set_of(const struct python *python, uint64_t tag) {
    return &python->cache[(tag >> 32) % PLACE_SETS * PLACE_WAYS];
}

static ALWAYS_INLINE uint32_t cached_place(const struct python *python, const struct place_key *key,
                                           uint64_t tag) {
    const struct python_place *way = set_of(python, tag);
    for (int i = 0; i < PLACE_WAYS; i++, way++) {
        if (load_acquire(&way->tag) != tag) /* pairs with the release in cache_place */
            continue;
        /* Acquire, so that the second look at the tag comes after these. */
        bool same = load_acquire(&way->code) == key->code &&
                    load_acquire(&way->identity) == key->identity &&
                    load_acquire(&way->where) == where_of(key);
        uint32_t ref = (uint32_t)load_acquire(&way->ref);
        if (same && load_relaxed(&way->tag) == tag)
            return ref;
    }
    return 0;
}

static void cache_place(struct python *python, const struct place_key *key, uint64_t tag,
                        uint32_t ref) {
    struct python_place *set = set_of(python, tag), *way = &set[tag >> 4 & (PLACE_WAYS - 1)];
    for (int i = 0; i < PLACE_WAYS; i++)
        if (!load_relaxed(&set[i].tag)) {
            way = &set[i];
            break;
        }
    uint64_t seen = load_relaxed(&way->tag);
    /* Somebody else is at it: the text is simply looked up again next time. */
    if (seen == PLACE_BUSY || !cas_acq_rel(&way->tag, &seen, PLACE_BUSY))
        return;
    store_release(&way->code, key->code);
    store_release(&way->identity, key->identity);
    store_release(&way->where, where_of(key));
    store_release(&way->ref, ref);
    store_release(&way->tag, tag); /* pairs with cached_place */
}

static uint64_t hash_place(const struct trace_python_place *place) {
    uint64_t hash = (uint64_t)place->file << 32 | place->function;
    hash = (hash ^ (uint64_t)place->line << 20 ^ place->first_line) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ hash >> 31 ^ place->qualified ^ (uint64_t)place->flags << 60) *
           0x94d049bb133111ebull;
    return hash ^ hash >> 29;
}

static bool same_place(const void *owner, uint32_t ref, const void *wanted) {
    const struct trace_python_place *place = trace_at(owner, ref), *key = wanted;
    return place->file == key->file && place->function == key->function &&
           place->qualified == key->qualified && place->line == key->line &&
           place->first_line == key->first_line && place->flags == key->flags;
}

static uint32_t add_place(struct python *python, const struct trace_python_place *key) {
    struct trace_writer *trace = python->trace;
    uint64_t hash = hash_place(key);
    uint32_t ref = index_find(&python->places, hash, same_place, trace, key);
    if (ref)
        return ref;
    struct trace_python_place *place = NULL;
    if (index_has_room(&python->places))
        place = trace_append(trace, TRACE_SECTION_PYTHON_PLACES, sizeof *place, sizeof *place);
    if (!place)
        return 0;
    *place = *key;
    store_release(&place->state, 1u); /* pairs with the reader */
    return index_add(&python->places, hash, trace_ref(trace, place), same_place, trace, key);
}

/* Makes the text of a place. False: something in it is not what it should be. */
static __attribute__((noinline)) bool make_place(struct python *python, const struct reader *r,
                                                 const struct place_key *key, uint32_t *ref) {
    const struct python_layout *l = r->layout;
    uintptr_t file, name, qualified = 0;
    struct trace_python_place place = {
        .first_line = key->first_line,
        .flags = key->is_entry ? TRACE_PLACE_ENTRY : 0,
    };
    if (!read_word(r, key->code + l->file, &file) || !keep_text(python, r, file, &place.file) ||
        !read_word(r, key->code + l->name, &name) || !keep_text(python, r, name, &place.function))
        return false;
    if (l->qualified != PYTHON_NO_FIELD && (!read_word(r, key->code + l->qualified, &qualified) ||
                                            !keep_text(python, r, qualified, &place.qualified)))
        return false;
    int64_t line = line_of(r, key);
    if (line < 0 || line > INT32_MAX)
        return false;
    place.line = (uint32_t)line;
    *ref = add_place(python, &place);
    if (*ref)
        cache_place(python, key, tag_of(key), *ref);
    return true;
}

static ALWAYS_INLINE bool find_place(struct python *python, const struct reader *r,
                                     const struct place_key *key, uint32_t *ref) {
    *ref = cached_place(python, key, tag_of(key));
    if (__builtin_expect(*ref != 0, 1))
        return true;
    const struct place_key cold = *key; /* so that the hot one can stay in registers */
    return make_place(python, r, &cold, ref);
}

/* ---- stacks ---------------------------------------------------------------------------------- */

struct python_stack {
    uint64_t hash;
    uint32_t depth;
    uint32_t flags;
    uint32_t places[PYTHON_DEPTH_MAX];
};

/* Takes the frames from `frame` on, innermost first. False: something is not what it should be. */
static ALWAYS_INLINE bool collect(struct python *python, const struct reader *r, bool direct,
                                  uintptr_t frame, struct python_stack *stack) {
    uint32_t depth = 0, flags = TRACE_STACK_VALID;
    for (unsigned visits = 0; frame; visits++) {
        struct place_key key;
        enum frame_kind kind = look_at(r, direct, frame, &key, &frame);
        if (kind == FRAME_BAD)
            return false;
        if (visits == VISITS_MAX || (kind == FRAME_PYTHON && depth == PYTHON_DEPTH_MAX)) {
            flags |= TRACE_STACK_TRUNCATED;
            break;
        }
        if (kind == FRAME_PYTHON && !find_place(python, r, &key, &stack->places[depth++]))
            return false;
    }
    stack->depth = depth;
    stack->flags = flags;
    return true;
}

/* The same, made once for each way of reading: the direct one is the hot path. */
static bool collect_direct(struct python *python, uintptr_t frame, struct python_stack *stack) {
    const struct reader r = {&python->layout, &python->names, ACCESS_DIRECT};
    return collect(python, &r, true, frame, stack);
}

static __attribute__((noinline)) bool collect_copying(struct python *python, const struct reader *r,
                                                      uintptr_t frame, struct python_stack *stack) {
    return collect(python, r, false, frame, stack);
}

static uint64_t hash_stack(const struct python_stack *stack) {
    uint64_t hash = stack->depth ^ (uint64_t)stack->flags << 32;
    for (uint32_t i = 0; i < stack->depth; i++) {
        hash = (hash ^ stack->places[i]) * 0xbf58476d1ce4e5b9ull;
        hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
}

static bool same_stack(const void *owner, uint32_t ref, const void *wanted) {
    const struct trace_python_stack *stack = trace_at(owner, ref);
    const struct python_stack *key = wanted;
    return stack->hash == key->hash && stack->depth == key->depth && stack->flags == key->flags &&
           !memcmp(stack->places, key->places, key->depth * sizeof *key->places);
}

static __attribute__((noinline)) uint32_t add_stack(struct python *python,
                                                    const struct python_stack *key) {
    struct trace_writer *trace = python->trace;
    struct trace_python_stack *stack = NULL;
    if (index_has_room(&python->stacks))
        stack = trace_append(trace, TRACE_SECTION_PYTHON_STACKS,
                             (uint32_t)(offsetof(struct trace_python_stack, places) +
                                        key->depth * sizeof *key->places),
                             0);
    uint32_t ref = 0;
    if (stack) {
        stack->depth = key->depth;
        stack->hash = key->hash;
        memcpy(stack->places, key->places, key->depth * sizeof *key->places);
        store_release(&stack->flags, key->flags); /* pairs with the reader */
        ref =
            index_add(&python->stacks, key->hash, trace_ref(trace, stack), same_stack, trace, key);
    }
    if (!ref)
        trace_lose(trace, TRACE_LOSS_STACKS_FULL, 1);
    return ref;
}

static uint32_t keep_stack(struct python *python, struct python_stack *stack) {
    if (!stack->depth)
        return 0;
    if (stack->flags & TRACE_STACK_TRUNCATED)
        trace_lose(python->trace, TRACE_LOSS_STACK_TRUNCATED, 1);
    stack->hash = hash_stack(stack);
    uint32_t ref = index_find(&python->stacks, stack->hash, same_stack, python->trace, stack);
    return ref ? ref : add_stack(python, stack);
}

/* ---- the interpreter ------------------------------------------------------------------------- */

static void turn_off(struct python *python, uint64_t ns, const char *reason) {
    char text[256] = "Python stacks are off: ";
    uint32_t on = load_relaxed(&python->state);
    if (on == PYTHON_OFF || !cas_acq_rel(&python->state, &on, (uint32_t)PYTHON_OFF))
        return;
    strncat(text, reason, sizeof text - 32);
    trace_note(python->trace, TRACE_NOTE_WARNING, ns, text);
}

static void look_for_interpreter(struct python *python, uint64_t ns) {
    if (!python_find_names(&python->names, &python->module))
        return;
    const char *refused = python_choose_layout(&python->names, &python->layout);
    if (refused) {
        turn_off(python, ns, refused);
        return;
    }
    or_relaxed(&python->trace->header->features, (uint64_t)TRACE_FEATURE_PYTHON_STACKS);
    store_release(&python->state, (uint32_t)PYTHON_ON); /* pairs with python_capture */
}

/* A program may load its interpreter late: looked for at the 1st, 2nd, 4th, 8th... event. */
static __attribute__((noinline)) bool is_present(struct python *python, uint64_t ns) {
    uint32_t events = add_relaxed(&python->events, 1) + 1, idle = 0;
    if (load_relaxed(&python->state) == PYTHON_OFF) {
        trace_lose(python->trace, TRACE_LOSS_PYTHON_REFUSED, 1);
        return false;
    }
    if (!(events & (events - 1)) && cas_acq_rel(&python->looking, &idle, 1u)) {
        if (load_acquire(&python->state) == PYTHON_ABSENT)
            look_for_interpreter(python, ns);
        store_release(&python->looking, 0u); /* pairs with the swap above */
    }
    return load_acquire(&python->state) == PYTHON_ON;
}

bool python_init(struct python *python, struct trace_writer *trace, bool wanted) {
    python->trace = trace;
    python->trial = TRIAL;
    if (!wanted) {
        python->state = PYTHON_OFF;
        return true;
    }
    python->cache = trace_private(sizeof(struct python_place) * PLACE_SETS * PLACE_WAYS);
    return python->cache && index_init(&python->strings, STRING_BITS) &&
           index_init(&python->places, PLACE_BITS) && index_init(&python->stacks, STACK_BITS);
}

/* The frame that the thread is in; 0: none. False: not readable. */
static bool current_frame(const struct reader *r, uintptr_t thread, uintptr_t *frame) {
    const struct python_layout *l = r->layout;
    if (!read_word(r, thread + l->thread_frame, frame))
        return false;
    return l->cframe_frame == PYTHON_NO_FIELD || !*frame ||
           read_word(r, *frame + l->cframe_frame, frame);
}

uint32_t python_capture(struct python *python, uint64_t ns) {
    /* Pairs with the release in look_for_interpreter. */
    if (__builtin_expect(load_acquire(&python->state) != PYTHON_ON, 0) && !is_present(python, ns))
        return 0;
    const struct python_names *names = &python->names;
    uintptr_t thread = (uintptr_t)names->this_thread(), frame, owner;
    if (!thread || (names->is_finalizing && names->is_finalizing()))
        return 0;
    struct python_stack stack;
    uint32_t trial = load_relaxed(&python->trial);
    struct reader r = {&python->layout, names, trial ? ACCESS_TRIAL : ACCESS_DIRECT};
    if (trial)
        store_relaxed(&python->trial, trial - 1);
    if (!read_word(&r, thread + r.layout->thread_id, &owner) ||
        owner != (uintptr_t)pthread_self()) {
        turn_off(python, ns, "a thread's state did not name the thread");
        return 0;
    }
    if (!current_frame(&r, thread, &frame) || !(trial ? collect_copying(python, &r, frame, &stack)
                                                      : collect_direct(python, frame, &stack))) {
        turn_off(python, ns, "a frame was not what it should be");
        return 0;
    }
    return keep_stack(python, &stack);
}

/* ---- the thread that waits ------------------------------------------------------------------- */

/* Where a thread is while autograd's threads work for it, by version of PyTorch. */
static const struct {
    const char *file, *function;
} waits[] = {
    {"/torch/autograd/graph.py", "_engine_run_backward"}, /* from 2.3 */
    {"/torch/autograd/__init__.py", "backward"},
    {"/torch/autograd/__init__.py", "grad"},
};

static bool text_ends(const struct reader *r, uintptr_t address, const char *end, bool whole) {
    struct text text;
    struct utf8 u;
    uint8_t bytes[4];
    uint32_t length = (uint32_t)strlen(end);
    if (!find_text(r, address, &text) || text.length < length || (whole && text.length != length))
        return false;
    text.data += (uintptr_t)(text.length - length) * text.width;
    text.length = length;
    open_utf8(&u, r, &text);
    for (; *end; end++)
        if (next_utf8(&u, bytes) != 1 || bytes[0] != (uint8_t)*end)
            return false;
    return true;
}

/* The frame of Python that the thread is in, as a place; false: none, or not readable. */
static bool innermost(const struct reader *r, uintptr_t thread, struct place_key *key) {
    uintptr_t frame;
    if (!current_frame(r, thread, &frame))
        return false;
    for (int visits = 0; frame && visits < 4; visits++) {
        enum frame_kind kind = look_at(r, false, frame, key, &frame);
        if (kind != FRAME_NATIVE)
            return kind == FRAME_PYTHON;
    }
    return false;
}

static bool waits_in_backward(const struct reader *r, uintptr_t thread, struct place_key *key) {
    uintptr_t file, name;
    if (!innermost(r, thread, key) || !read_word(r, key->code + r->layout->file, &file) ||
        !read_word(r, key->code + r->layout->name, &name))
        return false;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (text_ends(r, file, waits[i].file, false) && text_ends(r, name, waits[i].function, true))
            return true;
    return false;
}

/* The one thread that waits; 0: none, several, or the list could not be read. */
static uintptr_t find_waiting(const struct reader *r, uintptr_t interpreter,
                              struct place_key *key) {
    uintptr_t thread = (uintptr_t)r->names->first_thread((void *)interpreter), found = 0;
    for (int i = 0; thread; i++) {
        uintptr_t owner;
        struct place_key seen;
        if (i == THREADS_MAX || !read_word(r, thread + THREAD_INTERPRETER, &owner) ||
            owner != interpreter)
            return 0;
        if (waits_in_backward(r, thread, &seen)) {
            if (found)
                return 0;
            found = thread;
            *key = seen;
        }
        if (!read_word(r, thread + THREAD_NEXT, &thread))
            return 0;
    }
    return found;
}

uint32_t python_waiting(struct python *python) {
    const struct python_names *names = &python->names;
    struct reader r = {&python->layout, names, ACCESS_OTHER};
    struct place_key before, after;
    struct python_stack stack;
    uintptr_t frame, interpreter;
    /* Pairs with the release in look_for_interpreter. */
    if (load_acquire(&python->state) != PYTHON_ON || !names->first_thread ||
        !names->main_interpreter || (names->is_finalizing && names->is_finalizing()))
        return 0;
    /* Asked each time: a program may end its interpreter and begin another. */
    interpreter = (uintptr_t)names->main_interpreter();
    uintptr_t thread = interpreter ? find_waiting(&r, interpreter, &before) : 0;
    if (!thread || !current_frame(&r, thread, &frame) ||
        !collect_copying(python, &r, frame, &stack))
        return 0;
    /* Has it stood still meanwhile? */
    if (!innermost(&r, thread, &after) || memcmp(&before, &after, sizeof before) != 0)
        return 0;
    return keep_stack(python, &stack);
}
