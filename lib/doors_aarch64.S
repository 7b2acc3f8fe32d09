/*
 * dlsym and dlvsym for aarch64: see doors_x86_64.S.
 */
#if defined(__aarch64__)

        .text

        .macro  door name, answer, next
        .globl  \name
        .type   \name, %function
        .p2align 4
\name:
        .cfi_startproc
        hint    #34 /* bti c */
        cbz     x1, .Lon_\name
        ldrb    w9, [x1]
        .ifc \name, dlvsym
        cmp     w9, #'d'
        b.eq    .Lask_\name
        .endif
        cmp     w9, #'c'
        b.ne    .Lon_\name
        ldrb    w9, [x1, #1]
        cmp     w9, #'u'
        b.ne    .Lon_\name
        ldrb    w9, [x1, #2]
        sub     w9, w9, #'A'
        cmp     w9, #25
        b.hi    .Lon_\name
.Lask_\name:
        stp     x29, x30, [sp, #-48]!
        .cfi_adjust_cfa_offset 48
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        stp     x0, x1, [sp, #16]
        str     x2, [sp, #32]
        mov     x29, sp
        .ifc \name, dlsym
        mov     x2, x30
        .else
        mov     x3, x30
        .endif
        bl      \answer
        mov     x16, x1
        cbnz    x16, .Lback_\name
        ldp     x29, x30, [sp], #48
        ret
.Lback_\name:
        ldp     x0, x1, [sp, #16]
        ldr     x2, [sp, #32]
        ldp     x29, x30, [sp], #48
        .cfi_adjust_cfa_offset -48
        br      x16
.Lon_\name:
        adrp    x16, \next
        ldr     x16, [x16, :lo12:\next]
        cbz     x16, .Learly_\name
        br      x16
.Learly_\name:
        stp     x29, x30, [sp, #-48]!
        .cfi_adjust_cfa_offset 48
        stp     x0, x1, [sp, #16]
        str     x2, [sp, #32]
        mov     x29, sp
        bl      resolve_init
        ldp     x0, x1, [sp, #16]
        ldr     x2, [sp, #32]
        ldp     x29, x30, [sp], #48
        .cfi_adjust_cfa_offset -48
        adrp    x16, \next
        ldr     x16, [x16, :lo12:\next]
        br      x16
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .hidden resolve_dlsym, resolve_dlvsym, resolve_init
        .hidden resolve_next_dlsym, resolve_next_dlvsym

        door    dlsym, resolve_dlsym, resolve_next_dlsym
        door    dlvsym, resolve_dlvsym, resolve_next_dlvsym

#endif
        .section .note.GNU-stack, "", %progbits
