/*
 * Where an x86-64 instruction may store: enough of its encoding to say which address its memory
 * operand has. For test_step.c, which looks into the trace only where something may have changed.
 * An instruction that is not understood gives a wrong address or none; test_step.c also compares
 * the whole trace now and then, so that an overlooked store does not pass.
 */
#ifndef STRESS_STEP_DECODE_H
#define STRESS_STEP_DECODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/user.h>

#ifdef __x86_64__

struct step_operand {
    uint64_t pc;    /* of the instruction; 0: unused entry of a cache */
    bool is_memory; /* base + index * scale + displacement */
    bool is_string; /* the destination is at rdi */
    bool is_syscall;
    bool is_call;
    int8_t base, index; /* register numbers; -1: none; base -2: the next instruction */
    uint8_t scale;
    uint8_t length_to_displacement; /* for addresses relative to the next instruction */
    int32_t displacement;
};

struct step_operand step_decode(uint64_t pc, const uint8_t bytes[16]);
uint64_t step_address(const struct step_operand *operand, const struct user_regs_struct *regs);

#endif
#endif
