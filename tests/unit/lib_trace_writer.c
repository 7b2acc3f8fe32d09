/*
 * The trace file and the settings: creation, growth, refusal.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "trace_writer.h"

static char folder[64];
static char path[128];
static struct trace_header *header;
static struct trace_writer t;

static void prepare(void) {
    strcpy(folder, "/tmp/cuheap-unit-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t", folder);
    header = calloc(1, TRACE_HEADER_BYTES);
}

static void tidy(void) {
    unlink(path);
    rmdir(folder);
    free(header);
}

TestSuite(trace_writer, .init = prepare, .fini = tidy);

Test(trace_writer, makes_a_private_file_and_a_whole_header) {
    struct stat file;
    mode_t before = umask(0);
    cr_assert_eq(trace_create(&t, path, 0600, 8 << 20, header), 0);
    umask(before);
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_eq(file.st_mode & 07777, 0600);
    cr_assert_leq(file.st_size, 4 << 20);
    cr_assert_arr_eq(t.header->magic, TRACE_MAGIC, 8);
    cr_assert_eq(t.header->major, TRACE_MAJOR);
    cr_assert_eq(t.header->file_inode, file.st_ino);
    cr_assert_eq(t.header->state, TRACE_STATE_RUNNING);
}

Test(trace_writer, opens_the_file_to_others_only_as_asked) {
    struct stat file;
    mode_t before = umask(077);
    cr_assert_eq(trace_create(&t, path, 0644, 8 << 20, header), 0);
    umask(before);
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_eq(file.st_mode & 07777, 0644);
}

Test(trace_writer, takes_no_file_that_is_there) {
    cr_assert_eq(trace_create(&t, path, 0600, 8 << 20, header), 0);
    struct trace_writer second = {0};
    cr_assert_eq(trace_create(&second, path, 0600, 8 << 20, header), EEXIST);
    cr_assert_null(second.base);
}

Test(trace_writer, follows_no_symbolic_link) {
    char target[160];
    snprintf(target, sizeof target, "%s/target", folder);
    cr_assert_eq(symlink(target, path), 0);
    int rc = trace_create(&t, path, 0600, 8 << 20, header);
    cr_assert(rc == EEXIST || rc == ELOOP);
    cr_assert_neq(access(target, F_OK), 0);
}

Test(trace_writer, grows_in_steps_and_stops_at_the_limit) {
    cr_assert_eq(trace_create(&t, path, 0600, 4 << 20, header), 0);
    uint64_t bytes = 0;
    void *record;
    while ((record = trace_append(&t, TRACE_SECTION_SITES, sizeof(struct trace_site),
                                  sizeof(struct trace_site)))) {
        memset(record, 0xff, sizeof(struct trace_site)); /* there is memory behind it */
        bytes += sizeof(struct trace_site);
        cr_assert_leq(bytes, 4 << 20);
    }
    cr_assert_gt(bytes, 3 << 20);
    cr_assert_gt(t.header->losses[TRACE_LOSS_SPACE_GROW_FAILED], 0);
    struct stat file;
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_leq(file.st_size, 4 << 20);
}

Test(trace_writer, does_not_grow_a_file_that_is_not_its_own) {
    cr_assert_eq(trace_create(&t, path, 0600, 64 << 20, header), 0);
    unlink(path);
    FILE *other = fopen(path, "w");
    fputs("somebody else's", other);
    fclose(other);
    cr_assert_null(trace_add_region(&t, TRACE_SECTION_LIVE_TABLE, 8 << 20, 32));
    struct stat file;
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_eq(file.st_size, 15);
}

Test(trace_writer, strings_come_back) {
    cr_assert_eq(trace_create(&t, path, 0600, 8 << 20, header), 0);
    cr_assert_eq(trace_add_string(&t, ""), 0);
    char longest[70001];
    memset(longest, 'x', 70000);
    longest[70000] = 0;
    const struct trace_string *s = trace_at(&t, trace_add_string(&t, longest));
    cr_assert_eq(s->bytes, 65535);
    s = trace_at(&t, trace_add_string(&t, "train.py"));
    cr_assert_eq(s->bytes, 8);
    cr_assert_str_eq(s->text, "train.py");
}

