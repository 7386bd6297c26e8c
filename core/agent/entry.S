/* SPDX-License-Identifier: MIT */
/*
 * The agent's first instructions. %rbx holds the address of the thread's seat;
 * nothing else is known, the stack pointer is the thread's own.
 */
#include "offsets.h"

	.section .text.entry, "ax", @progbits
	.globl agent_entry
agent_entry:
	lea	SEAT_STACK_TOP(%rbx), %rsp
	mov	%rbx, %rdi
	xor	%ebp, %ebp
	call	agent_main
	ud2

/*
 * agent_jump(const uint64_t regs[9]): load the registers of a system call and
 * jump to a "syscall; ret" outside the segment, on a stack outside it too: the
 * memory that this code is in may be gone when the call returns.
 * Order: rax rdi rsi rdx r10 r8 r9 rsp rip.
 */
	.section .text, "ax", @progbits
	.globl agent_jump
agent_jump:
	mov	%rdi, %rbx
	mov	0(%rbx), %rax
	mov	8(%rbx), %rdi
	mov	16(%rbx), %rsi
	mov	24(%rbx), %rdx
	mov	32(%rbx), %r10
	mov	40(%rbx), %r8
	mov	48(%rbx), %r9
	mov	56(%rbx), %rsp
	jmp	*64(%rbx)
	.section .note.GNU-stack, "", @progbits
