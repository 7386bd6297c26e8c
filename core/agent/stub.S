/* SPDX-License-Identifier: MIT */
/*
 * The program that a skeleton executes: one page. The engine stops it at its
 * first instruction and uses its system call instruction to map the agent.
 */
	.text
	.globl _start
_start:
	syscall
	ud2
	.section .note.GNU-stack, "", @progbits
