/* A file system's fallocate(2), as a program wants it to be: see space.c. Preloaded. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

void fallocate_fails(int error);

static _Atomic int answer;

/* From now on with this error; 0: it works. */
void fallocate_fails(int error) {
    atomic_store(&answer, error);
}

int fallocate(int fd, int mode, off_t from, off_t bytes) {
    int error = atomic_load(&answer);
    if (!error)
        return (int)syscall(SYS_fallocate, fd, mode, from, bytes);
    errno = error;
    return -1;
}

int fallocate64(int fd, int mode, off_t from, off_t bytes) __attribute__((alias("fallocate")));
