/*
 * long clone_call(int (*function)(void *), void *stack_top, long flags, void *argument)
 *
 * clone(2) by itself: the child calls the function on its own stack and ends with what it returned; the
 * parent gets the child's process id or a negative errno. Not the C library's clone, since sanitizers
 * stand in for that and take the child for a fork.
 */
        .text
        .globl  clone_call
        .hidden clone_call
        .type   clone_call, %function
        .p2align 4
clone_call:
        .cfi_startproc
#if defined(__x86_64__)
        endbr64
        subq    $16, %rsi
        movq    %rcx, (%rsi)
        movq    %rdi, 8(%rsi)
        movq    %rdx, %rdi
        xorl    %edx, %edx
        xorl    %r10d, %r10d
        xorl    %r8d, %r8d
        movl    $56, %eax
        syscall
        testq   %rax, %rax
        je      .Lchild
        ret
.Lchild:
        .cfi_undefined rip
        xorl    %ebp, %ebp
        popq    %rdi
        popq    %rax
        call    *%rax
        movl    %eax, %edi
        movl    $60, %eax
        syscall
        hlt
#elif defined(__aarch64__)
        hint    #34 /* bti c */
        stp     x0, x3, [x1, #-16]!
        mov     x0, x2
        mov     x2, xzr
        mov     x3, xzr
        mov     x4, xzr
        mov     x8, #220
        svc     #0
        cbz     x0, .Lchild
        ret
.Lchild:
        .cfi_undefined x30
        mov     x29, xzr
        ldp     x1, x0, [sp], #16
        blr     x1
        mov     x8, #93
        svc     #0
        brk     #0
#endif
        .cfi_endproc
        .size   clone_call, . - clone_call

        .section .note.GNU-stack, "", %progbits
