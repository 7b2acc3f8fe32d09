/*
 * dlsym and dlvsym. The real ones tell their caller by the return address, so every look-up that is
 * none of ours must reach them by a jump, with registers and stack as they came: that cannot be
 * written in C. A name that does not begin with "cu" and a capital goes straight on; but dlvsym also
 * asks about names in "d": other interposers look for the next dlsym by its version.
 */
#if defined(__x86_64__)

        .text

/* name, C function that answers, variable with the real one */
        .macro  door name, answer, next
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        testq   %rsi, %rsi
        je      .Lon_\name
        .ifc \name, dlvsym
        cmpb    $'d', (%rsi)
        je      .Lask_\name
        .endif
        cmpb    $'c', (%rsi)
        jne     .Lon_\name
        cmpb    $'u', 1(%rsi)
        jne     .Lon_\name
        movzbl  2(%rsi), %eax
        subl    $'A', %eax
        cmpl    $25, %eax
        ja      .Lon_\name
.Lask_\name:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        /* dlsym(handle, name): third argument caller; dlvsym(handle, name, version): fourth */
        movq    24(%rsp), %rcx
        .ifc \name, dlsym
        movq    %rcx, %rdx
        .endif
        call    \answer
        movq    %rdx, %r11
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %r11, %r11
        jne     .Ljump_\name
        ret
.Ljump_\name:
        jmp     *%r11
.Lon_\name:
        movq    \next(%rip), %r11
        testq   %r11, %r11
        jne     .Ljump_\name
        /* before the library's constructor has run */
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        call    resolve_init
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmp     *\next(%rip)
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .hidden resolve_dlsym, resolve_dlvsym, resolve_init
        .hidden resolve_next_dlsym, resolve_next_dlvsym

        door    dlsym, resolve_dlsym, resolve_next_dlsym
        door    dlvsym, resolve_dlvsym, resolve_next_dlvsym

#endif
        .section .note.GNU-stack, "", @progbits
