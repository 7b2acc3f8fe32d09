// LINK: @O@/simgpu/libcuda.so.1
/*
 * A host that closes every descriptor and opens its own, while stacks go through frames without
 * unwind information: no byte may be written to the host's files, and no number taken from them.
 */
#include "cuda_sim.h"
#include "ledger.h"

#include <fcntl.h>
#include <unistd.h>

#define FILES 8

void without_cfi(void (*function)(void));
#ifdef __aarch64__
__asm__(".text\n.globl without_cfi\n.type without_cfi, %function\nwithout_cfi:\n"
        "    stp x29, x30, [sp, -16]!\n    mov x29, sp\n    blr x0\n"
        "    ldp x29, x30, [sp], 16\n    ret\n");
#else
__asm__(".text\n.globl without_cfi\n.type without_cfi, @function\nwithout_cfi:\n"
        "    push %rbp\n    mov %rsp, %rbp\n    sub $64, %rsp\n    call *%rdi\n"
        "    leave\n    ret\n");
#endif

static int taken;

PLACE void take(void) {
    CUdeviceptr block;
    MUST(cuMemAlloc_v2(&block, 4096));
    taken++;
}

/* Frames of nine thousand bytes: each stack lies on other pages than the last. */
PLACE int deep(int depth) {
    volatile char room[9000];
    room[0] = (char)depth;
    if (depth > 0)
        return deep(depth - 1) + room[0];
    without_cfi(take);
    return room[0];
}

int main(void) {
    CUcontext context;
    int files[FILES];
    char name[32], text[64];
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    deep(3);
    printf("next descriptor %d\n", open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "host-file-%d", i);
        files[i] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        MUST(write(files[i], "host data", 9) != 9);
        lseek(files[i], 0, SEEK_SET);
    }
    for (int i = 0; i < 40; i++)
        deep(i);
    for (int i = 0; i < FILES; i++) {
        long offset = lseek(files[i], 0, SEEK_CUR);
        ssize_t got = pread(files[i], text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = 0;
        printf("descriptor %d, offset %ld, \"%s\"\n", files[i], offset, text);
    }
    printf("%d blocks\n", taken);
    return 0;
}