Test(trace_writer, seals_once) {
    cr_assert_eq(trace_create(&t, path, 0600, 8 << 20, header), 0);
    trace_seal(&t, 123, 7);
    trace_seal(&t, 456, -1);
    cr_assert_eq(t.header->state, TRACE_STATE_SEALED);
    cr_assert_eq(t.header->sealed_ns, 123);
    cr_assert_eq(t.header->exit_code, 7);
}

static void *append_many(void *mark) {
    for (int i = 0; i < 3000; i++) {
        struct trace_mark *record = trace_append(&t, TRACE_SECTION_MARKS, sizeof *record, 24);
        cr_assert_not_null(record);
        cr_assert_eq(record->state, 0, "nobody else was given this memory");
        record->state = 1;
        record->thread = (uint32_t)(uintptr_t)mark;
    }
    return NULL;
}

Test(trace_writer, eight_threads_get_memory_of_their_own) {
    pthread_t threads[8];
    cr_assert_eq(trace_create(&t, path, 0600, 64 << 20, header), 0);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, append_many, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    uint64_t found[8] = {0};
    for (uint32_t i = 0; i < t.header->directory_count; i++) {
        const struct trace_region *r =
            (const struct trace_region *)(t.base + TRACE_DIRECTORY_OFFSET) + i;
        uint64_t end = r->claimed < r->bytes ? r->claimed : r->bytes;
        const struct trace_mark *mark = (const void *)(t.base + r->offset);
        for (uint64_t n = end / sizeof *mark; n--; mark++)
            found[mark->thread] += mark->state;
    }
    for (int i = 0; i < 8; i++)
        cr_assert_eq(found[i], 3000);
}

/* ---- settings
 * --------------------------------------------------------------------------------------------- */

Test(config, sizes) {
    static const struct {
        const char *text;
        uint64_t bytes;
        bool good;
    } rows[] = {
        {"4096", 4096, true},
        {"64M", 64ull << 20, true},
        {"1GiB", 1ull << 30, true},
        {"2k", 2048, true},
        {"3KB", 3072, true},
        {"64 ", 0, false},
        {"", 0, false},
        {"M", 0, false},
        {"12X", 0, false},
        {"-1", 0, false},
        {"1Mi5", 0, false},
        {"99999999999T", 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t bytes = 0;
        cr_assert_eq(config_size(rows[i].text, &bytes), rows[i].good, "%s", rows[i].text);
        if (rows[i].good)
            cr_assert_eq(bytes, rows[i].bytes, "%s", rows[i].text);
    }
}

Test(config, rank_lists) {
    cr_assert(config_in_list("0,8", 8));
    cr_assert(config_in_list("0,8-16", 12));
    cr_assert_not(config_in_list("0,8", 1));
    cr_assert_not(config_in_list("", 0));
    cr_assert_not(config_in_list("x", 0));
    cr_assert_not(config_in_list("1-", 1));
}

Test(config, reads_the_environment_and_notes_what_it_does_not_know) {
    setenv("CUHEAP_STACKS", "none", 1);
    setenv("CUHEAP_MAX_SIZE", "32M", 1);
    setenv("CUHEAP_DEPTH", "1000", 1);
    setenv("CUHEAP_MODE", "640", 1);
    setenv("CUHEAP_OUTT", "x", 1);
    setenv("CUHEAP_LIMIT", "1G", 1);
    config_read();
    cr_assert_eq(config.stacks, CONFIG_STACKS_NONE);
    cr_assert_eq(config.max_size, 32u << 20);
    cr_assert_eq(config.depth, 64, "a value out of range leaves the default");
    cr_assert_eq(config.mode, 0640);
    cr_assert_str_eq(config.unknown, "CUHEAP_DEPTH=1000, CUHEAP_OUTT");
}
