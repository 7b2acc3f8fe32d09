/*
 * Memory for the simulated driver's own records: powers of two from anonymous mappings, with free
 * lists. Not malloc, because a malloc interposer in the traced program may call CUDA while the
 * driver's lock is held. Called with that lock held.
 */
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

#define LEAST_SHIFT 5
#define MOST_SHIFT  16
#define SLAB_BYTES  ((size_t)1 << 20)

struct free_record {
    struct free_record *next;
};
static struct free_record *free_records[MOST_SHIFT + 1];
static char *slab, *slab_end;

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        driver_abort("no memory for %zu bytes of records", bytes);
    return memory;
}

static int shift_of(size_t bytes) {
    int shift = LEAST_SHIFT;

    while (((size_t)1 << shift) < bytes)
        shift++;
    return shift;
}

void *store_take(size_t bytes) {
    int shift = shift_of(bytes);

    if (shift > MOST_SHIFT)
        return map(bytes);
    struct free_record *record = free_records[shift];
    if (record) {
        free_records[shift] = record->next;
        return memset(record, 0, bytes);
    }
    if ((size_t)(slab_end - slab) < (size_t)1 << shift) {
        slab = map(SLAB_BYTES);
        slab_end = slab + SLAB_BYTES;
    }
    slab += (size_t)1 << shift;
    return slab - ((size_t)1 << shift);
}

void store_give(void *memory, size_t bytes) {
    int shift = shift_of(bytes);

    if (shift > MOST_SHIFT) {
        munmap(memory, bytes);
        return;
    }
    struct free_record *record = memory;
    record->next = free_records[shift];
    free_records[shift] = record;
}
