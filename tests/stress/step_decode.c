/* See step_decode.h. Encodings: the instruction format chapter of the processor's manual. */
#include "step_decode.h"

#ifdef __x86_64__

struct cursor {
    const uint8_t *at;
    uint8_t rex; /* as REX: bits 0 to 2 extend base, index, reg */
    int map;     /* of the opcode: 1, 2 (0F), 3 (0F 38), 4 (0F 3A) */
    bool has_modrm_anyway;
};

static void skip_prefixes(struct cursor *c) {
    for (;; c->at++) {
        switch (*c->at) {
        case 0x26:
        case 0x2e:
        case 0x36:
        case 0x3e:
        case 0x64:
        case 0x65:
        case 0x66:
        case 0x67:
        case 0xf0:
        case 0xf2:
        case 0xf3:
            continue;
        }
        break;
    }
    if ((*c->at & 0xf0) == 0x40)
        c->rex = *c->at++;
}

/* VEX and EVEX hold the register extensions inverted; what follows always has a ModRM byte. */
static void skip_vex(struct cursor *c) {
    uint8_t first = c->at[0];
    c->has_modrm_anyway = true;
    c->map = 2;
    if (first == 0xc5) {
        c->at += 2;
    } else {
        uint8_t inverted = (uint8_t)~c->at[1];
        c->rex = (uint8_t)((inverted >> 5 & 1) | (inverted >> 5 & 2));
        c->at += first == 0xc4 ? 3 : 4;
    }
}

static void find_opcode(struct cursor *c) {
    skip_prefixes(c);
    c->map = 1;
    if (*c->at == 0xc4 || *c->at == 0xc5 || *c->at == 0x62) {
        skip_vex(c);
    } else if (*c->at == 0x0f) {
        c->map = 2;
        c->at++;
        if (*c->at == 0x38 || *c->at == 0x3a)
            c->map = *c->at++ == 0x38 ? 3 : 4;
    }
}

/* Opcodes of one byte that have a ModRM byte. */
static bool one_byte_has_modrm(uint8_t op) {
    if (op < 0x40)
        return (op & 7) < 4;
    return op == 0x63 || op == 0x69 || op == 0x6b || (op >= 0x80 && op <= 0x8f) || op == 0xc0 ||
           op == 0xc1 || op == 0xc6 || op == 0xc7 || (op >= 0xd0 && op <= 0xd3) ||
           (op >= 0xd8 && op <= 0xdf) || op == 0xf6 || op == 0xf7 || op == 0xfe || op == 0xff;
}

/* Opcodes after 0F that have none: system calls, jumps, and a few without operands. */
static bool two_bytes_have_modrm(uint8_t op) {
    return !(op == 0x05 || op == 0x0b || (op >= 0x30 && op <= 0x37) || (op >= 0x80 && op <= 0x8f) ||
             op == 0x77 || op == 0xa0 || op == 0xa1 || op == 0xa2 || op == 0xa8 || op == 0xa9 ||
             (op >= 0xc8 && op <= 0xcf));
}

static int32_t read_displacement(const uint8_t *at, int bytes) {
    if (bytes == 1)
        return (int8_t)at[0];
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                     (uint32_t)at[3] << 24);
}

static void read_modrm(struct step_operand *o, const struct cursor *c, const uint8_t *start) {
    const uint8_t *at = c->at + 1;
    uint8_t mod = *at >> 6, rm = *at & 7;
    int bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    at++;
    o->is_memory = mod != 3;
    o->base = (int8_t)(rm | (c->rex & 1) << 3);
    o->index = -1;
    if (!o->is_memory)
        return;
    if (rm == 4) {
        uint8_t sib = *at++;
        int index = (sib >> 3 & 7) | (c->rex & 2) << 2;
        o->base = (int8_t)((sib & 7) | (c->rex & 1) << 3);
        o->index = (int8_t)(index == 4 ? -1 : index);
        o->scale = (uint8_t)(1 << (sib >> 6));
        if ((sib & 7) == 5 && mod == 0) {
            o->base = -1;
            bytes = 4;
        }
    } else if (rm == 5 && mod == 0) {
        o->base = -2;
        bytes = 4;
    }
    if (bytes)
        o->displacement = read_displacement(at, bytes);
    o->length_to_displacement = (uint8_t)(at - start + bytes);
}

struct step_operand step_decode(uint64_t pc, const uint8_t bytes[16]) {
    struct step_operand o = {.pc = pc, .base = -1, .index = -1};
    struct cursor c = {.at = bytes};
    find_opcode(&c);
    uint8_t op = *c.at;
    if (c.map == 1) {
        o.is_string = (op & 0xfe) == 0xa4 || (op & 0xfe) == 0xaa;
        o.is_call = op == 0xe8;
        if (one_byte_has_modrm(op))
            read_modrm(&o, &c, bytes);
        o.is_call |= op == 0xff && (c.at[1] >> 3 & 7) == 2;
    } else {
        o.is_syscall = c.map == 2 && op == 0x05 && !c.has_modrm_anyway;
        if (c.has_modrm_anyway || c.map != 2 || two_bytes_have_modrm(op))
            read_modrm(&o, &c, bytes);
    }
    return o;
}

static uint64_t register_of(const struct user_regs_struct *r, int number) {
    const unsigned long long all[16] = {r->rax, r->rcx, r->rdx, r->rbx, r->rsp, r->rbp,
                                        r->rsi, r->rdi, r->r8,  r->r9,  r->r10, r->r11,
                                        r->r12, r->r13, r->r14, r->r15};
    return all[number];
}

uint64_t step_address(const struct step_operand *o, const struct user_regs_struct *regs) {
    if (o->is_string)
        return regs->rdi;
    if (!o->is_memory)
        return 0;
    uint64_t address = (uint64_t)(int64_t)o->displacement;
    if (o->base == -2)
        address += regs->rip + o->length_to_displacement;
    else if (o->base >= 0)
        address += register_of(regs, o->base);
    if (o->index >= 0)
        address += register_of(regs, o->index) * o->scale;
    return address;
}

#endif
